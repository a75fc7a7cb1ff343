"""A thread that calls functions at their times, and is there only while some are waiting."""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections.abc import Callable

LINGER_SECONDS = 0.05
LONGEST_WAIT = 3600.0  # seconds; longer waits go round again


class Timeline:
    """Calls functions one after another, in the order of their times and of being added."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._condition = threading.Condition()
        self._waiting: list[tuple[float, int, str, Callable[[], None]]] = []
        self._order = itertools.count()
        self._thread: threading.Thread | None = None

    def at(self, delay: float, key: str, call: Callable[[], None]) -> None:
        """Call a function in `delay` seconds, unless `key` is dropped before."""
        with self._condition:
            heapq.heappush(self._waiting, (time.monotonic() + delay, next(self._order), key, call))
            self._condition.notify()
            if self._thread is None or not self._thread.is_alive():  # as after os.fork()
                self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
                self._thread.start()

    def drop(self, key: str) -> None:
        """Call none of the functions of `key` that are still waiting."""
        with self._condition:
            if any(item[2] == key for item in self._waiting):
                self._waiting = [item for item in self._waiting if item[2] != key]
                heapq.heapify(self._waiting)
                self._condition.notify()

    def _work(self) -> None:
        while (call := self._next()) is not None:
            call()

    def _next(self) -> Callable[[], None] | None:
        with self._condition:
            idle_until = time.monotonic() + LINGER_SECONDS
            while True:
                now = time.monotonic()
                end = self._waiting[0][0] if self._waiting else idle_until
                if self._waiting and end <= now:
                    return heapq.heappop(self._waiting)[3]
                if not self._waiting and end <= now:
                    self._thread = None
                    return None
                self._condition.wait(min(end - now, LONGEST_WAIT))
