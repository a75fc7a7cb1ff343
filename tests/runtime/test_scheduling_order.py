"""Who runs first: priority, ageing, hints, prefixes, arrival; and that nobody waits for ever."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramet.runtime.protocol import SamplingParams, ScheduleHints
from ramet.runtime.scheduling.ageing import MIN_BOUND, PAID, PRIORITY_FACTOR
from ramet.runtime.scheduling.prefix_order import common_length

from .scripted import Harness, generate, reference

ONE = SamplingParams(max_new_tokens=1, ignore_eos=True)


def order(harness: Harness) -> list[str]:
    return list(harness.receiver.events)


def num_ahead(*, priority: int, policy: str = "lpm") -> int:
    """How many of an endless stream of requests end before one that came first.

    The stream is hot: its prefix is cached, and one more comes at each step.
    """
    harness = Harness(num_slots=4000, max_running=1, schedule_policy=policy)
    harness.submit(generate("warm", "hot " * 20, sampling=ONE, priority=priority))
    harness.submit(generate("hot0", "hot " * 20 + "0", sampling=ONE, priority=priority))
    harness.step()
    harness.submit(generate("cold", "cold request", sampling=ONE))
    for index in range(1, 3600):  # a step each second: an hour
        harness.submit(
            generate(f"hot{index}", f"{'hot ' * 20}{index}", sampling=ONE, priority=priority)
        )
        harness.step()
        if harness.receiver.ended("cold"):
            break
    ended = [name for name in order(harness) if harness.receiver.ended(name)]
    return ended.index("cold")


def test_a_cold_request_in_a_hot_stream_waits_for_a_bounded_number() -> None:
    ahead = num_ahead(priority=0)
    assert MIN_BOUND <= ahead <= MIN_BOUND + 6


def test_a_low_priority_waits_longer_and_is_not_starved() -> None:
    ahead = num_ahead(priority=7)
    assert PRIORITY_FACTOR * MIN_BOUND <= ahead <= PRIORITY_FACTOR * MIN_BOUND + 6


def test_first_come_first_served_ages_nobody() -> None:
    assert num_ahead(priority=0, policy="fcfs") <= 3


def test_a_batch_that_arrives_at_once_is_never_reordered_by_age() -> None:
    harness = Harness(num_slots=20000, max_running=1)
    prompts = [f"{chr(97 + i % 5) * 40}{i}" for i in range(400)]
    for index, prompt in enumerate(prompts):
        harness.submit(generate(f"r{index}", prompt, sampling=ONE))
    harness.run()
    groups = [int(name[1:]) % 5 for name in order(harness)]
    assert sum(a != b for a, b in pairwise(groups)) == 4


def test_a_batch_that_trickles_in_is_not_reordered_by_age_either() -> None:
    harness = Harness(num_slots=20000, max_running=1)
    for index in range(300):
        prompt = f"{chr(97 + index % 5) * 40}{index}"
        harness.submit(generate(f"r{index}", prompt, sampling=ONE))
        if index % 10 == 0:
            harness.step()
    harness.run()
    late = [int(name[1:]) % 5 for name in order(harness)][60:]
    assert sum(a != b for a, b in pairwise(late)) <= 6


def test_a_higher_priority_goes_first() -> None:
    harness = Harness(max_running=1)
    for name, priority in (("low", -1), ("plain", 0), ("high", 5), ("high too", 5)):
        harness.submit(generate(name, name, sampling=ONE, priority=priority))
    harness.run()
    assert order(harness) == ["high", "high too", "plain", "low"]


def test_priority_comes_before_hint_rank_and_rank_before_the_prefix() -> None:
    harness = Harness(max_running=1)
    harness.submit(generate("warm", "cached prefix", sampling=ONE))
    harness.run()
    hinted = ScheduleHints(rank=1)
    harness.submit(generate("hot", "cached prefix!", sampling=ONE, hints=hinted))
    harness.submit(generate("ranked", "something", sampling=ONE))
    harness.submit(generate("urgent", "else", sampling=ONE, hints=hinted, priority=1))
    harness.run()
    assert order(harness)[1:] == ["urgent", "ranked", "hot"]


def test_the_lowest_priority_is_retracted_first() -> None:
    harness = Harness(num_slots=90)
    harness.scheduler._planner.reserve.on_step = lambda: None  # type: ignore[method-assign]
    harness.scheduler._planner.reserve.ratio = 0.05
    params = SamplingParams(max_new_tokens=40, ignore_eos=True)
    for index, priority in enumerate((0, 5, 5, 5)):
        harness.submit(generate(f"r{index}", f"{index}prompt", sampling=params, priority=priority))
    while not harness.scheduler.counters.num_retractions:
        harness.step()
    assert "r0" not in {s.job.ticket.request_id for s in harness.scheduler.running}
    harness.run()


def test_first_come_first_served_ignores_the_cache() -> None:
    harness = Harness(max_running=1, schedule_policy="fcfs")
    harness.submit(generate("warm", "cached prefix", sampling=ONE))
    harness.run()
    for name, prompt in (("cold", "something"), ("hot", "cached prefix and more")):
        harness.submit(generate(name, prompt, sampling=ONE))
    harness.run()
    assert order(harness) == ["warm", "cold", "hot"]


def test_what_was_computed_last_draws_its_neighbours() -> None:
    harness = Harness(num_slots=4000, max_running=1)
    names = [f"{group}{index}" for index in range(10) for group in "abc"]
    random.Random(1).shuffle(names)
    for name in names:
        harness.submit(generate(name, name[0] * 50 + name, sampling=ONE))
    harness.run()
    groups = [name[0] for name in order(harness)]
    assert sum(a != b for a, b in pairwise(groups)) == 2


@settings(max_examples=60, deadline=None)
@given(data=st.data(), num=st.integers(1, 12), max_running=st.integers(1, 4))
def test_random_hints_and_priorities_change_no_output(
    data: st.DataObject, num: int, max_running: int
) -> None:
    harness = Harness(num_slots=200, budget=16, max_running=max_running)
    integers = st.integers(-3, 10)
    submitted = []
    for index in range(num):
        hints = ScheduleHints(
            program_id=data.draw(st.sampled_from(["", "a", "b"])),
            rank=data.draw(integers),
            next_use=data.draw(integers),
            consumers=data.draw(integers),
        )
        request = generate(
            f"r{index}",
            data.draw(st.sampled_from(["a" * 40, "a" * 40 + "b", "ab" * 20])),
            sampling=SamplingParams(max_new_tokens=data.draw(st.integers(0, 8))),
            hints=data.draw(st.sampled_from([None, hints])),
            priority=data.draw(st.integers(-2, 2)),
            seed=index,
        )
        harness.submit(request)
        submitted.append(request)
        for _ in range(data.draw(st.integers(0, 3))):
            harness.step()
    harness.run()
    for request in submitted:
        found = list(harness.receiver.finished(request.id).sample.ids)
        prompt = request.prompt[0].text  # type: ignore[union-attr]
        assert found == reference(prompt.encode(), request)


@pytest.mark.parametrize("policy", ["lpm", "fcfs"])
def test_two_thousand_that_wait_cost_a_bounded_number_of_lookups_per_step(
    policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = Harness(num_slots=100_000, max_running=4, schedule_policy=policy)
    for index in range(2000):
        harness.submit(generate(f"r{index}", f"{chr(97 + index % 26) * 40}{index}", sampling=ONE))
    lookups = 0
    match_length = harness.memory.tree.match_length

    def counted(*args: object) -> int:
        nonlocal lookups
        lookups += 1
        return match_length(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(harness.memory.tree, "match_length", counted)
    for _ in range(20):
        before = lookups
        harness.step()
        assert lookups - before <= 300


def test_common_length() -> None:
    import numpy as np

    a = np.array([1, 2, 3], dtype=np.int32)
    assert [common_length(a, a[:n]) for n in range(4)] == [0, 1, 2, 3]
    assert common_length(a, np.array([1, 5, 3], dtype=np.int32)) == 1


def test_past_the_bound_the_oldest_take_turns_with_those_that_came_later() -> None:
    harness = Harness(num_slots=4000, max_running=1)
    harness.submit(generate("warm", "hot " * 20, sampling=ONE))
    harness.step()
    for index in range(10):
        harness.submit(generate(f"cold{index}", f"{index} cold request", sampling=ONE))
    for index in range(400):
        harness.submit(generate(f"hot{index}", f"{'hot ' * 20}{index}", sampling=ONE))
        harness.step()
    places = [place for place, name in enumerate(order(harness)) if name.startswith("cold")]
    assert len(places) == 10
    gaps = [second - first for first, second in pairwise(places)]
    assert max(gaps) <= PAID + 1
    assert min(gaps) >= PAID - 1
    harness.run()
