"""From the start of the interpreter to the first token, with the model file in the cache."""

import subprocess
import sys
import time

from tests.benchmarks.report import Table, spread

CODE = """
import sys
import ramet

@ramet.function
def hello(s):
    s += ramet.user("Hello!") + ramet.assistant(ramet.gen("reply", max_tokens=1))

if __name__ == "__main__":
    with_engine = ramet.Engine(process=sys.argv[1])
    hello.run(backend=with_engine, temperature=0)
    print("token", flush=True)
    with_engine.close()
"""


def measure(quick: bool) -> Table:
    seconds: dict[str, list[float]] = {"worker": [], "thread": []}
    seconds_until("worker")  # the file is downloaded, and in the page cache
    for _ in range(1 if quick else 3):
        for process, values in seconds.items():
            values.append(seconds_until(process))
    return Table(
        title="From the start of Python to the first token",
        what="A fresh interpreter imports Ramet, starts an engine on the default model and asks "
        "for one token; model file and page cache are warm.",
        target="below 15 s on 2 cores",
        columns=("engine", "seconds: median (range)"),
        rows=[(name, spread(values)) for name, values in seconds.items()],
    )


def seconds_until(process: str) -> float:
    start = time.perf_counter()
    command = [sys.executable, "-c", CODE, process]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        line = child.stdout.readline() if child.stdout else ""
        elapsed = time.perf_counter() - start
    if line.strip() != "token" or child.returncode:
        raise RuntimeError(f"the program for {process!r} failed with code {child.returncode}")
    return elapsed
