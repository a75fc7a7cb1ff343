"""WorkerEngine: the methods of `Engine`, answered by an engine in a child process."""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import cached_property
from itertools import count
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from . import protocol
from .config import EngineConfig
from .models import load_tokenizer
from .prompts.chat_template import ChatTemplate
from .prompts.prompt import PromptEncoder
from .protocol import (
    DeadlineError,
    EngineClosedError,
    EngineError,
    ErrorCode,
    Event,
    Failed,
    Finished,
    RametError,
    Request,
    Scored,
    Segment,
)
from .protocol.wire import from_json, to_json
from .worker_process import COMMAND, WorkerProcess

_log = logging.getLogger("ramet.engine")

CLOSE_SECONDS = 1.5
CALL_SECONDS = 60.0  # more than the engine itself allows for a call
SAVE_SECONDS = 600.0  # for a prefix that has to be computed first
_CLOSED = "the engine is closed: start another"
_FORKED = (
    "this engine belongs to the parent process and cannot be used after os.fork(): start one in "
    "the child"
)
OnEvent = Callable[[Event], None]


class WorkerEngine:
    """Starts a worker and waits until its model is loaded.

    `on_event` runs on one thread of this object, except for requests that are refused at once.
    """

    def __init__(self, config: EngineConfig, *, arguments: Sequence[str] = COMMAND) -> None:
        """Start the worker as `python` with `arguments`.

        Raises:
            ModelError: the model cannot be found, downloaded or read.
            EngineError: the worker did not start; the message has its last lines.
        """
        self._pid = os.getpid()
        process = WorkerProcess(arguments)
        try:
            self._model_info = _start(process, config)
        except BaseException:  # KeyboardInterrupt, too: no worker is left behind
            process.close(CLOSE_SECONDS)
            while process.read() is not None:
                continue
            raise
        self._link = _Link(process)
        # Threads hold the link only: an engine that is dropped, or alive at exit, closes.
        self._closing = weakref.finalize(self, _close, self._link, self._pid)

    @property
    def is_closed(self) -> bool:
        """True once the engine was closed or its worker has ended."""
        return self._link.is_ended

    @property
    def num_slots(self) -> int:
        """How many tokens the worker's KV pool holds."""
        return int(str(self._model_info["num_slots"]))

    def submit(self, request: Request, on_event: OnEvent) -> None:
        """Hand a request to the worker; the answer is events, the last one terminal."""
        if os.getpid() != self._pid:
            code = ErrorCode.ENGINE_CLOSED
            on_event(Failed(request_id=request.id, code=code, message=_FORKED))
            return
        self._link.submit(request, on_event)

    def abort(self, request_id: str) -> None:
        """End a request with `Failed(CANCELLED)`, unless it has ended; may be repeated."""
        if os.getpid() == self._pid:
            self._link.abort(request_id)

    def render(self, segments: tuple[Segment, ...]) -> str:
        """Return the prompt text that the model would see.

        The states of finished programs are rendered after the end of the worker, too.
        """
        self._check_process()
        try:
            return str(self._link.call("render", segments=to_json(segments)))
        except EngineClosedError:
            if "path" not in self._model_info:
                raise
            return self._prompts.render(segments)

    def count_tokens(self, segments: tuple[Segment, ...]) -> int:
        """Return how many tokens the prompt has."""
        self._check_process()
        return int(self._link.call("count_tokens", segments=to_json(segments)))

    def save_prefix(self, name: str, segments: tuple[Segment, ...]) -> int:
        """Save the KV of a prompt in `cache_dir`; see `Engine.save_prefix`."""
        self._check_process()
        return int(
            self._link.call("save_prefix", SAVE_SECONDS, name=name, segments=to_json(segments))
        )

    def info(self) -> dict[str, object]:
        """Return what is running in the worker. JSON-safe."""
        self._check_process()
        try:
            load: dict[str, object] = self._link.call("info")
        except EngineClosedError:
            load = {"is_closed": True}
        return {**self._model_info, **load, "process": "worker"}

    def flush_cache(self) -> bool:
        """Forget every cached prefix; False, and nothing happens, while a request is under way."""
        self._check_process()
        try:
            return bool(self._link.call("flush_cache"))
        except EngineClosedError:
            return False

    def close(self) -> None:
        """End every request with `Failed(ENGINE_CLOSED)`, and the worker, within two seconds."""
        if os.getpid() == self._pid:
            self._closing()

    @cached_property
    def _prompts(self) -> PromptEncoder:
        """The model's tokenizer and template, loaded in this process."""
        tokenizer = load_tokenizer(Path(str(self._model_info["path"])))
        return PromptEncoder(tokenizer, ChatTemplate.of(tokenizer))

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise EngineClosedError(_FORKED)


