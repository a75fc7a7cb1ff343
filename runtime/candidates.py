"""The likeliest ids of logit rows, and those of them that top-k, top-p and min-p leave.

What the three leave is always a beginning of the ids ordered by logit, equals by id. So they
are counted on the first few ids, and on more only where these do not decide.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from ramet.kernels import ops

from .protocol import SamplingParams

TRIES = (128, 1024)  # likeliest ids that are looked at before the whole vocabulary is


@dataclass(frozen=True, slots=True)
class Kept:
    """What is left of some rows.

    Attributes:
        rows: which of the given rows these are.
        ids: [rows, n], the likeliest first, equals by id.
        scaled: [rows, n] float64, logits ÷ temperature; −inf past the row's last kept id.
    """

    rows: list[int]
    ids: torch.Tensor
    scaled: torch.Tensor


def filters(sampling: SamplingParams) -> bool:
    """Return whether top-k, top-p or min-p can leave something out."""
    return sampling.top_k != -1 or sampling.top_p < 1.0 or sampling.min_p > 0.0


def likeliest(rows: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the logits and ids of the `count` likeliest of each row, equals by id.

    Where a row has fewer that are not −inf, the rest is −inf with id 0. A row must not hold NaN.
    """
    if count >= rows.shape[-1]:
        ordered = rows.sort(dim=-1, descending=True, stable=True)
        return ordered.values, ordered.indices
    found = rows.topk(count + 1, dim=-1)
    last, next_one = found.values[:, count - 1 : count], found.values[:, count:]
    if (last > next_one).all():
        ids = found.indices[:, :count].sort(dim=-1).values
        return _by_logit(rows.gather(1, ids), ids)
    return _likeliest_of_equals(rows, last, count)


def _by_logit(values: torch.Tensor, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Order by falling logit; ids come in ascending, and so stay among equals."""
    ordered = values.sort(dim=-1, descending=True, stable=True)
    return ordered.values, ids.gather(1, ordered.indices)


def _likeliest_of_equals(
    rows: torch.Tensor, last: torch.Tensor, count: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Do the work of `likeliest` where logits equal to the last that counts are left over."""
    row, ids = ((rows >= last) & (rows > -math.inf)).nonzero().unbind(1)
    found = torch.bincount(row, minlength=len(rows))
    place = torch.arange(len(row), device=rows.device) - (found.cumsum(0) - found)[row]
    shape = (len(rows), max(count, int(found.max())))
    values = rows.new_full(shape, -math.inf)
    values[row, place] = rows[row, ids]
    padded_ids = ids.new_zeros(shape)
    padded_ids[row, place] = ids
    values, padded_ids = _by_logit(values, padded_ids)
    return values[:, :count], padded_ids[:, :count]


def kept_ids(rows: torch.Tensor, sampling: Sequence[SamplingParams]) -> Iterator[Kept]:
    """Yield what top-k, then top-p, then min-p leave of each row, every row once.

    top-p counts the probabilities of what top-k left; min-p is a share of the likeliest.

    `rows` [n, vocabulary] are float32 logits whose maximum is 0.
    """
    rules = _Rules(rows, sampling)
    open_rows = torch.arange(len(rows), device=rows.device)
    for tries in (*TRIES, rows.shape[-1]):
        part = rows if len(open_rows) == len(rows) else rows[open_rows]
        logits, ids = likeliest(part, min(tries, rows.shape[-1]))
        scaled = logits.double() / rules.temperature[open_rows]
        counts, decided = rules.count(scaled, open_rows)
        if len(ids[0]) == rows.shape[-1]:
            decided = torch.ones_like(decided)
        if decided.any():
            counts = counts[decided]
            width = int(counts.max())
            beyond = torch.arange(width, device=rows.device) >= counts.unsqueeze(1)
            yield Kept(
                rows=open_rows[decided].tolist(),
                ids=ids[decided, :width],
                scaled=scaled[decided, :width].masked_fill_(beyond, -math.inf),
            )
        open_rows = open_rows[~decided]
        if not len(open_rows):
            return


class _Rules:
    """The three filters of each row, as columns [rows, 1]."""

    def __init__(self, rows: torch.Tensor, sampling: Sequence[SamplingParams]) -> None:
        vocab = rows.shape[-1]

        def column(values: list[float]) -> torch.Tensor:
            return torch.tensor(values, dtype=torch.float64, device=rows.device).unsqueeze(1)

        self.temperature = column([one.temperature for one in sampling])
        self._top_k = column(
            [min(one.top_k, vocab) if one.top_k > 0 else vocab for one in sampling]
        )
        self._top_p = column([one.top_p if one.top_p < 1.0 else math.inf for one in sampling])
        self._lowest = column([math.log(one.min_p) if one.min_p else -math.inf for one in sampling])
        self._total = column([math.nan] * len(sampling))  # Σ exp of the whole row
        whole = [
            i for i, one in enumerate(sampling) if one.top_p < 1.0 and not 0 < one.top_k < vocab
        ]
        if whole:
            # Past 1e30 nothing changes, but float32 would end: −inf ÷ ∞ is NaN.
            divisor = self.temperature.clamp(max=1e30).float()
            part = rows / divisor if len(whole) == len(rows) else rows[whole] / divisor[whole]
            self._total[whole, 0] = ops.log_sum_exp(part).exp()

    def count(self, scaled: torch.Tensor, which: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return how many of the likeliest logits each row keeps, and whether that is certain."""
        width = scaled.shape[-1]
        top_k, top_p, total = self._top_k[which], self._top_p[which], self._total[which]
        upto = scaled.exp().cumsum(-1)
        before = torch.cat((upto.new_zeros(len(upto), 1), upto[:, :-1]), dim=-1)
        of_top_k = upto.gather(1, (top_k.clamp(max=width) - 1).long())
        total = torch.where(total.isnan(), of_top_k, total)
        counts = torch.minimum((before < top_p * total).sum(-1, keepdim=True), top_k)
        counts = torch.minimum(counts, (scaled >= self._lowest[which]).sum(-1, keepdim=True))
        is_all = (top_k <= width) | (scaled[:, -1:] == -math.inf)
        is_total_known = top_p.isinf() | ~self._total[which].isnan()
        decided = is_all | (is_total_known & (counts < width))
        return counts.long().squeeze(1), decided.squeeze(1)
