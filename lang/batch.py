"""Running a program once for each row, on a bounded number of threads."""

from __future__ import annotations

import contextvars
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from . import context
from .errors import DeadlineError, InvalidRequestError, RequestCancelledError
from .executor import Run, deadline_of
from .seeds import random_seed
from .state import ProgramState

if TYPE_CHECKING:
    from .program import Program, RunOptions

MOST_THREADS = 64  # of "auto": enough to keep an engine's batch full
JOIN_SECONDS = 2.0  # for rows to notice that they were cancelled

_width: contextvars.ContextVar[int] = contextvars.ContextVar("ramet_batch_width", default=1)


@dataclass(frozen=True, slots=True)
class BatchOptions:
    """How the rows are run.

    With "auto" a batch has at most `MOST_THREADS` threads, and one inside a row of another
    batch its share of them.
    """

    num_threads: int | str
    progress_bar: bool
    raises: bool

    def num_workers(self, num_rows: int) -> int:
        """Return how many threads to use."""
        wanted = self.num_threads
        if wanted == "auto":
            wanted = max(1, MOST_THREADS // _width.get())
        if isinstance(wanted, bool) or not isinstance(wanted, int) or wanted < 1:
            raise InvalidRequestError(
                f"num_threads must be 'auto' or an integer of at least 1, not {self.num_threads!r}"
            )
        return max(1, min(wanted, num_rows))


def run_batch(
    program: Program, rows: Iterable[object], options: RunOptions, pool: BatchOptions
) -> list[ProgramState]:
    """Return a state for each row, in order."""
    if isinstance(rows, (dict, str)) or not isinstance(rows, Iterable):
        raise TypeError(f"rows must be a list of dicts or tuples of arguments, not {rows!r}")
    todo = list(rows)
    num_workers = pool.num_workers(len(todo))
    if not todo:
        return []
    states = _Batch(program, todo, options, pool.progress_bar).run(num_workers)
    if pool.raises:
        _raise_failures(states)
    return states


class _Batch:
    def __init__(
        self, program: Program, rows: list[object], options: RunOptions, progress_bar: bool
    ) -> None:
        caller = context.calling_run()
        seed = options.seed
        if seed is None:
            seed = random_seed() if caller is None else caller.derive_seed()
        backend = context.backend_in_force(options.backend)
        self.options = replace(options, seed=seed, backend=backend)
        self.deadline = deadline_of(options.timeout, caller)
        self.program = program
        self.states: list[ProgramState | None] = [None] * len(rows)
        self.rows = iter(enumerate(rows))
        self.lock = threading.Lock()
        self.ended_workers = threading.Semaphore(0)
        self.active: set[Run] = set()
        self.stopped: BaseException | None = None
        self.progress = _progress(len(rows), program.name) if progress_bar else None

    def run(self, num_workers: int) -> list[ProgramState]:
        """Run all rows."""
        token = _width.set(_width.get() * num_workers)
        try:
            if num_workers == 1:
                self._work(contextvars.copy_context())
            else:
                self._run_threads(num_workers)
        finally:
            _width.reset(token)
            if self.progress is not None:
                self.progress.close()
        if self.stopped is not None:
            raise self.stopped
        return [state for state in self.states if state is not None]

    def _run_threads(self, num_workers: int) -> None:
        threads = [
            threading.Thread(
                target=self._work,
                args=(contextvars.copy_context(),),
                name=f"ramet-batch-{number}",
                daemon=True,
            )
            for number in range(num_workers)
        ]
        started: list[threading.Thread] = []
        try:
            for thread in threads:
                thread.start()
                started.append(thread)
            for _ in started:  # not join(): Ctrl-C in it makes Python take the thread for ended
                self.ended_workers.acquire()
        except BaseException as error:  # Ctrl-C: end every row, and leave soon
            self._stop(error)
            end = time.monotonic() + JOIN_SECONDS
            for thread in started:
                thread.join(max(0.0, end - time.monotonic()))
            raise
        for thread in started:
            thread.join()

    def _work(self, caller_context: contextvars.Context) -> None:
        try:
            self._run_rows(caller_context)
        finally:
            self.ended_workers.release()

    def _run_rows(self, caller_context: contextvars.Context) -> None:
        for index, row in self._next_rows():
            try:
                self.states[index] = caller_context.copy().run(self._run_row, index, row)
            except BaseException as error:  # noqa: BLE001 Ctrl-C or exit: not this row's alone
                self._stop(error)
            with self.lock:
                if self.progress is not None:
                    self.progress.update()

    def _next_rows(self) -> Iterator[tuple[int, object]]:
        while True:
            with self.lock:
                item = None if self.stopped else next(self.rows, None)
            if item is None:
                return
            yield item

    def _run_row(self, index: int, row: object) -> ProgramState:
        run = self.program.new_run(self.options, row=index, deadline=self.deadline)
        state = ProgramState(run, run.root)
        if run.remaining() == 0.0:
            run.end_body(DeadlineError(f"the time limit passed before row {index} began"))
            return state
        try:
            arguments = self.program.bind_row(row)
        except TypeError as error:
            run.end_body(error)
            return state
        with self.lock:
            self.active.add(run)
            stopped = self.stopped
        if stopped is not None:
            run.cancel(RequestCancelledError(f"the batch was stopped by {stopped!r}"))
        try:
            return self.program.execute(state, arguments, on_error="return")
        finally:
            with self.lock:
                self.active.discard(run)

    def _stop(self, error: BaseException) -> None:
        """Begin no more rows, and end those that run."""
        with self.lock:
            self.stopped = self.stopped or error
            active = list(self.active)
        for run in active:
            run.cancel(RequestCancelledError(f"the batch was stopped by {error!r}"))


def _raise_failures(states: list[ProgramState]) -> None:
    failures = []
    for index, state in enumerate(states):
        error = state._run.body_error  # of what failed, only what the program has not handled
        if isinstance(error, Exception):
            error.add_note(f"in row {index} of the batch")
            failures.append(error)
    if failures:
        raise ExceptionGroup(f"{len(failures)} of {len(states)} rows failed", failures)


def _progress(total: int, name: str) -> Any:
    from tqdm import tqdm

    return tqdm(total=total, desc=name, unit="row")
