"""RadixCache against a dictionary of prefixes, and the order of its evictions."""

from __future__ import annotations

import gc
import time

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from ramet.runtime.cache.eviction import POLICIES
from ramet.runtime.cache.kv_pool import KVPool
from ramet.runtime.cache.radix_cache import PrefixHandle, RadixCache
from ramet.runtime.step import Int32Array

NUM_SLOTS = 60
Prefix = tuple[str, tuple[int, ...]]

FAMILIAR = [[0], [0, 1], [0, 1, 2, 0], [0, 1, 1], [1, 2], [1, 2, 2, 2, 0], [2, 2, 1]]
TOKENS = st.sampled_from(FAMILIAR) | st.lists(st.integers(0, 2), min_size=1, max_size=12)
NAMESPACES = st.sampled_from(["", "a"])
PRIORITIES = st.integers(-1, 1)


def ids(*tokens: int) -> Int32Array:
    return np.array(tokens, dtype=np.int32)


class RadixCacheMachine(RuleBasedStateMachine):
    """The model: every stored prefix with its slot, its locks and what the policies look at."""

    def __init__(self) -> None:
        super().__init__()
        self.slot: dict[Prefix, int] = {}
        self.used: dict[Prefix, int] = {}
        self.created: dict[Prefix, int] = {}
        self.num_uses: dict[Prefix, int] = {}
        self.priority: dict[Prefix, int] = {}
        self.locks: list[tuple[PrefixHandle, Prefix]] = []
        self.clock = 0
        self.pool = KVPool(NUM_SLOTS)

    @initialize(policy=st.sampled_from(POLICIES))
    def start(self, policy: str) -> None:
        self.policy = policy
        self.tree = RadixCache(NUM_SLOTS, policy=policy)

    def touch(self, namespace: str, tokens: list[int], length: int, priority: int = 0) -> None:
        self.clock += 1
        for end in range(1, length + 1):
            prefix = (namespace, tuple(tokens[:end]))
            self.used[prefix] = self.clock
            self.priority[prefix] = max(self.priority[prefix], priority)

    def count_use(self, namespace: str, tokens: list[int], length: int) -> None:
        for end in range(1, length + 1):
            self.num_uses[namespace, tuple(tokens[:end])] += 1

    def place(self, prefix: Prefix) -> tuple[int, ...]:
        """Where `prefix` stands in the order of eviction: the smallest leaf goes first."""
        used = self.used[prefix]
        return {
            "lru": (used,),
            "lfu": (self.num_uses[prefix], used),
            "slru": (min(self.num_uses[prefix], 2), used),
            "fifo": (self.created[prefix],),
            "priority": (self.priority[prefix], used),
        }[self.policy]

    def leaves(self, evictable: set[Prefix]) -> set[Prefix]:
        beginnings = {(n, t[:-1]) for n, t in self.slot}
        return evictable - beginnings

    def stored_length(self, namespace: str, tokens: list[int]) -> int:
        length = 0
        while length < len(tokens) and (namespace, tuple(tokens[: length + 1])) in self.slot:
            length += 1
        return length

    def locked(self) -> set[Prefix]:
        return {(n, t[:end]) for _, (n, t) in self.locks for end in range(1, len(t) + 1)}

    @rule(namespace=NAMESPACES, tokens=TOKENS, priority=PRIORITIES)
    def match(self, namespace: str, tokens: list[int], priority: int) -> None:
        expected = self.stored_length(namespace, tokens)
        assert self.tree.match_length(ids(*tokens), namespace) == expected
        found = self.tree.match(ids(*tokens), namespace, priority=priority).slots.tolist()
        assert found == [self.slot[namespace, tuple(tokens[: e + 1])] for e in range(expected)]
        self.touch(namespace, tokens, expected, priority)
        self.count_use(namespace, tokens, expected)

    @rule(namespace=NAMESPACES, tokens=TOKENS, priority=PRIORITIES)
    def insert(self, namespace: str, tokens: list[int], priority: int) -> None:
        if len(tokens) > self.pool.num_free:
            return
        slots = self.pool.allocate(len(tokens))
        stored = self.stored_length(namespace, tokens)
        insertion = self.tree.insert(ids(*tokens), slots, namespace, priority=priority)
        existing = insertion.existing_slots
        assert len(existing) == stored
        self.pool.free(slots[:stored])
        for end in range(stored, len(tokens)):
            prefix = (namespace, tuple(tokens[: end + 1]))
            self.slot[prefix] = int(slots[end])
            self.created[prefix] = self.clock
            self.num_uses[prefix] = 1
            self.priority[prefix] = priority
        self.touch(namespace, tokens, len(tokens), priority)

    @rule(namespace=NAMESPACES, tokens=TOKENS)
    def lock(self, namespace: str, tokens: list[int]) -> None:
        match = self.tree.match(ids(*tokens), namespace)
        self.tree.lock(match.handle)
        length = len(match.slots)
        self.locks.append((match.handle, (namespace, tuple(tokens[:length]))))
        self.touch(namespace, tokens, length)
        self.count_use(namespace, tokens, length)

    @precondition(lambda self: self.locks)
    @rule(data=st.data())
    def unlock(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.locks) - 1))
        handle, (namespace, tokens) = self.locks.pop(index)
        self.tree.unlock(handle)
        still = self.locked()
        self.clock += 1
        for end in range(1, len(tokens) + 1):
            if (namespace, tokens[:end]) not in still:
                self.used[namespace, tokens[:end]] = self.clock

    @rule(count=st.integers(0, 20))
    def evict(self, count: int) -> None:
        locked = self.locked()
        evictable = set(self.slot) - locked
        freed = self.tree.evict(count).tolist()
        expected: list[int] = []
        while len(expected) < count and evictable:  # one token after the other
            first = min(self.leaves(evictable), key=self.place)
            evictable.remove(first)
            expected.append(self.slot.pop(first))
        assert sorted(freed) == sorted(expected)
        self.pool.free(np.array(freed, dtype=np.int32))

    @invariant()
    def slots_add_up(self) -> None:
        assert self.tree.num_tokens == len(self.slot)
        assert self.tree.num_nodes <= len(self.slot) + 2
        assert self.pool.num_free + self.tree.num_tokens == NUM_SLOTS
        assert self.tree.num_evictable == len(set(self.slot) - self.locked())
        owned = np.concatenate([self.pool.free_slots, *self.tree.stored_slots()])
        assert sorted(owned.tolist()) == list(range(1, NUM_SLOTS + 1))


