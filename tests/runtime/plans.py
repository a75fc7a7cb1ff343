"""Step plans made by hand, for tests that run a `ModelRunner` without an engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from ramet.runtime.model_runner import ModelRunner
from ramet.runtime.protocol import SamplingParams
from ramet.runtime.step import Draw, Gather, Int32Array, StepPlan

GREEDY = SamplingParams(temperature=0.0)


@dataclass(frozen=True)
class Piece:
    """New tokens ids[start:end] of a sequence whose token i has its KV in slots[i]."""

    ids: Sequence[int]
    slots: Sequence[int]
    start: int
    end: int


def _packed(values: Sequence[int]) -> Int32Array:
    return np.array(values, np.int32)


def make_plan(
    pieces: Sequence[Piece],
    *,
    rows: Sequence[int] | None = None,
    draws: tuple[Draw, ...] = (),
    gathers: tuple[Gather, ...] = (),
) -> StepPlan:
    """Return the plan of one step; `rows` are the wanted logit rows, all new tokens by default."""
    counts = [piece.end - piece.start for piece in pieces]
    return StepPlan(
        input_ids=_packed([t for p in pieces for t in p.ids[p.start : p.end]]),
        positions=_packed([i for p in pieces for i in range(p.start, p.end)]),
        slot_mapping=_packed([s for p in pieces for s in p.slots[p.start : p.end]]),
        q_indptr=_packed([0, *np.cumsum(counts)]),
        kv_indptr=_packed([0, *np.cumsum([piece.end for piece in pieces])]),
        kv_slots=_packed([s for p in pieces for s in p.slots[: p.end]]),
        logit_rows=_packed(range(sum(counts)) if rows is None else rows),
        draws=draws,
        gathers=gathers,
    )


def logits_of(runner: ModelRunner, pieces: Sequence[Piece]) -> list[torch.Tensor]:
    """Run one step and return the logits of every new token, one tensor per piece."""
    logits = runner.launch(make_plan(pieces)).logits
    return list(torch.split(logits, [piece.end - piece.start for piece in pieces]))


def whole(ids: Sequence[int], slots: Sequence[int]) -> Piece:
    """Return the piece that runs a sequence from its beginning."""
    return Piece(ids, slots, 0, len(ids))


def greedy_ids(runner: ModelRunner, ids: Sequence[int], count: int) -> list[int]:
    """Return `count` greedily generated ids after a prompt."""
    slots, known, start = range(1, len(ids) + count + 1), list(ids), 0
    for _ in range(count):
        piece = Piece(known, slots, start, len(known))
        plan = make_plan([piece], rows=[piece.end - start - 1], draws=(Draw(0, 0, 0, GREEDY),))
        start = len(known)
        known += runner.collect(runner.launch(plan)).tokens
    return known[len(ids) :]
