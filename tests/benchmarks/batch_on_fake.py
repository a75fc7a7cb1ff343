"""Thousands of instances through `run_batch` on the fake backend: threads, memory, speed."""

import gc
import threading
import time
import tracemalloc

import ramet
from tests.benchmarks.report import Table


@ramet.function
def judge(s: ramet.ProgramState, number: int) -> None:
    s += ramet.user(f"Judge essay {number}.")
    group = s.fork(2)
    group += ramet.assistant(ramet.gen("verdict", max_tokens=8))
    group.join()
    s += ramet.assistant("In short: " + ramet.gen("summary", max_tokens=8))


def measure(quick: bool) -> Table:
    rows: list[tuple[str, ...]] = []
    for count in (200,) if quick else (2_000, 20_000):
        seconds, threads = _run(count)
        rows.append(
            (
                f"{count:,}",
                f"{count / seconds:,.0f}",
                str(threads),
                f"{_bytes_per_row(min(count, 2_000)) / 1000:.1f} kB",
            )
        )
    return Table(
        title="Many instances through run_batch",
        what="A program with a fork of two and three gens, on the fake backend, which answers at "
        "once: what the language itself costs. Threads are the most at any row's end beyond those "
        "before the batch; memory is what a finished row's state keeps (tracemalloc, of at most "
        "2,000 rows), its text and ids included.",
        columns=("instances", "rows per second", "threads", "memory per row"),
        rows=rows,
        target="threads and memory are bounded at 2,000 instances",
    )


def _run(count: int) -> tuple[float, int]:
    before = threading.active_count()
    most = 0
    fake = ramet.Fake({"verdict": "good", "summary": "fine"})
    start = time.perf_counter()
    for _ in judge.as_completed(({"number": i} for i in range(count)), backend=fake):
        most = max(most, threading.active_count())
    return time.perf_counter() - start, most - before


def _bytes_per_row(count: int) -> float:
    fake = ramet.Fake({"verdict": "good", "summary": "fine"})
    tracemalloc.start()
    try:
        states = judge.run_batch(({"number": i} for i in range(count)), backend=fake)
        fake.requests.clear()
        fake.flush_cache()
        del fake
        gc.collect()
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return kept / len(states)
