"""The ops that draw from logit rows on a CPU: the same answers as the reference, with less work."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from . import sampling_reference as reference

HIGHEST_BYTE = 255
NOISE_BELOW = -math.log(-math.log(HIGHEST_BYTE / 256))  # 5.54: all noise of a lower first byte
MARGIN = 0.01  # more than float32 thresholds are off


def row_maximum(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return each row's maximum and where it is; see `ops.row_maximum`."""
    ids = torch.tensor([int(row.argmax()) for row in logits.numpy()], dtype=torch.int64)
    return logits.gather(1, ids.unsqueeze(1)).squeeze(1), ids


def gumbel_argmax(
    rows: torch.Tensor,
    temperatures: Sequence[float],
    seeds: Sequence[int],
    positions: Sequence[int],
) -> torch.Tensor:
    """Return the id of the largest noisy logit of each row; see `ops.gumbel_argmax`.

    The row's likeliest id alone gives a bound that the winner reaches. An id more than
    `NOISE_BELOW` under it can win only with noise whose first byte is 255, and those bytes are
    cheap: one Philox block has them for 16 ids. So the noise itself is made for few ids.
    """
    vocab = rows.shape[-1]
    scale = torch.tensor(temperatures, dtype=torch.float64)
    _, likeliest = row_maximum(rows)
    bound = reference.gumbel_noise(seeds, positions, likeliest.unsqueeze(1))
    threshold = ((bound - (NOISE_BELOW + MARGIN)) * scale.unsqueeze(1)).float()
    keys, places = reference.stream_keys(seeds, positions, rows.device)
    blocks = torch.arange(-(-vocab // reference.HIGH_IDS)).unsqueeze(0)
    words = reference.stream_words(keys, places, blocks, reference.HIGH_BYTES)
    high = torch.stack([word.int() for word in words], dim=-1).view(torch.uint8)
    high = high.view(len(rows), -1)[:, :vocab]
    able = high.numpy() == HIGHEST_BYTE
    for line, one, least in zip(able, rows.numpy(), threshold.numpy(), strict=True):
        line |= one > least

    found = np.flatnonzero(able)
    row, ids = map(torch.from_numpy, np.divmod(found, vocab))
    own = (keys[0][row, 0], keys[1][row, 0])
    low = torch.stack(
        reference.stream_words(own, places[row, 0], ids >> 2, reference.LOW_WORDS), dim=-1
    )
    low = low.gather(-1, (ids & 3).unsqueeze(-1)).squeeze(-1)
    noise = reference.gumbel_of_bits(high[row, ids].long(), low)
    noisy = ((rows[row, ids].double() / scale[row]) + noise).numpy()
    starts = np.searchsorted(row.numpy(), np.arange(len(rows)))
    ends = [*starts[1:].tolist(), len(noisy)]
    best = [start + int(noisy[start:end].argmax()) for start, end in zip(starts, ends, strict=True)]
    return ids[torch.tensor(best, dtype=torch.int64)]
