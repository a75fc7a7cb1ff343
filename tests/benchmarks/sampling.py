"""What drawing the tokens of one step costs, beside the model."""

import time

import torch

from ramet.runtime.protocol import SamplingParams
from ramet.runtime.sampler import draw_tokens, report_logprobs
from ramet.runtime.step import Draw, Gather
from tests.benchmarks.report import Table, spread

ROWS = 64
VOCABULARY = 49152
KINDS = {
    "greedy": SamplingParams(temperature=0.0),
    "temperature 0.8": SamplingParams(temperature=0.8),
    "temperature 0.8, top_p 0.9": SamplingParams(temperature=0.8, top_p=0.9),
    "temperature 1.0, top_k 50, top_p 0.95": SamplingParams(top_k=50, top_p=0.95),
}


def rows() -> torch.Tensor:
    """Return logits shaped like a small model's: near normal, with a few ids far above."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(ROWS, VOCABULARY, generator=generator) * 2.5
    peaks = torch.randint(0, VOCABULARY, (ROWS, 12), generator=generator)
    heights = torch.arange(18.0, 6.0, -1.0).expand(ROWS, -1)
    return logits.scatter_(1, peaks, heights)


def milliseconds(logits: torch.Tensor, draws: list[Draw], tries: int) -> list[float]:
    times = []
    for _ in range(tries + 2):
        start = time.perf_counter()
        tokens = draw_tokens(logits, draws, VOCABULARY)
        report_logprobs(logits, draws, tokens, VOCABULARY)
        times.append((time.perf_counter() - start) * 1e3)
    return times[2:]


def measure(quick: bool) -> Table:
    logits = rows()
    tries = 5 if quick else 20
    table: list[tuple[str, ...]] = []
    with torch.inference_mode():
        for name, params in KINDS.items():
            draws = [Draw(row, row * 977, row, params) for row in range(ROWS)]
            many = milliseconds(logits, draws, tries)
            one = milliseconds(logits[:1], draws[:1], tries)
            table.append((name, spread(one), spread(many)))
        draws = [Draw(i, i, i, KINDS["greedy"], report=Gather(i, (), 5)) for i in range(ROWS)]
        table.append(
            (
                "greedy, with the 5 likeliest log-probabilities",
                spread(milliseconds(logits[:1], draws[:1], tries)),
                spread(milliseconds(logits, draws, tries)),
            )
        )
    return Table(
        title="Sampling: what the draws of one step cost",
        what=f"Rows of {VOCABULARY} logits, milliseconds per step, median (lowest–highest).",
        columns=("parameters", "1 draw", f"{ROWS} draws"),
        rows=table,
    )
