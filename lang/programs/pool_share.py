"""How many rows of a batch go on at the same time: as many as the engine's KV pool can hold.

Between two calls a row holds nothing in the engine: its tokens stay in the prefix cache for as
long as there is room. Where more rows go on than the pool can hold to their end, they evict each
other's tokens and compute everything again. So a row begins only if those before it, grown to the
size that rows have shown, leave room for one more. Rows of a single call never wait.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from statistics import median_high

from ..execution.footprint import Footprint

WINDOW = 8  # rows that ended last, and say how large the next will be
PRESUMED = 1024  # tokens of a row until they have: 64 rows begin at once in 70,000 slots
GROWTH = 4  # until they have, rows are presumed to become so many times as large
MARGIN = 16  # one part in so many of the pool is left to what is no row's


class PoolShare:
    """Says whether one more row may begin, and counts what those that have begun need.

    One row may always run. What it needs is learnt from the rows: the largest of those that ended
    last and of those that are under way, without the beginning that they share.

    Args:
        num_slots: of the engine's pool; None = rows begin without limit, and nothing is counted.
        wake: is called when `has_room` said no and may now say yes, on any thread.
        outer: of the row in which the batch runs; what its rows need counts there too.
    """

    def __init__(
        self, num_slots: int | None, wake: Callable[[], None], outer: Footprint | None = None
    ) -> None:
        self._room = None if num_slots is None else num_slots - num_slots // MARGIN
        self._wake = wake
        self._outer = outer
        self._lock = threading.Lock()
        self._live: dict[int, Footprint] = {}
        self._ended: deque[Footprint] = deque(maxlen=WINDOW)
        self._is_awaited = False

    def has_room(self) -> bool:
        """Return whether one more row may begin; where not, `wake` is called once that changes."""
        with self._lock:
            has_room = self._room is None or not self._live or self._fits(self._room)
            self._is_awaited = self._is_awaited or not has_room
        return has_room

    def begin(self, index: int) -> None:
        """Note that row `index` begins."""
        if self._room is not None:
            with self._lock:
                self._live[index] = Footprint(self._changed, self._outer)

    def footprint(self, index: int) -> Footprint | None:
        """Return where a row that has begun counts its tokens; None where nothing is counted."""
        return self._live.get(index)

    def end(self, index: int) -> None:
        """Note that row `index` has ended. One that computed nothing says nothing of others."""
        with self._lock:
            footprint = self._live.pop(index, None)
            if footprint is not None and footprint.shared is not None:
                self._ended.append(footprint)
        self._changed()

    def _changed(self) -> None:
        with self._lock:
            is_awaited, self._is_awaited = self._is_awaited, False
        if is_awaited:
            self._wake()

    def _fits(self, room: int) -> bool:
        """Return whether the rows and one more fit into `room`, when all have grown.

        The first rows to end are the short ones. Until enough have ended, a row is presumed to be
        larger than they were, or else two begin for each that has ended.
        """
        live, known = self._live.values(), (*self._live.values(), *self._ended)
        beginnings = [row.shared for row in known if row.shared is not None]
        shared = median_high(beginnings) if beginnings else 0

        def size(row: Footprint) -> int:
            return max(row.whole - shared, 0) if row.goes_on else 0

        def needed(expected: int) -> int:
            return shared + sum(max(size(row), expected) for row in live) + expected

        learnt = max(map(size, known), default=0)
        fits = not learnt or needed(learnt) <= room
        if len(self._ended) == WINDOW:
            return fits
        shown = max((row.whole - shared for row in live), default=0)
        is_slow_start = len(live) < 2 * len(self._ended)
        return (fits and is_slow_start) or needed(max(learnt, PRESUMED, GROWTH * shown)) <= room
