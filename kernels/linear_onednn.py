"""Matrix products on the CPU with weights that oneDNN has laid out for itself.

With a weight in its usual layout oneDNN and MKL rearrange it at every call, which costs more than
the product of a few rows; laid out once, one row takes half the time in bfloat16 and, on a head
of 49,152 × 576 in float32, a quarter (docs/decisions/0006-prepacked-weights.md). The ops belong to
torch's own compiler and are not documented, so they are looked for, never assumed.
"""

from __future__ import annotations

import torch

from .linear_reference import TILE_ROWS, PackedLinear, checked_linear

_OPS = ("_reorder_linear_weight", "_linear_pointwise", "_is_mkldnn_bf16_supported")


def supports(weight: torch.Tensor) -> bool:
    """Return whether a weight on the CPU can be packed: in a dtype that it multiplies."""
    if not torch._C._has_mkldnn:
        return False
    if not all(hasattr(torch.ops.mkldnn, name) for name in _OPS):
        return False
    if weight.dtype is torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return weight.dtype is torch.float32


def pack_linear(weight: torch.Tensor, bias: torch.Tensor | None) -> PackedLinear:
    """Lay out a weight [out, in]; see `ops.pack_linear`."""
    packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), TILE_ROWS)
    return checked_linear(packed, bias, _multiply)


def _multiply(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    product: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, None, "none", [], "")
    return product
