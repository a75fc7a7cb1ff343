"""The default model against transformers with the same dequantised weights."""

from typing import Any

import pytest
import torch

from ramet.runtime.model_runner import ModelRunner
from ramet.runtime.models import load_model
from ramet.runtime.models.default import default_model_path
from ramet.runtime.models.gguf import GGUFSource
from tests.runtime.plans import greedy_ids, logits_of, whole

PROMPT = (
    "<|im_start|>user\nName the capital of France, then three rivers of Europe."
    "<|im_end|>\n<|im_start|>assistant\n"
)


def transformers_model(source: GGUFSource) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = source.config
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_hidden_layers=config.num_layers,
            num_attention_heads=config.num_heads,
            num_key_value_heads=config.num_kv_heads,
            max_position_embeddings=config.context_length,
            rms_norm_eps=config.rms_norm_eps,
            rope_theta=config.rope_theta,
            tie_word_embeddings=config.tie_embeddings,
        )
    )
    weights = {name: source.load(name) for name in source.names()}
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert (missing, unexpected) == (["lm_head.weight"], [])  # tied to the embedding
    model.tie_weights()
    return model.eval()


@pytest.mark.slow
def test_default_model_has_the_logits_and_greedy_ids_of_transformers() -> None:
    path = default_model_path(progress=False)
    loaded = load_model(path, dtype="float32")
    model = transformers_model(GGUFSource(path))
    ids = loaded.tokenizer.encode(PROMPT, parse_special=True)
    (logits,) = logits_of(ModelRunner(loaded, 256), [whole(ids, range(1, len(ids) + 1))])
    with torch.inference_mode():
        expected = model(torch.tensor([ids])).logits[0]
        generated = model.generate(torch.tensor([ids]), max_new_tokens=48, do_sample=False)
    torch.testing.assert_close(logits, expected, rtol=1e-3, atol=1e-3)
    ours = greedy_ids(ModelRunner(loaded, 256), ids, 48)
    theirs = generated[0, len(ids) :].tolist()
    assert ours[: len(theirs)] == theirs