RadixCacheMachine.TestCase.settings = settings(
    max_examples=250, stateful_step_count=30, deadline=None
)
TestRadixCache = RadixCacheMachine.TestCase


def test_namespaces_share_nothing() -> None:
    tree = RadixCache()
    tree.insert(ids(1, 2), ids(1, 2), "a")
    assert len(tree.match(ids(1, 2), "b").slots) == 0
    assert len(tree.match(ids(1, 2)).slots) == 0


def test_a_namespace_goes_with_its_last_token() -> None:
    tree = RadixCache()
    for salt in range(50):
        tree.insert(ids(1), ids(salt + 1), str(salt))
    assert len(tree.evict(50)) == 50
    assert not list(tree.stored_slots())


def test_a_split_keeps_the_handles_valid() -> None:
    tree = RadixCache()
    handle = tree.insert(ids(1, 2, 3, 4), ids(1, 2, 3, 4)).handle
    tree.lock(handle)
    tree.insert(ids(1, 2, 9), ids(1, 2, 5))
    assert sorted(tree.evict(10).tolist()) == [5]
    tree.unlock(handle)
    assert sorted(tree.evict(10).tolist()) == [1, 2, 3, 4]


def test_the_least_recently_used_branch_goes_first() -> None:
    tree = RadixCache()
    tree.insert(ids(1, 2), ids(1, 2))
    tree.insert(ids(1, 3), ids(1, 3))
    tree.insert(ids(1, 4), ids(1, 4))
    tree.match(ids(1, 2))
    assert tree.evict(1).tolist() == [3]
    assert tree.evict(1).tolist() == [4]
    assert tree.evict(2).tolist() == [2, 1]


def used(tree: RadixCache, token: int, uses: int) -> None:
    tree.insert(ids(token), ids(token))
    for _ in range(uses - 1):
        tree.match(ids(token))


@pytest.mark.parametrize(
    ("policy", "order"),
    [("lru", [1, 2, 3, 4]), ("lfu", [3, 2, 4, 1]), ("slru", [3, 1, 2, 4]), ("fifo", [1, 2, 3, 4])],
)
def test_how_often_something_was_used(policy: str, order: list[int]) -> None:
    tree = RadixCache(policy=policy)
    for token, uses in ((1, 3), (2, 2), (3, 1), (4, 2)):
        used(tree, token, uses)
    assert tree.evict(4).tolist() == order


