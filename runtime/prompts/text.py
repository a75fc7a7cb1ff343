"""The text of a generation as its tokens come: whole characters, what stops it, what is kept.

Stop strings are matched on bytes and patterns on characters, so a match may begin and end
anywhere inside a token. Of all matches the one that is complete first wins, of those that end
together the longest.

The text ends where the match begins, or with `no_stop_trim` where it ends. The tokens that lie
in it whole stay as ids; what is left of the token that its end cuts is the `tail`.
"""

from __future__ import annotations

import codecs
from bisect import bisect_right
from dataclasses import dataclass

from ..protocol import SamplingParams
from .stop_regex import StopRegex, compile_patterns
from .tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class TextResult:
    """How a generation ended.

    Attributes:
        num_kept: the first ids that stay as they are.
        text: the whole text: that of the kept ids followed by `tail`.
        tail: what is left of a token that the end of the text cut.
        matched: the stop string or pattern that ended it, None where none did.
    """

    num_kept: int
    text: str
    tail: str
    matched: str | None


class _StopString:
    """Follows one stop string through the bytes (Knuth–Morris–Pratt)."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.bytes = text.encode("utf-8", errors="surrogatepass")
        self.num_matched = 0
        self._fallback = [0, 0]
        for place in range(1, len(self.bytes)):
            self._fallback.append(self._next(self._fallback[place], self.bytes[place]))

    def advance(self, byte: int) -> bool:
        """Take the next byte; return whether it completes the stop string."""
        if self.num_matched == len(self.bytes):
            self.num_matched = self._fallback[-1]
        self.num_matched = self._next(self.num_matched, byte)
        return self.num_matched == len(self.bytes)

    def num_held(self) -> int:
        """Return how many of the last bytes may still become this stop string."""
        if self.num_matched == len(self.bytes):
            return self._fallback[-1]
        return self.num_matched

    def _next(self, matched: int, byte: int) -> int:
        while matched and self.bytes[matched] != byte:
            matched = self._fallback[matched]
        return matched + 1 if self.bytes[matched] == byte else 0


class _Characters:
    """Cuts bytes into characters as they become whole; bytes that are none become U+FFFD."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._num_bytes = 0
        self.end = 0  # of the last whole character

    def advance(self, byte: int) -> list[tuple[str, int, int]]:
        """Take the next byte; return the characters that it ends, with their first and last."""
        found = self._decoder.decode(bytes((byte,)))
        whole = self._num_bytes + 1 - len(self._decoder.getstate()[0])
        # Two characters end together where this byte also shows that those before were none.
        ends = (self._num_bytes, whole) if len(found) > 1 else (whole,)
        self._num_bytes += 1
        characters = []
        for char, end in zip(found, ends, strict=False):
            characters.append((char, self.end, end))
            self.end = end
        return characters


@dataclass(frozen=True, slots=True)
class _Match:
    start: int
    end: int
    text: str  # of the stop string or pattern


class TextStream:
    """Collects the tokens of one generation and finds its stop strings and patterns.

    A match that is complete before `min_new_tokens` tokens are there does not count and stays
    in the text. Special tokens have no text with `skip_special_tokens`, else that of their name.
    The work for each token depends on its length and the stop strings and patterns only.

    Raises:
        InvalidRequestError: a pattern that is wrong or not supported; see `compile_patterns`.
    """

    def __init__(self, tokenizer: Tokenizer, sampling: SamplingParams) -> None:
        self._tokenizer = tokenizer
        self._skip_special = sampling.skip_special_tokens
        self._trim = not sampling.no_stop_trim
        self._min_tokens = sampling.min_new_tokens
        self._stops = [_StopString(text) for text in dict.fromkeys(sampling.stop)]
        patterns = compile_patterns(dict.fromkeys(sampling.stop_regex))
        self._patterns = [StopRegex(pattern) for pattern in patterns]
        self._characters = _Characters()
        self._bytes = bytearray()
        self._ends: list[int] = []  # where each token's bytes end
        self._matched: str | None = None
        self._cut = 0  # where the text ends once something matched
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._num_taken = 0
        self._is_finished = False

    def push(self, token: int) -> bool:
        """Take the next token; return whether the text has reached its end by a match.

        Tokens after that are no part of the generation and change nothing.
        """
        if self._matched is not None:
            return True
        is_silent = self._skip_special and self._tokenizer.is_special(token)
        added = b"" if is_silent else self._tokenizer.token_bytes(token)
        start = len(self._bytes)
        self._bytes += added
        self._ends.append(len(self._bytes))
        counts = len(self._ends) >= self._min_tokens
        if self._stops or self._patterns:
            for end, byte in enumerate(added, start + 1):
                matches = self._advance(byte, end)
                if matches and counts:
                    first = min(matches, key=lambda match: (match.end, match.start))
                    self._matched = first.text
                    self._cut = first.start if self._trim else first.end
                    return True
        return False

    def _advance(self, byte: int, end: int) -> list[_Match]:
        """Return all matches that the byte that ends at `end` completes."""
        matches = [
            _Match(end - len(stop.bytes), end, stop.text)
            for stop in self._stops
            if stop.advance(byte)
        ]
        if self._patterns:
            for char, begin, finish in self._characters.advance(byte):
                for one in self._patterns:
                    start = one.advance(char, begin)
                    if start is not None:
                        matches.append(_Match(start, finish, one.pattern.text))
        return matches

    def take(self) -> str:
        """Return the text that became certain since the last call.

        It is whole characters and no beginning of a match; after `finish`, all the rest.
        """
        end = self._num_certain()
        new = bytes(self._bytes[self._num_taken : end])
        self._num_taken = end
        return self._decoder.decode(new, final=self._is_finished)

    def finish(self) -> TextResult:
        """End the generation; what was held back belongs to the text now."""
        self._is_finished = True
        text = _decode(self._bytes[: self._num_certain()])
        if self._matched is None:
            return TextResult(len(self._ends), text, "", None)
        num_kept = self._num_whole_tokens()
        kept = self._ends[num_kept - 1] if num_kept else 0
        tail = _decode(self._bytes[kept : self._cut])
        return TextResult(num_kept, text, tail, self._matched)

    def _num_certain(self) -> int:
        if self._matched is not None:
            return self._cut
        size = len(self._bytes)
        if self._is_finished:
            return size
        certain = size - max((stop.num_held() for stop in self._stops), default=0)
        for one in self._patterns:  # a match may also begin with half a character
            certain = min(certain, self._characters.end)
            if one.earliest is not None:
                certain = min(certain, one.earliest)
        return certain

    def _num_whole_tokens(self) -> int:
        """Return how many tokens lie before the cut, the last ending a character.

        It may end inside a character only where nothing is left of the cut token.
        """
        count = bisect_right(self._ends, self._cut)
        while count:
            end = self._ends[count - 1]
            near = self._bytes[max(0, end - 3) : end]
            rest = self._bytes[end : min(self._cut, end + 3)]
            if _decode(near) + _decode(rest) == _decode(near + rest):
                break
            count -= 1
        return count


def _decode(data: bytes | bytearray) -> str:
    return data.decode("utf-8", errors="replace")
