"""Runs steps on a loaded model: builds the tensors, runs the network, samples."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ramet.kernels import ops

from .forward_batch import ForwardBatch
from .models import LoadedModel
from .models.config import ModelConfig
from .sampler import draw_tokens, gather_logprobs
from .step import StepPlan, StepResult


def kv_bytes_per_token(config: ModelConfig, dtype: torch.dtype) -> int:
    """Return the memory that the KV of one token takes, for the memory plan."""
    return 2 * config.num_layers * config.num_kv_heads * config.head_dim * dtype.itemsize


@dataclass(frozen=True, slots=True)
class PendingStep:
    """A launched step: its logits are computed, or on their way on a device."""

    plan: StepPlan
    logits: torch.Tensor


class ModelRunner:
    """Implements `step.Runner` for one loaded model and a pool of `num_slots` KV slots."""

    def __init__(self, loaded: LoadedModel, num_slots: int) -> None:
        config = loaded.config
        self._network = loaded.network
        self._vocab_size = loaded.tokenizer.vocab_size
        self._num_slots = num_slots
        shapes = {id(one.checked): one for one in self._network.linears}
        self._linears = tuple(shapes.values())  # one linear of each shape
        shape = ops.KVShape(config.num_layers, num_slots, config.num_kv_heads, config.head_dim)
        self._cache = ops.allocate_kv(shape, self._network.dtype, str(self._network.device))

    @property
    def num_slots(self) -> int:
        """KV slots that may be used, numbered from 1."""
        return self._num_slots

    @property
    def info(self) -> dict[str, object]:
        """What runs, as JSON-safe data.

        `tiled_linears` are the shapes whose products are only equal for tiles of 16 rows on this
        machine: correct, but slower.
        """
        every = (*self._linears, self._network.head)
        return {
            "dtype": str(self._network.dtype).removeprefix("torch."),
            "device": str(self._network.device),
            "kv_bytes": self._cache.num_bytes,
            "smallest_batch_rows": ops.padded_rows(self._linears, 1),
            "tiled_linears": sorted(
                {"×".join(map(str, one.weight.shape)) for one in every if one.rows.tiled}
            ),
        }

    @torch.inference_mode()
    def launch(self, plan: StepPlan) -> PendingStep:
        """Run the forward pass."""
        batch = ForwardBatch.from_plan(
            plan,
            self._cache,
            num_rows=ops.padded_rows(self._linears, len(plan.input_ids)),
            num_heads=self._network.config.num_heads,
        )
        return PendingStep(plan, self._network.forward(batch, self._cache))

    @torch.inference_mode()
    def collect(self, pending: object) -> StepResult:
        """Sample from the logits and return the answers."""
        if not isinstance(pending, PendingStep):
            raise TypeError(f"collect takes what launch returned, not {type(pending).__name__}")
        plan, logits = pending.plan, pending.logits
        return StepResult(
            tokens=draw_tokens(logits, plan.draws, self._vocab_size),
            gathered=gather_logprobs(logits, plan.gathers),
            reported=[None] * len(plan.draws),
        )

    @torch.inference_mode()
    def copy_kv(self, src: list[int], dst: list[int]) -> None:
        """Copy the KV of slots `src` to slots `dst`."""
        device = self._network.device
        ops.copy_kv(self._cache, torch.tensor(src, device=device), torch.tensor(dst, device=device))