class _Link:
    """Who waits for what from the worker, and the thread that reads its answers."""

    def __init__(self, process: WorkerProcess) -> None:
        self.process = process
        self._lock = threading.Lock()
        self._receivers: dict[str, OnEvent] = {}
        self._callers: dict[int, SimpleQueue[dict[str, Any]]] = {}
        self._calls = count()
        self._end: str | None = None  # why no more can be asked
        self._thread = threading.Thread(target=self._read, name="ramet-worker", daemon=True)
        self._thread.start()

    @property
    def is_ended(self) -> bool:
        return self._end is not None

    def submit(self, request: Request, on_event: OnEvent) -> None:
        with self._lock:
            end, is_taken = self._end, request.id in self._receivers
            if end is None and not is_taken:
                self._receivers[request.id] = on_event
        if end is not None:
            on_event(_closed(request.id, end))
        elif is_taken:
            message = f"a request with the id {request.id!r} is under way: ids must be unique"
            code = ErrorCode.INVALID_REQUEST
            on_event(Failed(request_id=request.id, code=code, message=message))
        else:
            body = to_json(request)
            try:
                self.process.requests.send({"do": "submit", "id": request.id, "request": body})
            except (TypeError, ValueError) as error:  # the request holds what JSON cannot
                with self._lock:
                    self._receivers.pop(request.id, None)
                message = f"the request cannot be sent to the worker: {error}"
                code = ErrorCode.INVALID_REQUEST
                on_event(Failed(request_id=request.id, code=code, message=message))

    def abort(self, request_id: str) -> None:
        if request_id in self._receivers:
            self.process.requests.send({"do": "abort", "id": request_id})

    def call(self, method: str, seconds: float = CALL_SECONDS, **arguments: object) -> Any:
        """Call a method of the engine in the worker and wait for its value.

        Raises:
            DeadlineError: there is no answer within `seconds`.
            EngineClosedError: the worker has ended, or ends before it answers.
            RametError: what the method raised.
            RuntimeError: called from a receiver: its thread is the one that brings the answer.
        """
        if threading.current_thread() is self._thread:
            raise RuntimeError(f"{method} cannot be called inside on_event: call it elsewhere")
        number, answer = next(self._calls), SimpleQueue[dict[str, Any]]()
        with self._lock:
            if self._end is not None:
                raise EngineClosedError(self._end)
            self._callers[number] = answer
        self.process.requests.send({"do": method, "call": number, **arguments})
        try:
            reply = answer.get(timeout=seconds)
        except Empty:
            with self._lock:
                self._callers.pop(number, None)
            raise DeadlineError(
                f"the worker did not answer {method} within {seconds:g} s: it is stuck or "
                "overloaded; close the engine and start another"
            ) from None
        if "error" in reply:
            raise _error(reply["error"])
        return reply["value"]

    def end(self, why: str) -> None:
        """Give everyone who waits the same end; only the first call does anything."""
        with self._lock:
            if self._end is not None:
                return
            self._end = why
            receivers, self._receivers = self._receivers, {}
            callers, self._callers = self._callers, {}
        for answer in callers.values():
            answer.put({"error": {"type": "EngineClosedError", "message": why}})
        for request_id, on_event in receivers.items():
            self._hand_over(on_event, _closed(request_id, why))

    def _read(self) -> None:
        try:
            self._read_frames()
        except Exception as error:  # noqa: BLE001 - whoever waits must hear of the thread's end
            self.end(f"the worker's answer could not be read: {type(error).__name__}: {error}")
            self.process.close(timeout=1.0)
            while self.process.read() is not None:
                continue  # nobody waits for what is still in the pipe
        if self._end is None:
            self.end(f"the worker process has ended: {self.process.how_it_ended()}")

    def _read_frames(self) -> None:
        while (frame := self.process.read()) is not None:
            if "event" in frame:
                self._dispatch(from_json(frame["event"]))
            else:
                with self._lock:
                    caller = self._callers.pop(frame["reply"], None)
                if caller is not None:
                    caller.put(frame)

    def _dispatch(self, event: Event) -> None:
        is_last = isinstance(event, (Finished, Scored, Failed))
        with self._lock:
            receivers, request_id = self._receivers, event.request_id
            on_event = receivers.pop(request_id, None) if is_last else receivers.get(request_id)
        if on_event is not None and not self._hand_over(on_event, event):
            with self._lock:
                self._receivers.pop(request_id, None)
            self.process.requests.send({"do": "abort", "id": request_id})

    @staticmethod
    def _hand_over(on_event: OnEvent, event: Event) -> bool:
        try:
            on_event(event)
        except Exception:  # noqa: BLE001 - the receiver is foreign code on this thread
            _log.exception(
                "the receiver of request %s raised on %s: the request is given up",
                event.request_id,
                type(event).__name__,
            )
            return False
        return True


def _start(process: WorkerProcess, config: EngineConfig) -> dict[str, object]:
    """Send the config; return the engine's info once it is ready."""
    log_level = logging.getLogger("ramet").getEffectiveLevel()
    process.requests.send({"config": asdict(config), "log_level": log_level})
    answer = process.read()
    if answer is None:
        raise EngineError(f"the worker process did not start: {process.how_it_ended()}")
    if "error" in answer:
        raise _error(answer["error"])
    return dict(answer["ready"])


def _error(body: dict[str, str]) -> RametError:
    """Return the exception that was raised in the worker, by the name of its class."""
    cls = getattr(protocol, body["type"], None)
    if isinstance(cls, type) and issubclass(cls, RametError):
        return cls(body["message"])
    return EngineError(f"{body['type']}: {body['message']}")


def _closed(request_id: str, why: str) -> Failed:
    return Failed(request_id=request_id, code=ErrorCode.ENGINE_CLOSED, message=why)


def _close(link: _Link, pid: int) -> None:
    if os.getpid() == pid:  # a forked child has the object, but not the thread
        link.end(_CLOSED)
        link.process.close(CLOSE_SECONDS)
