import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramet.runtime.prompts.text import TextResult, TextStream
from ramet.runtime.prompts.tokenizer import Tokenizer
from ramet.runtime.protocol import InvalidRequestError, SamplingParams

from .tiny_tokenizers import write_gguf


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    return Tokenizer.from_gguf(write_gguf(path))


def of_byte(tokenizer: Tokenizer, byte: int) -> int:
    ids = range(tokenizer.vocab_size)
    return next(token for token in ids if tokenizer.token_bytes(token) == bytes([byte]))


def run(
    tokenizer: Tokenizer,
    ids: list[int],
    stop: tuple[str, ...] = (),
    minimum: int = 0,
    patterns: tuple[str, ...] = (),
    trim: bool = True,
) -> tuple[TextResult, list[str]]:
    """Push the ids until a match ends the text; return the result and the deltas."""
    sampling = SamplingParams(
        stop=stop,
        stop_regex=patterns,
        no_stop_trim=not trim,
        min_new_tokens=minimum,
        max_new_tokens=None,
    )
    stream = TextStream(tokenizer, sampling)
    deltas = []
    for token in ids:
        is_over = stream.push(token)
        deltas.append(stream.take())
        if is_over:
            break
    result = stream.finish()
    deltas.append(stream.take())
    return result, deltas


def check(tokenizer: Tokenizer, text: str, stop: tuple[str, ...], want: str) -> TextResult:
    for ids in (tokenizer.encode(text), [of_byte(tokenizer, byte) for byte in text.encode()]):
        result, deltas = run(tokenizer, ids, stop)
        assert result.text == want
        assert "".join(deltas) == want
        assert tokenizer.decode(ids[: result.num_kept]) + result.tail == want
    return result


def test_of_matches_that_end_together_the_longest_wins(tokenizer: Tokenizer) -> None:
    assert check(tokenizer, "say stop now", ("op", "stop", "p"), "say ").matched == "stop"


@pytest.mark.parametrize(
    ("stop", "patterns"), [(("stop", "\ufffd and"), ()), ((), ("x.*y",))], ids=["stop", "pattern"]
)
def test_work_grows_with_the_text(
    tokenizer: Tokenizer, stop: tuple[str, ...], patterns: tuple[str, ...]
) -> None:
    """Copies of the whole text at each token would cost 100 times more bytes than there are."""
    stream = TextStream(tokenizer, SamplingParams(stop=stop, stop_regex=patterns))
    ids = [*tokenizer.encode("a é b " * 4), of_byte(tokenizer, 0x80)]
    shown = []
    rounds = 100_000 // len(ids)
    for token in ids * rounds:
        assert not stream.push(token)
        shown.append(stream.take())
    longest = max(map(len, shown))
    assert longest <= 8
    assert stream.finish().text == "".join(shown) + stream.take()


