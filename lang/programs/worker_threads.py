"""A bounded number of threads for jobs that come one after another."""

from __future__ import annotations

import contextvars
import logging
import threading
import time
from collections.abc import Callable

_log = logging.getLogger("ramet")

MOST_THREADS = 64  # of "auto": enough to keep an engine's batch full
JOIN_SECONDS = 2.0  # for jobs to notice that they were cancelled
LONGEST_WAIT = 3600.0  # seconds; longer waits go round again

_width: contextvars.ContextVar[int] = contextvars.ContextVar("ramet_batch_width", default=1)


def share_of_threads() -> int:
    """Return how many threads to use here: inside the job of others, a share of theirs."""
    return max(1, MOST_THREADS // _width.get())


def sharing_threads(context: contextvars.Context, num_threads: int) -> contextvars.Context:
    """Return `context`, in which the jobs of `num_threads` threads are to run."""
    context.run(lambda: _width.set(_width.get() * num_threads))
    return context


class WorkerThreads:
    """Threads that take jobs until there are none; each starts when the others are taken.

    Args:
        next_job: gives the next job, or None when there are no more; one thread at a time asks. A
            job must not raise.
        limit: how many threads there may be.
        name: of the threads, before their number.
    """

    def __init__(
        self, next_job: Callable[[], Callable[[], None] | None], limit: int, name: str
    ) -> None:
        self._next_job = next_job
        self._limit = limit
        self._name = name
        self._taking = threading.Lock()
        self._condition = threading.Condition()
        self._threads: list[threading.Thread] = []
        self._num_running = 0
        self._is_over = False

    def run(self) -> None:
        """Start, and return when all jobs are done."""
        self.start()
        with self._condition:  # not join(): Ctrl-C in it makes Python take the thread for ended
            while self._num_running:
                self._condition.wait(LONGEST_WAIT)
        self.stop()

    def start(self) -> None:
        """Start the first thread.

        Raises:
            RuntimeError: the process has too many threads.
        """
        self._start_another()

    def stop(self) -> None:
        """Take no more jobs, and give those that run a moment to end."""
        with self._condition:
            self._is_over = True
            threads = list(self._threads)
        end = time.monotonic() + JOIN_SECONDS
        for thread in threads:
            thread.join(max(0.0, end - time.monotonic()))

    def _start_another(self) -> None:
        with self._condition:
            number = len(self._threads)
            if self._is_over or number >= self._limit:
                return
            thread = threading.Thread(target=self._work, name=f"{self._name}-{number}", daemon=True)
            self._threads.append(thread)
            self._num_running += 1
            try:
                thread.start()
            except RuntimeError as error:  # the process has too many
                self._threads.pop()
                self._num_running -= 1
                if not self._threads:
                    raise
                self._limit = number
                _log.warning("going on with %d threads: %s", number, error)

    def _work(self) -> None:
        try:
            while (job := self._take()) is not None:
                self._start_another()
                job()
        finally:
            with self._condition:
                self._num_running -= 1
                self._condition.notify_all()

    def _take(self) -> Callable[[], None] | None:
        with self._taking:
            return None if self._is_over else self._next_job()
