"""How many threads a step gets."""

from __future__ import annotations

from itertools import pairwise

import pytest

from ramet.runtime.step import RowLogprobs, StepPlan, StepResult
from ramet.runtime.step_threads import (
    FIRST_TRIAL,
    LONGEST_PAUSE,
    StepThreads,
    ThreadChoice,
    threads_agree,
)

from .scripted import Harness, generate


def run(choice: ThreadChoice, seconds: dict[int, float], steps: int, size: int = 1) -> list[int]:
    """Run steps that take `seconds` by their number of threads; return those numbers."""
    used = []
    for _ in range(steps):
        used.append(choice.begin(size))
        choice.end(size, seconds[used[-1]])
    return used


IDLE = {2: 1.0, 1: 1.3}
BUSY = {2: 2.0, 1: 1.4}


def test_all_threads_are_used_and_one_less_is_tried_ever_more_rarely() -> None:
    used = run(ThreadChoice(2), IDLE, 600)
    trials = [step for step, threads in enumerate(used) if threads == 1]
    pauses = [b - a - 1 for a, b in pairwise(trials)]
    assert trials[0] == FIRST_TRIAL
    assert pauses == [16, 32, 64, 128, 128, 128]


def test_busy_cores_cost_a_thread_until_they_are_free_again() -> None:
    choice = ThreadChoice(2)
    run(choice, IDLE, 20)
    used = run(choice, BUSY, 100)
    assert used[:3] == [2, 1, 1] or used[:2] == [2, 1]
    assert used.count(2) <= 8
    used = run(choice, IDLE, LONGEST_PAUSE + 100)
    assert used[-20:] == [2] * 20


def test_sizes_are_learned_apart() -> None:
    choice = ThreadChoice(2)
    run(choice, BUSY, 20, size=512)
    assert choice.begin(512) == 1
    assert choice.begin(1) == 2


@pytest.mark.parametrize("seconds", [0.1, 1.0])
def test_one_thread_is_the_least(seconds: float) -> None:
    assert run(ThreadChoice(1), {1: seconds}, 50) == [1] * 50


def test_every_step_sets_its_threads_first() -> None:
    harness = Harness()
    harness.submit(generate("a", "hello"))
    batch = harness.scheduler.schedule()
    assert batch is not None
    given: list[int] = []
    runner = StepThreads(harness.runner, 3, given.append)
    assert runner.num_slots == harness.runner.num_slots
    assert len(runner.collect(runner.launch(batch.plan)).tokens) == 1
    assert given == [3]


class BitsOfThreads:
    """A runner whose answers depend on the number of threads from `changes_at` on."""

    num_slots = 100

    def __init__(self, changes_at: int) -> None:
        self.changes_at = changes_at
        self.threads = 0

    def set_num_threads(self, count: int) -> None:
        self.threads = count

    def launch(self, plan: StepPlan) -> StepPlan:
        return plan

    def collect(self, pending: object) -> StepResult:
        assert isinstance(pending, StepPlan)
        return StepResult(gathered=[RowLogprobs([-1.0 - (self.threads >= self.changes_at) * 1e-9])])


@pytest.mark.parametrize(("changes_at", "agree"), [(9, True), (2, False)])
def test_threads_that_change_bits_are_found(changes_at: int, agree: bool) -> None:
    runner = BitsOfThreads(changes_at)
    assert threads_agree(runner, (1, 2), runner.set_num_threads) is agree
