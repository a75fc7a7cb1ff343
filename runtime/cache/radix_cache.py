"""RadixCache: a tree over token ids that says in which slots the KV of a prefix lies.

After RadixAttention (Zheng et al., 2024, "SGLang: Efficient Execution of Structured Language
Model Programs"). Every edge holds a run of token ids and one slot per id; a lookup that ends
inside an edge splits it. Locked paths stay; the rest is evicted least recently used first.

The order of eviction is one doubly linked list over all unlocked nodes, kept so that a node
always stands after its descendants: whatever touches a path moves it to the young end deepest
node first. The old end is therefore always a leaf, and evicting is constant time per node at
any tree size: nothing is scanned and no heap is rebuilt.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ..step import Int32Array

_NO_SLOTS: Int32Array = np.empty(0, dtype=np.int32)
_FIRST_LOOK = 16


class _Node:
    """An edge of the tree and what hangs below it. `num_locks` counts running sequences."""

    __slots__ = ("children", "key", "newer", "num_locks", "older", "parent", "slots")

    def __init__(self, key: Int32Array, slots: Int32Array, parent: _Node | None) -> None:
        self.key = key
        self.slots = slots
        self.parent = parent
        self.children: dict[int, _Node] = {}
        self.num_locks = 0
        self.older: _Node | None = None
        self.newer: _Node | None = None


class _Root(_Node):
    """Where a namespace begins; it holds no tokens and goes when its last child is evicted."""

    __slots__ = ("namespace",)

    def __init__(self, namespace: str) -> None:
        super().__init__(_NO_SLOTS, _NO_SLOTS, None)
        self.namespace = namespace


@dataclass(frozen=True, slots=True)
class PrefixHandle:
    """A place in the tree. It stays valid only while it is locked."""

    _node: _Node


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """The longest stored prefix: one slot per matched token."""

    handle: PrefixHandle
    slots: Int32Array


@dataclass(frozen=True, slots=True)
class Insertion:
    """What an insert found: the slots of the leading tokens that the tree had already.

    The tree keeps those; where the caller's slots differ, the caller's are duplicates to free.
    """

    handle: PrefixHandle
    existing_slots: Int32Array


class RadixCache:
    """Maps prefixes of token ids to KV slots. Namespaces never share anything.

    `num_tokens` are stored in all, `num_evictable` of them on unlocked paths. The counters
    `query_tokens`, `hit_tokens`, `inserted_tokens` and `evicted_tokens` only grow. `version`
    changes whenever a lookup could have another answer than before.
    """

    def __init__(self) -> None:
        self._roots: dict[str, _Root] = {}
        self._ring = _Node(_NO_SLOTS, _NO_SLOTS, None)  # newer: the oldest; older: the newest
        self._ring.newer = self._ring.older = self._ring
        self.num_tokens = 0
        self.num_evictable = 0
        self.query_tokens = 0
        self.hit_tokens = 0
        self.inserted_tokens = 0
        self.evicted_tokens = 0
        self.version = 0

    def match(self, ids: Int32Array, namespace: str = "") -> PrefixMatch:
        """Return the longest stored prefix of `ids` and mark it as used just now."""
        node, found = self._walk(ids, namespace)
        self._touch(node)
        slots = _join(found)
        self.query_tokens += len(ids)
        self.hit_tokens += len(slots)
        return PrefixMatch(PrefixHandle(node), slots)

    def match_length(self, ids: Int32Array, namespace: str = "") -> int:
        """Return how many leading tokens are stored, and change nothing."""
        node: _Node | None = self._roots.get(namespace)
        position = 0
        while node is not None and position < len(ids):
            child = node.children.get(int(ids[position]))
            if child is None:
                break
            length = _common_prefix(child.key, ids[position:])
            position += length
            node = child if length == len(child.key) else None
        return position

    def insert(self, ids: Int32Array, slots: Int32Array, namespace: str = "") -> Insertion:
        """Store `ids` with one slot per id; ids and slots are copied.

        The tree takes over the slots of the tokens it did not have yet.
        """
        if namespace not in self._roots:
            self._roots[namespace] = _Root(namespace)
        node, found = self._walk(ids, namespace)
        existing = _join(found)
        start = len(existing)
        if start < len(ids):
            leaf = _Node(ids[start:].copy(), slots[start:].copy(), node)
            node.children[int(ids[start])] = leaf
            self._append(leaf)
            self.num_tokens += len(leaf.key)
            self.num_evictable += len(leaf.key)
            self.inserted_tokens += len(leaf.key)
            self.version += 1
            node = leaf
        self._touch(node)
        return Insertion(PrefixHandle(node), existing)

    def lock(self, handle: PrefixHandle) -> None:
        """Keep the whole path of `handle` from eviction; locks are counted."""
        node: _Node | None = handle._node
        while node is not None:
            if node.num_locks == 0 and node.parent is not None:
                _unlink(node)
                self.num_evictable -= len(node.key)
            node.num_locks += 1
            node = node.parent

    def unlock(self, handle: PrefixHandle) -> None:
        """Take one lock off the path of `handle`; what becomes free counts as used just now."""
        node: _Node | None = handle._node
        while node is not None:
            if node.num_locks == 0:
                raise ValueError("a prefix was unlocked that nobody had locked")
            node.num_locks -= 1
            if node.num_locks == 0 and node.parent is not None:
                self._append(node)
                self.num_evictable += len(node.key)
            node = node.parent

    def evict(self, count: int) -> Int32Array:
        """Remove `count` tokens, or all evictable ones if there are fewer; return their slots.

        Leaves go least recently used first, the last one only as far as needed, from its end.
        """
        freed: list[Int32Array] = []
        missing = count
        while missing > 0 and self._ring.newer is not self._ring:
            leaf = self._ring.newer
            if leaf is None or leaf.parent is None:
                break
            keep = max(len(leaf.key) - missing, 0)
            freed.append(leaf.slots[keep:])
            missing -= len(leaf.key) - keep
            if keep:
                leaf.key, leaf.slots = leaf.key[:keep], leaf.slots[:keep]  # views: no copying
            else:
                self._remove(leaf, leaf.parent)
        slots = _join(freed)
        self.num_tokens -= len(slots)
        self.num_evictable -= len(slots)
        self.evicted_tokens += len(slots)
        self.version += bool(len(slots))
        return slots

    def stored_slots(self) -> Iterator[Int32Array]:
        """Return the slots of every edge, for checks: it walks the whole tree."""
        stack: list[_Node] = list(self._roots.values())
        while stack:
            node = stack.pop()
            yield node.slots
            stack.extend(node.children.values())

    def _remove(self, leaf: _Node, parent: _Node) -> None:
        _unlink(leaf)
        del parent.children[int(leaf.key[0])]
        if isinstance(parent, _Root) and not parent.children:
            del self._roots[parent.namespace]

    def _walk(self, ids: Int32Array, namespace: str) -> tuple[_Node, list[Int32Array]]:
        """Return the node where the longest stored prefix ends, and the slots on the way.

        An edge that matches only in part is split, so that the end is a node.
        """
        node: _Node | None = self._roots.get(namespace)
        if node is None:
            return _Root(namespace), []
        found: list[Int32Array] = []
        position = 0
        while position < len(ids):
            child = node.children.get(int(ids[position]))
            if child is None:
                break
            length = _common_prefix(child.key, ids[position:])
            is_whole = length == len(child.key)
            node = child if is_whole else self._split(child, length)
            found.append(node.slots)
            position += length
            if not is_whole:
                break
        return node, found

    def _split(self, lower: _Node, length: int) -> _Node:
        """Cut the edge of `lower` after `length` tokens; return the new upper node.

        `lower` stays the same object, so handles to it go on covering the same tokens.
        """
        upper = _Node(lower.key[:length].copy(), lower.slots[:length].copy(), lower.parent)
        if lower.parent is not None:
            lower.parent.children[int(upper.key[0])] = upper
        lower.key, lower.slots = lower.key[length:].copy(), lower.slots[length:].copy()
        lower.parent = upper
        upper.children[int(lower.key[0])] = lower
        upper.num_locks = lower.num_locks
        if upper.num_locks == 0:
            _link_after(upper, lower)
        return upper

    def _touch(self, node: _Node) -> None:
        """Make the path of `node` the most recently used, descendants before ancestors."""
        while node.parent is not None and node.num_locks == 0:
            _unlink(node)
            self._append(node)
            node = node.parent

    def _append(self, node: _Node) -> None:
        newest = self._ring.older
        _link_after(node, self._ring if newest is None else newest)


def _link_after(node: _Node, place: _Node) -> None:
    newer = place.newer
    node.older, node.newer = place, newer
    place.newer = node
    if newer is not None:
        newer.older = node


def _unlink(node: _Node) -> None:
    older, newer = node.older, node.newer
    if older is not None and newer is not None:
        older.newer, newer.older = newer, older
    node.older = node.newer = None


def _join(parts: list[Int32Array]) -> Int32Array:
    if len(parts) == 1:
        return parts[0]
    return np.concatenate(parts) if parts else _NO_SLOTS


def _common_prefix(a: Int32Array, b: Int32Array) -> int:
    """Return how many leading elements are equal; the first few are looked at alone."""
    length = min(len(a), len(b))
    for size in (min(length, _FIRST_LOOK), length):
        differs = a[:size] != b[:size]
        first = int(differs.argmax()) if size else 0
        if size and differs[first]:
            return first
    return length
