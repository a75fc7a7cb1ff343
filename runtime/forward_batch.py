"""The tensors of one step, made from a `StepPlan`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from ramet.kernels import ops

from .step import Int32Array, StepPlan


@dataclass(frozen=True, slots=True)
class ForwardBatch:
    """What the network reads. Token rows are padded to a row count that the linears like.

    Rows past `num_tokens` are token 0 at position 0; nothing of them is stored or read. The plan's
    `trunk_groups` only say where work could be shared; the reference attention does not.
    """

    num_tokens: int
    input_ids: torch.Tensor  # [rows]
    positions: torch.Tensor  # [rows]
    slots: torch.Tensor  # [num_tokens] int64
    logit_rows: torch.Tensor  # [R]
    attention: ops.AttentionPlan

    @classmethod
    def from_plan(
        cls, plan: StepPlan, cache: ops.KVCache, *, num_rows: int, num_heads: int
    ) -> ForwardBatch:
        """Build the tensors of `plan` with `num_rows` ≥ T token rows."""
        device = cache.data.device

        def tensor(values: Int32Array, rows: int) -> torch.Tensor:
            padded = np.zeros(rows, np.int32)
            padded[: len(values)] = values
            return torch.from_numpy(padded).to(device)

        num_tokens = len(plan.input_ids)
        layout = ops.SequenceLayout(
            plan.q_indptr, plan.kv_indptr, plan.kv_slots, num_heads, num_rows
        )
        return cls(
            num_tokens=num_tokens,
            input_ids=tensor(plan.input_ids, num_rows),
            positions=tensor(plan.positions, num_rows),
            slots=tensor(plan.slot_mapping, num_tokens).long(),
            logit_rows=tensor(plan.logit_rows, len(plan.logit_rows)),
            attention=ops.plan_attention(cache, layout),
        )
