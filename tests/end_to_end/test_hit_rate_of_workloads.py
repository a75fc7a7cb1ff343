"""The workloads of the benchmarks on a tiny random model: what they find in the cache."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import ramet
from ramet.runtime.protocol import Usage
from tests.benchmarks.recording import Call, distinct_positions, longest, serial_hit_rate
from tests.benchmarks.small_pool import hit_rate, pool_of
from tests.benchmarks.workloads import MAKERS, Workload, chats, workloads
from tests.benchmarks.workloads_bench import run
from tests.models import write_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "tiny", max_position_embeddings=8192)


@pytest.fixture(scope="module")
def engine(folder: Path) -> Iterator[ramet.Engine]:
    with ramet.Engine(folder, process="thread", max_total_tokens=60_000) as engine:
        yield engine


@pytest.mark.parametrize("name", MAKERS)
def test_workload_finds_almost_all_that_can_be_found(engine: ramet.Engine, name: str) -> None:
    done = run(engine, workloads(1)[name])
    usage = done.usage
    optimal = 1 - distinct_positions(done.calls) / usage.prompt_tokens
    assert usage.cached_tokens / usage.prompt_tokens >= 0.96 * optimal
    assert usage.cached_tokens <= optimal * usage.prompt_tokens + 1e-6


SEVERAL_FIT = chats(6, 16, "12 conversations")
CROWDED = {name: found for name, found in workloads(1).items() if name != "unshared"}


@pytest.mark.parametrize("workload", [*CROWDED.values(), SEVERAL_FIT], ids=lambda w: str(w.name))
def test_small_pool_serves_a_batch_as_well_as_one_call_after_another(
    engine: ramet.Engine, folder: Path, workload: Workload
) -> None:
    calls = run(engine, workload).calls
    num_slots = pool_of(calls)
    with ramet.Engine(folder, process="thread", max_total_tokens=num_slots) as small:
        crowded = run(small, workload).calls
    assert hit_rate(crowded) >= 0.9 * serial_hit_rate(calls, num_slots)


def test_engine_says_how_large_its_pool_is_where_it_keeps_prefixes(
    engine: ramet.Engine, folder: Path
) -> None:
    assert engine.num_slots == 60_000
    options = {"max_total_tokens": 500, "enable_radix_cache": False}
    with ramet.Engine(folder, process="thread", **options) as uncached:
        assert uncached.num_slots is None
    with ramet.Engine(folder, process="worker", max_total_tokens=500) as worker:
        assert worker.num_slots == 500


def call(*rows: str, generated: str = "") -> Call:
    ids = tuple(tuple(map(ord, row)) for row in rows)
    return Call(ids, tuple(map(ord, generated)), Usage())


def test_distinct_positions_are_counted_once_and_generated_ones_never() -> None:
    calls = [call("abc", generated="de"), call("abcde"), call("abx", "aby")]
    assert distinct_positions(calls) == 3 + 1 + 2  # the last generated token was never computed


def test_longest_counts_what_was_generated() -> None:
    assert longest([call("abc", generated="de"), call("abxy")]) == 5


def test_serial_replay_finds_all_in_a_large_pool_and_little_in_a_small_one() -> None:
    calls = [call("aaaa1"), call("bbbb1"), call("aaaa2"), call("bbbb2")]
    assert serial_hit_rate(calls, 100) == pytest.approx(8 / 20)
    assert serial_hit_rate(calls, 6) == pytest.approx(8 / 20)  # depth first: one trunk at a time
    assert serial_hit_rate([call("aaaa", "aabb")], 100) == 0  # options share their trunk by right
