"""The one thread that carries events to the streams they belong to."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import TYPE_CHECKING

from ramet.runtime.protocol import Event

if TYPE_CHECKING:
    from .stream import Stream

_log = logging.getLogger("ramet")


class Dispatcher:
    """The thread that carries events to their streams; starts with the first event."""

    def __init__(self) -> None:
        self._events: SimpleQueue[tuple[Stream, Event | Callable[[], None]]] = SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def put(self, stream: Stream, event: Event | Callable[[], None]) -> None:
        """Queue an event, or a function to be called under the run's lock; on any thread."""
        self._events.put((stream, event))
        if self._thread is None:
            self._start()

    def _start(self) -> None:
        with self._lock:
            if self._thread is None:
                thread = threading.Thread(target=self._work, name="ramet-dispatcher", daemon=True)
                thread.start()  # the process may have too many: then the next event tries again
                self._thread = thread

    def _work(self) -> None:
        while True:
            stream, event = self._events.get()
            run = stream.run
            with run.condition:
                try:
                    if callable(event):
                        event()
                    else:
                        stream.handle(event)
                except Exception as error:  # noqa: BLE001 it serves every run: it goes on
                    _log.exception("carrying on a program failed")
                    stream.fail(error)
                run.notify()
            del stream, event, run


_dispatcher = Dispatcher()


def put(stream: Stream, event: Event | Callable[[], None]) -> None:
    """Queue an event for the stream, or a function to be called under its run's lock."""
    _dispatcher.put(stream, event)


def _after_fork_in_child() -> None:
    global _dispatcher
    _dispatcher = Dispatcher()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
