"""How much of known workloads the scheduler finds in the cache, with no model."""

from __future__ import annotations

import pytest

from tests.benchmarks.hit_rate import (
    WORKLOADS,
    Call,
    measure_calls,
    measure_requests,
    num_distinct,
    optimal,
    shares,
    workload,
)


def test_distinct_positions_are_those_of_the_prefix_tree() -> None:
    calls = [Call((1, 2, 3)), Call((1, 2, 4)), Call((1, 2)), Call((5,)), Call((5,))]
    assert num_distinct(calls) == 5
    assert optimal(calls) == 1 - 5 / 10


def test_bare_prompts_reach_the_optimal() -> None:
    prompts = [[1] * 50 + [index] * 10 for index in range(20)]
    found, best = measure_requests(prompts, 5000)
    assert found == pytest.approx(best)


@pytest.mark.parametrize("name", WORKLOADS)
def test_the_default_settings_come_near_the_optimal(name: str) -> None:
    found = shares(workload(name, 12))
    for when in ("at once", "over time"):
        assert found[f"large, {when}"] >= 0.96
    if name != "multi-turn":  # nobody knows that another turn comes: see docs/benchmarks.md
        assert found["quarter, at once"] >= 0.9


def test_conversations_one_after_another_reach_the_optimal_in_a_small_pool() -> None:
    calls = workload("multi-turn", 12)
    best = optimal(calls)
    assert measure_calls(calls, num_distinct(calls) // 4, max_running=2) >= 0.9 * best
