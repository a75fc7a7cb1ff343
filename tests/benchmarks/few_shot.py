"""Multiple-choice questions behind one long prefix of worked examples, cache on against off.

The ceiling is what the saved work allows. With c prompt tokens computed and d decode steps of a
request (generated tokens but the first), a run needs at least

    c × p + d × q seconds,

where p is the measured time of a prompt token and q that of a decode step of one request, both
taken from runs of this very load without the cache. The ceiling is this sum with the cache off,
divided by the sum with the cache on; reaching it means that finding, keeping and reading shared
tokens cost nothing.
"""

import time
from dataclasses import dataclass

import ramet
from tests.benchmarks.report import Table, empty_cache, median, spread
from tests.benchmarks.workloads import answer, read

MAX_TOKENS = 2


@dataclass(frozen=True)
class Run:
    """One pass over all questions."""

    seconds: float
    programs: int
    prompt: int
    computed: int
    generated: int
    shared: float  # of a prompt, the median

    @property
    def rate(self) -> float:
        return self.programs / self.seconds

    @property
    def decode_steps(self) -> int:
        return self.generated - self.programs


def questions(count: int) -> list[dict[str, object]]:
    first, *rest = read("mmlu")
    return [
        {"prefix": first["prefix"], "question": row["question"], "choices": row["choices"]}
        for row in rest[:count]
    ]


def run(engine: ramet.Engine, rows: list[dict[str, object]], max_tokens: int) -> Run:
    """Answer all questions with an empty cache."""
    empty_cache(engine)
    start = time.perf_counter()
    states = answer.run_batch(rows, backend=engine, temperature=0, max_tokens=max_tokens)
    seconds = time.perf_counter() - start
    usage = [state.usage for state in states]
    return Run(
        seconds=seconds,
        programs=len(rows),
        prompt=sum(u.prompt_tokens for u in usage),
        computed=sum(u.computed_tokens for u in usage),
        generated=sum(u.generated_tokens for u in usage),
        shared=median(u.cached_tokens / u.prompt_tokens for u in usage),
    )


def costs(engine: ramet.Engine, rows: list[dict[str, object]]) -> tuple[float, float]:
    """Return the seconds of a prompt token and of one request's decode step, cache off."""
    prompts = run(engine, rows, 1)
    longer = run(engine, rows, 17)
    per_prompt_token = prompts.seconds / prompts.computed
    extra = longer.seconds - prompts.seconds
    return per_prompt_token, max(extra, 0.0) / longer.decode_steps


def measure(quick: bool) -> Table:
    rows = questions(8 if quick else 32)
    on, off = ramet.Engine(), ramet.Engine(enable_radix_cache=False)
    try:
        for engine in (on, off):  # first calls allocate
            run(engine, rows[:2], 1)
        runs = [
            (run(on, rows, MAX_TOKENS), run(off, rows, MAX_TOKENS))
            for _ in range(1 if quick else 3)
        ]
        prompt_cost, decode_cost = costs(off, rows[: len(rows) // 4 or 1])
    finally:
        on.close()
        off.close()
    return table(runs, prompt_cost, decode_cost)


def table(runs: list[tuple[Run, Run]], prompt_cost: float, decode_cost: float) -> Table:
    def needed(one: Run) -> float:
        return one.computed * prompt_cost + one.decode_steps * decode_cost

    ratios = [with_cache.rate / without.rate for with_cache, without in runs]
    ceiling = median(needed(without) / needed(with_cache) for with_cache, without in runs)
    with_cache, without = runs[0]
    return Table(
        title="Few-shot questions, cache on against off",
        what=f"{with_cache.programs} MMLU questions behind fifteen worked examples, all at once "
        f"(`run_batch`), temperature 0, {MAX_TOKENS} tokens each; {with_cache.prompt} prompt "
        f"tokens, {with_cache.shared:.0%} of each shared. Every run starts with an empty cache; on "
        f"and off in turn, {len(runs)} times each.",
        target="≥ 4 times, and ≥ 70 % of the ceiling",
        columns=("cache", "programs per second: median (range)", "prompt tokens computed"),
        rows=[
            ("on", spread([a.rate for a, _ in runs]), str(with_cache.computed)),
            ("off", spread([b.rate for _, b in runs]), str(without.computed)),
            ("on ÷ off, pair by pair", spread(ratios), ""),
            ("ceiling", f"{ceiling:.2f}", ""),
            ("share of the ceiling", f"{median(ratios) / ceiling:.0%}", ""),
        ],
        notes=[
            "Ceiling: prompt tokens computed × seconds of a prompt token + decode steps × seconds "
            "of one request's decode step, cache off, divided by the same sum, cache on; the two "
            f"costs were measured on this load without cache: {prompt_cost * 1000:.3f} ms and "
            f"{decode_cost * 1000:.2f} ms.",
        ],
    )
