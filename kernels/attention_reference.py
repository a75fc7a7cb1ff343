"""Reference attention over a pool of KV slots: the same bits however a sequence is cut or batched.

Keys are taken in blocks of 64 at absolute positions, the last one filled up with the zero slot.
A tile of new tokens takes its blocks at once: scores, the exact maximum of each row, exp, and per
block the sum and the product with the values. These partial results are added as a binary tree
over block numbers (block i takes block i + h for falling powers of two h). A masked key adds
exact zeros and a missing block is one of zeros, so neither the length of the tile's grid, nor the
size of the tile, nor anything else in the step reaches the result. The matrix products have their
reduction within one block or one head, and row counts that are multiples of four.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

BLOCK = 64
TILE_TOKENS = (1, 4, 16, 64)
ROW_MULTIPLE = 4
GROUP_FLOATS = 1 << 20  # scratch of one group of tiles: what the caches of a core hold
CLOSE = 0.75  # tiles of one group have at least this share of its longest tile's blocks
FEW_BLOCKS = 64  # … or the blocks wasted so are fewer than this

Ints = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class KVShape:
    """What a KV cache holds. Slots are numbered from 1; slot 0 is the padding."""

    num_layers: int
    num_slots: int
    num_kv_heads: int
    head_dim: int


@dataclass(frozen=True, slots=True)
class KVCache:
    """The KV of all layers; only the ops of this package look inside."""

    shape: KVShape
    data: torch.Tensor  # [layers, 2, kv heads, 1 + slots, head_dim]

    @property
    def num_bytes(self) -> int:
        """Memory that the cache takes."""
        return self.data.numel() * self.data.element_size()

    @property
    def row_bytes(self) -> int:
        """Memory that the KV of one token takes in all layers: the width of `read_kv`'s rows."""
        shape = self.shape
        return 2 * shape.num_layers * shape.num_kv_heads * shape.head_dim * self.data.itemsize

    @property
    def layout(self) -> str:
        """What a row of `read_kv` means: caches with equal layouts understand each other's."""
        shape = self.shape
        return (
            f"{str(self.data.dtype).removeprefix('torch.')} {sys.byteorder}-endian, "
            f"{shape.num_layers} layers × (keys, values) × {shape.num_kv_heads} kv heads × "
            f"{shape.head_dim}"
        )


@dataclass(frozen=True, slots=True)
class SequenceLayout:
    """Where the new tokens and the KV of each sequence are; the arrays are those of `StepPlan`.

    `num_rows` ≥ q_indptr[-1] is the number of query rows, padding included.
    """

    q_indptr: Ints
    kv_indptr: Ints
    kv_slots: Ints
    num_heads: int
    num_rows: int


@dataclass(frozen=True, slots=True)
class TileGroup:
    """Tiles that are computed together on one grid [kv heads, tiles, rows, blocks]."""

    heads: int
    tiles: int
    rows: int
    blocks: int
    keys: torch.Tensor  # rows of one layer of the cache: [2 · heads · tiles · blocks · 64]
    queries: torch.Tensor  # rows of the query seen as [tokens · heads, head_dim]
    first_masked: int  # blocks before this one are visible to every row
    mask: torch.Tensor  # [tiles, rows, keys from first_masked on]: 0 visible, −inf not


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """Index tensors of one step; every layer uses them."""

    groups: tuple[TileGroup, ...]
    output: torch.Tensor  # for each (token, head), its row among the groups' results


@dataclass(frozen=True, slots=True)
class _Tile:
    """Neighbouring new tokens of one sequence."""

    sequence: int
    token: int  # index of its first token among all new tokens
    position: int  # of its first token
    count: int
    size: int  # tokens that there is room for

    @property
    def blocks(self) -> int:
        return (self.position + self.count - 1) // BLOCK + 1


def allocate_kv(shape: KVShape, dtype: torch.dtype, device: str) -> KVCache:
    """Allocate the cache; see `ops.allocate_kv`."""
    size = (shape.num_layers, 2, shape.num_kv_heads, 1 + shape.num_slots, shape.head_dim)
    data = torch.empty(size, dtype=dtype, device=device)  # zeros would touch all of the memory
    data[..., 0, :] = 0  # the padding
    return KVCache(shape, data)


def store_kv(
    cache: KVCache, layer: int, slots: torch.Tensor, kv: tuple[torch.Tensor, torch.Tensor]
) -> None:
    """Write the KV of new tokens; see `ops.store_kv`."""
    for part, values in zip(cache.data[layer], kv, strict=True):
        part.index_copy_(1, slots, values.transpose(0, 1).to(part.dtype))


def copy_kv(cache: KVCache, src: torch.Tensor, dst: torch.Tensor) -> None:
    """Copy slots; see `ops.copy_kv`."""
    for layer in cache.data:
        layer.index_copy_(2, dst, layer.index_select(2, src))


