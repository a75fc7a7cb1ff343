"""EngineConfig: every option of the engine, declared and checked once."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal, get_args

from .protocol import InvalidRequestError, unknown_name

Dtype = Literal["auto", "float32", "bfloat16"]
Device = Literal["auto", "cpu"]
Process = Literal["auto", "worker", "thread"]

_CHOICES: dict[str, tuple[str, ...]] = {
    "dtype": get_args(Dtype),
    "device": get_args(Device),
    "process": get_args(Process),
}
_POSITIVE = (
    "context_length",
    "max_total_tokens",
    "max_running_requests",
    "chunked_prefill_size",
    "num_threads",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """How an engine is set up.

    Attributes:
        model: None = the default model; a path, a GGUF file or a hub id.
        dtype: of weights and KV; "auto" = bfloat16 where the CPU multiplies it natively.
        device: where the model runs.
        context_length: at most the model's own; None = the model's own.
        max_total_tokens: slots of the KV pool; None = what the memory plan allows.
        max_running_requests: sequences that run at the same time.
        chunked_prefill_size: tokens per step; long prompts are computed in pieces of it.
        enable_radix_cache: share the KV of equal prefixes.
        num_threads: of torch in the worker process; None = one per usable core. An engine in the
            caller's own process leaves the threads alone.
        process: "worker" runs the engine in a child process, "thread" in a thread of this one.

    Raises:
        InvalidRequestError: a value out of range or of the wrong type, naming the option.
    """

    model: str | None = None
    dtype: Dtype = "auto"
    device: Device = "auto"
    context_length: int | None = None
    max_total_tokens: int | None = None
    max_running_requests: int = 64
    chunked_prefill_size: int = 512
    enable_radix_cache: bool = True
    num_threads: int | None = None
    process: Process = "auto"

    def __post_init__(self) -> None:
        if self.model is not None and (not isinstance(self.model, str) or not self.model):
            raise InvalidRequestError(f"model must be a non-empty string, not {self.model!r}")
        if not isinstance(self.enable_radix_cache, bool):
            raise InvalidRequestError(
                f"enable_radix_cache must be a bool, not {self.enable_radix_cache!r}"
            )
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise InvalidRequestError(
                    f"{name} must be one of {', '.join(choices)}, not {getattr(self, name)!r}"
                )
        for name in _POSITIVE:
            self._check_positive(name)
        if self.num_threads is not None and self.process == "thread":
            raise InvalidRequestError(
                "num_threads needs the worker process: an engine in this process leaves its "
                "threads alone (call torch.set_num_threads yourself)"
            )

    def _check_positive(self, name: str) -> None:
        value = getattr(self, name)
        if value is None and name not in ("max_running_requests", "chunked_prefill_size"):
            return
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise InvalidRequestError(f"{name} must be an integer of at least 1, not {value!r}")

    @classmethod
    def of(cls, options: dict[str, object]) -> EngineConfig:
        """Return the config with these options.

        Raises:
            TypeError: an unknown option; the nearest known one is named.
        """
        known = [field.name for field in fields(cls)]
        for name in options:
            if name not in known:
                raise TypeError(unknown_name(name, known, "engine option"))
        return cls(**options)  # type: ignore[arg-type]  # checked in __post_init__
