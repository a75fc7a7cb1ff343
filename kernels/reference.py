"""Reference implementation of the ops on rows: plain torch, the definition of correct.

Batch invariance on the CPU rests on what each torch op does with the last elements of an array:
multiplication, addition, division, square root and (through vector libraries that treat the tail
like the rest) exp and log give the same bits at any place; silu and rsqrt do not, so they are
written with the former. Sums run over the last dimension of a contiguous tensor.
"""

from __future__ import annotations

import math

import torch

ROWS_PER_PIECE = 16  # rows of logits that are exponentiated at once
SUM_WIDTH = 1024  # entries of a vocabulary row that are summed at once


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float, dtype: torch.dtype) -> torch.Tensor:
    """Normalise by the root mean square; see `ops.rms_norm`."""
    x = x.float()
    root = (x * x).mean(-1, keepdim=True).add_(eps).sqrt_()
    return (x / root).mul_(weight).to(dtype)


def rotary(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate pairs of halves; see `ops.rotary`."""
    half = x.shape[-1] // 2
    swapped = torch.cat((x[..., half:], x[..., :half]), dim=-1)
    return (x * cos).add_(swapped.mul_(sin))


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """Return silu(gate) · up; see `ops.silu_mul`."""
    gate, up = gate_up.float().chunk(2, dim=-1)
    return _sigmoid_product(gate, torch.neg(gate), up).to(gate_up.dtype)


def gelu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """Return gelu(gate) · up; see `ops.gelu_mul`.

    0.5 · x · (1 + tanh(u)) is x / (1 + exp(−2u)).
    """
    gate, up = gate_up.float().chunk(2, dim=-1)
    cubic = (gate * gate).mul_(gate).mul_(0.044715).add_(gate)
    return _sigmoid_product(gate, cubic.mul_(-2 * math.sqrt(2 / math.pi)), up).to(gate_up.dtype)


def _sigmoid_product(gate: torch.Tensor, negated: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """Return gate / (1 + exp(negated)) · up, using `negated` as room."""
    return (gate / negated.exp_().add_(1.0)).mul_(up)


def log_softmax_gather(logits: torch.Tensor, rows: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Pick entries of the log-softmax; see `ops.log_softmax_gather`."""
    wanted, index = torch.unique(rows, return_inverse=True)
    normalizers = torch.cat(
        [
            log_sum_exp(logits.index_select(0, piece))
            for piece in torch.split(wanted, ROWS_PER_PIECE)
        ]
    )
    return logits[rows, ids].double() - normalizers[index]


def log_sum_exp(logits: torch.Tensor) -> torch.Tensor:
    """Return log Σ exp of each row; see `ops.log_sum_exp`."""
    highest = logits.amax(-1, keepdim=True)
    terms = (logits - highest).exp_()
    pieces = [piece.sum(-1).double() for piece in torch.split(terms, SUM_WIDTH, dim=-1)]
    total = pieces[0]
    for piece in pieces[1:]:
        total = total + piece
    return total.log() + highest.squeeze(-1).double()
