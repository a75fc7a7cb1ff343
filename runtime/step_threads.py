"""How many torch threads each step of a worker gets: all cores, or one less while they are busy.

Torch's threads meet at the end of every operation. Where another program, often the user's own
Python thread, needs one of the cores, every operation waits for the thread that has lost its
core, and a step takes up to twice as long as with one thread less (measured on two cores). The
number of threads must never change a result: `threads_agree` tries that at the start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from time import perf_counter

import numpy as np

from .step import Gather, Runner, StepPlan, StepResult

FIRST_TRIAL = 8  # steps before the other number of threads is tried
LONGEST_PAUSE = 128  # steps between two trials
PROBE_TOKENS = 21


class _Trials:
    """What steps of one size have taken with all threads, and with one less."""

    def __init__(self) -> None:
        self.seconds: dict[bool, float] = {}  # with one less: seconds per token
        self.use_less = False
        self.is_trial = False
        self._pause = FIRST_TRIAL
        self._steps_left = FIRST_TRIAL

    def begin(self) -> bool:
        """Return whether the next step gets one thread less."""
        self.is_trial = self._steps_left <= 0
        self._steps_left -= 1
        return self.use_less != self.is_trial

    def end(self, with_less: bool, seconds: float) -> None:
        """Learn what the step took; a trial that was no better makes the next one rarer."""
        last = None if self.is_trial else self.seconds.get(with_less)
        self.seconds[with_less] = seconds if last is None else (last + seconds) / 2
        before = self.use_less
        if len(self.seconds) == 2:
            self.use_less = self.seconds[True] < self.seconds[False]
        if self.is_trial or self.use_less != before:
            is_new = self.use_less != before
            self._pause = FIRST_TRIAL if is_new else min(2 * self._pause, LONGEST_PAUSE)
            self._steps_left = self._pause


class ThreadChoice:
    """Prefers the number of threads that was faster for steps of about the same size."""

    def __init__(self, num_threads: int) -> None:
        self._all = num_threads
        self._sizes: dict[int, _Trials] = {}  # by the power of two of the number of tokens
        self._with_less = False

    def begin(self, num_tokens: int) -> int:
        """Return how many threads the next step gets."""
        if self._all == 1:
            return 1
        trials = self._sizes.setdefault(num_tokens.bit_length(), _Trials())
        self._with_less = trials.begin()
        return self._all - self._with_less

    def end(self, num_tokens: int, seconds: float) -> None:
        """Learn what the step took."""
        if self._all > 1:
            trials = self._sizes[num_tokens.bit_length()]
            trials.end(self._with_less, seconds / num_tokens)


class StepThreads:
    """A runner that sets the number of threads before each step of another runner."""

    def __init__(
        self, runner: Runner, num_threads: int, set_num_threads: Callable[[int], None]
    ) -> None:
        self._runner = runner
        self._choice = ThreadChoice(num_threads)
        self._set_num_threads = set_num_threads
        self._num_tokens = 0
        self._started = 0.0

    @property
    def num_slots(self) -> int:
        """KV slots of the other runner."""
        return self._runner.num_slots

    def launch(self, plan: StepPlan) -> object:
        """Start the step."""
        self._num_tokens = len(plan.input_ids)
        self._set_num_threads(self._choice.begin(self._num_tokens))
        self._started = perf_counter()
        return self._runner.launch(plan)

    def collect(self, pending: object) -> StepResult:
        """Wait for the step, and learn from what it took."""
        result = self._runner.collect(pending)
        self._choice.end(self._num_tokens, perf_counter() - self._started)
        return result


def threads_agree(
    runner: Runner, counts: Iterable[int], set_num_threads: Callable[[int], None]
) -> bool:
    """Run a short prompt and a decode with each number of threads; True if all bits are equal.

    It also does what a first step with a number of threads has to do once.
    """
    length = min(PROBE_TOKENS, runner.num_slots)
    probes = [_probe(0, length - 1)] * (length > 1) + [_probe(length - 1, length)]
    answers = []
    for count in counts:
        set_num_threads(count)
        answers.append([runner.collect(runner.launch(probe)).gathered for probe in probes])
    return all(answer == answers[0] for answer in answers)


def _probe(start: int, end: int) -> StepPlan:
    """A step of one sequence in slots that nobody has yet."""
    positions = np.arange(start, end, dtype=np.int32)
    return StepPlan(
        input_ids=positions,
        positions=positions,
        slot_mapping=positions + 1,
        q_indptr=np.array([0, end - start], np.int32),
        kv_indptr=np.array([0, end], np.int32),
        kv_slots=np.arange(1, end + 1, dtype=np.int32),
        logit_rows=np.array([end - start - 1], np.int32),
        gathers=(Gather(0, tuple(range(64))),),
    )
