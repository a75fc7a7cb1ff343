"""The engine in a process of its own: `python -m ramet.runtime.worker`, frames on stdin and stdout.

The user's Python threads then cannot hold up a step: they have another interpreter lock. The
first frame is the engine's config; the answer is `ready`, or the error that prevented it. The
worker ends when its stdin does, so it never outlives its parent.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import IO, Any, Protocol

from .config import EngineConfig
from .framing import FrameWriter, read_frame
from .protocol import ErrorCode, Event, Failed, InvalidRequestError, Request, Segment
from .protocol.wire import from_json, to_json
from .step_threads import StepThreads, threads_agree

_log = logging.getLogger("ramet.worker")
SWITCH_SECONDS = 1e-4  # a prompt that is being encoded holds up a step's many small ops no longer


class ServedEngine(Protocol):
    """What a worker serves."""

    def submit(self, request: Request, on_event: Callable[[Event], None]) -> None:
        """Queue a request."""
        ...

    def abort(self, request_id: str) -> None:
        """End a request."""
        ...

    def render(self, segments: tuple[Segment, ...]) -> str:
        """Return the prompt text."""
        ...

    def count_tokens(self, segments: tuple[Segment, ...]) -> int:
        """Return how many tokens the prompt has."""
        ...

    def info(self) -> dict[str, object]:
        """Return what is running."""
        ...

    def load_info(self) -> dict[str, object]:
        """Return what `info` does, without what takes long."""
        ...

    def save_prefix(self, name: str, segments: tuple[Segment, ...]) -> int:
        """Save the KV of a prompt."""
        ...

    def flush_cache(self) -> bool:
        """Forget cached prefixes."""
        ...


def serve(start_engine: Callable[[EngineConfig], ServedEngine]) -> None:
    """Serve the engine that `start_engine` makes, until stdin ends; then exit the process."""
    faulthandler.enable()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to act on
    requests, answers = _take_pipes()
    sys.setswitchinterval(SWITCH_SECONDS)
    config = read_frame(requests)
    if config is None:
        os._exit(0)
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s")  # on stderr
    logging.getLogger("ramet").setLevel(config["log_level"])
    worker = _Worker(requests, answers)
    worker.start(start_engine, EngineConfig(**config["config"]))


def usable_cores(cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Return how many cores this process may use, by its affinity and its container's quota."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    cores = cores or 1
    try:
        quota, period = (cgroup / "cpu.max").read_text().split()
    except (OSError, ValueError):
        return cores
    return min(cores, max(int(quota) // int(period), 1)) if quota.isdigit() else cores


def _take_pipes() -> tuple[IO[bytes], FrameWriter]:
    """Keep stdin and stdout for frames; whatever else reads finds nothing and prints to stderr."""
    requests = os.fdopen(os.dup(0), "rb")
    answers = FrameWriter(os.dup(1))
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    return requests, answers


class _Worker:
    """Loads on the main thread while another one already watches for the parent's end."""

    def __init__(self, requests: IO[bytes], answers: FrameWriter) -> None:
        self._requests = requests
        self._answers = answers
        self._is_ready = threading.Event()
        self._engine: ServedEngine | None = None

    def start(
        self, start_engine: Callable[[EngineConfig], ServedEngine], config: EngineConfig
    ) -> None:
        reader = threading.Thread(target=self._read, name="ramet-requests", daemon=True)
        reader.start()
        try:
            engine = start_engine(config)
        except Exception as error:  # noqa: BLE001 - the parent raises it
            self._answers.send({"error": {"type": type(error).__name__, "message": str(error)}})
        else:
            self._engine = engine
            self._answers.send({"ready": engine.load_info()})
        self._is_ready.set()
        reader.join()

    def _read(self) -> None:
        while True:
            frame = read_frame(self._requests)
            if frame is None or frame["do"] == "close":
                os._exit(0)
            self._is_ready.wait()
            if self._engine is not None:
                self._do(self._engine, frame)

    def _do(self, engine: ServedEngine, frame: dict[str, Any]) -> None:
        match frame["do"]:
            case "submit":
                self._submit(engine, frame["id"], frame["request"])
            case "abort":
                engine.abort(frame["id"])
            case "count_tokens":
                self._reply(
                    frame, lambda: engine.count_tokens(tuple(map(from_json, frame["segments"])))
                )
            case "render":
                self._reply(frame, lambda: engine.render(tuple(map(from_json, frame["segments"]))))
            case "info":
                self._reply_aside(frame, engine.info)
            case "save_prefix":
                segments = tuple(map(from_json, frame["segments"]))
                self._reply_aside(frame, lambda: engine.save_prefix(frame["name"], segments))
            case "flush_cache":
                self._reply(frame, engine.flush_cache)

    def _submit(self, engine: ServedEngine, request_id: str, body: dict[str, Any]) -> None:
        try:
            request = from_json(body)
        except InvalidRequestError as error:
            code = ErrorCode.INVALID_REQUEST
            self._send_event(Failed(request_id=request_id, code=code, message=str(error)))
        else:
            engine.submit(request, self._send_event)

    def _send_event(self, event: Event) -> None:
        self._answers.send({"event": to_json(event)})

    def _reply_aside(self, frame: dict[str, Any], call: Callable[[], object]) -> None:
        """Reply from a thread of its own: requests go on being read while a slow call runs."""
        threading.Thread(
            target=self._reply, args=(frame, call), name="ramet-call", daemon=True
        ).start()

    def _reply(self, frame: dict[str, Any], call: Callable[[], object]) -> None:
        try:
            self._answers.send({"reply": frame["call"], "value": call()})
        except Exception as error:  # noqa: BLE001 - the caller in the parent gets it
            body = {"type": type(error).__name__, "message": str(error)}
            self._answers.send({"reply": frame["call"], "error": body})


def _start_engine(config: EngineConfig) -> ServedEngine:
    import torch

    from .engine import Engine
    from .loading import load_engine_parts

    num_threads = config.num_threads or usable_cores()
    torch.set_num_threads(num_threads)
    runner, prompts, model_info = load_engine_parts(config)
    start = partial(Engine, prompts=prompts, config=config, model_info=model_info, kv=runner)
    if num_threads == 1:
        return start(runner)
    if threads_agree(runner, (num_threads - 1, num_threads), torch.set_num_threads):
        return start(StepThreads(runner, num_threads, torch.set_num_threads))
    _log.warning(
        "torch gives other bits with %d threads than with %d: every step uses %d, also beside "
        "busy programs",
        num_threads - 1,
        num_threads,
        num_threads,
    )
    return start(runner)


if __name__ == "__main__":
    serve(_start_engine)
