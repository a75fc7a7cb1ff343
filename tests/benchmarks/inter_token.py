"""How long running generations wait for a token while a long prompt is computed."""

import threading
import time
from itertools import pairwise

import numpy as np

import ramet
from ramet.runtime.protocol import (
    Delta,
    Event,
    Failed,
    Finished,
    GenerateRequest,
    SamplingParams,
    Text,
    TokenIds,
)
from tests.benchmarks.report import Table

DECODES = 8
LONG = 8000  # tokens; the default model's context is 8,192


class Clock:
    """Notes when each request's tokens came."""

    def __init__(self) -> None:
        self.times: dict[str, list[float]] = {}
        self.ends: dict[str, float] = {}
        self.failures: list[str] = []
        self.changed = threading.Condition()

    def __call__(self, event: Event) -> None:
        now = time.perf_counter()
        with self.changed:
            if isinstance(event, Delta):
                self.times.setdefault(event.request_id, []).append(now)
            elif isinstance(event, (Finished, Failed)):
                self.ends[event.request_id] = now
                if isinstance(event, Failed):
                    self.failures.append(event.message)
            self.changed.notify_all()

    def wait_for(self, count: int, requests: int) -> None:
        """Wait until `requests` requests have `count` tokens each."""
        with self.changed:
            self.changed.wait_for(
                lambda: len(self.times) >= requests and min(map(len, self.times.values())) >= count,
                timeout=120,
            )


def decode(index: int) -> GenerateRequest:
    return GenerateRequest(
        id=f"decode{index}",
        prompt=(Text(f"{index}) A story about the sea begins with"),),
        sampling=SamplingParams(max_new_tokens=400, ignore_eos=True, temperature=1.0),
        seed=index,
        stream=True,
    )


def measure(quick: bool) -> Table:
    length = 2000 if quick else LONG
    engine = ramet.Engine()
    clock = Clock()
    try:
        chunk = int(str(engine.info().get("chunked_prefill_size", 512)))
        for index in range(DECODES):
            engine.submit(decode(index), clock)
        clock.wait_for(10, DECODES)
        begin = time.perf_counter()
        ids = np.random.default_rng(0).integers(1000, 40_000, length)
        engine.submit(
            GenerateRequest(
                id="long",
                prompt=(TokenIds.of(ids.tolist()),),
                sampling=SamplingParams(max_new_tokens=1),
            ),
            clock,
        )
        with clock.changed:
            clock.changed.wait_for(lambda: "long" in clock.ends, timeout=300)
        if clock.failures or "long" not in clock.ends:
            raise RuntimeError(f"nothing was measured: {clock.failures}")
        end = clock.ends["long"]
        for index in range(DECODES):
            engine.abort(f"decode{index}")
    finally:
        engine.close()
    before, during = [], []
    for times in clock.times.values():
        for first, second in pairwise(times):
            if second < begin:
                before.append(second - first)
            elif first >= begin and second <= end:
                during.append(second - first)
    middle, high, worst = 1e3 * np.percentile(during, (50, 99, 100))
    alone = 1e3 * np.percentile(before, 50)
    return Table(
        title="Tokens of running generations while a long prompt is computed",
        what=f"{DECODES} generations run when a prompt of {length} tokens comes; it is computed "
        f"in chunks of at most {chunk} tokens of a step, with one token of each generation "
        "beside it. Milliseconds between two tokens of a generation.",
        target="99th percentile ≤ 2 × the chunk step (the median gap while the prompt is computed)",
        columns=("before", "chunk step", "99th percentile", "longest", "99th ÷ chunk step"),
        rows=[
            (f"{alone:.0f}", f"{middle:.0f}", f"{high:.0f}", f"{worst:.0f}", f"{high / middle:.2f}")
        ],
        notes=[f"the prompt took {end - begin:.1f} s; {len(during)} gaps were measured"],
    )
