"""Reads GGUF files: metadata to configuration, tensors dequantised to float32."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from gguf import GGMLQuantizationType as Quantization
from gguf import quants

from ..gguf_reader import metadata, open_gguf
from ..protocol import ModelFileError
from .config import ModelConfig, inverse_frequencies

Array = npt.NDArray[np.float32]

QUANTIZATIONS = frozenset(
    {
        Quantization.F32,
        Quantization.F16,
        Quantization.BF16,
        Quantization.Q4_0,
        Quantization.Q4_1,
        Quantization.Q5_0,
        Quantization.Q5_1,
        Quantization.Q8_0,
        Quantization.Q2_K,
        Quantization.Q3_K,
        Quantization.Q4_K,
        Quantization.Q5_K,
        Quantization.Q6_K,
    }
)
ARCHITECTURES = ("llama", "qwen2", "qwen3", "gemma")
ROPE_FACTORS = "rope_freqs.weight"

_TOP_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


class GGUFSource:
    """The tensors of a GGUF file; see `weights.TensorSource`."""

    def __init__(self, path: Path) -> None:
        self.reader = open_gguf(path)
        self.where = str(path)
        self._tensors = {_rename(tensor.name): tensor for tensor in self.reader.tensors}
        factors = self._tensors.pop(ROPE_FACTORS, None)
        fields = _Fields(metadata(self.reader), self.where)
        self.name = path.stem
        self.config = _read_config(
            fields, self._tensors, None if factors is None else self._dequantize(factors)
        )

    def names(self) -> Sequence[str]:
        """Names of all tensors but the rope factors, which the configuration holds."""
        return list(self._tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of one tensor."""
        return _shape(self._tensors[name])

    def load(self, name: str) -> torch.Tensor:
        """Read one tensor."""
        tensor = self._tensors[name]
        values = self._dequantize(tensor).reshape(_shape(tensor))
        if self.config.architecture == "llama":
            if ".q_proj." in name:
                values = _pair_halves(values, self.config.num_heads)
            elif ".k_proj." in name:
                values = _pair_halves(values, self.config.num_kv_heads)
        return torch.from_numpy(values)

    def _dequantize(self, tensor: Any) -> Array:
        kind = Quantization(tensor.tensor_type)
        if kind not in QUANTIZATIONS:
            known = ", ".join(sorted(q.name for q in QUANTIZATIONS))
            raise ModelFileError(
                f"{self.where}: tensor {tensor.name} has type {kind.name}; supported are {known}"
            )
        values: Array = quants.dequantize(tensor.data, kind)
        return np.array(values, np.float32) if kind is Quantization.F32 else values


def _rename(name: str) -> str:
    """Return the name that transformers gives a tensor; an unknown one stays as it is."""
    parts = name.split(".")
    if len(parts) == 4 and parts[0] == "blk" and parts[2] in _LAYER_NAMES:
        return f"model.layers.{parts[1]}.{_LAYER_NAMES[parts[2]]}.{parts[3]}"
    return _TOP_NAMES.get(name, name)


def _shape(tensor: Any) -> tuple[int, ...]:
    return tuple(int(size) for size in reversed(tensor.shape))


def _pair_halves(values: Array, heads: int) -> Array:
    """Undo the row order of `llama` files, where rotated pairs are neighbours."""
    pairs = values.reshape(heads, -1, 2, *values.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(values.shape)


class _Fields:
    """The metadata of one file, by their names within the architecture."""

    def __init__(self, fields: dict[str, Any], where: str) -> None:
        self._fields = fields
        self.where = where
        self.architecture = str(fields.get("general.architecture", "none"))
        if self.architecture not in ARCHITECTURES:
            raise ModelFileError(
                f"{where}: architecture {self.architecture!r} is not supported; supported are "
                f"{', '.join(ARCHITECTURES)}"
            )

    def get(self, name: str, default: Any) -> Any:
        """Return a field of the architecture."""
        return self._fields.get(f"{self.architecture}.{name}", default)

    def required(self, name: str) -> Any:
        """Return a field of the architecture that must be there."""
        value = self.get(name, None)
        if value is None:
            raise ModelFileError(f"{self.where}: there is no field {self.architecture}.{name}")
        return value


def _read_config(
    fields: _Fields, tensors: dict[str, Any], rope_factors: Array | None
) -> ModelConfig:
    hidden, heads = fields.required("embedding_length"), fields.required("attention.head_count")
    if not isinstance(heads, int):
        raise ModelFileError(f"{fields.where}: head counts that differ by layer are not supported")
    head_dim = fields.get("attention.key_length", hidden // heads)
    _refuse_unsupported(fields, head_dim)
    if "model.embed_tokens.weight" not in tensors:
        raise ModelFileError(f"{fields.where}: there is no tensor token_embd.weight")
    theta = float(fields.get("rope.freq_base", 10000.0))
    gemma = fields.architecture == "gemma"
    return ModelConfig(
        architecture=fields.architecture,
        vocab_size=_shape(tensors["model.embed_tokens.weight"])[0],
        hidden_size=hidden,
        intermediate_size=fields.required("feed_forward_length"),
        num_layers=fields.required("block_count"),
        num_heads=heads,
        num_kv_heads=fields.get("attention.head_count_kv", heads),
        head_dim=head_dim,
        context_length=fields.required("context_length"),
        rms_norm_eps=fields.required("attention.layer_norm_rms_epsilon"),
        rope_theta=theta,
        rope_inverse_frequencies=_read_rope(fields, theta, head_dim, rope_factors),
        tie_embeddings="lm_head.weight" not in tensors,
        qkv_bias="model.layers.0.self_attn.q_proj.bias" in tensors,
        output_bias="model.layers.0.self_attn.o_proj.bias" in tensors,
        mlp_bias="model.layers.0.mlp.down_proj.bias" in tensors,
        qk_norm=fields.architecture == "qwen3",
        activation="gelu_tanh" if gemma else "silu",
        embedding_scale=math.sqrt(hidden) if gemma else 1.0,
    )  # norm weights of Gemma are stored as 1 + w here, so there is no offset


def _refuse_unsupported(fields: _Fields, head_dim: int) -> None:
    if fields.get("expert_count", 0):
        raise ModelFileError(f"{fields.where}: mixtures of experts are not supported")
    window = fields.get("attention.sliding_window", None)
    context = fields.required("context_length")
    if window is not None and 0 < window < context:
        raise ModelFileError(
            f"{fields.where}: sliding window {window} is shorter than the context {context}; "
            "attention windows are not supported"
        )
    for name in ("attention.value_length", "rope.dimension_count"):
        if fields.get(name, head_dim) != head_dim:
            raise ModelFileError(
                f"{fields.where}: {name} {fields.get(name, None)} is not supported, only "
                f"the head size {head_dim}"
            )


def _read_rope(
    fields: _Fields, theta: float, head_dim: int, factors: Array | None
) -> tuple[float, ...]:
    plain = inverse_frequencies(theta, head_dim)
    kind = fields.get("rope.scaling.type", "none")
    if kind == "linear":
        factor = fields.required("rope.scaling.factor")
        plain = tuple(frequency / factor for frequency in plain)
    elif kind != "none":
        raise ModelFileError(
            f"{fields.where}: rope scaling {kind!r} is not supported; supported are none, linear "
            f"and factors in {ROPE_FACTORS}"
        )
    if factors is None:
        return plain
    if factors.shape != (len(plain),):
        raise ModelFileError(f"{fields.where}: {ROPE_FACTORS} has shape {factors.shape}")
    return tuple(float(f / by) for f, by in zip(plain, factors, strict=True))