def read_kv(cache: KVCache, slots: torch.Tensor) -> torch.Tensor:
    """Return the bytes of slots; see `ops.read_kv`."""
    layers, _, kv_heads, _, head_dim = cache.data.shape
    rows = cache.data.new_empty(len(slots), layers, 2, kv_heads, head_dim)
    for number, layer in enumerate(cache.data):
        rows[:, number] = layer.index_select(2, slots).permute(2, 0, 1, 3)
    return rows.view(len(slots), 2 * layers * kv_heads * head_dim).view(torch.uint8)


def write_kv(cache: KVCache, slots: torch.Tensor, rows: torch.Tensor) -> None:
    """Put bytes back into slots; see `ops.write_kv`."""
    if not len(slots):
        return  # an array without rows cannot be viewed as another dtype
    layers, _, kv_heads, _, head_dim = cache.data.shape
    values = rows.contiguous().view(cache.data.dtype).view(-1, layers, 2, kv_heads, head_dim)
    for number, layer in enumerate(cache.data):
        layer.index_copy_(2, slots, values[:, number].permute(1, 2, 0, 3))


def plan_attention(cache: KVCache, layout: SequenceLayout) -> AttentionPlan:
    """Cut the new tokens into tiles and the tiles into groups; see `ops.plan_attention`."""
    builder = _PlanBuilder(cache, layout)
    by_size: dict[int, list[_Tile]] = {}
    for tile in _cut_tiles(layout):
        by_size.setdefault(tile.size, []).append(tile)
    for tiles in by_size.values():
        tiles.sort(key=lambda tile: -tile.blocks)
        for group in _close_tiles(tiles, builder.tiles_per_group(tiles[0])):
            builder.add(group)
    return builder.plan()


def _cut_tiles(layout: SequenceLayout) -> Iterator[_Tile]:
    for s in range(len(layout.q_indptr) - 1):
        token, end = int(layout.q_indptr[s]), int(layout.q_indptr[s + 1])
        position = int(layout.kv_indptr[s + 1] - layout.kv_indptr[s]) - (end - token)
        while token < end:
            left = end - token
            size = next((size for size in TILE_TOKENS if left <= 2 * size), TILE_TOKENS[-1])
            count = min(size, left)
            yield _Tile(s, token, position, count, size)
            token, position = token + count, position + count


def _close_tiles(tiles: list[_Tile], limit: int) -> Iterator[list[_Tile]]:
    """Split tiles of one size, sorted by falling blocks, so that their grids waste little."""
    group: list[_Tile] = []
    wasted = 0
    for tile in tiles:
        lost = group[0].blocks - tile.blocks if group else 0
        far = lost > (1 - CLOSE) * tile.blocks and wasted + lost > FEW_BLOCKS
        if group and (far or len(group) >= limit):
            yield group
            group, wasted, lost = [], 0, 0
        group.append(tile)
        wasted += lost
    yield group


