"""The ops that draw from logit rows on a CPU: the same answers as the reference, with less work."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from . import sampling_reference as reference
from .philox import MASK, MULTIPLIERS, ROUNDS, WEYL

UInt64Array = npt.NDArray[np.uint64]

HIGHEST_BYTE = 255
NOISE_BELOW = -math.log(-math.log(HIGHEST_BYTE / 256))  # 5.54: all noise of a lower first byte
MARGIN = 0.01  # more than float32 thresholds are off
_HALF = np.uint64(32)
_MASK = np.uint64(MASK)
_MULTIPLIERS = tuple(map(np.uint64, MULTIPLIERS))
_WEYL = tuple(map(np.uint64, WEYL))


def row_maximum(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return each row's maximum and where it is; see `ops.row_maximum`."""
    ids = torch.tensor([int(row.argmax()) for row in logits.numpy()], dtype=torch.int64)
    return logits.gather(1, ids.unsqueeze(1)).squeeze(1), ids


def gumbel_noise(seeds: Sequence[int], positions: Sequence[int], ids: torch.Tensor) -> torch.Tensor:
    """Return Gumbel noise; see `ops.gumbel_noise`."""
    keys, places = _stream_keys(seeds, positions)
    wanted = ids.numpy().astype(np.uint64)
    high, low = _words_of(keys, places, wanted)
    return reference.gumbel_of_bits(torch.from_numpy(high), torch.from_numpy(low))


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
    keys, places = _stream_keys(seeds, positions)
    high = _high_bytes(keys, places, vocab)
    _, likeliest = row_maximum(rows)
    first_byte = torch.from_numpy(high).gather(1, likeliest.unsqueeze(1)).long()
    bound = reference.gumbel_of_bits(first_byte, torch.zeros_like(first_byte))  # or more
    threshold = ((bound - (NOISE_BELOW + MARGIN)) * scale.unsqueeze(1)).float()
    able = high == HIGHEST_BYTE
    for line, one, least in zip(able, rows.numpy(), threshold.numpy(), strict=True):
        line |= one > least

    found = np.flatnonzero(able)
    row, ids = np.divmod(found, vocab)
    low = _low_words((keys[0][row, 0], keys[1][row, 0]), places[row, 0], ids.astype(np.uint64))
    noise = reference.gumbel_of_bits(
        torch.from_numpy(high.reshape(-1)[found]).long(), torch.from_numpy(low)
    )
    scaled = rows.reshape(-1)[torch.from_numpy(found)].double() / scale[torch.from_numpy(row)]
    noisy = (scaled + noise).numpy()
    starts = np.searchsorted(row, np.arange(len(rows)))
    ends = [*starts[1:].tolist(), len(noisy)]
    best = [start + int(noisy[start:end].argmax()) for start, end in zip(starts, ends, strict=True)]
    return torch.from_numpy(ids[best])


def _stream_keys(
    seeds: Sequence[int], positions: Sequence[int]
) -> tuple[tuple[UInt64Array, UInt64Array], UInt64Array]:
    """Return Philox keys and positions as columns, one row per draw."""
    whole = np.array(seeds, dtype=np.uint64).reshape(-1, 1)
    return (whole & _MASK, whole >> _HALF), np.array(positions, dtype=np.uint64).reshape(-1, 1)


def _high_bytes(
    keys: tuple[UInt64Array, UInt64Array], places: UInt64Array, vocab: int
) -> npt.NDArray[np.uint8]:
    """Return the first byte of every id's random bits, one row per draw."""
    blocks = np.arange(-(-vocab // reference.HIGH_IDS), dtype=np.uint64)
    lines = np.empty((len(places), len(blocks), 4), dtype="<u4")
    for line, low, high, place in zip(lines, *keys, places, strict=True):  # one fits the cache
        for index, words in enumerate(_philox(blocks, place, reference.HIGH_BYTES, (low, high))):
            line[:, index] = words
    return np.ascontiguousarray(lines.view(np.uint8).reshape(len(places), -1)[:, :vocab])


def _low_words(
    keys: tuple[UInt64Array, UInt64Array], places: UInt64Array, ids: UInt64Array
) -> npt.NDArray[np.int64]:
    """Return the last 32 bits of the random bits of `ids`."""
    words = _philox(ids >> np.uint64(2), places, reference.LOW_WORDS, keys)
    return np.choose((ids & np.uint64(3)).astype(np.intp), words).astype(np.int64)


def _words_of(
    keys: tuple[UInt64Array, UInt64Array], places: UInt64Array, ids: UInt64Array
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the first byte and the last 32 bits of the random bits of `ids`."""
    words = _philox(ids >> np.uint64(4), places, reference.HIGH_BYTES, keys)
    word = np.choose(((ids >> np.uint64(2)) & np.uint64(3)).astype(np.intp), words)
    byte = (word >> ((ids & np.uint64(3)) << np.uint64(3))) & np.uint64(HIGHEST_BYTE)
    return byte.astype(np.int64), _low_words(keys, places, ids)


def _philox(
    blocks: UInt64Array, places: UInt64Array, stream: int, key: tuple[UInt64Array, UInt64Array]
) -> list[UInt64Array]:
    """Return what `philox.philox_4x32` does of the counters (block, place, stream, 0).

    Numpy's calls cost a third of torch's, and a single draw is little else than calls.
    """
    c0, c1, c2, c3 = blocks, places, np.full_like(places, stream), np.zeros_like(places)
    k0, k1 = key
    for _ in range(ROUNDS):
        product0, product1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0 = (product1 >> _HALF) ^ (c1 ^ k0)
        c0 &= _MASK
        c2 = (product0 >> _HALF) ^ (c3 ^ k1)
        c2 &= _MASK
        c1, c3 = product1, product0
        k0, k1 = (k0 + _WEYL[0]) & _MASK, (k1 + _WEYL[1]) & _MASK
    return [c0, c1 & _MASK, c2, c3 & _MASK]
