"""The fake backend's tokens: the bytes of UTF-8, and two special tokens for ChatML."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Sequence

from ramet.runtime.protocol import RoleBegin, RoleEnd, Segment, Text, TokenIds, Usage

BEGIN_ID, END_ID = 256, 257
SPECIAL = {"<|im_start|>": BEGIN_ID, "<|im_end|>": END_ID}
_SPELLED = {token: text.encode() for text, token in SPECIAL.items()}
_SPLIT = re.compile("|".join(f"({re.escape(text)})" for text in SPECIAL))


def encode(segments: tuple[Segment, ...], more: str = "") -> list[int]:
    """Return the ids of a prompt, followed by some text."""
    ids: list[int] = []
    for segment in segments:
        match segment:
            case TokenIds():
                ids += segment
            case Text():
                ids += (
                    _encode_special(segment.text) if segment.parse_special else _bytes(segment.text)
                )
            case RoleBegin():
                ids += [BEGIN_ID, *_bytes(f"{segment.role}\n")]
            case RoleEnd():
                ids += [END_ID, *_bytes("\n")]
    return ids + _bytes(more)


def decode(ids: Sequence[int]) -> str:
    """Return the text of ids, special tokens spelled out."""
    return b"".join(_SPELLED.get(i) or bytes((i,)) for i in ids).decode(errors="replace")


def common_prefix(first: Sequence[int], second: Sequence[int]) -> int:
    """Return how many ids two sequences begin with alike."""
    length = 0
    for a, b in zip(first, second, strict=False):
        if a != b:
            break
        length += 1
    return length


class PrefixHistory:
    """Which prompts were seen: what a prefix cache that forgets nothing would have."""

    def __init__(self) -> None:
        self._seen: list[list[int]] = []  # sorted, so that the nearest are neighbours

    def usage(self, prompt: list[int], generated: list[int]) -> Usage:
        """Return the usage of a request, and remember its tokens."""
        place = bisect_left(self._seen, prompt)
        near = self._seen[max(0, place - 1) : place + 1]
        cached = max((common_prefix(prompt, other) for other in near), default=0)
        cached = min(cached, max(0, len(prompt) - 1))  # the last one runs, for its logits
        whole = prompt + generated
        place = bisect_left(self._seen, whole)
        if self._seen[place : place + 1] != [whole]:
            self._seen.insert(place, whole)
        return Usage(
            prompt_tokens=len(prompt),
            cached_tokens=cached,
            computed_tokens=len(prompt) - cached,
            generated_tokens=len(generated),
        )


def num_known(prompt: tuple[Segment, ...]) -> int:
    """Return how many ids a prompt begins with."""
    return len(prompt[0]) if prompt and isinstance(prompt[0], TokenIds) else 0


def _bytes(text: str) -> list[int]:
    return list(text.encode(errors="replace"))


def _encode_special(text: str) -> list[int]:
    ids: list[int] = []
    for part in filter(None, _SPLIT.split(text)):
        ids += [SPECIAL[part]] if part in SPECIAL else _bytes(part)
    return ids
