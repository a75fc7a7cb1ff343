"""Attention over the pool: the textbook result, with bits that no cutting or batching changes."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from ramet.kernels import attention_reference, ops

NUM_SLOTS = 800


@dataclass
class Stored:
    """A sequence with its queries and the slots of its KV, which is in the cache already."""

    query: torch.Tensor  # [length, heads, dim]
    slots: list[int]


@dataclass
class Case:
    cache: ops.KVCache
    sequences: list[Stored]

    @property
    def num_heads(self) -> int:
        return self.sequences[0].query.shape[1]


def make_case(
    lengths: Sequence[int], heads: tuple[int, int, int], dtype: torch.dtype, seed: int = 0
) -> Case:
    num_heads, kv_heads, dim = heads
    generator = torch.Generator().manual_seed(seed)
    cache = ops.allocate_kv(ops.KVShape(2, NUM_SLOTS, kv_heads, dim), dtype)
    free = (torch.randperm(NUM_SLOTS, generator=generator) + 1).tolist()
    sequences = []
    for length in lengths:
        slots, free = free[:length], free[length:]
        kv = torch.randn(2, length, kv_heads, dim, generator=generator)
        ops.store_kv(cache, 1, torch.tensor(slots), (kv[0], kv[1]))
        query = torch.randn(length, num_heads, dim, generator=generator)
        sequences.append(Stored(query, slots))
    return Case(cache, sequences)


def run(case: Case, pieces: Sequence[tuple[int, int, int]]) -> list[torch.Tensor]:
    """Attend for tokens start … end of sequence i, for each piece (i, start, end), in one step."""
    counts = [end - start for _, start, end in pieces]
    total = sum(counts)
    layout = ops.SequenceLayout(
        q_indptr=np.array([0, *np.cumsum(counts)], np.int32),
        kv_indptr=np.array([0, *np.cumsum([end for *_, end in pieces])], np.int32),
        kv_slots=np.array(
            [s for i, _, end in pieces for s in case.sequences[i].slots[:end]], np.int32
        ),
        num_heads=case.num_heads,
        num_rows=total + 3,
    )
    query = torch.cat([case.sequences[i].query[start:end] for i, start, end in pieces])
    query = functional.pad(query, (0, 0, 0, 0, 0, 3))
    plan = ops.plan_attention(case.cache, layout)
    return list(torch.split(ops.attention(case.cache, 1, query, plan)[:total], counts))


def whole(case: Case, i: int) -> torch.Tensor:
    return run(case, [(i, 0, len(case.sequences[i].slots))])[0]


HEADS = ((9, 3, 64), (4, 4, 16), (8, 1, 32), (7, 1, 80))
DTYPES = (torch.float32, torch.bfloat16)


@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_attention_equals_the_definition(heads: tuple[int, int, int], dtype: torch.dtype) -> None:
    case = make_case((200, 64, 65, 1, 63), heads, dtype)
    for i, sequence in enumerate(case.sequences):
        kv = case.cache.data[1][:, :, sequence.slots].float()
        kv = kv.repeat_interleave(heads[0] // heads[1], dim=1)
        expected = functional.scaled_dot_product_attention(
            sequence.query.transpose(0, 1), kv[0], kv[1], is_causal=True, scale=1.0
        )
        expected = expected.transpose(0, 1).flatten(1)
        torch.testing.assert_close(whole(case, i), expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_any_chunking_and_batching_gives_the_same_bits(
    heads: tuple[int, int, int], dtype: torch.dtype, threads: int
) -> None:
    rng = np.random.default_rng(threads)
    lengths = (330, 64, 65, 1, 128)
    case = make_case(lengths, heads, dtype)
    done = [0] * len(lengths)
    parts: list[list[torch.Tensor]] = [[] for _ in lengths]
    while done != list(lengths):
        pieces = []
        for i in rng.permutation(len(lengths)).tolist():
            if done[i] < lengths[i] and rng.random() < 0.8:
                end = min(lengths[i], done[i] + int(rng.choice([1, 1, 2, 3, 6, 20, 40, 70, 200])))
                pieces.append((i, done[i], end))
                done[i] = end
        if pieces:
            for (i, *_), result in zip(pieces, run(case, pieces), strict=True):
                parts[i].append(result)
    for i, results in enumerate(parts):
        assert torch.equal(torch.cat(results), whole(case, i))


@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(1, 150), min_size=1, max_size=5), st.integers(0, 2**20), st.data())
def test_scratch_limit_and_grouping_do_not_change_the_bits(
    lengths: list[int], floats: int, data: st.DataObject
) -> None:
    case = make_case(lengths, (6, 2, 16), torch.float32)
    starts = [data.draw(st.integers(0, length - 1)) for length in lengths]
    pieces = [(i, s, n) for i, (s, n) in enumerate(zip(starts, lengths, strict=True))]
    expected = run(case, pieces)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention_reference, "GROUP_FLOATS", floats)
        patch.setattr(attention_reference, "FEW_BLOCKS", floats % 5)
        for one, other in zip(run(case, pieces), expected, strict=True):
            assert torch.equal(one, other)


def test_what_lies_in_other_slots_is_not_seen() -> None:
    case = make_case((70, 30), (4, 2, 16), torch.float32)
    before = whole(case, 0)
    own = {0, *case.sequences[0].slots}
    others = [slot for slot in range(NUM_SLOTS + 1) if slot not in own]
    case.cache.data[:, :, :, others] = float("nan")
    assert torch.equal(whole(case, 0), before)


def test_large_scores_stay_finite() -> None:
    case = make_case((100,), (4, 2, 16), torch.float32)
    case.sequences[0].query.mul_(1000.0)
    assert torch.isfinite(whole(case, 0)).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_store_rounds_to_the_cache_and_copy_moves_every_layer(dtype: torch.dtype) -> None:
    cache = ops.allocate_kv(ops.KVShape(2, 10, 2, 8), dtype)
    assert not cache.data[:, :, :, 0].any()  # the rest is what the memory held before
    kv = torch.randn(2, 3, 2, 8)
    for layer in (0, 1):
        ops.store_kv(cache, layer, torch.tensor([4, 9, 2]), (kv[0] + layer, kv[1]))
    ops.copy_kv(cache, torch.tensor([4, 9]), torch.tensor([1, 10]))
    for layer in (0, 1):
        keys, values = cache.data[layer]
        assert torch.equal(keys[:, 10], (kv[0] + layer).to(dtype)[1])
        assert torch.equal(values[:, 1], kv[1].to(dtype)[0])
    assert not cache.data[:, :, :, 0].any()
    assert cache.num_bytes == 2 * 2 * 2 * 11 * 8 * dtype.itemsize


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_of_the_cache_move_to_other_slots_in_bits(dtype: torch.dtype) -> None:
    source = make_case((70,), (4, 2, 16), dtype).cache
    source.data.nan_to_num_()
    slots = torch.tensor([3, 1, 800, 44])
    rows = ops.read_kv(source, slots)
    assert rows.dtype is torch.uint8
    assert rows.shape == (4, source.row_bytes)
    assert source.row_bytes == 2 * 2 * 2 * 16 * dtype.itemsize
    other = ops.allocate_kv(ops.KVShape(2, 20, 2, 16), dtype)
    assert other.layout == source.layout
    before = other.data[..., 4, :].clone()
    ops.write_kv(other, torch.tensor([9, 2, 20, 1]), rows)
    assert torch.equal(other.data[..., [9, 2, 20, 1], :], source.data[..., slots, :])
    assert torch.equal(other.data[..., 4, :].view(torch.uint8), before.view(torch.uint8))
    assert not other.data[..., 0, :].any()


def test_layouts_of_caches_that_hold_other_things_differ() -> None:
    shapes = (ops.KVShape(2, 5, 2, 8), ops.KVShape(1, 5, 2, 8), ops.KVShape(2, 5, 4, 8))
    caches = [ops.allocate_kv(shape, dtype) for shape in shapes for dtype in DTYPES]
    assert len({cache.layout for cache in caches}) == len(caches)
