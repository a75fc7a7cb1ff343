"""The child process of an engine: how it starts, what it says, how it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import weakref
from collections import deque
from collections.abc import Sequence
from typing import IO, Any

from .framing import FrameWriter, read_frame
from .protocol import EngineError

COMMAND = ("-P", "-m", "ramet.runtime.worker")
_LAST_LINES = 5


class WorkerProcess:
    """A worker with its pipes. What it prints to stderr is shown on this process's stderr.

    It runs in a session of its own: Ctrl-C in the terminal does not reach it.
    """

    def __init__(self, arguments: Sequence[str] = COMMAND) -> None:
        """Start `python` with `arguments`.

        Raises:
            EngineError: this interpreter cannot start another one.
        """
        if not sys.executable:
            raise EngineError(
                "this Python cannot start a worker process (sys.executable is empty): "
                'use process="thread"'
            )
        self._pid = os.getpid()
        path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
        try:
            self._process = subprocess.Popen(
                [sys.executable, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": path},
            )
        except OSError as error:
            raise EngineError(f"the worker process did not start: {error}") from error
        stdin, stdout, stderr = self._process.stdin, self._process.stdout, self._process.stderr
        if stdin is None or stdout is None or stderr is None:
            raise EngineError("the worker process has no pipes")
        self.requests = FrameWriter(os.dup(stdin.fileno()))
        stdin.close()
        self._answers = stdout
        self._last_lines: deque[str] = deque(maxlen=_LAST_LINES)
        self._relay = threading.Thread(
            target=_relay, args=(stderr, self._last_lines), name="ramet-worker-stderr", daemon=True
        )
        self._relay.start()
        _ALL.add(self)

    def read(self) -> dict[str, Any] | None:
        """Return the worker's next message, None when it has ended. One thread reads."""
        if self._answers.closed:
            return None
        try:
            message = read_frame(self._answers)
        except ValueError:  # no frame: nothing that follows can be understood
            message = None
        if message is None:
            self._answers.close()
        return message

    def how_it_ended(self) -> str:
        """Wait for the end of a worker that has closed its pipe; say how it ended."""
        try:
            code = self._process.wait(timeout=2)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        self._relay.join(timeout=1)
        said = " | ".join(self._last_lines)
        return f"{_describe(code)}{f'; its last lines: {said}' if said else ''}"

    def close(self, timeout: float) -> None:
        """End the worker: by its stdin, then by force."""
        if os.getpid() != self._pid:
            return  # a forked child does not own it
        self.requests.send({"do": "close"})
        self.requests.close()
        try:
            self._process.wait(timeout=timeout)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def drop_pipes(self) -> None:
        """Close this process's end of the pipes: in a forked child, which must not hold them."""
        self.requests.drop()


_ALL: weakref.WeakSet[WorkerProcess] = weakref.WeakSet()


def _drop_pipes_in_child() -> None:
    for process in list(_ALL):
        process.drop_pipes()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_drop_pipes_in_child)


def _relay(source: IO[bytes], last_lines: deque[str]) -> None:
    """Show what comes as it comes, progress bars included, and remember the last lines."""
    with source:
        while data := source.read1(4096):  # type: ignore[attr-defined]
            text = data.decode(errors="replace")
            last_lines.extend(line.strip() for line in text.splitlines() if line.strip())
            stream = sys.stderr
            if stream is not None:
                try:
                    stream.write(text)
                    stream.flush()
                except (OSError, ValueError):  # this process's stderr is closed
                    continue


def _describe(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = str(-code)
    hint = ", as when memory runs out" if name == "SIGKILL" else ""
    return f"killed by signal {name}{hint}"
