"""Engine: a model and its scheduler on a thread of their own, answering requests by events."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from functools import cached_property, partial
from itertools import count
from pathlib import Path
from threading import Lock

import numpy as np

from .cache.prefix_store import PrefixKey, PrefixStore, check_prefix_name
from .config import EngineConfig
from .engine_loop import EngineLoop
from .filling import fill_cache
from .models.identity import arithmetic, model_hash
from .prompts.prompt import PromptEncoder
from .protocol import (
    Accepted,
    EngineClosedError,
    EngineError,
    ErrorCode,
    Event,
    Failed,
    GenerateRequest,
    InvalidRequestError,
    RametError,
    Request,
    ScoreRequest,
    Segment,
)
from .scheduling.generation import Generation
from .scheduling.job import Job, Ticket
from .scheduling.kv_memory import KVMemory
from .scheduling.limits import Limits
from .scheduling.saved_prefixes import KVBytes, SavedPrefixes
from .scheduling.scheduler import Scheduler
from .scheduling.scoring import Scoring
from .step import Runner

CLOSE_SECONDS = 2.0
_TRIES = 3
_CLOSED = "the engine is closed: start another"
_FORKED = (
    "this engine belongs to the parent process and cannot be used after os.fork(): start one in "
    "the child"
)


class Engine:
    """Answers requests with events. Any thread may call any method.

    `on_event` runs on the engine's thread, except for `Accepted` and for requests that are
    refused, where it runs inside `submit`: it must return quickly. One that raises is logged and
    ends its own request only.
    """

    def __init__(
        self,
        runner: Runner,
        prompts: PromptEncoder,
        config: EngineConfig,
        *,
        model_info: dict[str, object],
        kv: KVBytes | None = None,
    ) -> None:
        """`model_info` is JSON-safe, goes into `info()`, and holds `context_length`.

        `kv` gives access to the runner's KV; `cache_dir` needs it, and the model's `path`.
        """
        self._prompts = prompts
        self._tokenizer = prompts.tokenizer
        self._model_info = model_info
        self._pid = os.getpid()
        self._arrivals = count()
        self._ids: set[str] = set()
        self._ids_lock = Lock()
        self._limits = Limits(
            _context_length(config, int(str(model_info["context_length"]))),
            runner.num_slots,
            prompts.stop_ids,
        )
        memory = KVMemory(
            runner.num_slots,
            enable_radix_cache=config.enable_radix_cache,
            evict_policy=config.radix_cache_evict_policy,
            eviction_watermark=config.eviction_watermark,
        )
        self._saved = self._load_saved(config.cache_dir, kv, memory)
        scheduler = Scheduler(
            memory,
            max_running_requests=config.max_running_requests,
            chunked_prefill_size=config.chunked_prefill_size,
            schedule_policy=config.schedule_policy,
        )
        self._loop = EngineLoop(runner, scheduler, config.max_queued_requests)
        # The loop's thread holds no reference to the engine: one that is dropped closes, and so
        # does one that is alive when the interpreter exits.
        self._closing = weakref.finalize(self, _close, self._loop, self._pid)

    @classmethod
    def from_config(cls, config: EngineConfig) -> Engine:
        """Load the model of `config` and start an engine on it.

        Raises:
            ModelError: the model cannot be found, downloaded or read.
        """
        from .loading import load_engine_parts

        runner, prompts, model_info = load_engine_parts(config)
        return cls(runner, prompts, config, model_info=model_info, kv=runner)

    @property
    def is_closed(self) -> bool:
        """True once the engine takes no more requests."""
        return self._loop.is_closed

    def submit(self, request: Request, on_event: Callable[[Event], None]) -> None:
        """Encode and queue a request; the answer is events, the last one terminal.

        A request that cannot be served gets `Failed`, with `OVERLOADED` while the queue is full;
        nothing is raised.
        """
        if os.getpid() != self._pid:
            on_event(_failed(request, ErrorCode.ENGINE_CLOSED, _FORKED))
            return
        full: str | None = None
        with self._ids_lock:
            is_taken = request.id in self._ids
            if not is_taken:
                full = self._loop.expect(request.id)
                if full is None:
                    self._ids.add(request.id)
        if full is not None:
            on_event(_failed(request, ErrorCode.OVERLOADED, full))
            return
        if is_taken:
            message = f"a request with the id {request.id!r} is under way: ids must be unique"
            on_event(_failed(request, ErrorCode.INVALID_REQUEST, message))
            return
        ticket = Ticket.of(request, on_event, next(self._arrivals))
        ticket.on_end = partial(self._ids.discard, request.id)
        job: Job | None = None
        try:
            job = self._job(request, ticket)
        except RametError as error:
            ticket.refuse(error)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is this request's alone
            message = f"the request could not be encoded: {type(error).__name__}: {error}"
            ticket.fail(ErrorCode.INTERNAL, message)
        finally:
            is_queued = self._loop.deliver(request.id, job)
        if not is_queued:
            ticket.fail(ErrorCode.ENGINE_CLOSED, _CLOSED)

    def abort(self, request_id: str) -> None:
        """End a request with `Failed(CANCELLED)`, unless it has ended; may be repeated.

        It counts from the moment at which `submit` was called: an id that has not been submitted
        yet is none to end.
        """
        if os.getpid() == self._pid:
            self._loop.abort(request_id)

    def render(self, segments: tuple[Segment, ...]) -> str:
        """Return the prompt text that the model would see."""
        self._check_process()
        return self._prompts.render(segments)

    def count_tokens(self, segments: tuple[Segment, ...]) -> int:
        """Return how many tokens the prompt has.

        Raises:
            ChatTemplateError: the model's template forbids the conversation.
        """
        self._check_process()
        return len(self._prompts.encode(segments).ids)

    def save_prefix(self, name: str, segments: tuple[Segment, ...]) -> int:
        """Save the KV of a prompt in `cache_dir`; every later start has it in the cache.

        It runs through the model first, unless it is cached. A prefix of the same name is
        replaced. Returns how many tokens were saved.

        Raises:
            InvalidRequestError: a name that is none, an empty prompt, or no `cache_dir`.
            EngineError: the file cannot be written, or the cache is too full to keep the prefix.
            RuntimeError: called inside an `on_event`.
        """
        self._check_process()
        check_prefix_name(name)
        if self._saved is None:
            raise InvalidRequestError("save_prefix needs a folder: start with cache_dir=…")
        ids = np.frombuffer(self._prompts.encode(segments).ids.packed, dtype=np.int32)
        if not len(ids):
            raise InvalidRequestError("there is nothing to save: the prompt has no tokens")
        read = partial(self._saved.read, ids)
        rows = self._loop.call(read)
        for _ in range(_TRIES):
            if rows is not None:
                self._saved.save(name, ids, rows)
                return len(ids)
            fill_cache(self.submit, segments)
            rows = self._loop.call(read)
        raise EngineError(
            f"the prefix {name!r} with its {len(ids)} tokens did not stay in the cache until it "
            "was read: set a larger max_total_tokens, or save it while less is running"
        )

    def info(self) -> dict[str, object]:
        """Return what is running here: model, sizes, load, counters. JSON-safe.

        The first call may have to compute `model_hash`, which reads the model's files once.
        """
        info = self.load_info()
        if "path" in self._model_info:
            info["model_hash"] = self._model_hash
        return info

    @property
    def num_slots(self) -> int:
        """How many tokens the KV pool holds."""
        return self._limits.num_slots

    def load_info(self) -> dict[str, object]:
        """Return what `info` does but for `model_hash`: at once, whatever the model's size."""
        self._check_process()
        return {
            **self._model_info,
            "context_length": self._limits.context_length,
            "num_slots": self._limits.num_slots,
            "pid": self._pid,
            "process": "thread",
            **self._loop.info(),
        }

    def flush_cache(self) -> bool:
        """Forget every cached prefix; False, and nothing happens, while a request is under way."""
        self._check_process()
        return self._loop.flush_cache()

    def close(self) -> None:
        """End every request with `Failed(ENGINE_CLOSED)` and stop, within two seconds."""
        if os.getpid() == self._pid:
            self._closing()

    @cached_property
    def _model_hash(self) -> str:
        return model_hash(Path(str(self._model_info["path"])))

    def _load_saved(
        self, folder: str | None, kv: KVBytes | None, memory: KVMemory
    ) -> SavedPrefixes | None:
        """Put the saved prefixes of `folder` into `memory`, which nobody uses yet."""
        if folder is None:
            return None
        if kv is None:
            raise InvalidRequestError("cache_dir needs a runner whose KV can be read and written")
        key = PrefixKey(
            self._model_hash, str(self._model_info["dtype"]), kv.kv_layout, arithmetic()
        )
        saved = SavedPrefixes(PrefixStore(Path(folder).expanduser(), key), kv, memory)
        saved.load()
        return saved

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise EngineClosedError(_FORKED)

    def _job(self, request: Request, ticket: Ticket) -> Job:
        """Encode `request`, say what its prompt is, and return it as a job."""
        encoded = self._prompts.encode(request.prompt)
        job: Job
        match request:
            case GenerateRequest():
                job = Generation(request, ticket, encoded.ids, self._tokenizer, self._limits)
            case ScoreRequest():
                options = self._prompts.encode_options(request.prompt, request.options)
                scoring = Scoring(request, ticket, encoded, options, self._tokenizer)
                scoring.check(self._limits)
                job = scoring
        ticket.emit(
            Accepted(
                request_id=request.id,
                prefix_tokens=encoded.prefix_tokens,
                ids=encoded.ids[encoded.prefix_tokens :],
                warnings=encoded.warnings,
            )
        )
        return job


def _close(loop: EngineLoop, pid: int) -> None:
    if os.getpid() == pid:  # a forked child has the object, but not the thread
        loop.close(CLOSE_SECONDS)


def _context_length(config: EngineConfig, of_model: int) -> int:
    if config.context_length is not None and config.context_length > of_model:
        raise InvalidRequestError(
            f"context_length={config.context_length} is more than the model's own {of_model}"
        )
    return config.context_length or of_model


def _failed(request: Request, code: ErrorCode, message: str) -> Failed:
    return Failed(request_id=request.id, code=code, message=message)
