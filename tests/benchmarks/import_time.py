"""How long `import ramet` takes, and that it loads no torch."""

import subprocess
import sys

from tests.benchmarks.report import Table, median

CODE = """
import time; start = time.perf_counter()
import ramet
print(time.perf_counter() - start)
import sys; print("torch" in sys.modules)
"""


def measure(quick: bool) -> Table:
    seconds, torch_loaded = [], set()
    for _ in range(3 if quick else 10):
        out = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True)
        first, second = out.stdout.split()
        seconds.append(float(first))
        torch_loaded.add(second == "True")
    row = (
        f"{median(seconds) * 1000:.0f} ms",
        f"{min(seconds) * 1000:.0f}–{max(seconds) * 1000:.0f} ms",
        "yes" if True in torch_loaded else "no",
    )
    return Table(
        title="import ramet",
        what=f"Fresh interpreters, {len(seconds)} of them, one after another.",
        target="no torch, below 0.2 s",
        columns=("median", "range", "torch loaded"),
        rows=[row],
    )
