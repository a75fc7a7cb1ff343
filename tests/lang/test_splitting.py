"""`ramet.split`: chunks that fit, cut where a reader would cut."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ramet
from ramet.runtime.protocol import Segment

FAKE = ramet.Fake({})  # its tokens are bytes


class Counting(ramet.Fake):
    """Four bytes are a token, and calls are counted."""

    def __init__(self) -> None:
        super().__init__({})
        self.calls = 0

    def count_tokens(self, segments: tuple[Segment, ...]) -> int:
        self.calls += 1
        return -(-super().count_tokens(segments) // 4)


def texts(text: str, max_tokens: int, **options: int) -> list[str]:
    return [chunk.text for chunk in ramet.split(text, max_tokens, backend=FAKE, **options)]


def test_a_text_that_fits_is_one_chunk() -> None:
    assert ramet.split("short", 5, backend=FAKE) == [ramet.Chunk("short", 0, 5, 0)]


def test_an_empty_text_has_no_chunks() -> None:
    assert ramet.split("", 5, backend=FAKE) == []


def test_paragraphs_come_before_lines_sentences_and_words() -> None:
    assert texts("One. Two.\n\nThree. Four\nfive", 20) == ["One. Two.\n\n", "Three. Four\nfive"]
    assert texts("One. Two.\n\nA line\nand no more", 12) == [
        "One. Two.\n\n",
        "A line\n",
        "and no more",
    ]
    assert texts("One. Two.\nThree. Four", 18) == ["One. Two.\n", "Three. Four"]
    assert texts("One two. Three four", 16) == ["One two. ", "Three four"]
    assert texts("one two three four", 10) == ["one two ", "three four"]


def test_a_word_is_cut_only_where_it_alone_is_too_long() -> None:
    assert texts("abcdefghij kl", 4) == ["abcd", "efgh", "ij ", "kl"]


@settings(max_examples=150, deadline=None)
@given(st.text(st.sampled_from("ab .\n?é🙂"), max_size=120), st.integers(4, 40))
def test_chunks_put_together_are_the_text_and_each_fits(text: str, max_tokens: int) -> None:
    chunks = ramet.split(text, max_tokens, backend=FAKE)
    assert "".join(chunk.text for chunk in chunks) == text
    for index, chunk in enumerate(chunks):
        assert chunk.index == index
        assert chunk.text == text[chunk.start : chunk.end]
        assert 0 < len(chunk.text.encode()) <= max_tokens


@settings(max_examples=150, deadline=None)
@given(st.text(st.sampled_from("ab .\n?é🙂"), max_size=120), st.integers(8, 40), st.integers(0, 20))
def test_with_overlap_nothing_is_left_out(text: str, max_tokens: int, overlap: int) -> None:
    overlap = min(overlap, max_tokens // 2)
    chunks = ramet.split(text, max_tokens, overlap=overlap, backend=FAKE)
    end = 0
    for chunk in chunks:
        assert chunk.start <= end < chunk.end
        assert len(text[chunk.start : end].encode()) <= overlap
        assert len(chunk.text.encode()) <= max_tokens
        end = chunk.end
    assert end == len(text)


def test_overlap_repeats_the_end_of_the_chunk_before() -> None:
    chunks = texts("one two three four five six seven eight nine ten", 20, overlap=8)
    assert chunks[0] == "one two three four "
    assert chunks[1].startswith("four ")


def test_counting_stays_in_proportion_to_the_chunks() -> None:
    backend = Counting()
    text = "Some words of a long document. " * 3000
    chunks = ramet.split(text, 256, backend=backend)
    assert len(chunks) > 80
    assert backend.calls <= 6 * len(chunks)


def test_text_of_changing_density_still_ends() -> None:
    text = "a" * 5000 + "🙂" * 500 + " word" * 500
    chunks = ramet.split(text, 64, backend=Counting())
    assert "".join(chunk.text for chunk in chunks) == text


def test_a_character_of_more_tokens_than_the_limit_is_named() -> None:
    with pytest.raises(ramet.errors.InvalidRequestError, match="'🙂' at 2 alone has 4 tokens"):
        ramet.split("ab🙂", 2, backend=FAKE)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"max_tokens": 0}, "max_tokens"), ({"max_tokens": 8, "overlap": 5}, "overlap")],
)
def test_limits_out_of_range_are_refused(options: dict[str, int], message: str) -> None:
    with pytest.raises(ramet.errors.InvalidRequestError, match=message):
        ramet.split("text", **options, backend=FAKE)
