"""The cases about the text of a generation, by id, on tokens whose bytes are known."""

import itertools

import pytest

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


def feed(
    tokenizer: Tokenizer, ids: list[int], stop: tuple[str, ...] = (), minimum: int = 0
) -> tuple[TextResult, list[str]]:
    """Push ids until the text ends; return the result and what was shown after each token."""
    stream = TextStream(
        tokenizer, SamplingParams(stop=stop, min_new_tokens=minimum, max_new_tokens=None)
    )
    shown = []
    for token in ids:
        is_over = stream.push(token)
        shown.append(stream.take())
        if is_over:
            break
    result = stream.finish()
    shown.append(stream.take())
    return result, shown


def check(tokenizer: Tokenizer, text: str, stop: tuple[str, ...], want: str) -> TextResult:
    """Feed the text as tokens and as single bytes; both show `want` and nothing else."""
    for ids in (tokenizer.encode(text), [of_byte(tokenizer, byte) for byte in text.encode()]):
        result, shown = feed(tokenizer, ids, stop)
        assert result.text == "".join(shown) == want
        assert tokenizer.decode(ids[: result.num_kept]) + result.tail == want
    return result


def test_f20_a_stop_string_is_never_shown_not_even_its_beginning(tokenizer: Tokenizer) -> None:
    assert check(tokenizer, "ABCDEFGHIJKLM", ("DEFGHIJ",), "ABC").matched == "DEFGHIJ"


def test_f21_nothing_of_the_stop_string_is_kept(tokenizer: Tokenizer) -> None:
    check(tokenizer, "Say: Observation done", ("Observation",), "Say: ")


def test_f23_a_newline_inside_a_longer_token_stops(tokenizer: Tokenizer) -> None:
    check(tokenizer, "Answer\n\nmore\n", ("\n",), "Answer")


def test_f25_the_order_of_the_stop_list_does_not_matter(tokenizer: Tokenizer) -> None:
    for stop in itertools.permutations(["]", ",", '"']):
        check(tokenizer, 'John", "Mary"]', stop, "John")


def test_f26_the_match_that_is_complete_first_wins(tokenizer: Tokenizer) -> None:
    result = check(tokenizer, "top with k=1 was mentioned", ("k=1 was", "1"), "top with k=")
    assert result.matched == "1"


def test_f27_characters_of_several_bytes_come_whole(tokenizer: Tokenizer) -> None:
    check(tokenizer, "hej 🦙🦙 världen slut", ("världen",), "hej 🦙🦙 ")


def test_f28_a_stop_string_inside_a_joined_emoji(tokenizer: Tokenizer) -> None:
    assert check(tokenizer, "ab👩‍🚀cd", ("🚀",), "ab👩‍").matched == "🚀"


def test_f29_a_marker_as_stop_string_matches_its_text_and_not_part_of_it(
    tokenizer: Tokenizer,
) -> None:
    marker = "<|im_end|>"
    assert check(tokenizer, f"Hi im_end <|im_{marker}x", (marker,), "Hi im_end <|im_").matched
    special = tokenizer.special_ids[marker]
    ids = [*tokenizer.encode("Hi"), special]  # the token itself ends the turn before this
    assert feed(tokenizer, ids, (marker,))[0].text == "Hi"


def test_f30_stops_inside_the_first_tokens_stay_in_the_text(tokenizer: Tokenizer) -> None:
    ids = [of_byte(tokenizer, byte) for byte in b"ab\n" * 20]
    result, shown = feed(tokenizer, ids, ("\n",), minimum=12)
    assert result.text == "".join(shown) == "ab\nab\nab\nab"
    assert result.num_kept == 11
    assert feed(tokenizer, ids, ("\n",), minimum=13)[0].text == "ab\n" * 4 + "ab"


def test_a29_the_held_back_tail_is_flushed_and_the_rest_is_not_delayed(
    tokenizer: Tokenizer,
) -> None:
    ids = [of_byte(tokenizer, byte) for byte in b"abcdefghZZZ"]
    result, shown = feed(tokenizer, ids, ("ZZZZZZZZZZZZ",))
    assert shown == [*"abcdefgh", "", "", "", "ZZZ"]
    assert result.text == "abcdefghZZZ"


def test_a50_bytes_that_are_no_characters_are_shown_one_by_one(tokenizer: Tokenizer) -> None:
    ids = [of_byte(tokenizer, 0x80)] * 300
    result, shown = feed(tokenizer, ids, ("stop",))
    assert shown == ["\ufffd"] * 300 + [""]
    assert result == TextResult(300, "\ufffd" * 300, "", None)


def test_a51_half_a_character_at_the_limit_is_one_replacement_at_the_end(
    tokenizer: Tokenizer,
) -> None:
    ids = [of_byte(tokenizer, byte) for byte in "🙂🙂".encode()[:6]]
    result, shown = feed(tokenizer, ids)
    assert shown == ["", "", "", "🙂", "", "", "\ufffd"]
    assert result == TextResult(6, "🙂\ufffd", "", None)
