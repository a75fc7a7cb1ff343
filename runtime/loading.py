"""From an engine's options to its parts: model, runner, prompt encoder. Loads torch."""

from __future__ import annotations

import logging
from time import perf_counter

from .cache.memory_plan import plan_slots
from .config import EngineConfig
from .model_runner import ModelRunner, kv_bytes_per_token
from .models import load_model
from .models.locate import locate_model
from .prompts.chat_template import ChatTemplate
from .prompts.prompt import PromptEncoder

_log = logging.getLogger("ramet.engine")


def load_engine_parts(
    config: EngineConfig,
) -> tuple[ModelRunner, PromptEncoder, dict[str, object]]:
    """Load the model of `config`; return runner, prompt encoder and what to say about the model.

    Raises:
        ModelError: the model cannot be found, downloaded or read.
    """
    started = perf_counter()
    path = locate_model(config.model)
    device = "cpu" if config.device == "auto" else config.device
    loaded = load_model(path, dtype=config.dtype, device=device)
    context_length = config.context_length or loaded.config.context_length
    bytes_per_token = kv_bytes_per_token(loaded.config, loaded.network.dtype)
    num_slots = plan_slots(bytes_per_token, context_length, config.max_total_tokens)
    runner = ModelRunner(loaded, num_slots)
    template = ChatTemplate.of(loaded.tokenizer)
    load_seconds = perf_counter() - started
    _log.info(
        "loaded %s: %.0fM parameters, context %d, %d KV slots of %d bytes, in %.1f s",
        loaded.name,
        loaded.num_parameters / 1e6,
        loaded.config.context_length,
        num_slots,
        bytes_per_token,
        load_seconds,
    )
    model_info: dict[str, object] = {
        "model": loaded.name,
        "path": str(loaded.path),
        "num_parameters": loaded.num_parameters,
        "context_length": loaded.config.context_length,
        **runner.info,
        "chat_template_is_append_only": template.is_append_only,
        "chat_template_differences": template.differences,
        "load_seconds": load_seconds,
    }
    return runner, PromptEncoder(loaded.tokenizer, template), model_info
