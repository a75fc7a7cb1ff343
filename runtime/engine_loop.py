"""EngineLoop: the engine's thread. It takes what was submitted, runs steps, blocks when idle."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, wait
from time import monotonic, perf_counter
from typing import TypeVar

from .protocol import DeadlineError, EngineClosedError, ErrorCode
from .scheduling.batch import Batch
from .scheduling.job import Job
from .scheduling.scheduler import Scheduler
from .step import Runner, StepResult

_log = logging.getLogger("ramet.engine")

QUIET_SECONDS = 0.002  # an idle engine starts once nobody has submitted for so long,
PATIENCE_SECONDS = 0.1  # or after this: a fork's branches arrive together and share a step
CALL_SECONDS = 30.0  # how long a call waits for the step that is under way
_CLOSED = "the engine was closed before the request had ended"
_CLOSED_CALL = "the engine is closed: start another"
T = TypeVar("T")


class EngineLoop:
    """Owns the thread, and what other threads hand to it.

    Everything under `_changed` is shared; runner and scheduler are the thread's alone.
    """

    def __init__(
        self, runner: Runner, scheduler: Scheduler, max_queued_requests: int = 8192
    ) -> None:
        self._runner = runner
        self._max_queued = max_queued_requests
        self._scheduler = scheduler
        self._changed = threading.Condition()
        self._calls: deque[Callable[[], None]] = deque()
        self._expected: set[str] = set()  # requests whose prompts are being encoded
        self._early_aborts: set[str] = set()
        self._undelivered: dict[str, Job] = {}
        self._is_closing = False
        self._step_seconds = 0.0
        self._busy_seconds = 0.0
        self._thread = threading.Thread(target=self._run, name="ramet-engine", daemon=True)
        self._thread.start()

    @property
    def is_closed(self) -> bool:
        """True once nothing is taken any more."""
        return self._is_closing

    def expect(self, request_id: str) -> str | None:
        """Say that a request is coming: an abort until then is kept for it.

        Returns why it cannot be taken, None where it can.
        """
        with self._changed:
            num_queued = self._num_queued
            if num_queued >= self._max_queued:
                return (
                    f"the queue holds {num_queued} requests: send it again later or raise "
                    "max_queued_requests"
                )
            self._expected.add(request_id)
            return None

    def deliver(self, request_id: str, job: Job | None) -> bool:
        """Hand over an expected request, None if it was refused; False if the loop has ended."""
        with self._changed:
            self._expected.discard(request_id)
            is_aborted = request_id in self._early_aborts
            self._early_aborts.discard(request_id)
            if job is None:
                return True
            if self._is_closing:
                return False
            self._undelivered[request_id] = job
            self._post(lambda: self._take(job, is_aborted))
            return True

    def abort(self, request_id: str) -> None:
        """Let the thread end a request."""
        with self._changed:
            if request_id in self._expected:
                self._early_aborts.add(request_id)
            else:
                self._post(lambda: self._end(request_id, ErrorCode.CANCELLED, "cancelled"))

    def flush_cache(self) -> bool:
        """Empty the tree, on the thread between two steps, unless a request is under way."""
        done = threading.Event()
        answer = [False]

        def flush() -> None:
            if not self._scheduler.jobs:
                self._scheduler.memory.flush()
                answer[0] = True
            done.set()

        if threading.current_thread() is self._thread:
            return False  # asked by a receiver, in the middle of a step
        with self._changed:
            jobs = list(self._scheduler.jobs.values())
            is_busy = any(not job.ticket.has_ended for job in jobs)  # others are being put away
            if self._is_closing or self._expected or self._undelivered or is_busy:
                return False
            self._post(flush)
        self._wait_for(done.is_set, lambda seconds: done.wait(seconds))
        return answer[0]

    def call(self, function: Callable[[], T]) -> T:
        """Run `function` on the thread between two steps, and wait for its value.

        Raises:
            EngineClosedError: the loop has ended, or ends before.
            DeadlineError: the thread did not come to it within `CALL_SECONDS`.
            RuntimeError: called on the thread itself, by a receiver.
        """
        if threading.current_thread() is self._thread:
            raise RuntimeError("this cannot be called inside on_event: call it elsewhere")
        future: Future[T] = Future()

        def run() -> None:
            try:
                future.set_result(function())
            except Exception as error:  # noqa: BLE001 - the caller gets it
                future.set_exception(error)

        with self._changed:
            if self._is_closing:
                raise EngineClosedError(_CLOSED_CALL)
            self._post(run)
        self._wait_for(future.done, lambda seconds: wait((future,), timeout=seconds))
        if not future.done():
            raise EngineClosedError(_CLOSED_CALL)
        return future.result()

    def info(self) -> dict[str, object]:
        """Return load and counters; numbers may be of neighbouring moments."""
        scheduler = self._scheduler
        pool, tree = scheduler.memory.pool, scheduler.memory.tree
        return {
            "is_closed": self._is_closing,
            "running": scheduler.num_running,
            "waiting": scheduler.num_waiting,
            "queued_requests": self._num_queued,
            "max_queued_requests": self._max_queued,
            "free_slots": pool.num_free,
            "cached_slots": tree.num_tokens,
            "query_tokens": tree.query_tokens,
            "hit_tokens": tree.hit_tokens,
            "inserted_tokens": tree.inserted_tokens,
            "evicted_tokens": tree.evicted_tokens,
            **scheduler.counters.as_dict(),
            "tree_seconds": scheduler.memory.seconds,
            "step_seconds": self._step_seconds,
            "busy_seconds": self._busy_seconds,
        }

    def close(self, timeout: float) -> None:
        """End every request and the thread. A step that is under way may outlast `timeout`."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout)
        with self._changed:
            left = [*self._undelivered.values(), *list(self._scheduler.jobs.values())]
        for job in left:
            job.ticket.fail(ErrorCode.ENGINE_CLOSED, _CLOSED)

    @property
    def _num_queued(self) -> int:
        return len(self._expected) + len(self._undelivered) + self._scheduler.num_queued

    def _wait_for(self, is_done: Callable[[], bool], wait_some: Callable[[float], object]) -> None:
        """Wait until it is done or the thread has ended.

        Raises:
            DeadlineError: neither happens within `CALL_SECONDS`: a step is stuck.
        """
        end = monotonic() + CALL_SECONDS
        while not is_done() and self._thread.is_alive():
            if monotonic() > end:
                raise DeadlineError(
                    f"the engine did not answer within {CALL_SECONDS:g} s: a step takes too long "
                    "or is stuck; close the engine and start another"
                )
            wait_some(0.1)

    # -- on the thread ----------------------------------------------------------------------

    def _run(self) -> None:
        message = _CLOSED
        try:
            while self._wait_for_work():
                started = perf_counter()
                self._step()
                self._busy_seconds += perf_counter() - started
        except EngineClosedError as error:
            message = f"the engine has stopped: {error}"
        except Exception as error:  # noqa: BLE001 - nobody above: every waiter is told below
            _log.exception("the engine has stopped")
            message = f"the engine has stopped: {type(error).__name__}: {error}"
        with self._changed:
            self._is_closing = True
            left = [*self._undelivered.values(), *self._scheduler.jobs.values()]
            self._calls.clear()
        for job in left:
            job.ticket.fail(ErrorCode.ENGINE_CLOSED, message)

    def _step(self) -> None:
        batch = self._scheduler.schedule()
        if batch is None:
            if self._scheduler.jobs:
                raise RuntimeError("requests wait and none of them can run")
            return
        started = perf_counter()
        try:
            result = self._forward(batch)
            self._step_seconds += perf_counter() - started
            self._scheduler.commit(batch, result)
        except EngineClosedError:
            raise  # the device is gone: nothing can go on
        except Exception as error:  # noqa: BLE001 - whatever a step raises is its requests' own
            _log.exception("a step of %d sequences failed", len(batch.chunks))
            self._scheduler.recover(batch, error)

    def _forward(self, batch: Batch) -> StepResult:
        return self._runner.collect(self._runner.launch(batch.plan))

    def _wait_for_work(self) -> bool:
        """Do what was posted and end what is due; block while there is nothing to run.

        Returns False when the loop is to end.
        """
        while True:
            calls = self._next_calls()
            for call in calls:
                call()
            if self._is_closing:
                return False
            self._end_due_jobs()
            if self._scheduler.jobs:
                return True

    def _next_calls(self) -> list[Callable[[], None]]:
        with self._changed:
            if not self._scheduler.jobs:
                while not self._calls and not self._is_closing:
                    self._changed.wait()
                self._gather()
            calls = list(self._calls)
            self._calls.clear()
            return calls

    def _gather(self) -> None:
        """Let requests that are submitted one right after the other arrive together."""
        patience = monotonic() + PATIENCE_SECONDS
        while not self._is_closing and monotonic() < patience:
            if not self._changed.wait(QUIET_SECONDS) and not self._expected:
                return

    def _end_due_jobs(self) -> None:
        now = monotonic()
        for job in list(self._scheduler.jobs.values()):
            ticket = job.ticket
            if ticket.is_broken:
                self._scheduler.end(job, ErrorCode.CANCELLED, "its receiver raised")
            elif ticket.deadline is not None and now >= ticket.deadline:
                waited = now - ticket.submitted
                message = f"the deadline passed after {waited:.2f} s: allow more time"
                self._scheduler.end(job, ErrorCode.DEADLINE, message)

    def _take(self, job: Job, is_aborted: bool) -> None:
        with self._changed:
            self._undelivered.pop(job.ticket.request_id, None)
            self._scheduler.submit(job)
        if is_aborted:
            self._end(job.ticket.request_id, ErrorCode.CANCELLED, "cancelled")

    def _end(self, request_id: str, code: ErrorCode, message: str) -> None:
        job = self._scheduler.jobs.get(request_id)
        if job is not None:
            self._scheduler.end(job, code, message)

    def _post(self, call: Callable[[], None]) -> None:
        """Queue `call` for the thread; `_changed` is held."""
        self._calls.append(call)
        self._changed.notify_all()
