"""WaitingQueue: who is admitted next, and who waits for a prefix that another one computes."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from itertools import chain, islice

import numpy as np

from .ageing import Ageing
from .kv_memory import KVMemory
from .prefix_order import PrefixOrder
from .sequence import Sequence

MIN_SHARED = 32  # uncached tokens that are worth waiting for
WINDOW = 128  # how many are looked at per round


class WaitingQueue:
    """Sequences that wait. Who comes first:

    1. of a request that was overtaken far too often by later ones, higher priorities included;
    2. of a higher priority, and among equals
    3. of a request that has been started already (retracted, another sample, an option),
    4. of one that was overtaken too often by later ones (see `Ageing`),
    5. of a lower hint rank,
    6. with the longest cached prefix (`policy="lpm"`; not with "fcfs"),
    7. that came first.
    """

    def __init__(self, memory: KVMemory, policy: str = "lpm") -> None:
        self._memory = memory
        self._by_prefix = policy == "lpm"
        self._levels: dict[int, _Level] = {}
        self._by_key: dict[tuple[str, bytes], dict[Sequence, None]] = {}
        self._num_sequences = 0
        self._epoch = 0

    def __len__(self) -> int:
        return self._num_sequences

    @property
    def num_requests(self) -> int:
        """Requests that wait and have not been started."""
        return sum(level.num_requests for level in self._levels.values())

    def add(self, sequence: Sequence) -> None:
        """Let `sequence` wait; its ids do not change while it does."""
        priority = sequence.job.ticket.priority
        level = self._levels.get(priority)
        if level is None:
            level = _Level(PrefixOrder(self._memory, by_prefix=self._by_prefix))
            self._levels[priority] = level
            self._levels = dict(sorted(self._levels.items(), reverse=True))
        level.add(sequence, self._epoch)
        self._by_key.setdefault(sequence.key, {})[sequence] = None
        self._num_sequences += 1

    def remove(self, sequence: Sequence) -> bool:
        """Take `sequence` out; False if it did not wait."""
        priority = sequence.job.ticket.priority
        level = self._levels.get(priority)
        if level is None or not level.remove(sequence):
            return False
        if not len(level):
            del self._levels[priority]
        self._num_sequences -= 1
        twins = self._by_key[sequence.key]
        del twins[sequence]
        if not twins:
            del self._by_key[sequence.key]
        return True

    def on_start(self, sequence: Sequence) -> None:
        """The request of `sequence` is started, with this sequence."""
        own = sequence.job.ticket.priority
        for priority, level in self._levels.items():
            if priority <= own:
                level.ageing.on_start(sequence.epoch, is_own=priority == own)

    def on_publish(self, sequence: Sequence) -> None:
        """What `sequence` has computed is in the tree."""
        for level in self._levels.values():
            level.by_prefix.on_publish(sequence)

    def next_first(self) -> Iterator[Sequence]:
        """Return who comes next, each once, at most `WINDOW` of them, and begin a new epoch.

        Those that were returned may be removed meanwhile.
        """
        self._epoch += 1
        levels = list(self._levels.values())
        overdue = [level.oldest() for level in levels[1:] if level.ageing.is_overdue]
        seen: set[Sequence] = set()
        candidates = chain(*reversed(overdue), *(level.next_first() for level in levels))
        for sequence in islice(candidates, 2 * WINDOW):
            if sequence in seen or sequence not in self._by_key.get(sequence.key, ()):
                continue
            seen.add(sequence)
            yield sequence
            if len(seen) == WINDOW:
                return

    def twins_of(self, leader: Sequence) -> list[Sequence]:
        """Return those with the very ids of `leader` that want only the last logit row."""
        twins = self._by_key.get(leader.key, {}) if self._by_key else {}
        return [twin for twin in twins if twin.logits_from == twin.num_ids - 1]


class _Level:
    """Those of one priority. `started` are of requests that were started before."""

    def __init__(self, by_prefix: PrefixOrder) -> None:
        self.by_prefix = by_prefix
        self.ageing = Ageing()
        self._started: list[Sequence] = []
        self._by_epoch: dict[int, dict[Sequence, None]] = {}  # not started, the oldest first
        self._num_waiting: dict[int, int] = {}  # arrival of a request -> its sequences here

    def __len__(self) -> int:
        return len(self._started) + len(self.by_prefix)

    @property
    def num_requests(self) -> int:
        return len(self._num_waiting)

    def add(self, sequence: Sequence, epoch: int) -> None:
        if sequence.job.ticket.started is not None:
            insort(self._started, sequence, key=_order)
            return
        sequence.epoch = epoch
        self.by_prefix.add(sequence)
        self._by_epoch.setdefault(epoch, {})[sequence] = None
        arrival = sequence.order[1]
        self._num_waiting[arrival] = self._num_waiting.get(arrival, 0) + 1
        if self._num_waiting[arrival] == 1:
            self.ageing.set_oldest(next(iter(self._by_epoch)))
            self.ageing.on_arrival(epoch, self.num_requests)

    def remove(self, sequence: Sequence) -> bool:
        index = bisect_left(self._started, sequence.order, key=_order)
        if index < len(self._started) and self._started[index] is sequence:
            del self._started[index]
            return True
        if not self.by_prefix.remove(sequence):
            return False
        of_epoch = self._by_epoch[sequence.epoch]
        del of_epoch[sequence]
        if not of_epoch:
            del self._by_epoch[sequence.epoch]
            if self._by_epoch:
                self.ageing.set_oldest(next(iter(self._by_epoch)))
        arrival = sequence.order[1]
        self._num_waiting[arrival] -= 1
        if not self._num_waiting[arrival]:
            del self._num_waiting[arrival]
        return True

    def next_first(self) -> Iterator[Sequence]:
        yield from self._started[:WINDOW]
        if self.ageing.is_due:
            yield from self.oldest()
        yield from self.by_prefix.next_first()

    def oldest(self) -> list[Sequence]:
        """Return those who came first, at once, in their usual order."""
        of_epoch = next(iter(self._by_epoch.values()), {})
        first = list(islice(of_epoch, WINDOW))
        return self.by_prefix.sort(first)


def has_leader(sequence: Sequence, prefilling: Iterable[Sequence], memory: KVMemory) -> bool:
    """True if one of `prefilling` computes a prefix that is worth waiting for.

    Of the tokens that it computes in all, at least `MIN_SHARED` are those of `sequence`, which
    could take them from the tree, and not all of them are there yet. Or both have the same ids,
    and only the last logit row is wanted.
    """
    if not memory.enable_radix_cache:
        return False
    cached = memory.look_up(sequence)
    return any(_leads(leader, sequence, cached) for leader in prefilling)


def _leads(leader: Sequence, sequence: Sequence, cached: int) -> bool:
    if leader.namespace != sequence.namespace:
        return False
    ids, others = sequence.ids, leader.ids
    wants_last_row = sequence.logits_from == sequence.num_ids - 1
    if wants_last_row and len(ids) == len(others) and np.array_equal(ids, others):
        return True
    end = max(cached + 1, leader.num_matched + MIN_SHARED)
    if end > min(sequence.logits_from, len(others)) or ids[cached] != others[cached]:
        return False
    return bool(np.array_equal(ids[:end], others[:end]))


def _order(sequence: Sequence) -> tuple[int, int, int]:
    return sequence.order
