"""The engine on this machine: in its own process or in a thread of this one."""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Callable
from os import PathLike, fspath
from typing import Any, cast

from ramet.runtime.protocol import Event, Request, Segment

from .base import Backend

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
    """

    def __init__(
        self, model: str | PathLike[str] | None = None, *, process: str = "auto", **options: Any
    ) -> None:
        config_class = importlib.import_module("ramet.runtime.config").EngineConfig
        name = None if model is None else fspath(model)
        self._name = name or "the default model"
        self._engine = _start(config_class.of({"model": name, "process": process, **options}))

    def submit(self, request: Request, on_event: Callable[[Event], None]) -> None:
        """Take a request; its events go to `on_event`."""
        self._engine.submit(request, on_event)

    def abort(self, request_id: str) -> None:
        """End a request, unless it has ended."""
        self._engine.abort(request_id)

    def render(self, segments: tuple[Segment, ...]) -> str:
        """Return the text that the model would see."""
        return self._engine.render(segments)

    def count_tokens(self, segments: tuple[Segment, ...]) -> int:
        """Return how many tokens the prompt has."""
        return self._engine.count_tokens(segments)

    def info(self) -> dict[str, object]:
        """Return the model, its context length, its memory and counters, and where it runs."""
        return self._engine.info()

    @property
    def is_closed(self) -> bool:
        """True once it was closed or has ended by itself: a request then fails, start another."""
        return bool(cast(Any, self._engine).is_closed)

    def flush_cache(self) -> bool:
        """Empty the prefix cache; False while something runs."""
        return self._engine.flush_cache()

    def close(self) -> None:
        """Stop the engine; whatever still runs ends with `EngineClosedError`."""
        self._engine.close()

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
