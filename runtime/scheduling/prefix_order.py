"""PrefixOrder: waiting sequences, those first whose prefix is cached longest.

What is cached of a sequence is looked up when it comes, raised when a neighbour in the order of
token ids puts a longer common prefix into the tree, and checked when the sequence is next. So
the cost of a step does not grow with how many wait.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from heapq import heapify, heappop, heappush

from ..step import Int32Array
from .kv_memory import KVMemory
from .sequence import Sequence

NEIGHBOURS = 64  # on either side, that are told of what was cached
CHECKS = 64  # wrong estimates that are corrected per round

_Entry = tuple[int, int, int, int, int, Sequence]


class PrefixOrder:
    """Sequences by hint rank, then longest cached prefix, then arrival.

    With `by_prefix=False` the cache does not matter: hint rank, then arrival.
    """

    def __init__(self, memory: KVMemory, *, by_prefix: bool) -> None:
        self._memory = memory
        self._by_prefix = by_prefix and memory.enable_radix_cache
        self._by_ids: list[Sequence] = []  # neighbours share the longest prefixes
        self._heap: list[_Entry] = []
        self._popped: list[Sequence] = []

    def __len__(self) -> int:
        return len(self._by_ids)

    def __contains__(self, sequence: Sequence) -> bool:
        return self._index(sequence) is not None

    def add(self, sequence: Sequence) -> None:
        """Take in `sequence`, whose ids do not change while it waits."""
        insort(self._by_ids, sequence, key=_by_ids)
        sequence.estimate = self._look_up(sequence)
        self._push(sequence)

    def remove(self, sequence: Sequence) -> bool:
        """Take out `sequence`; False if it is not here."""
        index = self._index(sequence)
        if index is None:
            return False
        del self._by_ids[index]
        sequence.stamp += 1
        if len(self._heap) > 4 * len(self._by_ids) + 64:
            self._heap = [entry for entry in self._heap if _is_valid(entry)]
            heapify(self._heap)
        return True

    def next_first(self) -> Iterator[Sequence]:
        """Return who comes next. Whoever is not removed is here again in the next round."""
        popped, self._popped = self._popped, []
        for sequence in popped:
            if sequence in self:
                self._push(sequence)
        num_wrong = 0
        while self._heap:
            entry = heappop(self._heap)
            if not _is_valid(entry):
                continue
            sequence = entry[-1]
            cached = self._look_up(sequence)
            is_wrong = cached < sequence.estimate
            sequence.estimate = cached
            if is_wrong and num_wrong < CHECKS:
                num_wrong += 1
                self._push(sequence)
                continue
            self._popped.append(sequence)
            yield sequence

    def sort(self, sequences: list[Sequence]) -> list[Sequence]:
        """Return a few of them in this order, by what is cached now."""
        return sorted(sequences, key=lambda s: (s.order[0], -self._look_up(s), s.order))

    def on_publish(self, sequence: Sequence) -> None:
        """The computed ids of `sequence` are in the tree: raise those who share them."""
        if not self._by_prefix or not self._by_ids:
            return
        ids = sequence.ids[: sequence.num_computed]
        place = bisect_left(self._by_ids, (sequence.namespace, ids.tobytes()), key=_by_ids_alone)
        self._raise(ids, sequence.namespace, range(place, min(place + NEIGHBOURS, len(self))))
        self._raise(ids, sequence.namespace, range(place - 1, max(place - 1 - NEIGHBOURS, -1), -1))

    def _raise(self, ids: Int32Array, namespace: str, indices: range) -> None:
        for index in indices:
            neighbour = self._by_ids[index]
            if neighbour.namespace != namespace:
                return
            length = common_length(ids, neighbour.ids)
            if length <= neighbour.estimate:
                return  # and so it is for those beyond
            neighbour.estimate = length
            self._push(neighbour)

    def _push(self, sequence: Sequence) -> None:
        sequence.stamp += 1
        entry = (sequence.order[0], -sequence.estimate, *sequence.order[1:], sequence.stamp)
        heappush(self._heap, (*entry, sequence))

    def _look_up(self, sequence: Sequence) -> int:
        return self._memory.look_up(sequence) if self._by_prefix else 0

    def _index(self, sequence: Sequence) -> int | None:
        index = bisect_left(self._by_ids, _by_ids(sequence), key=_by_ids)
        found = index < len(self._by_ids) and self._by_ids[index] is sequence
        return index if found else None


def common_length(a: Int32Array, b: Int32Array) -> int:
    """Return how many leading ids are equal."""
    length = min(len(a), len(b))
    differs = a[:length] != b[:length]
    first = int(differs.argmax()) if length else 0
    return first if length and differs[first] else length


def _is_valid(entry: _Entry) -> bool:
    return entry[4] == entry[5].stamp


def _by_ids(sequence: Sequence) -> tuple[tuple[str, bytes], tuple[int, int, int]]:
    return sequence.key, sequence.order


def _by_ids_alone(sequence: Sequence) -> tuple[str, bytes]:
    return sequence.key
