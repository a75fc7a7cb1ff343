"""What a busy pure-Python thread in the user's process does to the decode rate."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import ramet
from tests.benchmarks.report import Table, median, spread


@ramet.function
def tell(s: ramet.ProgramState, count: int) -> None:
    s += ramet.user("Tell me a long story about a lighthouse.")
    s += ramet.assistant(ramet.gen("story", max_tokens=count, ignore_eos=True))


@contextmanager
def busy_thread() -> Iterator[None]:
    """Keep one thread in Python bytecode, as a program that parses or scores does."""
    stop = threading.Event()

    def work() -> None:
        total = 0
        while not stop.is_set():
            for i in range(1000):
                total += i * i % 7

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def rate(engine: ramet.Engine, count: int) -> float:
    """Return tokens per second as the user's process sees them."""
    start = time.perf_counter()
    tell.run(count, backend=engine, temperature=0)
    return count / (time.perf_counter() - start)


# In the thread each of a step's small ops waits for the interpreter lock: seconds per token.
TOKENS = {"worker": 64, "thread": 2}


def measure(quick: bool) -> Table:
    rows = []
    for process in TOKENS:
        engine = ramet.Engine(process=process)
        try:
            rows.append(measure_one(engine, process, quick))
        finally:
            engine.close()
    return Table(
        title="Decode rate beside a busy thread",
        what="One sequence, greedy, with and without one thread of the same Python process that "
        "computes all the time; in turn, 3 times each. Seconds are those of `run`, its short "
        f"prompt cached: {TOKENS['worker']} tokens of a worker, {TOKENS['thread']} of a thread.",
        target="busy ÷ idle ≥ 0.8 for the default process",
        columns=("engine", "idle, tokens/s: median (range)", "busy, tokens/s", "busy ÷ idle"),
        rows=rows,
        notes=[f'The default (`process="auto"`) is a {default_process()}.'],
    )


def measure_one(engine: ramet.Engine, process: str, quick: bool) -> tuple[str, ...]:
    count = min(TOKENS[process], 16) if quick else TOKENS[process]
    rate(engine, count)
    idle, busy, ratios = [], [], []
    for _ in range(1 if quick else 3):
        idle.append(rate(engine, count))
        with busy_thread():
            busy.append(rate(engine, count))
        ratios.append(busy[-1] / idle[-1])
    return process, spread(idle, 1), spread(busy, 2), f"{median(ratios):.3f}"


def default_process() -> str:
    engine = ramet.Engine()
    try:
        return str(engine.info().get("process", "unknown"))
    finally:
        engine.close()
