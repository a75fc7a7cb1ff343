"""Runs steps on a loaded model: builds the tensors, runs the network, samples."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from ramet.kernels import ops

from .forward_batch import ForwardBatch
from .models import LoadedModel
from .models.config import ModelConfig
from .sampler import draw_tokens, gather_logprobs, report_logprobs
from .step import Int32Array, StepPlan, StepResult

UInt8Array = npt.NDArray[np.uint8]


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
    def kv_layout(self) -> str:
        """What the rows of `read_kv` mean: dtype, layers, kv heads, head size."""
        return self._cache.layout

    @property
    def kv_row_bytes(self) -> int:
        """Bytes that the KV of one token takes in all layers."""
        return self._cache.row_bytes

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
        tokens = draw_tokens(logits, plan.draws, self._vocab_size)
        return StepResult(
            tokens=tokens,
            gathered=gather_logprobs(logits, plan.gathers, self._vocab_size),
            reported=report_logprobs(logits, plan.draws, tokens, self._vocab_size),
        )

    @torch.inference_mode()
    def copy_kv(self, src: list[int], dst: list[int]) -> None:
        """Copy the KV of slots `src` to slots `dst`."""
        device = self._network.device
        ops.copy_kv(self._cache, torch.tensor(src, device=device), torch.tensor(dst, device=device))

    @torch.inference_mode()
    def read_kv(self, slots: Int32Array) -> UInt8Array:
        """Return the KV of `slots` as bytes, one row of `kv_row_bytes` per slot."""
        return ops.read_kv(self._cache, self._slots(slots)).cpu().numpy()

    @torch.inference_mode()
    def write_kv(self, slots: Int32Array, rows: UInt8Array) -> None:
        """Put what `read_kv` gave, here or by a runner of the same `kv_layout`, into `slots`.

        Raises:
            ValueError: the rows are not uint8, one of `kv_row_bytes` per slot.
        """
        wanted = (len(slots), self.kv_row_bytes)
        if rows.dtype != np.uint8 or rows.shape != wanted:
            raise ValueError(f"rows must be uint8 {wanted}, not {rows.dtype} {rows.shape}")
        writable = rows if rows.flags.writeable else rows.copy()  # torch wraps nothing else
        values = torch.from_numpy(writable).to(self._network.device)
        ops.write_kv(self._cache, self._slots(slots), values)

    def _slots(self, slots: Int32Array) -> torch.Tensor:
        if len(slots) and not (slots.min() > 0 and slots.max() <= self._num_slots):
            raise ValueError(
                f"slots are numbered 1 to {self._num_slots}, not {slots.min()} to {slots.max()}"
            )
        return torch.from_numpy(slots.astype(np.int64)).to(self._network.device)
