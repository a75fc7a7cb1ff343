"""KVMemory: every slot is in one place, whatever happens; namespaces; eviction ahead of need."""

from __future__ import annotations

import itertools

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
from ramet.runtime.protocol import SamplingParams
from ramet.runtime.scheduling.job import Job, Ticket
from ramet.runtime.scheduling.kv_memory import MOST_AHEAD, MOST_LEAVES_AHEAD, KVMemory
from ramet.runtime.scheduling.sequence import Sequence
from ramet.runtime.step import Int32Array

from .scripted import Harness, generate

NUM_SLOTS = 40


class OneSequenceJob:
    """As much of a job as a sequence looks at."""

    def __init__(self, namespace: str, priority: int) -> None:
        self.ticket = Ticket("a", print, 0, namespace=namespace, priority=priority)


def sequence(tokens: list[int], namespace: str = "", priority: int = 0) -> Sequence:
    job: Job = OneSequenceJob(namespace, priority)  # type: ignore[assignment]
    ids = np.array(tokens, dtype=np.int32)
    return Sequence(job, ids, 0, logits_from=len(ids) - 1)


def ids(*tokens: int) -> Int32Array:
    return np.array(tokens, dtype=np.int32)


def compute(memory: KVMemory, one: Sequence, length: int) -> None:
    memory.reserve(one, length)
    one.num_computed = max(one.num_computed, length)


