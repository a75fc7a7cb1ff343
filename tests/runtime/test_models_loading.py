"""Model files: every supported form loads, and what is damaged or unsupported is named."""

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from ramet.runtime.model_runner import ModelRunner, kv_bytes_per_token
from ramet.runtime.models import load_model
from ramet.runtime.models.dtypes import cpu_multiplies_bfloat16
from ramet.runtime.models.gguf import QUANTIZATIONS, GGUFSource
from ramet.runtime.models.safetensors import SafetensorsSource
from ramet.runtime.protocol import InvalidRequestError, ModelFileError, ModelNotFoundError
from tests.models import random_tensors, tiny_config, write_gguf_model, write_model
from tests.runtime.plans import logits_of, whole

Quantization = gguf.GGMLQuantizationType


def logits(path: Path, dtype: str = "float32") -> torch.Tensor:
    return logits_of(
        ModelRunner(load_model(path, dtype=dtype), 64), [whole(range(40), range(1, 41))]
    )[0]


def test_loaded_model_says_what_it_is(tmp_path: Path) -> None:
    loaded = load_model(write_model(tmp_path / "tiny"), dtype="bfloat16")
    assert loaded.name == "tiny"
    assert loaded.network.dtype is torch.bfloat16
    assert loaded.config.context_length == 512
    assert loaded.num_parameters == sum(t.numel() for t in random_tensors(tiny_config()).values())
    assert loaded.chat_template
    assert kv_bytes_per_token(loaded.config, torch.bfloat16) == 2 * 2 * 2 * 8 * 2
    info = ModelRunner(loaded, 9).info
    assert info["kv_bytes"] == 10 * kv_bytes_per_token(loaded.config, torch.bfloat16)
    assert json.loads(json.dumps(info)) == info


def test_shards_give_the_weights_of_one_file(tmp_path: Path) -> None:
    one, many = write_model(tmp_path / "one"), write_model(tmp_path / "many", shards=3)
    assert torch.equal(logits(one), logits(many))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_files_load(dtype: torch.dtype, tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m")
    halves = {name: t.to(dtype) for name, t in random_tensors(tiny_config()).items()}
    save_file(halves, folder / "model.safetensors")
    source = SafetensorsSource(folder)
    name = "model.layers.0.mlp.down_proj.weight"
    assert torch.equal(source.load(name), halves[name])
    assert logits(folder).dtype is torch.float32


def test_auto_is_bfloat16_only_where_the_cpu_multiplies_it(tmp_path: Path) -> None:
    loaded = load_model(write_model(tmp_path / "m"))
    expected = torch.bfloat16 if cpu_multiplies_bfloat16() else torch.float32
    assert loaded.network.dtype is expected


def test_unknown_dtype_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="float8"):
        load_model(write_model(tmp_path / "m"), dtype="float8")


def test_loading_leaves_the_random_state_alone(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m", hidden_size=60, head_dim=10)
    before = torch.get_rng_state()
    load_model(folder)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    "kind", [q for q in QUANTIZATIONS if not q.name.endswith("_K")], ids=lambda q: q.name
)
def test_quantised_gguf_loads_close_to_what_was_written(
    kind: gguf.GGMLQuantizationType, tmp_path: Path
) -> None:
    sizes: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4}
    source = GGUFSource(write_gguf_model(tmp_path / "m.gguf", quantization=kind, **sizes))
    for name, tensor in random_tensors(tiny_config(**sizes)).items():
        found = source.load(name)
        error = (found - tensor).pow(2).mean().sqrt() / tensor.pow(2).mean().sqrt()
        assert error < 0.12, name


@pytest.mark.parametrize("kind", [q for q in QUANTIZATIONS if q.name.endswith("_K")], ids=str)
def test_k_quantised_gguf_loads_as_the_library_dequantises_it(
    kind: gguf.GGMLQuantizationType, tmp_path: Path
) -> None:
    block, size = gguf.GGML_QUANT_SIZES[kind]
    raw = np.random.default_rng(0).integers(0, 60, (4, 2 * size), dtype=np.uint8)
    path = write_raw_tensor(tmp_path / "m.gguf", "blk.0.ffn_down.weight", raw, kind)
    found = GGUFSource(path).load("model.layers.0.mlp.down_proj.weight")
    assert found.shape == (4, 2 * block)
    assert torch.equal(found, torch.from_numpy(gguf.quants.dequantize(raw, kind)))


