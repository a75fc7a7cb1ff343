"""RadixCache: a tree over token ids that says in which slots the KV of a prefix lies.

After RadixAttention (Zheng et al., 2024, "SGLang: Efficient Execution of Structured Language
Model Programs"). Every edge holds a run of token ids and one slot per id; a lookup that ends
inside an edge splits it. Locked paths stay; the rest is evicted in the order of a policy.

Nodes are numbers and what is known of them are columns of integers, all of a size that the number
of slots fixes: nothing grows, and the garbage collector sees a dozen objects whatever the tree
holds. Number 0 is no node.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..step import Int32Array
from .child_table import ChildTable
from .eviction import eviction_policy

_NO_SLOTS: Int32Array = np.empty(0, dtype=np.int32)
_DEFAULT_SLOTS = 1 << 17


@dataclass(frozen=True, slots=True)
class PrefixHandle:
    """A place in the tree. It stays valid only while it is locked."""

    _node: int


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

    def __init__(self, num_slots: int = _DEFAULT_SLOTS, *, policy: str = "lru") -> None:
        """`num_slots` is the most tokens there ever are; `policy` one of `eviction.POLICIES`.

        Raises:
            ValueError: there is no such policy.
        """
        most = 2 * num_slots + 2  # each node has a token of its own, each namespace a node
        self._num_slots = num_slots
        self._roots: dict[str, int] = {}
        self._namespaces: npt.NDArray[np.object_] = np.empty(most, dtype=object)  # of roots
        self._tokens: npt.NDArray[np.object_] = np.empty(most, dtype=object)  # bytes of int32
        self._slots: npt.NDArray[np.object_] = np.empty(most, dtype=object)  # int32 arrays
        self._parents = array("i", bytes(4 * most))  # 0 for a root
        self._num_children = array("i", bytes(4 * most))
        self._num_locks = array("i", bytes(4 * most))
        self._children = ChildTable(num_slots)
        self._unused = array("i")  # numbers below `_next` that are free again
        self._next = 1
        self._policy = eviction_policy(policy, most, self._is_free_leaf)
        self.num_tokens = 0
        self.num_evictable = 0
        self.query_tokens = 0
        self.hit_tokens = 0
        self.inserted_tokens = 0
        self.evicted_tokens = 0
        self.version = 0

    @property
    def num_nodes(self) -> int:
        """Edges, and namespaces that hold any."""
        return self._next - 1 - len(self._unused)

    def match(
        self,
        ids: Int32Array,
        namespace: str = "",
        *,
        priority: int = 0,
        is_new_use: bool = True,
    ) -> PrefixMatch:
        """Return the longest stored prefix of `ids`; a request of `priority` uses it now.

        A request that asks again says `is_new_use=False`, so that it counts once.
        """
        node, found = self._walk(ids, namespace)
        self._use(node, priority, is_new_use=is_new_use)
        slots = _join(found)
        self.query_tokens += len(ids)
        self.hit_tokens += len(slots)
        return PrefixMatch(PrefixHandle(node), slots)

    def match_length(self, ids: Int32Array, namespace: str = "") -> int:
        """Return how many leading tokens are stored, and change nothing."""
        node = self._roots.get(namespace, 0)
        packed, position = ids.tobytes(), 0
        tokens = memoryview(packed).cast("i")
        while node and position < len(tokens):
            node = self._children.find(node, tokens[position])
            if not node:
                break
            edge: bytes = self._tokens[node]
            if not packed.startswith(edge, 4 * position):
                return position + _common_prefix(edge, ids[position:])
            position += len(edge) // 4
        return position

    def insert(
        self, ids: Int32Array, slots: Int32Array, namespace: str = "", *, priority: int = 0
    ) -> Insertion:
        """Store `ids` with one slot per id, for a request of `priority`; both are copied.

        The tree takes over the slots of the tokens it did not have yet.

        Raises:
            ValueError: more tokens than `num_slots`: a slot would be in the tree twice.
        """
        node, found = self._walk(ids, namespace)
        existing = _join(found)
        start = len(existing)
        num_new = len(ids) - start
        if self.num_tokens + num_new > self._num_slots:
            raise ValueError(f"the tree has {self._num_slots} slots and would need more")
        if num_new:
            parent = node or self._root(namespace)
            node = self._leaf(parent, ids[start:], slots[start:], priority)
        self._use(node, priority, is_new_use=False)
        return Insertion(PrefixHandle(node), existing)

    def lock(self, handle: PrefixHandle) -> None:
        """Keep the whole path of `handle` from eviction; locks are counted."""
        node, parents, locks = handle._node, self._parents, self._num_locks
        while parent := parents[node]:
            if not locks[node]:
                self._policy.remove(node)
                self.num_evictable -= len(self._slots[node])
            locks[node] += 1
            node = parent

    def unlock(self, handle: PrefixHandle) -> None:
        """Take one lock off the path of `handle`; what becomes free counts as used just now.

        Raises:
            ValueError: nobody has locked it.
        """
        node, parents, locks = handle._node, self._parents, self._num_locks
        if node and not locks[node]:
            raise ValueError("a prefix was unlocked that nobody had locked")
        while parent := parents[node]:
            locks[node] -= 1
            if not locks[node]:
                self._policy.add(node)
                self.num_evictable += len(self._slots[node])
            node = parent

    def evict(self, count: int, *, most_leaves: int | None = None) -> Int32Array:
        """Remove `count` tokens, or all evictable ones if there are fewer; return their slots.

        Leaves go in the policy's order, the last one only as far as needed, from its end.
        `most_leaves` bounds the work: after so many it is enough.
        """
        freed: list[Int32Array] = []
        missing = count
        most = count if most_leaves is None else most_leaves
        while missing > 0 and len(freed) < most and (leaf := self._policy.next()):
            slots: Int32Array = self._slots[leaf]
            keep = max(len(slots) - missing, 0)
            freed.append(slots[keep:])
            missing -= len(slots) - keep
            if keep:
                self._tokens[leaf] = self._tokens[leaf][: 4 * keep]
                self._slots[leaf] = slots[:keep]  # a view: no copying
            else:
                self._remove_leaf(leaf)
        evicted = _join(freed)
        self.num_tokens -= len(evicted)
        self.num_evictable -= len(evicted)
        self.evicted_tokens += len(evicted)
        self.version += bool(len(evicted))
        return evicted

    def stored_slots(self) -> Iterator[Int32Array]:
        """Return the slots of every edge, for checks: it looks at the whole tree."""
        for slots in self._slots[: self._next]:
            if slots is not None:
                yield slots

    def _is_free_leaf(self, node: int) -> bool:
        """True for a node that is there, unlocked and without children."""
        return (
            self._parents[node] > 0 and not self._num_locks[node] and not self._num_children[node]
        )

    def _walk(self, ids: Int32Array, namespace: str) -> tuple[int, list[Int32Array]]:
        """Return the node where the longest stored prefix ends, 0 if nothing is stored of it.

        With it come the slots on the way. An edge that matches only in part is split, so that
        the end is a node.
        """
        node, end = self._roots.get(namespace, 0), 0
        found: list[Int32Array] = []
        packed, position = ids.tobytes(), 0
        tokens = memoryview(packed).cast("i")
        while node and position < len(tokens):
            node = self._children.find(node, tokens[position])
            if not node:
                break
            edge: bytes = self._tokens[node]
            if not packed.startswith(edge, 4 * position):
                end = self._split(node, _common_prefix(edge, ids[position:]))
                found.append(self._slots[end])
                break
            end = node
            found.append(self._slots[node])
            position += len(edge) // 4
        return end, found

    def _use(self, node: int, priority: int, *, is_new_use: bool) -> None:
        """A request has used the path of `node`: tell the policy, descendants before ancestors."""
        parents, locks = self._parents, self._num_locks
        while parent := parents[node]:
            self._policy.use(node, priority, is_new_use=is_new_use, is_unlocked=not locks[node])
            node = parent

    def _root(self, namespace: str) -> int:
        root = self._roots.get(namespace, 0)
        if not root:
            root = self._roots[namespace] = self._new_node(parent=0)
            self._namespaces[root] = namespace
        return root

    def _leaf(self, parent: int, ids: Int32Array, slots: Int32Array, priority: int) -> int:
        """Hang a new unlocked leaf below `parent`."""
        size = len(ids)
        leaf = self._new_node(parent)
        self._tokens[leaf], self._slots[leaf] = ids.tobytes(), slots.copy()
        self._num_children[parent] += 1
        self._children.put(parent, int(ids[0]), leaf)
        self._policy.create(leaf, priority)
        self._policy.add(leaf)
        self.num_tokens += size
        self.num_evictable += size
        self.inserted_tokens += size
        self.version += 1
        return leaf

    def _split(self, lower: int, length: int) -> int:
        """Cut the edge of `lower` after `length` tokens; return the new upper node.

        `lower` keeps its number, so handles to it go on covering the same tokens.
        """
        parent, tokens, slots = self._parents[lower], self._tokens[lower], self._slots[lower]
        upper = self._new_node(parent)
        self._tokens[upper], self._tokens[lower] = tokens[: 4 * length], tokens[4 * length :]
        self._slots[upper], self._slots[lower] = slots[:length].copy(), slots[length:].copy()
        self._children.put(parent, self._first_token(upper), upper)
        self._children.put(upper, self._first_token(lower), lower)
        self._parents[lower] = upper
        self._num_children[upper] = 1
        locks = self._num_locks[upper] = self._num_locks[lower]
        self._policy.split(upper, lower, is_unlocked=not locks)
        return upper

    def _remove_leaf(self, leaf: int) -> None:
        parent = self._parents[leaf]
        self._policy.remove(leaf)
        self._children.remove(parent, self._first_token(leaf))
        self._free_node(leaf)
        self._num_children[parent] -= 1
        if self._num_children[parent]:
            return
        if not self._parents[parent]:
            del self._roots[self._namespaces[parent]]
            self._namespaces[parent] = None
            self._free_node(parent)
        elif not self._num_locks[parent]:
            self._policy.on_leaf(parent)

    def _new_node(self, parent: int) -> int:
        if self._unused:
            node = self._unused.pop()
        else:
            node = self._next
            self._next += 1
        self._parents[node] = parent
        self._num_locks[node] = self._num_children[node] = 0
        return node

    def _first_token(self, node: int) -> int:
        return int.from_bytes(self._tokens[node][:4], sys.byteorder)

    def _free_node(self, node: int) -> None:
        self._tokens[node] = self._slots[node] = None
        self._parents[node] = 0
        self._unused.append(node)


def _join(parts: list[Int32Array]) -> Int32Array:
    if len(parts) == 1:
        return parts[0]
    return np.concatenate(parts) if parts else _NO_SLOTS


def _common_prefix(edge: bytes, ids: Int32Array) -> int:
    """Return with how many of its tokens `edge` begins like `ids`; neither is empty."""
    length = min(len(edge) // 4, len(ids))
    differs = np.frombuffer(edge, dtype=np.int32, count=length) != ids[:length]
    first = int(differs.argmax())
    return first if differs[first] else length
