"""EngineConfig and the memory plan."""

from __future__ import annotations

import logging
from pathlib import Path

import psutil
import pytest

from ramet.runtime.cache import memory_plan
from ramet.runtime.cache.memory_plan import available_bytes, plan_slots
from ramet.runtime.config import EngineConfig
from ramet.runtime.protocol import InvalidRequestError


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": "int8"}, "dtype must be one of auto, float32, bfloat16, not 'int8'"),
        ({"device": "cuda"}, "device must be one of auto, cpu"),
        ({"process": "both"}, "process must be one of"),
        ({"max_running_requests": 0}, "max_running_requests must be an integer of at least 1"),
        ({"max_running_requests": None}, "max_running_requests must be an integer"),
        ({"chunked_prefill_size": 1.5}, "chunked_prefill_size must be an integer"),
        ({"context_length": True}, "context_length must be an integer"),
        ({"max_total_tokens": -1}, "max_total_tokens must be an integer"),
        ({"num_threads": 0}, "num_threads must be an integer"),
        ({"num_threads": 2, "process": "thread"}, "num_threads needs the worker process"),
        ({"model": ""}, "model must be a non-empty string"),
        ({"enable_radix_cache": 1}, "enable_radix_cache must be a bool"),
        ({"radix_cache_evict_policy": "mru"}, "radix_cache_evict_policy must be one of lru, lfu"),
        ({"radix_eviction_policy": "mru"}, "radix_cache_evict_policy must be one of lru, lfu"),
        ({"schedule_policy": "dfs"}, "schedule_policy must be one of lpm, fcfs"),
        ({"eviction_watermark": 0.6}, "eviction_watermark must be a number from 0.0 to 0.5"),
        ({"eviction_watermark": -0.1}, "eviction_watermark must be a number"),
        ({"eviction_watermark": True}, "eviction_watermark must be a number"),
        ({"eviction_watermark": float("nan")}, "eviction_watermark must be a number"),
        ({"cache_dir": ""}, "cache_dir must be a non-empty string"),
        ({"cache_dir": "x", "enable_radix_cache": False}, "cache_dir needs the prefix cache"),
        ({"max_queued_requests": 0}, "max_queued_requests must be an integer of at least 1"),
        ({"max_queued_requests": None}, "max_queued_requests must be an integer"),
    ],
)
def test_options_out_of_range_are_named(options: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        EngineConfig.of(options)


def test_an_unknown_option_names_the_nearest() -> None:
    with pytest.raises(TypeError, match="did you mean 'max_running_requests'"):
        EngineConfig.of({"max_runing_requests": 3})


def test_the_eviction_policy_has_two_spellings() -> None:
    assert EngineConfig.of({"radix_eviction_policy": "slru"}).radix_cache_evict_policy == "slru"
    both: dict[str, object] = {"radix_eviction_policy": "slru", "radix_cache_evict_policy": "slru"}
    with pytest.raises(TypeError, match="radix_cache_evict_policy and radix_eviction_policy are"):
        EngineConfig.of(both)


def test_the_pool_takes_a_quarter_of_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_plan, "available_bytes", lambda: 4_000_000)
    assert plan_slots(100, context_length=1024) == 10_000


def test_the_pool_has_a_largest_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_plan, "available_bytes", lambda: 2**50)
    assert plan_slots(100, context_length=1024) == 131_072


def test_a_small_pool_is_stated(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(memory_plan, "available_bytes", lambda: 400_000)
    with caplog.at_level(logging.WARNING, "ramet.engine"):
        assert plan_slots(100, context_length=2048) == 1000
    assert "1000 tokens" in caplog.text
    assert "2048" in caplog.text


def test_a_pool_of_a_wanted_size(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "ramet.engine"):
        assert plan_slots(100, context_length=2048, wanted=5000) == 5000
        assert not caplog.records
        assert plan_slots(100, context_length=2048, wanted=10) == 10
    assert len(caplog.records) == 1


def test_containers_bound_the_memory(tmp_path: Path) -> None:
    everything = psutil.virtual_memory().total
    assert 0 < available_bytes(tmp_path) <= everything
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("5\n")
    assert available_bytes(tmp_path) > 1000
    (tmp_path / "memory.max").write_text("1005\n")
    assert available_bytes(tmp_path) == 1000
    old = tmp_path / "v1" / "memory"
    old.mkdir(parents=True)
    (old / "memory.limit_in_bytes").write_text(f"{2**63 - 4096}\n")
    (old / "memory.usage_in_bytes").write_text("5\n")
    assert available_bytes(tmp_path / "v1") > 1000
    (old / "memory.limit_in_bytes").write_text("3\n")
    assert available_bytes(tmp_path / "v1") == 0
