"""The workloads with the cache on against off: time, hit rate, and hit rate against the optimal.

The optimal hit rate is 1 − distinct prompt positions ÷ prompt tokens. Distinct positions are the
nodes that the prompts have in one prefix tree, without those that the engine had generated itself;
a cache that forgets nothing computes each once. Cached positions that run again only to get their
logits back count as cached, as in the usage.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import ramet
from ramet.runtime.protocol import Usage
from tests.benchmarks.recording import Call, Recording, distinct_positions
from tests.benchmarks.report import Table, empty_cache, median, spread
from tests.benchmarks.workloads import Workload, workloads

SEED = 1


@dataclass(frozen=True)
class Pass:
    """One run of a workload with an empty cache."""

    seconds: float
    calls: list[Call]

    @property
    def usage(self) -> Usage:
        return sum((call.usage for call in self.calls), Usage())


@dataclass(frozen=True)
class Outcome:
    """The runs of one workload, with the cache and without, pair by pair."""

    workload: Workload
    pairs: list[tuple[Pass, Pass]]

    @property
    def ratios(self) -> list[float]:
        return [off.seconds / on.seconds for on, off in self.pairs]

    @property
    def hit_rate(self) -> float:
        """Return the lowest hit rate of the runs with the cache."""
        return min(on.usage.cached_tokens / on.usage.prompt_tokens for on, _ in self.pairs)

    @property
    def optimal(self) -> float:
        """Return the optimal hit rate of the first run."""
        first = self.pairs[0][0]
        return 1 - distinct_positions(first.calls) / first.usage.prompt_tokens


def run(engine: ramet.Engine, workload: Workload) -> Pass:
    """Run all rows at once."""
    empty_cache(engine)
    recording = Recording(engine)
    start = time.perf_counter()
    workload.program.run_batch(
        workload.rows, backend=recording, temperature=0, seed=SEED, on_error="raise"
    )
    return Pass(time.perf_counter() - start, recording.calls)


def outcomes(size: int, repeats: int, names: Sequence[str] = ()) -> list[Outcome]:
    """Run workloads, by default all, with the cache on and off in turn."""
    on, off = ramet.Engine(), ramet.Engine(enable_radix_cache=False)
    found = workloads(size)
    results = []
    try:
        for engine in (on, off):  # first calls allocate
            run(engine, workloads(1)["unshared"])
        for name in names or found:
            pairs = [(run(on, found[name]), run(off, found[name])) for _ in range(repeats)]
            results.append(Outcome(found[name], pairs))
    finally:
        on.close()
        off.close()
    return results


def measure(quick: bool) -> Table:
    results = outcomes(1, 1) if quick else outcomes(2, 3)
    return Table(
        title="Workloads, cache on against off",
        what="Each workload is one `run_batch` with an empty cache, temperature 0 unless it "
        "branches, a fixed number of generated tokens; cache on and off in turn, "
        f"{len(results[0].pairs)} times each. The prompt tokens of a choice are its trunk, once, "
        "and each option's own.",
        target="hit rate ≥ 96 % of the optimal",
        columns=(
            "workload",
            "rows",
            "requests",
            "prompt tokens",
            "generated",
            "seconds, cache on",
            "off ÷ on: median (range)",
            "hit rate",
            "of the optimal",
        ),
        rows=[cells(result) for result in results],
        notes=[
            "Optimal: 1 − distinct prompt positions ÷ prompt tokens, counted on the requests' own "
            "ids; what the engine generated is known to an ideal cache and not counted. Of several "
            "runs the lowest hit rate is shown. Where nothing is shared both are 0.",
        ],
    )


def cells(result: Outcome) -> tuple[str, ...]:
    first = result.pairs[0][0]
    usage, optimal = first.usage, result.optimal
    return (
        result.workload.name,
        str(len(result.workload.rows)),
        str(len(first.calls)),
        str(usage.prompt_tokens),
        str(usage.generated_tokens),
        f"{median(on.seconds for on, _ in result.pairs):.1f}",
        spread(result.ratios),
        f"{result.hit_rate:.1%}",
        f"{result.hit_rate / optimal:.1%}" if optimal > 0 else "nothing to share",
    )
