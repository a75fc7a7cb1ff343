"""Long texts in pieces that fit: `ramet.split`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ramet.runtime.protocol import InvalidRequestError, Text
from ramet.runtime.protocol.checks import check_integer

from ..backends.base import Backend
from ..execution import context

_PARAGRAPH = re.compile(r"\n[^\S\n]*\n\s*")
_LINE = re.compile(r"\n")
_SENTENCE = re.compile(r"[.!?…]+[\"'”’)\]]*\s+|[。！？]+[」』”’]*")
_WORD = re.compile(r"\s+")
_FULL_ENOUGH = 0.9  # of max_tokens: no more counting then
_INTERPOLATIONS = 4  # guesses before halving, which always ends
_CHARACTERS_PER_TOKEN = 4.0


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of a text: `text[start:end]`, offsets in characters, `index` counted from 0.

    Example:
        >>> ramet.split("One. Two.", 5, backend=ramet.Fake())[0]
        Chunk(text='One. ', start=0, end=5, index=0)
    """

    text: str
    start: int
    end: int
    index: int


def split(
    text: str, max_tokens: int, *, overlap: int = 0, backend: Backend | None = None
) -> list[Chunk]:
    """Cut `text` into chunks of at most `max_tokens` tokens each.

    A cut is made after a paragraph where that leaves the chunk at least half full, else after a
    line, a sentence or a word, and inside a word only where it alone is too long. Without
    `overlap` the chunks' texts put together are `text`, exactly.

    Args:
        text: what to cut; an empty text has no chunks.
        max_tokens: the limit of a chunk, at least 1.
        overlap: about how many tokens of a chunk's end the next one repeats, so that what a cut
            tears apart is whole in one of them; at most half of `max_tokens`.
        backend: whose tokens count; None = the backend in force, as for a run.

    Raises:
        InvalidRequestError: a limit out of range, or so small that one character has more tokens.

    Example:
        >>> [chunk.text for chunk in ramet.split("One. Two. Three.", 10, backend=ramet.Fake({}))]
        ['One. Two. ', 'Three.']
    """
    if not isinstance(text, str):
        raise TypeError(f"split takes a string, not {text!r}")
    check_integer("max_tokens", max_tokens, low=1)
    check_integer("overlap", overlap, low=0, high=max_tokens // 2)
    cutter = _Cutter(text, max_tokens, context.backend_in_force(backend))
    chunks: list[Chunk] = []
    start = end = 0
    while end < len(text):
        next_end = cutter.end_of_chunk(start)
        if next_end <= end:  # all that fitted was the overlap
            start = end
            continue
        end = next_end
        chunks.append(Chunk(text[start:end], start, end, len(chunks)))
        start = cutter.start_of_overlap(start, end, overlap) if overlap else end
    return chunks


class _Cutter:
    def __init__(self, text: str, max_tokens: int, backend: Backend) -> None:
        self._text = text
        self._max_tokens = max_tokens
        self._backend = backend
        self._ratio = _CHARACTERS_PER_TOKEN

    def end_of_chunk(self, start: int) -> int:
        """Return where a chunk that begins at `start` ends."""
        longest = self._longest(start, self._max_tokens)
        if longest == start:
            character = self._text[start]
            raise InvalidRequestError(
                f"max_tokens={self._max_tokens} is too small: the character {character!r} at "
                f"{start} alone has {self._count(start, start + 1)} tokens"
            )
        if longest == len(self._text):
            return longest
        for end in self._boundaries(start, longest):
            if self._count(start, end) <= self._max_tokens:
                return end
        return longest

    def start_of_overlap(self, start: int, end: int, overlap: int) -> int:
        """Return from where on the next chunk repeats what lies before `end`."""
        wanted = max(start + 1, end - int(overlap * self._ratio))
        for match in _WORD.finditer(self._text, wanted, end):
            if match.end() < end and self._count(match.end(), end) <= overlap:
                return match.end()
        return end

    def _longest(self, start: int, limit: int) -> int:
        """Return about the last position up to which the text from `start` fits."""
        size = len(self._text)
        fits, too_long = start, size + 1
        guess = min(size, start + max(1, int(limit * self._ratio)))
        tries = 0
        while too_long - fits > 1:
            count = self._count(start, guess)
            tries += 1
            if count <= limit:
                fits = guess
                if fits == size or count >= limit * _FULL_ENOUGH:
                    break
            else:
                too_long = guess
            self._ratio = (guess - start) / max(count, 1)
            aimed = start + int(limit * self._ratio)
            if tries > _INTERPOLATIONS and too_long <= size:
                aimed = (fits + too_long) // 2
            guess = min(max(aimed, fits + 1), too_long - 1)
        return fits

    def _boundaries(self, start: int, longest: int) -> list[int]:
        """Return where the chunk may end, best first."""
        half = start + (longest - start) // 2
        last = [
            max((m.end() for m in pattern.finditer(self._text, start, longest)), default=start)
            for pattern in (_PARAGRAPH, _LINE, _SENTENCE, _WORD)
        ]
        full_enough = [end for end in last if end >= half and end > start]
        return full_enough or [end for end in last[-1:] if end > start]

    def _count(self, start: int, end: int) -> int:
        return self._backend.count_tokens((Text(self._text[start:end]),))