class KVMemoryMachine(RuleBasedStateMachine):
    """Sequences come, compute, share, generate and go, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.live: list[Sequence] = []

    @initialize(
        policy=st.sampled_from(POLICIES),
        watermark=st.sampled_from([0.0, 0.25, 0.5]),
        cache=st.sampled_from([True, True, True, False]),
    )
    def start(self, policy: str, watermark: float, cache: bool) -> None:
        self.memory = KVMemory(
            NUM_SLOTS,
            enable_radix_cache=cache,
            evict_policy=policy,
            eviction_watermark=watermark,
        )

    def pick(self, data: st.DataObject) -> Sequence:
        return self.live[data.draw(st.integers(0, len(self.live) - 1))]

    @rule(
        tokens=st.lists(st.integers(0, 2), min_size=1, max_size=14),
        namespace=st.sampled_from(["", "a"]),
        priority=st.integers(-1, 1),
    )
    def admit(self, tokens: list[int], namespace: str, priority: int) -> None:
        one = sequence(tokens, namespace, priority)
        num_cached = self.memory.look_up(one)
        assert self.memory.attach(one, len(tokens) - 1) == num_cached
        if len(tokens) - one.num_slots > self.memory.num_available:
            self.memory.release(one, keep=False)
            return
        self.live.append(one)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def run(self, data: st.DataObject) -> None:
        one = self.pick(data)
        length = data.draw(st.integers(one.num_computed, one.num_ids))
        if length - one.num_slots <= self.memory.num_available:
            compute(self.memory, one, length)
        else:
            with pytest.raises(MemoryError):
                self.memory.reserve(one, length)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def publish(self, data: st.DataObject) -> None:
        self.memory.publish(self.pick(data))

    @precondition(lambda self: self.live)
    @rule(data=st.data(), token=st.integers(0, 2))
    def generate(self, data: st.DataObject, token: int) -> None:
        self.pick(data).append_id(token)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), keep=st.booleans())
    def release(self, data: st.DataObject, keep: bool) -> None:
        one = self.pick(data)
        self.live.remove(one)
        self.memory.release(one, keep=keep)

    @rule()
    def end_step(self) -> None:
        self.memory.evict_ahead()
        wanted = min(
            int(NUM_SLOTS * self.memory.eviction_watermark),
            self.memory.num_available,
        )
        assert self.memory.pool.num_free >= wanted

    @rule(tokens=st.lists(st.integers(0, 2), min_size=1, max_size=6))
    def store(self, tokens: list[int]) -> None:
        written: list[int] = []
        fits = self.memory.store(ids(*tokens), lambda start, slots: written.extend(slots.tolist()))
        if fits:
            assert len(self.memory.slots_of(ids(*tokens))) == len(tokens)
            assert set(written) <= set(self.memory.slots_of(ids(*tokens)).tolist())

    @rule()
    def flush(self) -> None:
        self.memory.flush()
        assert self.memory.tree.num_evictable == 0

    @invariant()
    def every_slot_is_in_one_place(self) -> None:
        pool, tree = self.memory.pool, self.memory.tree
        own = [one.slots[one.num_shared :] for one in self.live]
        everything = np.concatenate([pool.free_slots, *tree.stored_slots(), *own])
        assert sorted(everything.tolist()) == list(range(1, NUM_SLOTS + 1))
        stored = set(itertools.chain(*(slots.tolist() for slots in tree.stored_slots())))
        for one in self.live:
            assert set(one.slots[: one.num_shared].tolist()) <= stored
        held = len(set(itertools.chain(*(one.slots.tolist() for one in self.live))))
        assert pool.num_free + tree.num_evictable + held == NUM_SLOTS

    def teardown(self) -> None:
        for one in self.live:
            self.memory.release(one, keep=True)
        if self.live:
            self.memory.flush()
            assert self.memory.pool.num_free == NUM_SLOTS


KVMemoryMachine.TestCase.settings = settings(
    max_examples=150, stateful_step_count=30, deadline=None
)
TestKVMemory = KVMemoryMachine.TestCase


def test_a_step_evicts_ahead_up_to_the_watermark() -> None:
    memory = KVMemory(20, eviction_watermark=0.5)
    memory.store(ids(*range(16)), lambda start, slots: None)
    memory.evict_ahead()
    assert memory.pool.num_free == 10


def test_without_a_watermark_nothing_is_evicted_ahead() -> None:
    memory = KVMemory(20)
    memory.store(ids(*range(20)), lambda start, slots: None)
    memory.evict_ahead()
    assert memory.pool.num_free == 0


def test_one_step_evicts_a_bounded_number() -> None:
    memory = KVMemory(20_000, eviction_watermark=0.5)
    memory.store(ids(*range(20_000)), lambda start, slots: None)
    memory.evict_ahead()
    assert memory.pool.num_free == MOST_AHEAD
    memory.evict_ahead()
    memory.evict_ahead()
    assert memory.pool.num_free == 10_000


def test_one_step_evicts_a_bounded_number_of_leaves() -> None:
    memory = KVMemory(8000, eviction_watermark=0.5)
    for token in range(8000):
        memory.store(ids(token), lambda start, slots: None)
    memory.evict_ahead()
    assert memory.pool.num_free == MOST_LEAVES_AHEAD


def test_the_scheduler_evicts_ahead_after_each_step() -> None:
    harness = Harness(num_slots=100, watermark=0.5)
    harness.memory.store(ids(*range(90)), lambda start, slots: None)
    harness.submit(generate("a", "abc", sampling=SamplingParams(max_new_tokens=1)))
    harness.step()
    assert harness.memory.pool.num_free >= 50


def test_a_failed_write_leaves_no_slot_behind() -> None:
    memory = KVMemory(20)

    def write(start: int, slots: Int32Array) -> None:
        raise OSError("the disk")

    with pytest.raises(OSError, match="the disk"):
        memory.store(ids(1, 2, 3), write)
    assert memory.pool.num_free == 20
    assert memory.tree.num_tokens == 0


def test_a_sequence_that_waits_for_room_counts_as_one_use() -> None:
    memory = KVMemory(20, evict_policy="lfu")
    memory.store(ids(1, 2, 3), lambda start, slots: None)
    memory.store(ids(7, 8, 9), lambda start, slots: None)
    waiting = sequence([1, 2, 3, 4])
    for _ in range(5):
        memory.attach(waiting, 3)
        memory.release(waiting, keep=False)
    for _ in range(2):
        other = sequence([7, 8, 9, 4])
        memory.attach(other, 3)
        memory.release(other, keep=False)
    memory.pool.free(memory.tree.evict(3))
    assert len(memory.slots_of(ids(7, 8, 9))) == 3


def test_what_a_request_of_high_priority_used_stays_longest() -> None:
    memory = KVMemory(20, evict_policy="priority")
    for tokens, priority in (([1, 2, 3], 5), ([7, 8, 9], 0)):
        one = sequence(tokens, priority=priority)
        memory.attach(one, 2)
        compute(memory, one, 3)
        memory.release(one, keep=True)
    memory.pool.free(memory.tree.evict(3))
    assert len(memory.slots_of(ids(1, 2, 3))) == 3


@pytest.mark.parametrize("salts", [["a", "ab", "abc", "", "b", "ä", " "]])
def test_c24_salts_share_nothing_and_find_their_own_again(salts: list[str]) -> None:
    harness = Harness(num_slots=1000)
    prompt = "The same prompt for everyone"

    def cached(name: str, salt: str) -> int:
        sampling = SamplingParams(max_new_tokens=2)
        harness.submit(generate(name, prompt, cache_salt=salt, sampling=sampling))
        harness.run()
        return harness.receiver.finished(name).usage.cached_tokens

    assert [cached(f"first {salt}", salt) for salt in salts] == [0] * len(salts)
    assert all(cached(f"again {salt}", salt) > 0 for salt in salts)
