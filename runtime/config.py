"""EngineConfig: every option of the engine, declared and checked once."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from typing import Literal, get_args

from .protocol import InvalidRequestError, unknown_name

Dtype = Literal["auto", "float32", "bfloat16"]
Device = Literal["auto", "cpu"]
Process = Literal["auto", "worker", "thread"]
EvictPolicy = Literal["lru", "lfu", "slru", "fifo", "priority"]
SchedulePolicy = Literal["lpm", "fcfs"]

MAX_EVICTION_WATERMARK = 0.5

_CHOICES: dict[str, tuple[str, ...]] = {
    "dtype": get_args(Dtype),
    "device": get_args(Device),
    "process": get_args(Process),
    "radix_cache_evict_policy": get_args(EvictPolicy),
    "schedule_policy": get_args(SchedulePolicy),
}
_POSITIVE = (
    "context_length",
    "max_total_tokens",
    "max_running_requests",
    "chunked_prefill_size",
    "num_threads",
    "max_queued_requests",
)
_MAY_BE_NONE = frozenset({"context_length", "max_total_tokens", "num_threads"})
_OTHER_SPELLINGS = {"radix_eviction_policy": "radix_cache_evict_policy"}


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
        radix_cache_evict_policy: which cached prefix makes room first. "lru": the least recently
            used; "lfu": the least often used; "slru": those used once before those used again,
            each least recently used first; "fifo": the oldest; "priority": that of the requests
            with the lowest priority. `radix_eviction_policy` is another spelling.
        eviction_watermark: share of the pool, 0.0 to 0.5, that is evicted ahead of need after a
            step, so that admitting a request seldom waits for it. 0.0 evicts on demand only.
        cache_dir: folder of the prefixes that `save_prefix` saved; they are in the cache at the
            next start. None = none are saved.
        schedule_policy: "lpm" = the longest cached prefix first; "fcfs" = in order of arrival.
        max_queued_requests: requests that may wait to run; further ones wait at the caller, or
            are refused where nobody can wait.
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
    radix_cache_evict_policy: EvictPolicy = "lru"
    eviction_watermark: float = 0.0
    cache_dir: str | None = None
    schedule_policy: SchedulePolicy = "lpm"
    max_queued_requests: int = 8192
    num_threads: int | None = None
    process: Process = "auto"

    def __post_init__(self) -> None:
        for name in ("model", "cache_dir"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, str) or not value):
                raise InvalidRequestError(f"{name} must be a non-empty string, not {value!r}")
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
        self._check_watermark()
        if self.cache_dir is not None and not self.enable_radix_cache:
            raise InvalidRequestError("cache_dir needs the prefix cache: enable_radix_cache=True")
        if self.num_threads is not None and self.process == "thread":
            raise InvalidRequestError(
                "num_threads needs the worker process: an engine in this process leaves its "
                "threads alone (call torch.set_num_threads yourself)"
            )

    def _check_positive(self, name: str) -> None:
        value = getattr(self, name)
        if value is None and name in _MAY_BE_NONE:
            return
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise InvalidRequestError(f"{name} must be an integer of at least 1, not {value!r}")

    def _check_watermark(self) -> None:
        value = self.eviction_watermark
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not 0 <= value <= MAX_EVICTION_WATERMARK:
            raise InvalidRequestError(
                f"eviction_watermark must be a number from 0.0 to {MAX_EVICTION_WATERMARK}, not "
                f"{value!r}"
            )

    @classmethod
    def of(cls, options: dict[str, object]) -> EngineConfig:
        """Return the config with these options.

        Raises:
            TypeError: an unknown option, the nearest known one is named; one option in two
                spellings.
            InvalidRequestError: a value out of range or of the wrong type, naming the option.
        """
        known = [*(field.name for field in fields(cls)), *_OTHER_SPELLINGS]
        given: dict[str, object] = {}
        for name, value in options.items():
            if name not in known:
                raise TypeError(unknown_name(name, known, "engine option"))
            if name == "cache_dir" and isinstance(value, os.PathLike):
                value = os.fspath(value)
            spelling = _OTHER_SPELLINGS.get(name, name)
            if spelling in given:
                other = next(key for key, one in _OTHER_SPELLINGS.items() if one == spelling)
                raise TypeError(f"{spelling} and {other} are one option: give one of them")
            given[spelling] = value
        return cls(**given)  # type: ignore[arg-type]  # checked in __post_init__
