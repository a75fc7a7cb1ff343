"""Reference of the ops that draw from logit rows: plain torch, the definition of correct."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .philox import Words, philox_4x32

HIGH_BYTES, LOW_WORDS = 0, 1  # the two streams of random bits that make an id's noise
HIGH_IDS, LOW_IDS = 16, 4  # ids that one Philox block serves in each


def row_maximum(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return each row's maximum and where it is; see `ops.row_maximum`."""
    highest, ids = logits.max(dim=-1)
    return highest, ids


def gumbel_noise(seeds: Sequence[int], positions: Sequence[int], ids: torch.Tensor) -> torch.Tensor:
    """Return Gumbel noise; see `ops.gumbel_noise`.

    Adding it to logits and taking the maximum samples their softmax: Gumbel, *Statistical Theory
    of Extreme Values* (1954); Maddison, Tarlow, Minka, *A\\* Sampling* (2014).
    """
    keys, places = stream_keys(seeds, positions, ids.device)
    high = torch.stack(stream_words(keys, places, ids >> 4, HIGH_BYTES), dim=-1)
    low = torch.stack(stream_words(keys, places, ids >> 2, LOW_WORDS), dim=-1)
    word = high.gather(-1, ((ids >> 2) & 3).unsqueeze(-1)).squeeze(-1)
    byte = (word >> ((ids & 3) << 3)) & 0xFF
    return gumbel_of_bits(byte, low.gather(-1, (ids & 3).unsqueeze(-1)).squeeze(-1))


def gumbel_argmax(
    rows: torch.Tensor,
    temperatures: Sequence[float],
    seeds: Sequence[int],
    positions: Sequence[int],
) -> torch.Tensor:
    """Return the id of the largest noisy logit of each row; see `ops.gumbel_argmax`."""
    ids = torch.arange(rows.shape[-1], device=rows.device).expand(len(rows), -1)
    scale = torch.tensor(temperatures, dtype=torch.float64, device=rows.device)
    scaled = rows.double() / scale.unsqueeze(1)
    return (scaled + gumbel_noise(seeds, positions, ids)).argmax(dim=-1)


def stream_keys(
    seeds: Sequence[int], positions: Sequence[int], device: torch.device
) -> tuple[tuple[torch.Tensor, torch.Tensor], torch.Tensor]:
    """Return Philox keys and positions as columns, one row per draw."""

    def column(values: list[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int64, device=device).unsqueeze(1)

    low = column([seed & 0xFFFFFFFF for seed in seeds])
    high = column([seed >> 32 for seed in seeds])
    return (low, high), column(list(positions))


def stream_words(
    keys: tuple[torch.Tensor, torch.Tensor],
    places: torch.Tensor,
    blocks: torch.Tensor,
    stream: int,
) -> Words:
    """Return the four words of each block of a stream; keys, places and blocks broadcast."""
    return philox_4x32(
        (blocks, places, torch.full_like(places, stream), torch.zeros_like(places)), keys
    )


def gumbel_of_bits(high: torch.Tensor, low: torch.Tensor) -> torch.Tensor:
    """Return the Gumbel noise whose uniform number has these 8 high and 32 low bits, float64."""
    uniform = ((high << 32) | low).double().add_(0.5).mul_(2.0**-40)  # strictly inside (0, 1)
    return uniform.log_().neg_().log_().neg_()
