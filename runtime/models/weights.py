"""The weights of a decoder: what a configuration needs, checked, and packed for the ops."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from ramet.kernels import ops

from ..protocol import ModelFileError
from .config import ModelConfig

EMBEDDING = "model.embed_tokens.weight"
FINAL_NORM = "model.norm.weight"
HEAD = "lm_head.weight"


class TensorSource(Protocol):
    """A model file: its configuration and its tensors, under the names of transformers."""

    config: ModelConfig
    name: str
    where: str

    def names(self) -> Sequence[str]:
        """Names of all tensors that the network may use."""
        ...

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of one tensor."""
        ...

    def load(self, name: str) -> torch.Tensor:
        """Read one tensor, in a floating point dtype."""
        ...


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer; linears that read the same input are joined."""

    input_norm: torch.Tensor
    qkv: ops.PackedLinear
    query_norm: torch.Tensor | None
    key_norm: torch.Tensor | None
    output: ops.PackedLinear
    post_norm: torch.Tensor
    gate_up: ops.PackedLinear
    down: ops.PackedLinear


@dataclass(frozen=True, slots=True)
class DecoderWeights:
    """All weights, read-only."""

    embedding: torch.Tensor
    layers: tuple[LayerWeights, ...]
    final_norm: torch.Tensor
    head: ops.PackedLinear
    num_parameters: int


def load_weights(source: TensorSource, dtype: torch.dtype, device: str) -> DecoderWeights:
    """Read and pack every tensor that the configuration needs.

    Raises:
        ModelFileError: missing, unexpected or misshapen tensors, by name.
    """
    config = source.config
    expected = dict(_expected_shapes(config))
    _check_tensors(source, expected)
    reader = _Reader(source, dtype, device)
    embedding = reader.weight(EMBEDDING)
    head = embedding if config.tie_embeddings else reader.weight(HEAD)
    return DecoderWeights(
        embedding=embedding,
        layers=tuple(reader.layer(f"model.layers.{i}.") for i in range(config.num_layers)),
        final_norm=reader.norm(FINAL_NORM),
        head=ops.pack_head(head),
        num_parameters=sum(torch.Size(shape).numel() for shape in expected.values()),
    )


class _Reader:
    """Reads tensors of one source in the dtype and on the device of the network."""

    def __init__(self, source: TensorSource, dtype: torch.dtype, device: str) -> None:
        self._source = source
        self._config = source.config
        self._dtype = dtype
        self._device = device

    def weight(self, *names: str) -> torch.Tensor:
        """Return the tensors stacked along the first dimension."""
        parts = [self._source.load(name).to(self._device, self._dtype) for name in names]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def norm(self, name: str) -> torch.Tensor:
        """Return a norm weight as the factor it stands for, in float32."""
        weight = self._source.load(name).to(self._device, torch.float32)
        return weight + self._config.norm_offset if self._config.norm_offset else weight

    def linear(self, prefix: str, *names: str, bias: bool) -> ops.PackedLinear:
        """Return linears of one input as one."""
        biases = self.weight(*(f"{prefix}{name}.bias" for name in names)) if bias else None
        return ops.pack_linear(self.weight(*(f"{prefix}{name}.weight" for name in names)), biases)

    def layer(self, prefix: str) -> LayerWeights:
        """Return the layer whose tensors' names begin with `prefix`."""
        config, attention, mlp = self._config, f"{prefix}self_attn.", f"{prefix}mlp."
        return LayerWeights(
            input_norm=self.norm(f"{prefix}input_layernorm.weight"),
            qkv=self.linear(attention, "q_proj", "k_proj", "v_proj", bias=config.qkv_bias),
            query_norm=self.norm(f"{attention}q_norm.weight") if config.qk_norm else None,
            key_norm=self.norm(f"{attention}k_norm.weight") if config.qk_norm else None,
            output=self.linear(attention, "o_proj", bias=config.output_bias),
            post_norm=self.norm(f"{prefix}post_attention_layernorm.weight"),
            gate_up=self.linear(mlp, "gate_proj", "up_proj", bias=config.mlp_bias),
            down=self.linear(mlp, "down_proj", bias=config.mlp_bias),
        )


def _expected_shapes(config: ModelConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden, vocab = config.hidden_size, config.vocab_size
    yield EMBEDDING, (vocab, hidden)
    yield FINAL_NORM, (hidden,)
    if not config.tie_embeddings:
        yield HEAD, (vocab, hidden)
    for i in range(config.num_layers):
        for name, shape in _layer_shapes(config):
            yield f"model.layers.{i}.{name}", shape


def _layer_shapes(config: ModelConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden, inner = config.hidden_size, config.intermediate_size
    query, kv = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    linears = (
        ("self_attn.q_proj", query, hidden, config.qkv_bias),
        ("self_attn.k_proj", kv, hidden, config.qkv_bias),
        ("self_attn.v_proj", kv, hidden, config.qkv_bias),
        ("self_attn.o_proj", hidden, query, config.output_bias),
        ("mlp.gate_proj", inner, hidden, config.mlp_bias),
        ("mlp.up_proj", inner, hidden, config.mlp_bias),
        ("mlp.down_proj", hidden, inner, config.mlp_bias),
    )
    for name, rows, columns, bias in linears:
        yield f"{name}.weight", (rows, columns)
        if bias:
            yield f"{name}.bias", (rows,)
    yield "input_layernorm.weight", (hidden,)
    yield "post_attention_layernorm.weight", (hidden,)
    if config.qk_norm:
        yield "self_attn.q_norm.weight", (config.head_dim,)
        yield "self_attn.k_norm.weight", (config.head_dim,)


def _check_tensors(source: TensorSource, expected: dict[str, tuple[int, ...]]) -> None:
    present = set(source.names())
    missing = sorted(expected.keys() - present)
    unexpected = sorted(present - expected.keys() - _unused(source.config))
    problems = [
        f"{word} tensors: {_some(names)}"
        for word, names in (("missing", missing), ("unexpected", unexpected))
        if names
    ]
    for name in sorted(expected.keys() & present):
        if source.shape(name) != expected[name]:
            problems.append(f"{name} has shape {source.shape(name)}, not {expected[name]}")
    if problems:
        raise ModelFileError(
            f"{source.where} does not hold the {source.config.architecture} model that its "
            f"configuration describes: {'; '.join(problems[:8])}"
        )


def _unused(config: ModelConfig) -> set[str]:
    """Tensors that some files hold although the network computes them itself."""
    frequencies = {
        f"model.layers.{i}.self_attn.rotary_emb.inv_freq" for i in range(config.num_layers)
    }
    return frequencies | ({HEAD} if config.tie_embeddings else set())


def _some(names: list[str]) -> str:
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(names[:5]) + more
