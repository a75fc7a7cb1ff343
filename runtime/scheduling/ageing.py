"""Ageing: nobody waits for ever behind requests that came later."""

from __future__ import annotations

from collections import deque

MIN_BOUND = 64  # requests that came later and were started ahead
PAID = 8  # of them are made good by one of the oldest that is started past the bound
PRIORITY_FACTOR = 8  # so many times as much until higher priorities give way, too


class Ageing:
    """Counts, for those who have waited longest, the requests that came later and ran ahead.

    Requests come in epochs; those of one epoch came at once, and none of them is ahead of another.
    The bound is `MIN_BOUND`, or the most that waited at one time since the oldest came: so a
    finite batch, however it trickles in, is never reordered by it, and an endless stream of
    requests that would all be chosen before an older one is stopped. Past the bound the oldest go
    first, one for every `PAID` later ones: those may be the next turns of conversations that are
    under way, whose caches would be lost if everybody who waits began at once.
    """

    def __init__(self) -> None:
        self._oldest = -1
        self._started: dict[int, int] = {}  # epoch after the oldest -> requests started
        self._count = 0
        self._paid = 0
        self._peaks: deque[tuple[int, int]] = deque()  # (epoch, number waiting), falling

    def on_arrival(self, epoch: int, num_waiting: int) -> None:
        """A request came and `num_waiting` wait now."""
        while self._peaks and self._peaks[-1][1] <= num_waiting:
            self._peaks.pop()
        self._peaks.append((epoch, num_waiting))

    def on_start(self, epoch: int, *, is_own: bool) -> None:
        """A request of `epoch` was started; `is_own` says that it is of this priority."""
        if is_own and epoch == self._oldest and self.is_due:
            self._paid += PAID
        if epoch > self._oldest:
            self._started[epoch] = self._started.get(epoch, 0) + 1
            self._count += 1

    def set_oldest(self, epoch: int) -> None:
        """Say which is the oldest epoch of which anybody waits."""
        if epoch <= self._oldest:
            return
        for other in [e for e in self._started if e <= epoch]:
            self._count -= self._started.pop(other)
        while self._peaks and self._peaks[0][0] < epoch:
            self._peaks.popleft()
        self._paid = min(self._paid, self._count)
        self._oldest = epoch

    @property
    def bound(self) -> int:
        """How many may run ahead of the oldest."""
        return max(MIN_BOUND, self._peaks[0][1] if self._peaks else 0)

    @property
    def is_due(self) -> bool:
        """True where the oldest go before all others of their priority."""
        return self._count - self._paid >= self.bound

    @property
    def is_overdue(self) -> bool:
        """True where the oldest go before those of higher priority, too."""
        return self._count - self._paid >= PRIORITY_FACTOR * self.bound
