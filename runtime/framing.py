"""Frames between an engine's client and its worker: a 4-byte length, then JSON, over a pipe."""

from __future__ import annotations

import json
import os
import selectors
import struct
import threading
from collections import deque
from typing import IO, Any

_HEADER = struct.Struct("<I")
_LARGEST = 2**30


def pack_frame(message: dict[str, Any]) -> bytes:
    """Return `message` as a frame."""
    body = json.dumps(message, separators=(",", ":")).encode("ascii")
    return _HEADER.pack(len(body)) + body


def read_frame(stream: IO[bytes]) -> dict[str, Any] | None:
    """Return the next message; None where the stream ends.

    Raises:
        ValueError: what comes is no frame.
    """
    header = stream.read(_HEADER.size)
    if len(header) < _HEADER.size:
        return None
    (length,) = _HEADER.unpack(header)
    if length > _LARGEST:
        raise ValueError(f"a frame of {length} bytes: something else wrote to the pipe")
    body = stream.read(length)
    if len(body) < length:
        return None
    message = json.loads(body)
    if not isinstance(message, dict):
        raise ValueError("a frame holds a JSON object")
    return message


class FrameWriter:
    """Writes frames to a pipe from any thread, in order, and never makes the caller wait.

    What the pipe does not take at once is written by a thread of its own, started when it is
    first needed. Frames for a pipe whose other end is gone are dropped: its reader is told.
    """

    def __init__(self, fd: int) -> None:
        """Take over the file descriptor `fd`."""
        self._fd = fd
        self._changed = threading.Condition()
        self._backlog: deque[bytes] = deque()
        self._thread: threading.Thread | None = None
        self._is_closed = False
        os.set_blocking(fd, False)

    def send(self, message: dict[str, Any]) -> None:
        """Write `message`, now or soon."""
        data = pack_frame(message)
        with self._changed:
            if self._is_closed:
                return
            if not self._backlog:
                data = data[self._write(data) :]
            if data:
                self._backlog.append(data)
                self._changed.notify()
                if self._thread is None:
                    self._thread = threading.Thread(
                        target=self._drain, name="ramet-frames", daemon=True
                    )
                    self._thread.start()

    def close(self) -> None:
        """Close the pipe; what has not been written is dropped."""
        with self._changed:
            if not self._is_closed:
                self._is_closed = True
                self._backlog.clear()
                os.close(self._fd)
                self._changed.notify()

    def drop(self) -> None:
        """Close the pipe in a forked child, where another thread may have held the lock."""
        if not self._is_closed:
            self._is_closed = True
            os.close(self._fd)

    def _write(self, data: bytes) -> int:
        """Return how many bytes the pipe took; all of them where nobody will ever read them."""
        try:
            return os.write(self._fd, data)
        except BlockingIOError:
            return 0
        except OSError:
            return len(data)

    def _drain(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._backlog or self._is_closed)
                if self._is_closed:
                    return
                watched = os.dup(self._fd)  # `close` may close the other one meanwhile
            try:
                with selectors.DefaultSelector() as selector:  # select() takes no number ≥ 1024
                    selector.register(watched, selectors.EVENT_WRITE)
                    selector.select(0.5)
            finally:
                os.close(watched)
            with self._changed:
                while self._backlog and not self._is_closed:
                    data = self._backlog[0]
                    written = self._write(data)
                    if written < len(data):
                        self._backlog[0] = data[written:]
                        break
                    self._backlog.popleft()
