"""Admission: how much KV to keep back for tokens that running sequences may still generate."""

from __future__ import annotations

import math
from collections.abc import Iterable

from .sequence import Sequence

MAX_RESERVED = 4096  # tokens of one sequence; few generate more
_FIRST_RATIO = 0.7
_LAST_RATIO = 0.1
_DECAY_STEPS = 600


class Reserve:
    """Keeps back `min(tokens that may come, 4096) × ratio` per sequence.

    Most generations end early, so the ratio falls step by step; a retraction, the sign that it
    fell too far, puts it back.
    """

    def __init__(self) -> None:
        self.ratio = _FIRST_RATIO

    def tokens(self, sequences: Iterable[Sequence]) -> int:
        """Return how many slots to keep back for `sequences`."""
        return sum(math.ceil(min(s.max_more, MAX_RESERVED) * self.ratio) for s in sequences)

    def on_step(self) -> None:
        """A step went by."""
        self.ratio = max(self.ratio - (_FIRST_RATIO - _LAST_RATIO) / _DECAY_STEPS, _LAST_RATIO)

    def on_retraction(self) -> None:
        """The pool ran short."""
        self.ratio = _FIRST_RATIO
