"""The forward pass of dense decoders: Llama, SmolLM2, Mistral, Qwen2, Qwen3 and Gemma.

The residual stream, the logits and all arithmetic between matrix products are float32; weights,
the inputs of matrix products and the KV cache have the dtype of the network.
"""

from __future__ import annotations

import math

import torch

from ramet.kernels import ops

from ..forward_batch import ForwardBatch
from .config import ModelConfig
from .weights import LayerWeights, TensorSource, load_weights


class Decoder:
    """A decoder with its weights, which never change.

    Attributes:
        config: its shape.
        dtype: of weights and KV.
        device: where both are.
        num_parameters: tied embeddings counted once.
    """

    def __init__(
        self, config: ModelConfig, source: TensorSource, *, dtype: torch.dtype, device: str
    ) -> None:
        self.config = config
        self.dtype = dtype
        self.device = torch.device(device)
        with torch.inference_mode():
            self._weights = load_weights(source, dtype, device)
            self._cos, self._sin = self._rotary_tables()
        self.num_parameters = self._weights.num_parameters
        self._activation = ops.silu_mul if config.activation == "silu" else ops.gelu_mul
        self._query_scale = 1.0 / math.sqrt(config.head_dim)

    @property
    def linears(self) -> tuple[ops.PackedLinear, ...]:
        """The linears that every token goes through."""
        return tuple(
            linear
            for layer in self._weights.layers
            for linear in (layer.qkv, layer.output, layer.gate_up, layer.down)
        )

    @property
    def head(self) -> ops.PackedLinear:
        """The linear that makes logits."""
        return self._weights.head

    def _rotary_tables(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return cos and sin per position, as `ops.rotary` wants them: [context, 1, head_dim]."""
        frequencies = torch.tensor(self.config.rope_inverse_frequencies, dtype=torch.float32)
        positions = torch.arange(self.config.context_length, dtype=torch.float32)
        angles = torch.outer(positions, frequencies)
        cos, sin = angles.cos(), angles.sin()
        tables = torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)
        return tables[0].unsqueeze(1).to(self.device), tables[1].unsqueeze(1).to(self.device)

    def forward(self, batch: ForwardBatch, cache: ops.KVCache) -> torch.Tensor:
        """Run the new tokens, fill their KV, return float32 logits [logit rows, vocabulary]."""
        x = self._weights.embedding.index_select(0, batch.input_ids).float()
        if self.config.embedding_scale != 1.0:
            x.mul_(self.config.embedding_scale)
        rope = (
            self._cos.index_select(0, batch.positions),
            self._sin.index_select(0, batch.positions),
        )
        eps, dtype = self.config.rms_norm_eps, self.dtype
        for index, layer in enumerate(self._weights.layers):
            hidden = ops.rms_norm(x, layer.input_norm, eps, dtype)
            attended = self._attend(hidden, rope, batch, (index, layer, cache))
            x.add_(ops.linear(layer.output, attended.to(dtype)))
            hidden = ops.rms_norm(x, layer.post_norm, eps, dtype)
            inner = self._activation(ops.linear(layer.gate_up, hidden))
            x.add_(ops.linear(layer.down, inner))
        wanted = x.index_select(0, batch.logit_rows)
        if not len(wanted):  # nothing is asked of this step: spare the largest product
            return wanted.new_empty(0, self.config.vocab_size)
        hidden = ops.rms_norm(wanted, self._weights.final_norm, eps)
        return ops.logits(self._weights.head, hidden)

    def _attend(
        self,
        hidden: torch.Tensor,
        rope: tuple[torch.Tensor, torch.Tensor],
        batch: ForwardBatch,
        place: tuple[int, LayerWeights, ops.KVCache],
    ) -> torch.Tensor:
        index, layer, cache = place
        config = self.config
        heads, kv_heads = config.num_heads, config.num_kv_heads
        qkv = ops.linear(layer.qkv, hidden).float()
        qkv = qkv.view(-1, heads + 2 * kv_heads, config.head_dim)
        query_key, value = qkv[:, : heads + kv_heads], qkv[:, heads + kv_heads :]
        if layer.query_norm is not None and layer.key_norm is not None:
            query = ops.rms_norm(qkv[:, :heads], layer.query_norm, config.rms_norm_eps)
            key = ops.rms_norm(query_key[:, heads:], layer.key_norm, config.rms_norm_eps)
            query_key = torch.cat((query, key), dim=1)
        query_key = ops.rotary(query_key, *rope)
        tokens = batch.num_tokens
        ops.store_kv(cache, index, batch.slots, (query_key[:tokens, heads:], value[:tokens]))
        query = query_key[:, :heads] * self._query_scale
        return ops.attention(cache, index, query, batch.attention)
