"""WaitingQueue: who is admitted next, and who waits for a prefix that another one computes."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable

import numpy as np

from .kv_memory import KVMemory
from .sequence import Sequence

MIN_SHARED = 32  # uncached tokens that are worth waiting for
WINDOW = 128  # how many are looked up in the tree per round; the rest keep their order


class WaitingQueue:
    """Sequences that wait, in the order of hint rank, then arrival."""

    def __init__(self) -> None:
        self._sequences: list[Sequence] = []
        self._by_key: dict[tuple[str, bytes], dict[Sequence, None]] = {}

    def __len__(self) -> int:
        return len(self._sequences)

    def add(self, sequence: Sequence) -> None:
        """Let `sequence` wait; its ids do not change while it does."""
        insort(self._sequences, sequence, key=_order)
        self._by_key.setdefault(sequence.key, {})[sequence] = None

    def remove(self, sequence: Sequence) -> bool:
        """Take `sequence` out; False if it did not wait."""
        index = bisect_left(self._sequences, sequence.order, key=_order)
        if index == len(self._sequences) or self._sequences[index] is not sequence:
            return False
        del self._sequences[index]
        twins = self._by_key[sequence.key]
        del twins[sequence]
        if not twins:
            del self._by_key[sequence.key]
        return True

    def next_first(self, memory: KVMemory) -> list[Sequence]:
        """Return who comes next: hint rank, then longest cached prefix, then arrival."""
        window = self._sequences[:WINDOW]
        if len(window) > 1:
            window.sort(key=lambda s: (s.order[0], -memory.look_up(s), s.order))
        return window

    def twins_of(self, leader: Sequence) -> list[Sequence]:
        """Return those with the very ids of `leader` that want only the last logit row."""
        twins = self._by_key.get(leader.key, {}) if self._by_key else {}
        return [twin for twin in twins if twin.logits_from == twin.num_ids - 1]


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
