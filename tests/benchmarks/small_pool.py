"""The workloads in a pool that is too small for them, against a serial depth-first replay."""

import ramet
from tests.benchmarks.recording import Call, distinct_positions, longest, serial_hit_rate
from tests.benchmarks.report import Table
from tests.benchmarks.workloads import Workload, workloads
from tests.benchmarks.workloads_bench import run

SHARE = 4  # the pool holds the distinct prompt positions divided by this
SPARE = 16  # slots beyond the longest call, where that is longer than the share


def pool_of(calls: list[Call]) -> int:
    return max(distinct_positions(calls) // SHARE, longest(calls) + SPARE)


def crowded(workload: Workload, num_slots: int) -> list[Call]:
    """Run a workload in a small pool."""
    engine = ramet.Engine(max_total_tokens=num_slots)
    try:
        return run(engine, workload).calls
    finally:
        engine.close()


def hit_rate(calls: list[Call]) -> float:
    cached = sum(call.usage.cached_tokens for call in calls)
    return cached / sum(call.usage.prompt_tokens for call in calls)


def measure(quick: bool) -> Table:
    found = workloads(1 if quick else 3)
    del found["unshared"]
    engine = ramet.Engine()
    try:
        undisturbed = {name: run(engine, workload).calls for name, workload in found.items()}
    finally:
        engine.close()
    rows: list[tuple[str, ...]] = []
    for name, workload in found.items():
        calls = undisturbed[name]
        num_slots = pool_of(calls)
        own, serial = hit_rate(crowded(workload, num_slots)), serial_hit_rate(calls, num_slots)
        rows.append(
            (
                workload.name,
                str(distinct_positions(calls)),
                str(num_slots),
                f"{hit_rate(calls):.1%}",
                f"{own:.1%}",
                f"{serial:.1%}",
                f"{own / serial:.1%}",
            )
        )
    return Table(
        title="Workloads in a small pool",
        what="The same workloads in a pool of a quarter of their distinct "
        f"prompt positions (or of the longest call and {SPARE} slots, where that is more). The "
        "replay takes the recorded calls one at a time, depth first through their prefix tree, "
        "in the same pool, evicting what was used least recently.",
        target="≥ 90 % of the serial replay",
        columns=(
            "workload",
            "distinct positions",
            "slots",
            "hit rate, large pool",
            "small pool",
            "serial replay",
            "small pool ÷ replay",
        ),
        rows=rows,
    )