class _PlanBuilder:
    """Turns groups of tiles into index tensors."""

    def __init__(self, cache: KVCache, layout: SequenceLayout) -> None:
        self._device = cache.data.device
        self._slots = 1 + cache.shape.num_slots
        self._kv_heads = cache.shape.num_kv_heads
        self._head_dim = cache.shape.head_dim
        self._per_kv_head = layout.num_heads // self._kv_heads
        self._layout = layout
        self._groups: list[TileGroup] = []
        self._output = np.zeros((layout.num_rows, layout.num_heads), np.int32)
        self._num_results = 0

    def tiles_per_group(self, longest: _Tile) -> int:
        """Return how many tiles as long as this one fit the scratch memory; at least one."""
        return max(1, GROUP_FLOATS // (self._floats_per_head(longest) * self._kv_heads))

    def _floats_per_head(self, tile: _Tile) -> int:
        rows = self._rows(tile)
        return tile.blocks * (2 * BLOCK * (self._head_dim + rows) + rows * self._head_dim)

    def _rows(self, tile: _Tile) -> int:
        return -(-tile.size * self._per_kv_head // ROW_MULTIPLE) * ROW_MULTIPLE

    def add(self, tiles: list[_Tile]) -> None:
        """Add one group, or several of fewer heads where one tile alone is too large."""
        heads = self._kv_heads
        if len(tiles) == 1:
            heads = min(heads, max(1, GROUP_FLOATS // self._floats_per_head(tiles[0])))
        for first in range(0, self._kv_heads, heads):
            self._add_heads(tiles, np.arange(first, min(first + heads, self._kv_heads)))

    def _add_heads(self, tiles: list[_Tile], heads: npt.NDArray[np.int64]) -> None:
        rows, blocks = self._rows(tiles[0]), tiles[0].blocks
        row = np.arange(rows)
        starts, positions, counts = (
            np.array([getattr(tile, name) for tile in tiles])
            for name in ("token", "position", "count")
        )
        # Rows beyond the tile's tokens repeat its last token; their results go nowhere.
        offsets = np.minimum(row // self._per_kv_head, counts[:, None] - 1)  # [tiles, rows]
        tokens = starts[:, None] + offsets
        head = heads[:, None, None] * self._per_kv_head + row % self._per_kv_head
        queries = tokens * self._layout.num_heads + head  # [heads, tiles, rows]

        plane = np.arange(2)[:, None] * self._kv_heads + heads  # keys, then values
        keys = plane[:, :, None, None] * self._slots + self._key_slots(tiles, blocks)

        first_masked = int((positions.min() + 1) // BLOCK)
        key_positions = np.arange(first_masked * BLOCK, blocks * BLOCK)
        hidden = key_positions > (positions[:, None] + offsets)[:, :, None]

        used = row < counts[:, None] * self._per_kv_head  # [tiles, rows]
        results = self._num_results + np.arange(queries.size).reshape(queries.shape)
        self._output.reshape(-1)[queries[:, used]] = results[:, used]
        self._num_results += queries.size
        self._groups.append(
            TileGroup(
                heads=len(heads),
                tiles=len(tiles),
                rows=rows,
                blocks=blocks,
                keys=self._tensor(keys),
                queries=self._tensor(queries),
                first_masked=first_masked,
                mask=torch.from_numpy(np.where(hidden, np.float32(-np.inf), np.float32(0))).to(
                    self._device
                ),
            )
        )

    def _key_slots(self, tiles: list[_Tile], blocks: int) -> Ints:
        """Return the slot of each key position of each tile, 0 beyond its last block."""
        slots = np.zeros((len(tiles), blocks * BLOCK), np.int32)
        for line, tile in zip(slots, tiles, strict=True):
            start, end = self._layout.kv_indptr[tile.sequence : tile.sequence + 2]
            known = min(int(end - start), tile.blocks * BLOCK)
            line[:known] = self._layout.kv_slots[start : start + known]
        return slots

    def _tensor(self, indices: npt.NDArray[np.signedinteger[Any]]) -> torch.Tensor:
        return torch.from_numpy(indices.reshape(-1).astype(np.int32)).to(self._device)

    def plan(self) -> AttentionPlan:
        """Return the finished plan."""
        return AttentionPlan(tuple(self._groups), self._tensor(self._output))


def attention(cache: KVCache, layer: int, query: torch.Tensor, plan: AttentionPlan) -> torch.Tensor:
    """Attend to the cache; see `ops.attention`."""
    num_rows, num_heads, head_dim = query.shape
    flat_query = query.reshape(-1, head_dim)
    flat_kv = cache.data[layer].view(-1, head_dim)
    results = [_attend(group, flat_query, flat_kv) for group in plan.groups]
    joined = results[0] if len(results) == 1 else torch.cat(results)
    return joined.index_select(0, plan.output).view(num_rows, num_heads * head_dim)


def _attend(group: TileGroup, query: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
    """Return the attention of a group's rows, [heads · tiles · rows, head_dim]."""
    batch, rows, blocks = group.heads * group.tiles, group.rows, group.blocks
    dim = query.shape[-1]
    keys, values = kv.index_select(0, group.keys).float().view(2, batch, blocks * BLOCK, dim)
    tile = query.index_select(0, group.queries).view(batch, rows, dim)
    scores = torch.bmm(tile, keys.transpose(1, 2))  # [batch, rows, keys]
    tail = scores.view(group.heads, group.tiles, rows, -1)[..., group.first_masked * BLOCK :]
    tail.add_(group.mask)
    highest = scores.amax(-1, keepdim=True)
    weights = scores.new_empty(batch, blocks, rows, BLOCK)
    by_block = scores.view(batch, rows, blocks, BLOCK).transpose(1, 2)
    torch.sub(by_block, highest.unsqueeze(1), out=weights).exp_()
    sums = weights.sum(-1, keepdim=True)
    products = torch.bmm(weights.view(-1, rows, BLOCK), values.reshape(-1, BLOCK, dim))
    total = _add_blocks(products.view(batch, blocks, rows, dim))
    return (total / _add_blocks(sums)).view(-1, dim)


def _add_blocks(partial: torch.Tensor) -> torch.Tensor:
    """Return the sum over dimension 1, as a tree whose shape absent (zero) blocks do not change."""
    blocks = partial.shape[1]
    while blocks > 1:
        half = 1 << (blocks - 1).bit_length() - 1  # the largest power of two below `blocks`
        partial[:, : blocks - half].add_(partial[:, half:blocks])
        blocks = half
    return partial[:, 0]
