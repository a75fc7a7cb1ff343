import itertools
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramet.runtime.prompts.text import TextResult, TextStream
from ramet.runtime.prompts.tokenizer import Tokenizer
from ramet.runtime.protocol import SamplingParams

from .tiny_tokenizers import write_gguf


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    return Tokenizer.from_gguf(write_gguf(path))


def of_byte(tokenizer: Tokenizer, byte: int) -> int:
    ids = range(tokenizer.vocab_size)
    return next(token for token in ids if tokenizer.token_bytes(token) == bytes([byte]))


def run(
    tokenizer: Tokenizer, ids: list[int], stop: tuple[str, ...] = (), minimum: int = 0
) -> tuple[TextResult, list[str]]:
    """Push the ids until a stop string ends the text; return the result and the deltas."""
    sampling = SamplingParams(stop=stop, min_new_tokens=minimum, max_new_tokens=None)
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


def test_f20_a_stop_string_inside_the_text_is_never_shown(tokenizer: Tokenizer) -> None:
    result = check(tokenizer, "ABCDEFGHIJKLM", ("DEFGHIJ",), "ABC")
    assert result.matched == "DEFGHIJ"


def test_f21_nothing_of_the_stop_string_is_kept(tokenizer: Tokenizer) -> None:
    check(tokenizer, "Say: Observation done", ("Observation",), "Say: ")


def test_f23_a_newline_that_is_part_of_a_longer_token_stops(tokenizer: Tokenizer) -> None:
    check(tokenizer, "Answer\n\nmore\n", ("\n",), "Answer")


def test_f25_the_order_of_the_stop_list_does_not_matter(tokenizer: Tokenizer) -> None:
    for stop in itertools.permutations(["]", ",", '"']):
        check(tokenizer, 'John", "Mary"]', stop, "John")


def test_f26_the_match_that_is_complete_first_wins(tokenizer: Tokenizer) -> None:
    result = check(tokenizer, "top with k=1 was mentioned", ("k=1 was", "1"), "top with k=")
    assert result.matched == "1"


def test_of_matches_that_end_together_the_longest_wins(tokenizer: Tokenizer) -> None:
    assert check(tokenizer, "say stop now", ("op", "stop", "p"), "say ").matched == "stop"


def test_f27_characters_of_several_bytes_come_whole(tokenizer: Tokenizer) -> None:
    check(tokenizer, "hej 🦙🦙 världen slut", ("världen",), "hej 🦙🦙 ")


def test_f28_a_stop_string_inside_a_joined_emoji(tokenizer: Tokenizer) -> None:
    assert check(tokenizer, "ab👩‍🚀cd", ("🚀",), "ab👩‍").matched == "🚀"


def test_f30_a_stop_string_counts_from_the_minimum_on(tokenizer: Tokenizer) -> None:
    ids = [of_byte(tokenizer, byte) for byte in b"ab\n" * 20]
    result, deltas = run(tokenizer, ids, ("\n",), minimum=12)
    assert result.text == "ab\nab\nab\nab"  # earlier newlines stay in the text
    assert result.num_kept == 11
    assert "".join(deltas) == result.text
    result, _ = run(tokenizer, ids, ("\n",), minimum=13)
    assert result.text == "ab\n" * 4 + "ab"


def test_a29_a_held_back_tail_is_flushed_and_the_rest_is_not_delayed(tokenizer: Tokenizer) -> None:
    ids = [of_byte(tokenizer, byte) for byte in b"abcdefghZZZ"]
    result, deltas = run(tokenizer, ids, ("ZZZZZZZZZZZZ",))
    assert deltas == [*"abcdefgh", "", "", "", "ZZZ"]
    assert result.text == "abcdefghZZZ"


def test_a50_bytes_that_are_no_characters_come_as_replacements_in_linear_time(
    tokenizer: Tokenizer,
) -> None:
    token = of_byte(tokenizer, 0x80)
    result, deltas = run(tokenizer, [token] * 300, ("stop",))
    assert deltas[:300] == ["\ufffd"] * 300
    assert result == TextResult(300, "\ufffd" * 300, "", None)
    seconds = {}
    for length in (5_000, 20_000):
        start = time.process_time()
        run(tokenizer, [token] * length, ("stop", "\ufffd\ufffd and"))
        seconds[length] = time.process_time() - start
    assert seconds[20_000] < 16 * seconds[5_000]


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
    stream = TextStream(tokenizer, SamplingParams(), skip_special=False)
    for token in ids:
        stream.push(token)
    assert stream.finish().text == "a<|im_start|>b"


def test_tokens_after_the_stop_change_nothing(tokenizer: Tokenizer) -> None:
    stream = TextStream(tokenizer, SamplingParams(stop=(".",)))
    ids = [of_byte(tokenizer, byte) for byte in b"a.b"]
    assert [stream.push(token) for token in ids] == [False, True, True]
    assert stream.finish() == TextResult(1, "a", "", ".")


STOPS = st.lists(st.text("ab\né🦙", min_size=1, max_size=4), max_size=3, unique=True).map(tuple)
BYTES = st.lists(st.sampled_from([*"abé🦙\n".encode(), 0x80, 0xF0, 0xFF]), max_size=40)


@given(data=BYTES, stop=STOPS, minimum=st.integers(0, 4))
@settings(max_examples=200, deadline=None)
def test_deltas_are_the_text_whatever_the_tokens(
    tokenizer: Tokenizer, data: list[int], stop: tuple[str, ...], minimum: int
) -> None:
    ids = [of_byte(tokenizer, byte) for byte in data]
    result, deltas = run(tokenizer, ids, stop, minimum)
    assert "".join(deltas) == result.text
    kept = tokenizer.decode(ids[: result.num_kept])
    assert kept + result.tail == result.text
    assert (result.matched is None) == (result.text == bytes(data).decode(errors="replace"))


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
