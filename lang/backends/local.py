"""The engine on this machine: in its own process or in a thread of this one."""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Callable
from os import PathLike
from typing import Any, Unpack, cast

from ramet.runtime.protocol import Event, Request, Segment, Text
from ramet.runtime.protocol.checks import path_text

from . import offline
from .base import Backend
from .offline import OfflineOptions
from .outbox import Outbox

_default: Engine | None = None
_default_lock = threading.Lock()


class Engine:
    """Runs a model on this machine.

    Args:
        model: a folder with safetensors, a GGUF file or a hub id; None = the small default model,
            downloaded on first use.
        process: "worker" = a process of its own, so that a busy program does not slow the model
            down; "thread" = a thread of this process; "auto" = "worker".
        **options: fields of `ramet.runtime.config.EngineConfig`, such as `context_length`.

    Raises:
        TypeError: an unknown option; the nearest known one is named.
        InvalidRequestError: an option out of range.
        ModelError: the model cannot be found, downloaded or read.

    Example:
        >>> with ramet.Engine(context_length=1024) as engine:  # doctest: +SKIP
        ...     ramet.set_default_backend(engine)
        ...     answer = engine.generate("The capital of France is", {"max_new_tokens": 4})
    """

    def __init__(
        self, model: str | PathLike[str] | None = None, *, process: str = "auto", **options: Any
    ) -> None:
        config_class = importlib.import_module("ramet.runtime.config").EngineConfig
        name = None if model is None else path_text("model", model)
        self._name = name or "the default model"
        config = config_class.of({"model": name, "process": process, **options})
        self._engine = _start(config)
        self._keeps_prefixes = bool(config.enable_radix_cache)
        self._outbox = Outbox(self._engine.submit, self._engine.abort, config.max_queued_requests)

    def submit(self, request: Request, on_event: Callable[[Event], None]) -> None:
        """Take a request; its events go to `on_event`. Where the queue is full it waits here.

        Example:
            >>> from ramet.runtime.protocol import GenerateRequest, Text
            >>> request = GenerateRequest(id="1", prompt=(Text("One, two,"),))
            >>> engine = ramet.Engine()  # doctest: +SKIP
            >>> engine.submit(request, print)  # doctest: +SKIP
        """
        self._outbox.submit(request, on_event)

    def abort(self, request_id: str) -> None:
        """End a request, unless it has ended.

        Example:
            >>> engine = ramet.Engine()  # doctest: +SKIP
            >>> engine.abort("1")  # doctest: +SKIP
        """
        self._outbox.abort(request_id)

    def has_room(self, wake: Callable[[], None]) -> bool:
        """Return whether another request is welcome; where not, `wake` is called once it is.

        Example:
            >>> engine = ramet.Engine()  # doctest: +SKIP
            >>> engine.has_room(lambda: None)  # doctest: +SKIP
        """
        return self._outbox.has_room(wake)

    @property
    def num_slots(self) -> int | None:
        """How many tokens its KV pool holds; None without a prefix cache (`enable_radix_cache`).

        A batch begins as many rows at a time as the pool can hold to their end.

        Example:
            >>> engine = ramet.Engine()  # doctest: +SKIP
            >>> engine.num_slots  # doctest: +SKIP
        """
        slots = getattr(self._engine, "num_slots", None)
        return slots if self._keeps_prefixes and isinstance(slots, int) else None

    def render(self, segments: tuple[Segment, ...]) -> str:
        """Return the text that the model would see.

        Example:
            >>> from ramet.runtime.protocol import RoleBegin, Text
            >>> engine = ramet.Engine()  # doctest: +SKIP
            >>> engine.render((RoleBegin("user"), Text("Hello")))  # doctest: +SKIP
        """
        return self._engine.render(segments)

    def count_tokens(self, segments: tuple[Segment, ...]) -> int:
        """Return how many tokens the prompt has.

        Example:
            >>> from ramet.runtime.protocol import Text
            >>> engine = ramet.Engine()  # doctest: +SKIP
            >>> engine.count_tokens((Text("Hello"),))  # doctest: +SKIP
        """
        return self._engine.count_tokens(segments)

    def info(self) -> dict[str, object]:
        """Return the model, its context length, its memory and counters, and where it runs.

        Example:
            >>> engine = ramet.Engine()  # doctest: +SKIP
            >>> engine.info()["context_length"]  # doctest: +SKIP
        """
        return self._engine.info()

    def generate(
        self,
        prompt: str | list[str] | None = None,
        sampling_params: dict[str, Any] | list[dict[str, Any]] | None = None,
        **options: Unpack[OfflineOptions],
    ) -> Any:
        """Continue a prompt without a program, as SGLang's offline engine does.

        Special tokens that a prompt spells are meant, as in SGLang. Lists of prompts run at the
        same time.

        Args:
            prompt: a text, or a list of them; None where `input_ids` are given.
            sampling_params: a dict, or one for each prompt, with SGLang's keys, such as
                `max_new_tokens` (128), `temperature` (1.0), `stop`, `n`, `sampling_seed` and
                `json_schema`.
            **options: `input_ids`, `return_logprob`, `logprob_start_len`, `top_logprobs_num`,
                `token_ids_logprob`, `return_text_in_logprobs`, `stream`, `priority`,
                `cache_salt`, `rid` and `timeout`; see `ramet.backends.OfflineOptions`.

        Returns:
            A dict with `text`, `output_ids` and `meta_info`; a list of them for a list of prompts
            or `n` > 1. With `stream=True` an iterator of such dicts, each with all that is there
            so far; `index` says whose it is, where there are several answers.

        Raises:
            TypeError: an unknown option or sampling parameter; the nearest one is named.
            InvalidRequestError: a value out of range.
            RametError: what the first request that failed has failed with.

        Example:
            >>> engine = ramet.Engine()  # doctest: +SKIP
            >>> engine.generate("The capital of France is", {"max_new_tokens": 4})["text"]
            ... # doctest: +SKIP
        """
        return offline.generate(self, prompt, sampling_params, **options)

    async def async_generate(
        self,
        prompt: str | list[str] | None = None,
        sampling_params: dict[str, Any] | list[dict[str, Any]] | None = None,
        **options: Unpack[OfflineOptions],
    ) -> Any:
        """Do what `generate` does, for asyncio; with `stream=True` give an async iterator.

        Example:
            >>> async def main(engine):
            ...     return await engine.async_generate(["One", "Two"], {"max_new_tokens": 4})
        """
        from .offline_async import async_generate  # asyncio is loaded by whoever needs it

        return await async_generate(self, prompt, sampling_params, **options)

    @property
    def is_closed(self) -> bool:
        """True once it was closed or has ended by itself: a request then fails, start another.

        Example:
            >>> engine = ramet.Engine()  # doctest: +SKIP
            >>> engine.is_closed  # doctest: +SKIP
        """
        return bool(cast(Any, self._engine).is_closed)

    def save_prefix(self, name: str, prompt: str, *, parse_special: bool = False) -> int:
        """Save the KV of a prompt's beginning in the engine's `cache_dir`, for every later start.

        An engine that starts with the same model, dtype and `cache_dir` has it in its cache. A
        prefix that begins a program's prompt is found there; end it where a word ends, so that
        its tokens stay the same whatever follows.

        Args:
            name: 1 to 64 letters, digits, ".", "_" and "-"; an older one of that name is replaced.
            prompt: the text.
            parse_special: special tokens that the text spells are meant.

        Returns:
            How many tokens were saved.

        Raises:
            InvalidRequestError: such a name is not possible, the text is empty, or the engine has
                no `cache_dir`.
            ContextLengthError: the text is longer than the context.
            EngineError: the file cannot be written, or the cache is too small for the prefix.

        Example:
            >>> engine = ramet.Engine(cache_dir="prefixes")  # doctest: +SKIP
            >>> engine.save_prefix("rules", "You answer in one word.")  # doctest: +SKIP
        """
        segments = (Text(prompt, parse_special=parse_special),)
        return int(cast(Any, self._engine).save_prefix(name, segments))

    def flush_cache(self) -> bool:
        """Empty the prefix cache; False while something runs.

        Example:
            >>> engine = ramet.Engine()  # doctest: +SKIP
            >>> engine.flush_cache()  # doctest: +SKIP
        """
        return self._engine.flush_cache()

    def close(self) -> None:
        """Stop the engine; whatever still runs ends with `EngineClosedError`.

        Example:
            >>> engine = ramet.Engine()  # doctest: +SKIP
            >>> engine.close()  # doctest: +SKIP
        """
        self._engine.close()
        self._outbox.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Engine of {self._name}>"


def default_engine() -> Engine:
    """Return the engine that runs where no backend is named; it starts once per process.

    One that has ended, as when its worker was killed, is replaced by the next call.

    One line on stderr says which model it is and how to name another.
    """
    global _default
    with _default_lock:
        if _default is None or _default.is_closed:
            _default = Engine()
            print(_introduction(_default.info()), file=sys.stderr)
        return _default


def _start(config: Any) -> Backend:
    if config.process == "thread":
        engine = importlib.import_module("ramet.runtime.engine").Engine
        return cast(Backend, engine.from_config(config))
    worker = importlib.import_module("ramet.runtime.worker_client").WorkerEngine
    return cast(Backend, worker(config))


def _introduction(info: dict[str, object]) -> str:
    size = info.get("num_parameters")
    millions = f", {size / 1e6:.0f}M parameters" if isinstance(size, int) else ""
    return (
        f"ramet: using the default model {info.get('model')}{millions}; name another with "
        "ramet.set_default_backend(ramet.Engine('path or hub id'))"
    )
