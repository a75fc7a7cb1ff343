"""Tables of results and the page they are written to."""

import os
import platform
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import ramet

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "docs" / "benchmarks.md"


@dataclass(frozen=True)
class Table:
    """One benchmark's result: what was measured, the rows, and whether the target is met."""

    title: str
    what: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]
    target: str = ""
    notes: list[str] = field(default_factory=list)

    def markdown(self) -> str:
        lines = [f"## {self.title}", "", self.what, ""]
        if self.target:
            lines += [f"Target: {self.target}", ""]
        for row in (self.columns, tuple("---" for _ in self.columns), *self.rows):
            lines.append("| " + " | ".join(row) + " |")
        if self.notes:
            lines += ["", *(f"- {note}" for note in self.notes)]
        return "\n".join(lines)


def median(values: Iterable[float]) -> float:
    return statistics.median(values)


def spread(values: Sequence[float], digits: int = 2) -> str:
    """Return "median (lowest–highest)"."""
    low, high = min(values), max(values)
    return f"{median(values):.{digits}f} ({low:.{digits}f}–{high:.{digits}f})"


def empty_cache(engine: ramet.Engine) -> None:
    """Empty the prefix cache; an engine may need a moment to put the last request away."""
    end = time.monotonic() + 10
    while not engine.flush_cache():
        if time.monotonic() > end:
            raise RuntimeError("the engine did not become idle within 10 s")
        time.sleep(0.01)


def machine() -> str:
    """Return processor, usable cores, memory and versions in one line."""
    import psutil

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    memory = psutil.virtual_memory().total / 2**30
    return (
        f"{processor()}, {cores} cores, {memory:.0f} GiB memory, no GPU used; "
        f"Python {platform.python_version()}, torch {version('torch')}, ramet {version('ramet')}"
    )


def processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor() or platform.machine()
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    flags = [f for f in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if f" {f}" in text]
    return f"{found[1] if found else platform.machine()} ({', '.join(flags)})"


def commit() -> str:
    """Return the short commit id, with "+" where the tree has changes."""
    try:
        run = ("git", "-C", str(ROOT), "describe", "--always", "--dirty=+", "--abbrev=10")
        return subprocess.run(run, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def stamp(name: str) -> str:
    """Return the line under a table: when, where, and how to get it again."""
    day = datetime.now(UTC).date().isoformat()
    command = f"python -m tests.benchmarks.run {name}"
    return f"*{day}, commit {commit()}, {machine()}. Again: `{command}`*"


def write_section(name: str, body: str) -> None:
    """Replace the part of the page between the marks of `name`; the rest stays as it is."""
    page = PAGE.read_text(encoding="utf-8")
    pattern = re.compile(rf"(<!-- begin {name} -->\n).*?(<!-- end {name} -->)", re.DOTALL)
    if not pattern.search(page):
        sys.exit(f"{PAGE} has no place for {name}: add <!-- begin {name} --> and <!-- end … -->")
    PAGE.write_text(
        pattern.sub(lambda match: f"{match[1]}{body}\n{match[2]}", page), encoding="utf-8"
    )