def test_the_first_in_goes_first_however_often_it_was_used() -> None:
    tree = RadixCache(policy="fifo")
    first = tree.insert(ids(1), ids(1)).handle
    tree.insert(ids(2), ids(2))
    tree.lock(first)
    tree.match(ids(1))
    assert tree.evict(1).tolist() == [2]
    tree.insert(ids(3), ids(3))
    tree.unlock(first)
    assert tree.evict(2).tolist() == [1, 3]


def test_a_prefix_has_the_highest_priority_of_those_who_used_it() -> None:
    tree = RadixCache(policy="priority")
    tree.insert(ids(1, 2), ids(1, 2), priority=0)
    tree.insert(ids(3), ids(3), priority=1)
    tree.match(ids(1), priority=7)
    assert tree.evict(3).tolist() == [2, 3, 1]


def test_an_unknown_policy_is_refused() -> None:
    with pytest.raises(ValueError, match="no eviction policy 'mru': take lru"):
        RadixCache(policy="mru")


def test_more_tokens_than_slots_are_refused() -> None:
    tree = RadixCache(2)
    with pytest.raises(ValueError, match="the tree has 2 slots"):
        tree.insert(ids(1, 2, 3), ids(1, 2, 3))
    assert tree.num_tokens == 0


def test_a_bound_on_the_leaves_bounds_an_eviction() -> None:
    tree = RadixCache()
    for token in range(1, 9):
        tree.insert(ids(token), ids(token))
    assert tree.evict(5, most_leaves=3).tolist() == [1, 2, 3]


def test_evicting_part_of_a_leaf_keeps_its_beginning() -> None:
    tree = RadixCache()
    tree.insert(ids(5, 6, 7), ids(1, 2, 3))
    assert tree.evict(1).tolist() == [3]
    assert tree.match(ids(5, 6, 7)).slots.tolist() == [1, 2]


def test_looking_up_changes_nothing() -> None:
    tree = RadixCache()
    tree.insert(ids(1, 2), ids(1, 2))
    tree.insert(ids(3), ids(3))
    before = tree.version, tree.query_tokens, tree.hit_tokens
    assert tree.match_length(ids(1, 9)) == 1
    assert (tree.version, tree.query_tokens, tree.hit_tokens) == before
    assert tree.evict(2).tolist() == [1, 2]  # still the older one, and still one edge


def test_counters_only_grow() -> None:
    tree = RadixCache()
    tree.insert(ids(1, 2, 3), ids(1, 2, 3))
    tree.match(ids(1, 2, 9))
    tree.evict(2)
    counters = tree.query_tokens, tree.hit_tokens, tree.inserted_tokens, tree.evicted_tokens
    assert counters == (3, 2, 3, 2)


@pytest.mark.parametrize("policy", POLICIES)
def test_the_garbage_collector_sees_no_nodes(policy: str) -> None:
    tree = RadixCache(policy=policy)
    gc.collect()
    before = len(gc.get_objects())
    for token in range(1000):
        tree.insert(ids(token, 1, 2), ids(1, 2, 3))
        tree.insert(ids(token, 1, 3), ids(1, 2, 3))
    gc.collect()
    assert tree.num_nodes == 3001
    assert len(gc.get_objects()) - before < 100


def test_unlocking_twice_is_an_error() -> None:
    tree = RadixCache()
    handle = tree.insert(ids(1), ids(1)).handle
    tree.lock(handle)
    tree.unlock(handle)
    with pytest.raises(ValueError, match="nobody had locked"):
        tree.unlock(handle)


@pytest.mark.benchmark
def test_match_and_insert_of_4000_tokens_take_less_than_a_millisecond() -> None:
    tree = RadixCache()
    tokens = np.arange(4000, dtype=np.int32)
    tree.insert(tokens, tokens)
    started = time.perf_counter()
    for cut in range(100):
        prompt = tokens.copy()
        prompt[3900 + cut] = 50_000
        tree.match(prompt)
        tree.insert(prompt, tokens)
    seconds = (time.perf_counter() - started) / 100
    print(f"{seconds * 1e6:.0f} µs")
    assert seconds < 1e-3


@pytest.mark.benchmark
@pytest.mark.parametrize("num_leaves", [1_000, 100_000])
def test_evicting_costs_the_same_at_any_tree_size(num_leaves: int) -> None:
    tree = RadixCache(4 * num_leaves)
    for leaf in range(num_leaves):
        tree.insert(ids(leaf, 1, 2, 3), ids(1, 2, 3, 4))
    started = time.perf_counter()
    for _ in range(500):
        tree.evict(4)
    seconds = (time.perf_counter() - started) / 500
    print(f"{num_leaves} leaves: {seconds * 1e6:.1f} µs per evicted leaf")
    assert seconds < 1e-4
