"""What the scheduler takes per step, outside of the model: 64 running requests."""

import gc
import time

import numpy as np

from ramet.runtime.protocol import SamplingParams
from ramet.runtime.step import RowLogprobs, StepPlan, StepResult
from tests.benchmarks.report import Table
from tests.runtime.scripted import Harness, generate

RUNNING = 64
CONTEXT = 1500  # tokens of a prompt


def answer(plan: StepPlan) -> StepResult:
    """Return what a runner gives, at no cost."""
    rows = [RowLogprobs([-1.0] * len(gather.ids)) for gather in plan.gathers]
    return StepResult([97] * len(plan.draws), rows, [None] * len(plan.draws))


def steady(steps: int, shared: int) -> tuple[list[float], list[float]]:
    """Return seconds per step: those with a prefill in them, and pure decodes."""
    harness = Harness(num_slots=262_144, budget=512, max_running=RUNNING)
    sampling = SamplingParams(max_new_tokens=steps, ignore_eos=True)
    trunk = "t" * shared
    for index in range(RUNNING):
        own = np.random.default_rng(index).integers(97, 123, CONTEXT - shared, dtype=np.uint8)
        harness.submit(generate(f"r{index}", trunk + bytes(own).decode(), sampling=sampling))
    prefill: list[float] = []
    decode: list[float] = []
    while True:
        start = time.perf_counter()
        batch = harness.scheduler.schedule()
        if batch is None:
            return prefill, decode
        planned = time.perf_counter() - start
        result = answer(batch.plan)
        start = time.perf_counter()
        harness.scheduler.commit(batch, result)
        took = planned + time.perf_counter() - start
        if len(batch.plan.input_ids) > len(batch.chunks):
            prefill.append(took)
        elif len(batch.chunks) == RUNNING:
            decode.append(took)


def measure(quick: bool) -> Table:
    rows: list[tuple[str, ...]] = []
    steps = 300 if quick else 1500
    for shared in (0, 1000):
        gc.collect()
        for kind, seconds in zip(
            ("with prefill", "64 decodes"), steady(steps, shared), strict=True
        ):
            middle, high = 1e3 * np.percentile(seconds, (50, 99))
            rows.append(
                (
                    f"{shared} shared tokens, {kind}",
                    str(len(seconds)),
                    f"{middle:.2f}",
                    f"{high:.2f}",
                )
            )
    return Table(
        title="Scheduler time per step",
        what=f"{RUNNING} requests of {CONTEXT} prompt tokens and {steps} generated tokens, chunked "
        "prefill of 512 tokens, no model: schedule and commit, in milliseconds.",
        target="≤ 2 ms with 64 running requests",
        columns=("steps", "how many", "median (ms)", "99th percentile (ms)"),
        rows=rows,
    )
