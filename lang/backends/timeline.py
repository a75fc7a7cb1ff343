"""A thread that calls functions at their times, and is there only while some are waiting."""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections.abc import Callable

LINGER_SECONDS = 0.05


class Timeline:
    """Calls functions one after another, in the order of their times and of being added."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._condition = threading.Condition()
        self._waiting: list[tuple[float, int, str, Callable[[], None]]] = []
        self._order = itertools.count()
        self._is_running = False

    def at(self, delay: float, key: str, call: Callable[[], None]) -> None:
        """Call a function in `delay` seconds, unless `key` is dropped before."""
        with self._condition:
            heapq.heappush(self._waiting, (time.monotonic() + delay, next(self._order), key, call))
            self._condition.notify()
            if not self._is_running:
                self._is_running = True
                threading.Thread(target=self._work, name=self._name, daemon=True).start()

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
                    self._is_running = False
                    return None
                self._condition.wait(end - now)
