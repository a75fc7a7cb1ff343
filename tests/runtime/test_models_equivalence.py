"""Logits and greedy ids of every family are those of transformers."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from ramet.runtime.model_runner import ModelRunner
from ramet.runtime.models import load_model
from tests.models import FAMILIES, write_gguf_model, write_model
from tests.runtime.plans import greedy_ids, logits_of, whole

IDS = [int(i) for i in torch.randint(3, 360, (150,), generator=torch.Generator().manual_seed(1))]
ROPE_SCALINGS: dict[str, dict[str, Any]] = {
    "linear": {"rope_type": "linear", "factor": 4.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
}


@pytest.fixture(autouse=True)
def few_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def reference_model(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def assert_same_as_transformers(folder: Path) -> None:
    runner = ModelRunner(load_model(folder, dtype="float32"), num_slots=400)
    model = reference_model(folder)
    with torch.inference_mode():
        expected = model(torch.tensor([IDS])).logits[0]
    (logits,) = logits_of(runner, [whole(IDS, range(1, 151))])
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)

    usable = load_model(folder, dtype="float32").tokenizer.vocab_size
    known = list(IDS[:20])
    for _ in range(12):
        with torch.inference_mode():
            known.append(int(model(torch.tensor([known])).logits[0, -1, :usable].argmax()))
    assert greedy_ids(runner, IDS[:20], 12) == known[20:]


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_and_greedy_ids_equal_transformers(family: str, tmp_path: Path) -> None:
    assert_same_as_transformers(write_model(tmp_path / family, family))


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("kv_heads", [1, 2, 6])
def test_tied_and_grouped_heads_equal_transformers(
    tied: bool, kv_heads: int, tmp_path: Path
) -> None:
    changes = {"tie_word_embeddings": tied, "num_key_value_heads": kv_heads}
    assert_same_as_transformers(write_model(tmp_path / "m", "llama", **changes))


@pytest.mark.parametrize("kind", ROPE_SCALINGS)
def test_static_rope_scaling_equals_transformers(kind: str, tmp_path: Path) -> None:
    assert_same_as_transformers(
        write_model(tmp_path / "m", "llama", rope_scaling=ROPE_SCALINGS[kind])
    )


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "gemma"])
def test_gguf_gives_the_logits_of_the_folder_it_was_made_of(family: str, tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m", family)
    file = write_gguf_model(tmp_path / "m.gguf", family)
    logits = [
        logits_of(ModelRunner(load_model(path, dtype="float32"), 200), [whole(IDS, range(1, 151))])
        for path in (folder, file)
    ]
    assert torch.equal(logits[0][0], logits[1][0])
