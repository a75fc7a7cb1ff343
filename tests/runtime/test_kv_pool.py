"""KVPool: slot numbers."""

import numpy as np
import pytest

from ramet.runtime.cache.kv_pool import KVPool


def test_slots_are_numbered_from_one() -> None:
    assert KVPool(5).allocate(5).tolist() == [1, 2, 3, 4, 5]


def test_freed_slots_come_back() -> None:
    pool = KVPool(4)
    slots = pool.allocate(3)
    pool.free(slots[1:])
    assert pool.num_free == 3
    assert sorted(pool.allocate(3).tolist()) == [2, 3, 4]


def test_asking_for_too_many_takes_none() -> None:
    pool = KVPool(3)
    with pytest.raises(MemoryError, match="4 KV slots were asked for and 3 are free"):
        pool.allocate(4)
    assert pool.num_free == 3


def test_freeing_more_than_there_are_is_an_error() -> None:
    with pytest.raises(ValueError, match="nobody had allocated"):
        KVPool(3).free(np.array([1], dtype=np.int32))


def test_a_pool_has_at_least_one_slot() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        KVPool(0)