def write_raw_tensor(
    path: Path, name: str, raw: np.ndarray[Any, Any], kind: gguf.GGMLQuantizationType
) -> Path:
    """Write a GGUF with a configuration, an embedding and one tensor of raw bytes."""
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in {
        "embedding_length": 8, "feed_forward_length": 8, "block_count": 1, "context_length": 64,
        "attention.head_count": 2,
    }.items():  # fmt: skip
        writer.add_uint32(f"llama.{key}", value)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    writer.add_tensor("token_embd.weight", np.zeros((4, 8), np.float32))
    writer.add_tensor(name, raw, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_quantisation_that_is_not_supported_is_named_with_its_tensor(tmp_path: Path) -> None:
    raw = np.zeros((2, gguf.GGML_QUANT_SIZES[Quantization.IQ4_XS][1]), np.uint8)
    name = "blk.0.ffn_down.weight"
    source = GGUFSource(write_raw_tensor(tmp_path / "m.gguf", name, raw, Quantization.IQ4_XS))
    with pytest.raises(ModelFileError, match=f"{name}.*IQ4_XS.*Q4_K"):
        source.load("model.layers.0.mlp.down_proj.weight")


def test_rope_factors_of_gguf_equal_llama3_scaling(tmp_path: Path) -> None:
    scaling = {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }  # fmt: skip
    folder = write_model(tmp_path / "m", rope_scaling=scaling)
    scaled = SafetensorsSource(folder).config.rope_inverse_frequencies
    plain = SafetensorsSource(write_model(tmp_path / "p")).config.rope_inverse_frequencies
    factors = torch.tensor([p / s for p, s in zip(plain, scaled, strict=True)])
    assert factors.max() > 1
    tensors = {**random_tensors(tiny_config()), "rope_freqs.weight": factors}
    source = GGUFSource(write_gguf_model(tmp_path / "m.gguf", tensors=tensors))
    assert source.config.rope_inverse_frequencies == pytest.approx(scaled, rel=1e-6)


GGUF_FIELDS: list[tuple[dict[str, Any], str]] = [
    ({"llama.rope.scaling.type": "yarn"}, "rope scaling 'yarn'"),
    ({"llama.expert_count": 8}, "mixtures of experts"),
    ({"llama.attention.sliding_window": 100}, "sliding window 100 .* context 512"),
    ({"llama.rope.dimension_count": 4}, "rope.dimension_count 4"),
]


@pytest.mark.parametrize(("fields", "message"), GGUF_FIELDS, ids=lambda x: str(x)[:30])
def test_gguf_field_that_is_not_supported_is_named(
    fields: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelFileError, match=message):
        load_model(write_gguf_model(tmp_path / "m.gguf", fields=fields))


CONFIG_CHANGES: list[tuple[dict[str, Any], str]] = [
    ({"model_type": "mixtral"}, "model_type 'mixtral' .* qwen3"),
    ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "rope scaling 'yarn'"),
    ({"rope_scaling": {"type": "dynamic", "factor": 4.0}}, "rope scaling 'dynamic'"),
    ({"rope_parameters": {"rope_type": "longrope"}}, "rope scaling 'longrope'"),
    ({"sliding_window": 100, "use_sliding_window": True}, "sliding_window 100 .* context 512"),
    ({"hidden_act": "relu"}, "activation 'relu'"),
    ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
    ({"quantization_config": {"quant_method": "awq"}}, "quantization_config"),
    ({"rms_norm_eps": None}, "no 'rms_norm_eps'"),
    ({"num_key_value_heads": 4}, "6 attention heads .* 4 KV heads"),
    ({"vocab_size": 400, "intermediate_size": 81}, "mlp.down_proj.weight has shape"),
    ({"num_hidden_layers": 3}, "missing tensors: model.layers.2.*and 4 more"),
    ({"num_hidden_layers": 1}, "unexpected tensors: model.layers.1"),
]


@pytest.mark.parametrize(("changes", "message"), CONFIG_CHANGES, ids=lambda x: str(x)[:40])
def test_config_that_is_not_supported_or_does_not_fit_is_named(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    folder = write_model(tmp_path / "m")
    config = {**json.loads((folder / "config.json").read_text()), **changes}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelFileError, match=message):
        load_model(folder)


def test_window_that_covers_the_context_is_no_window(tmp_path: Path) -> None:
    write_model(tmp_path / "m", "mistral", sliding_window=512)
    assert load_model(tmp_path / "m").config.context_length == 512


def test_nothing_at_the_path_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="nowhere"):
        load_model(tmp_path / "nowhere.gguf")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelFileError, match=r"config\.json"):
        load_model(tmp_path / "empty")
    (tmp_path / "notes.txt").write_text("no model")
    with pytest.raises(ModelFileError, match=r"not a \.gguf"):
        load_model(tmp_path / "notes.txt")


@pytest.mark.parametrize("share", [0.001, 0.3, 0.99])
def test_truncated_files_are_model_file_errors_with_their_size(
    share: float, tmp_path: Path
) -> None:
    folder = write_model(tmp_path / "m")
    file = write_gguf_model(tmp_path / "m.gguf")
    for path, model in ((folder / "model.safetensors", folder), (file, file)):
        whole_file = path.read_bytes()
        path.write_bytes(whole_file[: int(len(whole_file) * share)])
        with pytest.raises(ModelFileError, match=f"{path.stat().st_size:,}|{path.stat().st_size}"):
            load_model(model)


@pytest.mark.parametrize("kind", ["folder", "gguf"])
def test_truncated_tensors_are_told_with_the_size_they_need(kind: str, tmp_path: Path) -> None:
    if kind == "gguf":
        model = path = write_gguf_model(tmp_path / "m.gguf")
    else:
        model = write_model(tmp_path / "m")
        path = model / "model.safetensors"
    data = path.read_bytes()
    path.write_bytes(data[:-100])
    with pytest.raises(ModelFileError) as raised:
        load_model(model)
    numbers = str(raised.value).replace(",", "")
    assert str(len(data) - 100) in numbers
    assert str(len(data)) in numbers


def test_missing_shard_is_named(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m", shards=2)
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(ModelFileError, match="model-00002-of-00002"):
        load_model(folder)


def test_tensor_of_another_dtype_is_named(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m")
    tensors = random_tensors(tiny_config())
    tensors["model.norm.weight"] = tensors["model.norm.weight"].to(torch.int32)
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(ModelFileError, match=r"model\.norm\.weight has dtype I32"):
        load_model(folder)
