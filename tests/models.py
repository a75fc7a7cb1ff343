"""Tiny models with random weights, written as the folders and files that real models come in.

`write_model(folder, "llama")` gives a folder that `load_model` takes: config.json, safetensors,
and a small real tokenizer with a chat template. `write_gguf_model` gives the same as one file.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import tokenizers
import torch
from safetensors.torch import save_file
from tokenizers import decoders, models, pre_tokenizers, trainers

FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "gemma")
SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_LINES = (
    "A tree has a trunk, and the trunk has branches; each branch has leaves.",
    "user system assistant\nWhat is the capital of France? The capital is Paris.",
    "The quick brown fox jumps over the lazy dog, 0123456789 times.",
)
_ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "gemma": "GemmaForCausalLM",
}
PADDING_ROWS = 5  # rows of the vocabulary beyond the tokenizer

Config = dict[str, Any]
Tensors = dict[str, torch.Tensor]


@cache
def tiny_tokenizer() -> tokenizers.Tokenizer:
    """Train a byte-level BPE tokenizer on a few lines."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=list(SPECIALS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_LINES, trainer)
    return tokenizer


def tiny_config(family: str = "llama", **changes: Any) -> Config:
    """Return the config.json of a tiny model; `changes` override entries, None removes one."""
    config: Config = {
        "model_type": family,
        "architectures": [_ARCHITECTURES[family]],
        "vocab_size": tiny_tokenizer().get_vocab_size() + PADDING_ROWS,
        "hidden_size": 48,
        "intermediate_size": 80,
        "num_hidden_layers": 2,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 16 if family in ("qwen3", "gemma") else None,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": family in ("gemma", "qwen2"),
        "sliding_window": None,
        "hidden_act": "gelu_pytorch_tanh" if family == "gemma" else "silu",
        "bos_token_id": 0,
        "eos_token_id": 2,
        "torch_dtype": "float32",
        **changes,
    }
    return {name: value for name, value in config.items() if value is not None}


def tensor_shapes(config: Config) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the name and shape of every tensor of a model."""
    hidden, inner, vocab = (
        config[name] for name in ("hidden_size", "intermediate_size", "vocab_size")
    )
    head_dim = config.get("head_dim", hidden // config["num_attention_heads"])
    query = config["num_attention_heads"] * head_dim
    kv = config["num_key_value_heads"] * head_dim
    bias = config["model_type"] == "qwen2"
    yield "model.embed_tokens.weight", (vocab, hidden)
    yield "model.norm.weight", (hidden,)
    if not config["tie_word_embeddings"]:
        yield "lm_head.weight", (vocab, hidden)
    for i in range(config["num_hidden_layers"]):
        layer = f"model.layers.{i}."
        yield layer + "input_layernorm.weight", (hidden,)
        yield layer + "post_attention_layernorm.weight", (hidden,)
        for name, rows in (("q_proj", query), ("k_proj", kv), ("v_proj", kv)):
            yield f"{layer}self_attn.{name}.weight", (rows, hidden)
            if bias:
                yield f"{layer}self_attn.{name}.bias", (rows,)
        yield layer + "self_attn.o_proj.weight", (hidden, query)
        if config["model_type"] == "qwen3":
            yield layer + "self_attn.q_norm.weight", (head_dim,)
            yield layer + "self_attn.k_norm.weight", (head_dim,)
        yield layer + "mlp.gate_proj.weight", (inner, hidden)
        yield layer + "mlp.up_proj.weight", (inner, hidden)
        yield layer + "mlp.down_proj.weight", (hidden, inner)


def random_tensors(config: Config, seed: int = 0) -> Tensors:
    """Return random weights under which activations and logits keep a size of about 1."""
    generator = torch.Generator().manual_seed(seed)
    centre = 0.0 if config["model_type"] == "gemma" else 1.0

    def make(name: str, shape: tuple[int, ...]) -> torch.Tensor:
        values = torch.randn(shape, generator=generator)
        if name.endswith("norm.weight"):
            return centre + 0.1 * values
        return values * (1.5 / shape[-1] ** 0.5 if len(shape) == 2 else 0.5)

    return {name: make(name, shape) for name, shape in tensor_shapes(config)}


def write_tokenizer(folder: Path) -> None:
    """Write tokenizer.json and its configuration with the chat template."""
    tiny_tokenizer().save(str(folder / "tokenizer.json"))
    body = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "bos_token": "<|endoftext|>",
        "add_bos_token": False,
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(body))


def write_model(
    folder: Path, family: str = "llama", *, seed: int = 0, shards: int = 1, **changes: Any
) -> Path:
    """Write a tiny model folder and return it; `changes` override entries of config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    config = tiny_config(family, **changes)
    (folder / "config.json").write_text(json.dumps(config))
    write_tokenizer(folder)
    tensors = random_tensors(config, seed)
    if shards == 1:
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        return folder
    weight_map = {}
    for shard in range(shards):
        file = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        part = dict(list(tensors.items())[shard::shards])
        save_file(part, folder / file, metadata={"format": "pt"})
        weight_map.update(dict.fromkeys(part, file))
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


_GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "rope_freqs": "rope_freqs",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def _gguf_name(name: str) -> str:
    stem, _, suffix = name.rpartition(".")
    if stem in _GGUF_NAMES:
        return f"{_GGUF_NAMES[stem]}.{suffix}"
    _, _, layer, inner = stem.split(".", 3)
    return f"blk.{layer}.{_GGUF_NAMES[inner]}.{suffix}"


def _neighbouring_pairs(values: np.ndarray[Any, Any], heads: int) -> np.ndarray[Any, Any]:
    """Order q and k rows as `llama` files do: rotated pairs side by side."""
    halves = values.reshape(heads, 2, -1, *values.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(values.shape)


def write_gguf_model(
    path: Path,
    family: str = "llama",
    *,
    quantization: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
    seed: int = 0,
    fields: Config | None = None,
    tensors: Tensors | None = None,
    **changes: Any,
) -> Path:
    """Write a tiny GGUF model: matrices quantised, vectors float32. `fields` are added as they are.

    `tensors` replaces the weights of `random_tensors(tiny_config(family, **changes), seed)`.
    """
    config = tiny_config(family, **changes)
    writer = gguf.GGUFWriter(path, family)
    writer.add_name(f"tiny {family}")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    if "head_dim" in config:
        writer.add_key_length(config["head_dim"])
        writer.add_value_length(config["head_dim"])
    for name, value in (fields or {}).items():
        add = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
        add[type(value)](name, value)
    _add_gguf_tokenizer(writer)
    for name, tensor in (tensors or random_tensors(config, seed)).items():
        _add_gguf_tensor(writer, config, (name, tensor.numpy()), quantization)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_gguf_tokenizer(writer: gguf.GGUFWriter) -> None:
    vocab = tiny_tokenizer().get_vocab()
    tokens = sorted(vocab, key=lambda token: vocab[token])
    merges = json.loads(tiny_tokenizer().to_str())["model"]["merges"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token in SPECIALS else 1 for token in tokens])
    writer.add_token_merges([" ".join(pair) for pair in merges])
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)


def _add_gguf_tensor(
    writer: gguf.GGUFWriter,
    config: Config,
    named: tuple[str, np.ndarray[Any, Any]],
    quantization: gguf.GGMLQuantizationType,
) -> None:
    name, values = named
    if config["model_type"] == "llama" and ".q_proj." in name:
        values = _neighbouring_pairs(values, config["num_attention_heads"])
    if config["model_type"] == "llama" and ".k_proj." in name:
        values = _neighbouring_pairs(values, config["num_key_value_heads"])
    if config["model_type"] == "gemma" and name.endswith("norm.weight"):
        values = values + 1.0
    kind = quantization if values.ndim == 2 else gguf.GGMLQuantizationType.F32
    writer.add_tensor(_gguf_name(name), gguf.quants.quantize(values, kind), raw_dtype=kind)
