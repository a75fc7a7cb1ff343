"""The text of a generation as its tokens come: whole characters, stop strings, what is kept.

Everything is matched on bytes, so a stop string may begin and end anywhere inside a token. Of
all matches the one that is complete first wins, of those that end together the longest.
"""

from __future__ import annotations

import codecs
from bisect import bisect_right
from dataclasses import dataclass

from ..protocol import SamplingParams
from .tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class TextResult:
    """How a generation ended.

    Attributes:
        num_kept: the first ids that stay as they are.
        text: the whole text: that of the kept ids followed by `tail`.
        tail: what is left of a token that a stop string cut.
        matched: the stop string that ended it, None where none did.
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


class TextStream:
    """Collects the tokens of one generation and finds its stop strings.

    A stop string that is complete before `min_new_tokens` tokens are there does not count and
    stays in the text. The work for each token depends on its length and the number of stop
    strings only.
    """

    def __init__(
        self, tokenizer: Tokenizer, sampling: SamplingParams, skip_special: bool = True
    ) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._min_tokens = sampling.min_new_tokens
        self._stops = [_StopString(text) for text in dict.fromkeys(sampling.stop)]
        self._bytes = bytearray()
        self._ends: list[int] = []  # where each token's bytes end
        self._matched: _StopString | None = None
        self._cut = 0  # where the matched stop string begins
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._num_taken = 0
        self._is_finished = False

    def push(self, token: int) -> bool:
        """Take the next token; return whether the text has reached a stop string.

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
        if self._stops:
            for end, byte in enumerate(added, start + 1):
                complete = [stop for stop in self._stops if stop.advance(byte)]
                if complete and counts:
                    self._matched = max(complete, key=lambda stop: len(stop.bytes))
                    self._cut = end - len(self._matched.bytes)
                    return True
        return False

    def take(self) -> str:
        """Return the text that became certain since the last call.

        It is whole characters and no beginning of a stop string; after `finish`, all the rest.
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
        return TextResult(num_kept, text, tail, self._matched.text)

    def _num_certain(self) -> int:
        if self._matched is not None:
            return self._cut
        held = 0 if self._is_finished else max((s.num_held() for s in self._stops), default=0)
        return len(self._bytes) - held

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
