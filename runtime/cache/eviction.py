"""The order in which cached prefixes make room: five policies behind one protocol.

A policy knows the numbers of the tree's unlocked nodes and says which one goes next. It never
looks at all of them: what is used or evicted costs constant time with rings, O(log n) with a heap.
Descendants always go before their ancestors.

With rings this comes by itself. Whatever uses a node uses its ancestors as well and moves them
deepest first, so an ancestor never stands in a lower ring than a descendant and, in the same
ring, never before one. The oldest node of the lowest ring is therefore a leaf.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Protocol

USES_TO_BE_PROTECTED = 2
_NODES = 2**31  # more than there are node numbers


class EvictionPolicy(Protocol):
    """What the tree tells a policy, and asks it.

    Nodes are told of from the deepest to the highest. A node is in the order while it is unlocked.
    """

    def create(self, node: int, priority: int) -> None:
        """A new node was first used by a request of `priority`; `add` follows."""
        ...

    def add(self, node: int) -> None:
        """`node` is unlocked; it counts as used just now."""
        ...

    def remove(self, node: int) -> None:
        """`node`, which was in the order, was locked or has gone."""
        ...

    def use(self, node: int, priority: int, *, is_new_use: bool, is_unlocked: bool) -> None:
        """A request of `priority` uses `node`, for the first time with `is_new_use`."""
        ...

    def split(self, upper: int, lower: int, *, is_unlocked: bool) -> None:
        """The new node `upper` took over the beginning of `lower`."""
        ...

    def on_leaf(self, node: int) -> None:
        """The unlocked `node` has lost its last child."""
        ...

    def next(self) -> int:
        """Return the leaf that goes next, 0 if all nodes are locked; it stays in the order."""
        ...


class _Rings:
    """Rings of nodes, each from the least to the most recently used; the lowest level goes first.

    A level is any integer. Levels that have run empty are forgotten when they come up.
    """

    def __init__(self, max_nodes: int) -> None:
        self._level = array("q", bytes(8 * max_nodes))
        self._older = array("i", bytes(4 * max_nodes))
        self._newer = array("i", bytes(4 * max_nodes))
        self._oldest: dict[int, int] = {}  # by level; 0 = empty
        self._newest: dict[int, int] = {}
        self._levels: list[int] = []  # a heap of the keys above

    def create(self, node: int, priority: int) -> None:
        self._level[node] = self._first_level(priority)

    def add(self, node: int) -> None:
        level = self._level[node]
        newest = self._newest.get(level)
        if newest is None:
            heappush(self._levels, level)
        self._newest[level] = node
        self._older[node], self._newer[node] = newest or 0, 0
        if newest:
            self._newer[newest] = node
        else:
            self._oldest[level] = node

    def remove(self, node: int) -> None:
        level, older, newer = self._level[node], self._older[node], self._newer[node]
        if older:
            self._newer[older] = newer
        else:
            self._oldest[level] = newer
        if newer:
            self._older[newer] = older
        else:
            self._newest[level] = older

    def use(self, node: int, priority: int, *, is_new_use: bool, is_unlocked: bool) -> None:
        level = self._next_level(self._level[node], priority, is_new_use)
        if is_unlocked:
            self.remove(node)
        self._level[node] = level
        if is_unlocked:
            self.add(node)

    def split(self, upper: int, lower: int, *, is_unlocked: bool) -> None:
        level = self._level[upper] = self._level[lower]
        if not is_unlocked:
            return
        newer = self._newer[lower]
        self._older[upper], self._newer[upper] = lower, newer
        self._newer[lower] = upper
        if newer:
            self._older[newer] = upper
        else:
            self._newest[level] = upper

    def on_leaf(self, node: int) -> None:
        pass  # its place was right before

    def next(self) -> int:
        while self._levels:
            level = self._levels[0]
            oldest = self._oldest[level]
            if oldest:
                return oldest
            heappop(self._levels)
            del self._oldest[level], self._newest[level]
        return 0

    def _first_level(self, priority: int) -> int:
        """Return the level of a node that a request of `priority` has made."""
        return 0

    def _next_level(self, level: int, priority: int, is_new_use: bool) -> int:
        """Return where a use takes a node that is on `level`: never to a lower one."""
        return level


class _LRU(_Rings):
    """The least recently used goes first: one ring."""


class _LFU(_Rings):
    """The least often used goes first, of these the least recently used.

    The request that computed a prefix has used it once, each that found it once more.
    """

    def _first_level(self, priority: int) -> int:
        return 1

    def _next_level(self, level: int, priority: int, is_new_use: bool) -> int:
        return level + is_new_use


class _SLRU(_LFU):
    """What was used once goes before what was used again, each least recently used first."""

    def _next_level(self, level: int, priority: int, is_new_use: bool) -> int:
        return min(level + is_new_use, USES_TO_BE_PROTECTED)


class _Priority(_Rings):
    """The highest priority of the requests that used it counts, then the last use."""

    def _first_level(self, priority: int) -> int:
        return priority

    def _next_level(self, level: int, priority: int, is_new_use: bool) -> int:
        return max(level, priority)


class _FIFO:
    """The first that was computed goes first, however often it was used since.

    A heap of (number of creation, node) packed into one integer. It has at most one entry for
    each node: those that are locked or have children are dropped when they come up, and put back
    once they are unlocked leaves again. The entry of an evicted node is dropped at the next look.
    """

    def __init__(self, max_nodes: int, is_free_leaf: Callable[[int], bool]) -> None:
        self._is_free_leaf = is_free_leaf
        self._created = array("q", bytes(8 * max_nodes))
        self._is_queued = bytearray(max_nodes)
        self._num_created = 0
        self._heap = _IntegerHeap()

    def create(self, node: int, priority: int) -> None:
        self._num_created += 1
        self._created[node] = self._num_created
        self._is_queued[node] = False  # whatever had this number before has gone

    def add(self, node: int) -> None:
        if self._is_free_leaf(node):
            self.on_leaf(node)

    def remove(self, node: int) -> None:
        pass  # its entry is dropped when it comes up

    def use(self, node: int, priority: int, *, is_new_use: bool, is_unlocked: bool) -> None:
        pass

    def split(self, upper: int, lower: int, *, is_unlocked: bool) -> None:
        self._created[upper] = self._created[lower]
        self._is_queued[upper] = False  # it has a child

    def on_leaf(self, node: int) -> None:
        if not self._is_queued[node]:
            self._is_queued[node] = True
            self._heap.push(self._created[node] * _NODES + node)

    def next(self) -> int:
        while self._heap:
            created, node = divmod(self._heap.smallest, _NODES)
            is_current = created == self._created[node]
            if is_current and self._is_free_leaf(node):
                return node
            self._heap.pop()
            if is_current:
                self._is_queued[node] = False
        return 0


class _IntegerHeap:
    """A binary heap in an array of integers: a list would be walked by the garbage collector."""

    def __init__(self) -> None:
        self._values = array("q")

    def __len__(self) -> int:
        return len(self._values)

    @property
    def smallest(self) -> int:
        """The smallest value; there must be one."""
        return self._values[0]

    def push(self, value: int) -> None:
        """Add a value."""
        values = self._values
        values.append(value)
        place = len(values) - 1
        while place:
            parent = (place - 1) >> 1
            if values[parent] <= value:
                break
            values[place] = values[parent]
            place = parent
        values[place] = value

    def pop(self) -> int:
        """Remove the smallest value and return it; there must be one."""
        values = self._values
        smallest, value = values[0], values.pop()
        if not values:
            return smallest
        place, end = 0, len(values)
        while (child := 2 * place + 1) < end:
            if child + 1 < end and values[child + 1] < values[child]:
                child += 1
            if values[child] >= value:
                break
            values[place] = values[child]
            place = child
        values[place] = value
        return smallest


_RINGS: dict[str, type[_Rings]] = {
    "lru": _LRU,
    "lfu": _LFU,
    "slru": _SLRU,
    "priority": _Priority,
}
POLICIES = (*_RINGS, "fifo")


def eviction_policy(
    name: str, max_nodes: int, is_free_leaf: Callable[[int], bool]
) -> EvictionPolicy:
    """Return the policy `name`, one of `POLICIES`, for nodes numbered below `max_nodes`.

    `is_free_leaf` says whether a node is there, unlocked and without children.

    Raises:
        ValueError: there is no such policy.
    """
    if name == "fifo":
        return _FIFO(max_nodes, is_free_leaf)
    if name not in _RINGS:
        raise ValueError(f"there is no eviction policy {name!r}: take {', '.join(POLICIES)}")
    return _RINGS[name](max_nodes)
