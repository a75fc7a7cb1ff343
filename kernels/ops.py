"""The operations that models and the sampler are made of: the only door to the kernels.

Each op takes `implementation=`, a name of the tables below. The reference is plain torch for any
device and the definition of correct; it runs where no other implementation is better. Every op is
batch-invariant: what it gives for a row, token or sequence has the same bits whatever else is in
the call.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType

import torch

from . import (
    attention_reference,
    linear_onednn,
    linear_reference,
    reference,
    sampling_numpy,
    sampling_reference,
)
from .attention_reference import AttentionPlan, KVCache, KVShape, SequenceLayout
from .linear_reference import PackedLinear

__all__ = [
    "AttentionPlan",
    "KVCache",
    "KVShape",
    "PackedLinear",
    "SequenceLayout",
    "allocate_kv",
    "attention",
    "copy_kv",
    "gelu_mul",
    "gumbel_argmax",
    "gumbel_noise",
    "linear",
    "log_softmax_gather",
    "log_sum_exp",
    "logits",
    "pack_head",
    "pack_linear",
    "padded_rows",
    "plan_attention",
    "read_kv",
    "rms_norm",
    "rotary",
    "row_maximum",
    "silu_mul",
    "store_kv",
    "write_kv",
]

_ATTENTION: dict[str, ModuleType] = {"reference": attention_reference}
_LINEAR: dict[str, ModuleType] = {"reference": linear_reference, "onednn": linear_onednn}
_ELEMENTWISE: dict[str, ModuleType] = {"reference": reference}
_DRAWS: dict[str, ModuleType] = {"reference": sampling_reference, "numpy": sampling_numpy}


def _pick(table: dict[str, ModuleType], implementation: str | None) -> ModuleType:
    name = implementation or "reference"
    if name not in table:
        raise ValueError(f"unknown implementation {name!r}; there are {', '.join(table)}")
    return table[name]


def _pick_draws(logits: torch.Tensor, implementation: str | None) -> ModuleType:
    return _pick(_DRAWS, implementation or ("numpy" if logits.is_cpu else None))


def allocate_kv(
    shape: KVShape, dtype: torch.dtype, device: str = "cpu", *, implementation: str | None = None
) -> KVCache:
    """Return the KV of `shape.num_slots` tokens, as memory holds it; slot 0 is zero padding."""
    cache: KVCache = _pick(_ATTENTION, implementation).allocate_kv(shape, dtype, device)
    return cache


def store_kv(
    cache: KVCache,
    layer: int,
    slots: torch.Tensor,
    kv: tuple[torch.Tensor, torch.Tensor],
    *,
    implementation: str | None = None,
) -> None:
    """Write keys and values [T, kv heads, head_dim] to `slots` [T], rounded to the cache dtype."""
    _pick(_ATTENTION, implementation).store_kv(cache, layer, slots, kv)


def copy_kv(
    cache: KVCache, src: torch.Tensor, dst: torch.Tensor, *, implementation: str | None = None
) -> None:
    """Copy the KV of slots `src` to slots `dst` in every layer."""
    _pick(_ATTENTION, implementation).copy_kv(cache, src, dst)


def read_kv(
    cache: KVCache, slots: torch.Tensor, *, implementation: str | None = None
) -> torch.Tensor:
    """Return the KV of `slots` [n] (integer) as bytes [n, cache.row_bytes] (uint8), as stored.

    A row is one token in all layers, laid out as `cache.layout` says; `write_kv` puts it into any
    slot of a cache of the same layout.
    """
    rows: torch.Tensor = _pick(_ATTENTION, implementation).read_kv(cache, slots)
    return rows


def write_kv(
    cache: KVCache, slots: torch.Tensor, rows: torch.Tensor, *, implementation: str | None = None
) -> None:
    """Put rows [n, cache.row_bytes] (uint8) that `read_kv` gave into `slots` [n], in bits."""
    _pick(_ATTENTION, implementation).write_kv(cache, slots, rows)


def plan_attention(
    cache: KVCache, layout: SequenceLayout, *, implementation: str | None = None
) -> AttentionPlan:
    """Return the index tensors that `attention` needs; built once per step for all layers."""
    plan: AttentionPlan = _pick(_ATTENTION, implementation).plan_attention(cache, layout)
    return plan


def attention(
    cache: KVCache,
    layer: int,
    query: torch.Tensor,
    plan: AttentionPlan,
    *,
    implementation: str | None = None,
) -> torch.Tensor:
    """Attend `query` [rows, heads, head_dim] (float32, already scaled) to the cache, causally.

    Keys and values come from the cache only, so those of the new tokens are stored before.
    Returns [rows, heads · head_dim] in float32; rows past the planned tokens are meaningless.
    """
    result: torch.Tensor = _pick(_ATTENTION, implementation).attention(cache, layer, query, plan)
    return result


def pack_linear(
    weight: torch.Tensor, bias: torch.Tensor | None = None, *, implementation: str | None = None
) -> PackedLinear:
    """Prepare a weight [out, in] and find the row counts at which its product is invariant.

    The choice of the implementation is made here, once per weight; by default "onednn" on a CPU
    where it supports the weight.
    """
    on_cpu = weight.device.type == "cpu"
    if implementation is None and on_cpu and linear_onednn.supports(weight):
        implementation = "onednn"
    packed: PackedLinear = _pick(_LINEAR, implementation).pack_linear(weight, bias)
    return packed


def pack_head(weight: torch.Tensor, *, implementation: str | None = None) -> PackedLinear:
    """Prepare the weight [vocabulary, hidden] of the layer that makes logits; see `logits`.

    Torch's bfloat16 product rounds its result to bfloat16: logits near 20 would be multiples of
    1/8, and most choices between near equals ties. So the head is kept in float32.
    """
    return pack_linear(weight.float(), implementation=implementation)


def logits(head: PackedLinear, hidden: torch.Tensor) -> torch.Tensor:
    """Return float32 logits [rows, vocabulary] of float32 hidden rows, never rounded to less."""
    return linear(head, hidden)


def padded_rows(packed: Sequence[PackedLinear], rows: int) -> int:
    """Return the smallest row count ≥ `rows` at which none of `packed` has to pad its input."""
    return linear_reference.padded_rows(packed, rows)


def linear(packed: PackedLinear, x: torch.Tensor) -> torch.Tensor:
    """Return x · weightᵀ + bias for x [rows, in]."""
    return linear_reference.linear(packed, x)


def rms_norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    dtype: torch.dtype = torch.float32,
    *,
    implementation: str | None = None,
) -> torch.Tensor:
    """Return x / root-mean-square(x) · weight over the last dimension, computed in float32."""
    result: torch.Tensor = _pick(_ELEMENTWISE, implementation).rms_norm(x, weight, eps, dtype)
    return result


def rotary(
    x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *, implementation: str | None = None
) -> torch.Tensor:
    """Rotate x [rows, heads, head_dim] (float32), halves paired, by tables [rows, 1, head_dim].

    The first half of `sin` is negated, so that the result is x · cos + swap(x) · sin.
    """
    result: torch.Tensor = _pick(_ELEMENTWISE, implementation).rotary(x, cos, sin)
    return result


def silu_mul(gate_up: torch.Tensor, *, implementation: str | None = None) -> torch.Tensor:
    """Return silu(gate) · up for gate and up side by side in the last dimension."""
    result: torch.Tensor = _pick(_ELEMENTWISE, implementation).silu_mul(gate_up)
    return result


def gelu_mul(gate_up: torch.Tensor, *, implementation: str | None = None) -> torch.Tensor:
    """Return gelu(gate) · up, with the tanh form of gelu."""
    result: torch.Tensor = _pick(_ELEMENTWISE, implementation).gelu_mul(gate_up)
    return result


def log_softmax_gather(
    logits: torch.Tensor,
    rows: torch.Tensor,
    ids: torch.Tensor,
    *,
    implementation: str | None = None,
) -> torch.Tensor:
    """Return log_softmax(logits)[rows[i], ids[i]] for every i, in float64.

    The vocabulary is reduced in pieces; no [rows, vocabulary] result is ever made.
    """
    result: torch.Tensor = _pick(_ELEMENTWISE, implementation).log_softmax_gather(logits, rows, ids)
    return result


def log_sum_exp(logits: torch.Tensor, *, implementation: str | None = None) -> torch.Tensor:
    """Return log Σ exp of each row [rows, vocabulary], in float64 [rows].

    The exponentials are float32, and their order is fixed by the vocabulary alone.
    """
    result: torch.Tensor = _pick(_ELEMENTWISE, implementation).log_sum_exp(logits)
    return result


def row_maximum(
    logits: torch.Tensor, *, implementation: str | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the maximum of each row and its id, the lowest of equals; NaN where there is one."""
    result: tuple[torch.Tensor, torch.Tensor] = _pick_draws(logits, implementation).row_maximum(
        logits
    )
    return result


def gumbel_noise(
    seeds: Sequence[int],
    positions: Sequence[int],
    ids: torch.Tensor,
    *,
    implementation: str | None = None,
) -> torch.Tensor:
    """Return standard Gumbel noise for each of `ids` [draws, n] (vocabulary ids), in float64.

    Draw i has seed `seeds[i]` (64 bits) and output position `positions[i]`; the noise is a pure
    function of (seed, position, id), whatever else is asked for.
    """
    result: torch.Tensor = _pick_draws(ids, implementation).gumbel_noise(seeds, positions, ids)
    return result


def gumbel_argmax(
    rows: torch.Tensor,
    temperatures: Sequence[float],
    seeds: Sequence[int],
    positions: Sequence[int],
    *,
    implementation: str | None = None,
) -> torch.Tensor:
    """Return for each row the id of the largest logit ÷ temperature + Gumbel noise.

    `rows` [draws, vocabulary] are float32 logits from which their maximum was taken, so that it is
    0; −inf is never drawn. Equals go to the lowest id. See `gumbel_noise` for seeds and positions.
    """
    result: torch.Tensor = _pick_draws(rows, implementation).gumbel_argmax(
        rows, temperatures, seeds, positions
    )
    return result
