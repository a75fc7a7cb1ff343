"""From logit rows to tokens and log-probabilities.

What is drawn from a row is a pure function of the row, the history, the banned ids, the sampling
parameters, the seed and the output position. Order: repetition, frequency and presence penalty,
logit bias, banned ids, temperature, top-k, top-p, min-p, then the maximum of logits and Gumbel
noise, which is a sample of their softmax. Draws with the same kind of parameters are worked on
together, which changes no bit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from ramet.kernels import ops

from .candidates import filters, kept_ids, likeliest
from .logit_changes import change_logits, changes_logits
from .step import Draw, Gather, RowLogprobs

NOT_FINITE = -1  # the token of a row whose logits are not finite
DRAWS_PER_PIECE = 32  # rows that are copied and changed at once


def draw_tokens(logits: torch.Tensor, draws: Sequence[Draw], vocab_size: int) -> list[int]:
    """Return one token per draw; ids from `vocab_size` on are never drawn.

    −1 stands where the row has NaN or +inf, or nothing but −inf, also after bias and bans.
    """
    if not draws:
        return []
    usable = logits[:, :vocab_size]
    highest, first = _row_maxima(usable, [draw.row for draw in draws])
    tokens = [NOT_FINITE] * len(draws)
    left: list[int] = []
    for i, draw in enumerate(draws):
        if not math.isfinite(highest[draw.row]):
            continue
        if draw.sampling.is_greedy and not changes_logits(draw):
            tokens[i] = first[draw.row]
        else:
            left.append(i)
    for piece in _pieces(left, draws):
        drawn = _draw_piece(usable, [draws[i] for i in piece])
        for i, token in zip(piece, drawn, strict=True):
            tokens[i] = token
    return tokens


def _pieces(left: list[int], draws: Sequence[Draw]) -> list[list[int]]:
    """Cut draws into pieces of the same kind: greedy, of the whole vocabulary, and filtered."""
    kinds: dict[str, list[int]] = {}
    for i in left:
        sampling = draws[i].sampling
        kind = "greedy" if sampling.is_greedy else "filtered" if filters(sampling) else "whole"
        kinds.setdefault(kind, []).append(i)
    return [
        members[start : start + DRAWS_PER_PIECE]
        for members in kinds.values()
        for start in range(0, len(members), DRAWS_PER_PIECE)
    ]


def _row_maxima(
    usable: torch.Tensor, rows: Sequence[int]
) -> tuple[dict[int, float], dict[int, int]]:
    """Return the maximum of each of `rows` and the lowest id that has it."""
    wanted = sorted(set(rows))
    if len(wanted) != len(usable):
        usable = usable.index_select(0, torch.tensor(wanted, device=usable.device))
    values, ids = ops.row_maximum(usable)
    return (
        dict(zip(wanted, values.tolist(), strict=True)),
        dict(zip(wanted, ids.tolist(), strict=True)),
    )


def _draw_piece(usable: torch.Tensor, draws: Sequence[Draw]) -> list[int]:
    """Draw from finite rows, all greedy, all filtered or none of both."""
    rows = usable.index_select(0, torch.tensor([d.row for d in draws], device=usable.device))
    for row, draw in zip(rows, draws, strict=True):
        if changes_logits(draw):
            change_logits(row, draw)
    highest, first = ops.row_maximum(rows)
    tokens = [
        token if math.isfinite(value) else NOT_FINITE
        for value, token in zip(highest.tolist(), first.tolist(), strict=True)
    ]
    if draws[0].sampling.is_greedy:
        return tokens
    fine = [i for i, token in enumerate(tokens) if token != NOT_FINITE]
    if len(fine) != len(draws):
        rows, highest = rows[fine], highest[fine]
    if fine:
        sampled = _sample(rows.sub_(highest.unsqueeze(1)), [draws[i] for i in fine])
        for i, token in zip(fine, sampled, strict=True):
            tokens[i] = token
    return tokens


def _sample(rows: torch.Tensor, draws: Sequence[Draw]) -> list[int]:
    """Sample from rows whose maximum is 0, all filtered or none."""
    seeds, positions = [draw.seed for draw in draws], [draw.position for draw in draws]
    if not filters(draws[0].sampling):
        temperatures = [draw.sampling.temperature for draw in draws]
        return ops.gumbel_argmax(rows, temperatures, seeds, positions).tolist()
    tokens = [NOT_FINITE] * len(draws)
    for kept in kept_ids(rows, [draw.sampling for draw in draws]):
        noise = ops.gumbel_noise(
            [seeds[i] for i in kept.rows], [positions[i] for i in kept.rows], kept.ids
        )
        noisy = kept.scaled + noise
        is_best = noisy == noisy.amax(dim=-1, keepdim=True)
        best = torch.where(is_best, kept.ids, rows.shape[-1]).amin(dim=-1)
        for i, token in zip(kept.rows, best.tolist(), strict=True):
            tokens[i] = token
    return tokens


def gather_logprobs(
    logits: torch.Tensor, gathers: Sequence[Gather], vocab_size: int
) -> list[RowLogprobs]:
    """Return the log-probabilities that each gather asks for, of the logits as they are.

    Ids from `vocab_size` on are never among the likeliest, but count in the softmax.
    """
    tops = _top_ids(logits[:, :vocab_size], gathers)
    wanted = [(*gather.ids, *top) for gather, top in zip(gathers, tops, strict=True)]
    rows = [gather.row for gather, ids in zip(gathers, wanted, strict=True) for _ in ids]
    if not rows:
        return [RowLogprobs([]) for _ in gathers]
    ids = torch.tensor([token for some in wanted for token in some], device=logits.device)
    found = ops.log_softmax_gather(logits, torch.tensor(rows, device=logits.device), ids)
    values = iter(found.tolist())
    return [
        RowLogprobs([next(values) for _ in gather.ids], [(token, next(values)) for token in top])
        for gather, top in zip(gathers, tops, strict=True)
    ]


def report_logprobs(
    logits: torch.Tensor, draws: Sequence[Draw], tokens: Sequence[int], vocab_size: int
) -> list[RowLogprobs | None]:
    """Return what each draw's report asks for, the drawn token first.

    None where there was no report or no token.
    """
    reports = [
        None
        if draw.report is None or token == NOT_FINITE
        else Gather(draw.report.row, (token, *draw.report.ids), draw.report.top)
        for draw, token in zip(draws, tokens, strict=True)
    ]
    found = iter(gather_logprobs(logits, [one for one in reports if one is not None], vocab_size))
    return [None if one is None else next(found) for one in reports]


def _top_ids(usable: torch.Tensor, gathers: Sequence[Gather]) -> list[list[int]]:
    """Return the likeliest ids that each gather asks for, fewer where others are impossible.

    In a row with NaN all log-probabilities are NaN, so all are equal: the lowest ids.
    """
    most: dict[int, int] = {}
    for gather in gathers:
        if gather.top:
            most[gather.row] = max(gather.top, most.get(gather.row, 0))
    of_row: dict[int, list[int]] = {}
    rows = sorted(most)
    for start in range(0, len(rows), DRAWS_PER_PIECE):
        piece = rows[start : start + DRAWS_PER_PIECE]
        some = usable.index_select(0, torch.tensor(piece, device=usable.device))
        some.masked_fill_(some.isnan().any(dim=-1, keepdim=True), 0.0)
        values, ids = likeliest(some, min(max(most[row] for row in piece), usable.shape[-1]))
        for row, logits, top in zip(piece, values.tolist(), ids.tolist(), strict=True):
            of_row[row] = [i for i, value in zip(top, logits, strict=True) if value > -math.inf]
    return [of_row[gather.row][: gather.top] if gather.top else [] for gather in gathers]
