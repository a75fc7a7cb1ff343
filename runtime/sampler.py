"""From logit rows to tokens and log-probabilities.

What is drawn from a row is a pure function of the row, the banned ids, the sampling parameters,
the seed and the output position. Order: banned ids, temperature, top-k, top-p, min-p, then the
maximum of logits and Gumbel noise, which is a sample of their softmax.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from ramet.kernels import ops

from .protocol import SamplingParams
from .step import Draw, Gather, RowLogprobs

NOT_FINITE = -1  # the token of a row whose logits are not finite
NUCLEUS_TRIES = (128, 2048)  # likeliest ids that are sorted before the whole vocabulary is
SUM_WIDTH = 1024


def draw_tokens(logits: torch.Tensor, draws: Sequence[Draw], vocab_size: int) -> list[int]:
    """Return one token per draw; ids from `vocab_size` on are never drawn.

    −1 stands where the row has NaN or +inf or nothing but −inf.
    """
    if not draws:
        return []
    rows = sorted({draw.row for draw in draws})
    usable = logits[:, :vocab_size]
    if len(rows) != len(logits):
        usable = usable.index_select(0, torch.tensor(rows, device=logits.device))
    highest, likeliest = usable.max(dim=-1)  # the first of equals, and NaN if there is one
    values, ids = highest.tolist(), likeliest.tolist()
    place = {row: i for i, row in enumerate(rows)}
    tokens = []
    for draw in draws:
        i = place[draw.row]
        if not math.isfinite(values[i]):
            tokens.append(NOT_FINITE)
        elif draw.sampling.is_greedy and ids[i] not in draw.banned:
            tokens.append(ids[i])
        else:
            tokens.append(_draw(usable[i], draw))
    return tokens


def _draw(row: torch.Tensor, draw: Draw) -> int:
    """Draw from a finite row that needs more than its maximum."""
    if draw.banned:
        banned = [token for token in draw.banned if token < len(row)]
        row = row.index_fill(
            0, torch.tensor(banned, dtype=torch.long, device=row.device), -math.inf
        )
    highest = row.max()
    if not math.isfinite(highest):
        return NOT_FINITE  # every id that the model allows is banned
    if draw.sampling.is_greedy:
        return int(row.argmax())
    scaled = (row - highest).double() / draw.sampling.temperature
    kept = _kept_ids(scaled, draw.sampling)
    if kept is None:
        noise = ops.gumbel_noise(draw.seed, draw.position, len(row), device=str(row.device))
        return int((scaled + noise).argmax())
    noise = ops.gumbel_noise(draw.seed, draw.position, kept, device=str(row.device))
    return int(kept[(scaled[kept] + noise).argmax()])


def _kept_ids(scaled: torch.Tensor, sampling: SamplingParams) -> torch.Tensor | None:
    """Return the ids that top-k, top-p and min-p leave, ascending; None for all.

    `scaled` holds logits divided by the temperature, with a maximum of 0.
    """
    kept: torch.Tensor | None = None
    if 0 < sampling.top_k < len(scaled):
        kept = _likeliest(scaled, sampling.top_k)
    if sampling.top_p < 1.0:
        kept = _nucleus(scaled, kept, sampling.top_p)
    if sampling.min_p > 0.0:
        likely = scaled >= math.log(sampling.min_p)
        kept = likely.nonzero().view(-1) if kept is None else kept[likely[kept]]
    return kept


def _likeliest(scaled: torch.Tensor, count: int) -> torch.Tensor:
    """Return the `count` likeliest ids, ascending; among equals the lowest ids."""
    last = scaled.topk(count).values[-1]
    above = (scaled > last).nonzero().view(-1)
    equal = (scaled == last).nonzero().view(-1)[: count - len(above)]
    return torch.cat((above, equal)).sort().values


def _nucleus(scaled: torch.Tensor, kept: torch.Tensor | None, top_p: float) -> torch.Tensor:
    """Return the fewest likeliest of the kept ids whose probabilities reach `top_p`, ascending."""
    values = scaled if kept is None else scaled[kept]
    total = _sum(values.exp())
    for tries in (*NUCLEUS_TRIES, len(values)):
        few = _likeliest(values, min(tries, len(values)))
        ordered, order = values[few].sort(descending=True, stable=True)
        shares = ordered.exp().div_(total)
        below = shares.cumsum(0)
        if below[-1] >= top_p or len(few) == len(values):
            break
    inside = few[order[(below - shares) < top_p]].sort().values
    return inside if kept is None else kept[inside]


def _sum(values: torch.Tensor) -> torch.Tensor:
    """Sum a row in pieces, so that threads do not decide about the order."""
    return torch.stack([piece.sum() for piece in torch.split(values, SUM_WIDTH)]).cumsum(0)[-1]


def gather_logprobs(logits: torch.Tensor, gathers: Sequence[Gather]) -> list[RowLogprobs]:
    """Return the log-probabilities that each gather asks for, of the logits as they are."""
    rows = [gather.row for gather in gathers for _ in gather.ids]
    ids = [token for gather in gathers for token in gather.ids]
    if not ids:
        return [RowLogprobs([]) for _ in gathers]
    device = logits.device
    found = ops.log_softmax_gather(
        logits, torch.tensor(rows, device=device), torch.tensor(ids, device=device)
    ).tolist()
    values = iter(found)
    return [RowLogprobs([next(values) for _ in gather.ids]) for gather in gathers]