def test_a_cut_token_leaves_its_beginning_as_text(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode(" answer")
    assert len(ids) == 1
    result, _ = run(tokenizer, [*tokenizer.encode("The"), *ids], ("swer",))
    assert result == TextResult(len(tokenizer.encode("The")), "The an", " an", "swer")


def test_a_kept_run_does_not_end_inside_a_character(tokenizer: Tokenizer) -> None:
    first, *rest = "é".encode()
    ids = [of_byte(tokenizer, byte) for byte in (0x61, first, *rest)]
    result, _ = run(tokenizer, ids, ("\u00e9",))
    assert result == TextResult(1, "a", "", "é")


def test_half_a_character_at_the_end_is_kept_and_shown_as_a_replacement(
    tokenizer: Tokenizer,
) -> None:
    ids = [of_byte(tokenizer, byte) for byte in "日".encode()[:2]]
    result, deltas = run(tokenizer, ids)
    assert deltas == ["", "", "\ufffd"]
    assert result == TextResult(2, "\ufffd", "", None)


def test_special_tokens_are_silent_unless_asked_for(tokenizer: Tokenizer) -> None:
    ids = [*tokenizer.encode("a"), 1, *tokenizer.encode("b")]
    assert run(tokenizer, ids)[0] == TextResult(3, "ab", "", None)
    stream = TextStream(tokenizer, SamplingParams(skip_special_tokens=False))
    for token in ids:
        stream.push(token)
    assert stream.finish().text == "a<|im_start|>b"


def test_tokens_after_the_stop_change_nothing(tokenizer: Tokenizer) -> None:
    stream = TextStream(tokenizer, SamplingParams(stop=(".",)))
    ids = [of_byte(tokenizer, byte) for byte in b"a.b"]
    assert [stream.push(token) for token in ids] == [False, True, True]
    assert stream.finish() == TextResult(1, "a", "", ".")


def test_a_pattern_ends_the_text_where_its_match_begins(tokenizer: Tokenizer) -> None:
    ids = [of_byte(tokenizer, byte) for byte in "born é1999- or".encode()]
    result, deltas = run(tokenizer, ids, patterns=(r"é\d{4}-", "or x"))
    assert result == TextResult(5, "born ", "", r"é\d{4}-")
    assert "".join(deltas) == "born "


def test_of_a_string_and_a_pattern_that_end_together_the_longer_wins(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("say 12 stop now")
    assert run(tokenizer, ids, ("stop",), patterns=(r"\d+ stop",))[0].matched == r"\d+ stop"
    assert run(tokenizer, ids, ("2 stop",), patterns=("s.op",))[0].matched == "2 stop"
    assert run(tokenizer, ids, ("sto",), patterns=(r"\d+ stop",))[0].matched == "sto"


def test_what_may_become_a_match_of_a_pattern_is_held_back(tokenizer: Tokenizer) -> None:
    ids = [of_byte(tokenizer, byte) for byte in b"ab12c34"]
    result, deltas = run(tokenizer, ids, patterns=(r"\d+x",))
    assert deltas == ["a", "b", "", "", "12c", "", "", "34"]
    assert result == TextResult(7, "ab12c34", "", None)


def test_without_trim_the_match_stays_and_what_follows_it_in_its_token_does_not(
    tokenizer: Tokenizer,
) -> None:
    ids = [*tokenizer.encode("The"), *tokenizer.encode(" answer"), *tokenizer.encode(" is")]
    for options in ({"stop": ("answ",)}, {"patterns": ("an[rs]w",)}):
        result, deltas = run(tokenizer, ids, trim=False, **options)  # type: ignore[arg-type]
        assert result.text == "".join(deltas) == "The answ"
        assert (result.num_kept, result.tail) == (len(tokenizer.encode("The")), " answ")
    whole, _ = run(tokenizer, ids, (" answer",), trim=False)
    assert (whole.num_kept, whole.text, whole.tail) == (len(ids) - 1, "The answer", "")


def test_a_wrong_pattern_is_refused_before_the_first_token(tokenizer: Tokenizer) -> None:
    with pytest.raises(InvalidRequestError, match="look-ahead"):
        TextStream(tokenizer, SamplingParams(stop_regex=("a(?=b)",)))


STOPS = st.lists(st.text("ab\né🦙", min_size=1, max_size=4), max_size=3, unique=True).map(tuple)
BYTES = st.lists(st.sampled_from([*"abé🦙\n".encode(), 0x80, 0xF0, 0xFF]), max_size=40)


PATTERNS = st.lists(
    st.sampled_from(["a+b", "[é🦙]b?a", "\n\n|bb", ".b", "\ufffd[ab]", "(a|é)+\n", "b[^b]{2,4}b"]),
    max_size=2,
    unique=True,
).map(tuple)


@given(data=BYTES, stop=STOPS, patterns=PATTERNS, minimum=st.integers(0, 4), trim=st.booleans())
@settings(max_examples=300, deadline=None)
def test_deltas_are_the_text_whatever_the_tokens(
    tokenizer: Tokenizer,
    data: list[int],
    stop: tuple[str, ...],
    patterns: tuple[str, ...],
    minimum: int,
    trim: bool,
) -> None:
    ids = [of_byte(tokenizer, byte) for byte in data]
    result, deltas = run(tokenizer, ids, stop, minimum, patterns, trim)
    assert "".join(deltas) == result.text
    kept = tokenizer.decode(ids[: result.num_kept])
    assert kept + result.tail == result.text
    if result.matched is None:
        assert result.text == bytes(data).decode(errors="replace")


@given(
    data=st.lists(
        st.sampled_from(["ab", "a", " the answer", "é", "🦙", "\n\n", "yes."]), max_size=12
    ),
    stop=st.lists(st.sampled_from(["b", "an", "answer", "🦙", "\n", "s.", "é"]), max_size=3).map(
        tuple
    ),
)
@settings(max_examples=150, deadline=None)
def test_the_earliest_complete_match_ends_the_text(
    tokenizer: Tokenizer, data: list[str], stop: tuple[str, ...]
) -> None:
    text = "".join(data)
    found = [(text.find(s) + len(s), -len(s)) for s in stop if s in text]
    want = text[: sum(min(found))] if found else text
    result, deltas = run(tokenizer, tokenizer.encode(text), stop)
    assert result.text == want
    assert "".join(deltas) == want
    assert "\ufffd" not in want
