"""Matrix products whose rows have the same bits whatever the number of rows.

A BLAS library picks its kernel by the number of rows, and another kernel may add in another
order. Two things keep the rows equal: inputs are padded to row counts of which it is known that
they give what tiles of 16 rows give (tried at load, once for each shape and dtype), and a weight
for which even multiples of 16 rows differ is multiplied tile by tile.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional

TILE_ROWS = 16
SMALL_ROWS = (1, 2, 4, 8)  # counts below a tile that are tried
LARGE_ROWS = (2 * TILE_ROWS, 3 * TILE_ROWS)  # counts that stand for all multiples of a tile
BIG_WEIGHT = 1 << 24  # entries; fewer counts are tried on such a weight: a head takes long


@dataclass(frozen=True, slots=True)
class RowCounts:
    """Row counts at which one shape of weight gives the bits of 16-row tiles."""

    small: tuple[int, ...]  # below 16, ascending
    tiled: bool  # multiples of 16 differ: multiply tile by tile


@dataclass(frozen=True, slots=True)
class PackedLinear:
    """A weight [out, in], its bias, and the row counts that are safe for it.

    `multiply(x, weight)` is x · weightᵀ; only it knows how `weight` lies in memory.
    """

    weight: torch.Tensor
    bias: torch.Tensor | None
    multiply: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    checked: dict[int, RowCounts]  # by number of threads; shared by weights of one shape

    @property
    def rows(self) -> RowCounts:
        """The safe row counts under the present number of threads, found at first need."""
        threads = torch.get_num_threads()
        counts = self.checked.get(threads)
        if counts is None:
            counts = self.checked[threads] = _check_rows(self)
        return counts


_checked: dict[tuple[object, ...], dict[int, RowCounts]] = {}


def pack_linear(weight: torch.Tensor, bias: torch.Tensor | None) -> PackedLinear:
    """Prepare a weight [out, in]; see `ops.pack_linear`."""
    return checked_linear(weight.contiguous(), bias, _multiply)


def _multiply(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return functional.linear(x, weight)


def checked_linear(
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    multiply: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
) -> PackedLinear:
    """Return the weight with its safe row counts under `multiply`."""
    key = (multiply, tuple(weight.shape), weight.dtype, str(weight.device))
    packed = PackedLinear(weight, bias, multiply, _checked.setdefault(key, {}))
    _ = packed.rows  # checked now, so that no step has to
    return packed


@torch.inference_mode()
def _check_rows(packed: PackedLinear) -> RowCounts:
    weight, multiply = packed.weight, packed.multiply
    small: tuple[int, ...] = SMALL_ROWS
    large: tuple[int, ...] = LARGE_ROWS
    if weight.numel() > BIG_WEIGHT:
        small, large = (SMALL_ROWS[0], SMALL_ROWS[-1]), LARGE_ROWS[:1]
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(max(large), weight.shape[1], generator=generator)
    x = x.to(weight.device, weight.dtype)
    expected = torch.cat([multiply(tile, weight) for tile in torch.split(x, TILE_ROWS)])

    def same(rows: int) -> bool:
        return torch.equal(multiply(x[:rows], weight), expected[:rows])

    return RowCounts(
        small=tuple(rows for rows in small if same(rows)),
        tiled=not all(same(rows) for rows in large),
    )


def padded_rows(packed: Sequence[PackedLinear], rows: int) -> int:
    """Return the smallest safe row count ≥ `rows`; see `ops.padded_rows`."""
    if rows < TILE_ROWS:
        for small in SMALL_ROWS:
            if rows <= small and all(small in one.rows.small for one in packed):
                return small
    return -(-rows // TILE_ROWS) * TILE_ROWS


def linear(packed: PackedLinear, x: torch.Tensor) -> torch.Tensor:
    """Multiply x [rows, in]; see `ops.linear`."""
    rows = x.shape[0]
    padded = padded_rows((packed,), rows)
    if padded != rows:
        x = functional.pad(x, (0, 0, 0, padded - rows))
    if packed.rows.tiled and padded > TILE_ROWS:
        tiles = torch.split(x, TILE_ROWS)
        y = torch.cat([packed.multiply(tile, packed.weight) for tile in tiles])
    else:
        y = packed.multiply(x, packed.weight)
    if padded != rows:
        y = y[:rows]
    return y if packed.bias is None else y + packed.bias
