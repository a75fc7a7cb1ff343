"""What a dense decoder is made of, read from config.json; the GGUF loader fills the same class."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..protocol import ModelFileError

ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """The shape of a Llama-like decoder and the few points in which its family differs.

    Attributes:
        rope_inverse_frequencies: head_dim / 2 angles per position, static scaling applied.
        norm_offset: what is added to every norm weight as stored (Gemma stores w of 1 + w).
        embedding_scale: the embeddings are multiplied by this.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    context_length: int
    rms_norm_eps: float
    rope_theta: float
    rope_inverse_frequencies: tuple[float, ...]
    tie_embeddings: bool
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    activation: str = "silu"
    norm_offset: float = 0.0
    embedding_scale: float = 1.0

    def __post_init__(self) -> None:
        if self.num_heads % self.num_kv_heads:
            raise ModelFileError(
                f"{self.num_heads} attention heads cannot share {self.num_kv_heads} KV heads"
            )
        if self.head_dim % 2:
            raise ModelFileError(f"head_dim must be even for rotary embeddings: {self.head_dim}")


def config_from_json(body: Mapping[str, Any], where: str) -> ModelConfig:
    """Return the configuration that a config.json holds.

    Raises:
        ModelFileError: a missing entry, or one that asks for what is not supported.
    """
    kind = _required(body, "model_type", where)
    if kind not in _FAMILIES:
        raise ModelFileError(
            f"{where}: model_type {kind!r} is not supported; supported are {', '.join(_FAMILIES)}"
        )
    hidden, heads = (
        _required(body, "hidden_size", where),
        _required(body, "num_attention_heads", where),
    )
    head_dim = body.get("head_dim") or hidden // heads
    context = _required(body, "max_position_embeddings", where)
    _refuse_unsupported(body, kind, context, where)
    theta, frequencies = _read_rope(body, head_dim, where)
    family: dict[str, Any] = _FAMILIES[kind](body)
    return ModelConfig(
        architecture=kind,
        vocab_size=_required(body, "vocab_size", where),
        hidden_size=hidden,
        intermediate_size=_required(body, "intermediate_size", where),
        num_layers=_required(body, "num_hidden_layers", where),
        num_heads=heads,
        num_kv_heads=body.get("num_key_value_heads") or heads,
        head_dim=head_dim,
        context_length=context,
        rms_norm_eps=_required(body, "rms_norm_eps", where),
        rope_theta=theta,
        rope_inverse_frequencies=frequencies,
        activation=_read_activation(body, where),
        **{"tie_embeddings": bool(body.get("tie_word_embeddings", False)), **family},
    )


def _llama(body: Mapping[str, Any]) -> dict[str, Any]:
    bias = bool(body.get("attention_bias", False))
    return {"qkv_bias": bias, "output_bias": bias, "mlp_bias": bool(body.get("mlp_bias", False))}


def _mistral(body: Mapping[str, Any]) -> dict[str, Any]:
    return {}


def _qwen2(body: Mapping[str, Any]) -> dict[str, Any]:
    return {"qkv_bias": True}


def _qwen3(body: Mapping[str, Any]) -> dict[str, Any]:
    bias = bool(body.get("attention_bias", False))
    return {"qkv_bias": bias, "output_bias": bias, "qk_norm": True}


def _gemma(body: Mapping[str, Any]) -> dict[str, Any]:
    bias = bool(body.get("attention_bias", False))
    return {
        "qkv_bias": bias,
        "output_bias": bias,
        "norm_offset": 1.0,
        "embedding_scale": math.sqrt(body["hidden_size"]),
        "tie_embeddings": bool(body.get("tie_word_embeddings", True)),
    }


_FAMILIES = {
    "llama": _llama,
    "mistral": _mistral,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "gemma": _gemma,
}


def _required(body: Mapping[str, Any], name: str, where: str) -> Any:
    value = body.get(name)
    if value is None:
        raise ModelFileError(f"{where}: there is no {name!r}")
    return value


def _refuse_unsupported(body: Mapping[str, Any], kind: str, context: int, where: str) -> None:
    window = body.get("sliding_window")
    on = body.get("use_sliding_window", kind == "mistral")
    if on and window is not None and window < context:
        raise ModelFileError(
            f"{where}: sliding_window {window} is shorter than the context {context}; "
            "attention windows are not supported"
        )
    if body.get("partial_rotary_factor", 1.0) != 1.0:
        raise ModelFileError(f"{where}: partial_rotary_factor is not supported")
    if body.get("quantization_config"):
        raise ModelFileError(
            f"{where}: quantization_config is not supported; use a GGUF file of this model"
        )


def _read_activation(body: Mapping[str, Any], where: str) -> str:
    name = body.get("hidden_activation") or body.get("hidden_act", "silu")
    if name not in ACTIVATIONS:
        raise ModelFileError(
            f"{where}: activation {name!r} is not supported; supported are {', '.join(ACTIVATIONS)}"
        )
    return ACTIVATIONS[name]


def _read_rope(
    body: Mapping[str, Any], head_dim: int, where: str
) -> tuple[float, tuple[float, ...]]:
    scaling = dict(body.get("rope_parameters") or body.get("rope_scaling") or {})
    theta = float(scaling.get("rope_theta") or body.get("rope_theta") or 10000.0)
    plain = inverse_frequencies(theta, head_dim)
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    if kind == "default":
        return theta, plain
    if kind == "linear":
        return theta, tuple(f / scaling["factor"] for f in plain)
    if kind == "llama3":
        return theta, tuple(_llama3_frequency(f, scaling) for f in plain)
    raise ModelFileError(
        f"{where}: rope scaling {kind!r} is not supported; supported are default, linear, llama3 "
        "(factors that depend on the current length would change what is already cached)"
    )


def inverse_frequencies(theta: float, head_dim: int) -> tuple[float, ...]:
    """Return the angle per position of each pair of a head."""
    return tuple(theta ** (-2 * i / head_dim) for i in range(head_dim // 2))


def _llama3_frequency(frequency: float, scaling: Mapping[str, Any]) -> float:
    """Return the scaled frequency: long waves by the factor, short ones kept, smooth between."""
    factor, original = scaling["factor"], scaling["original_max_position_embeddings"]
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    turns = original * frequency / (2 * math.pi)
    if turns < low:
        return float(frequency / factor)
    if turns > high:
        return frequency
    smooth = (turns - low) / (high - low)
    return float((1 - smooth) * frequency / factor + smooth * frequency)
