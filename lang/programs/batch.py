"""Running a program once for each row, on a bounded number of threads."""

from __future__ import annotations

import contextvars
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Iterator, Sized
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from ..errors import DeadlineError, InvalidRequestError, RequestCancelledError
from ..execution import context
from ..execution.executor import Run, deadline_of
from ..execution.seeds import random_seed
from ..states.state import ProgramState
from .batch_options import BatchOptions
from .pool_share import PoolShare
from .row_output import RowOutput
from .worker_threads import LONGEST_WAIT, WorkerThreads, sharing_threads

if TYPE_CHECKING:
    from .options import RunOptions
    from .program import Program

Finished = tuple[int, ProgramState]
LOOK_AHEAD = 4  # times as many rows as run at once, so that a slow one does not stop the others


class Batch:
    """A program over rows: each is taken, run and handed out once."""

    def __init__(
        self, program: Program, rows: object, options: RunOptions, settings: BatchOptions
    ) -> None:
        if isinstance(rows, (dict, str)) or not isinstance(rows, Iterable):
            raise TypeError(f"rows must be a list of dicts or tuples of arguments, not {rows!r}")
        caller = context.calling_run()
        seed = options.seed
        if seed is None:
            seed = random_seed() if caller is None else caller.derive_seed()
        self.program = program
        self.is_seeded = options.seed is not None
        self.options = replace(
            options, seed=seed, backend=context.backend_in_force(options.backend)
        )
        self.deadline = deadline_of(options.timeout, caller)
        self.settings = settings
        self.num_rows = len(rows) if isinstance(rows, Sized) else None
        self.output: RowOutput | None = None
        self._given_rows = rows
        self._rows = enumerate(rows)
        self._rows_context = contextvars.copy_context()
        self._condition = threading.Condition()
        slots = settings.num_slots(self.options.backend)
        outer = None if caller is None else caller.footprint_on(self.options.backend)
        self.pool = PoolShare(slots, self._wake, outer)
        self.listener: Callable[[], None] | None = None  # told when another row may begin
        self._finished: deque[Finished] = deque()
        self._num_running = 0
        self._num_out = 0  # taken, and not handed out yet
        self._is_exhausted = False
        self._active: set[Run] = set()
        self._stopped: BaseException | None = None
        self._failure: BaseException | None = None  # of the rows' iterator
        self._progress: Any = None

    def open(self) -> None:
        """Open the output file and show the progress bar; `close` ends both."""
        self.output = RowOutput.of(self.settings.output, self, self._given_rows)
        if self.settings.progress_bar:
            self._progress = _progress(self.num_rows, self.program.name)

    def run(self) -> Iterator[Finished]:
        """Give the index and the state of each row as it finishes.

        Raises:
            BaseException: what the iterator of the rows raised, when the rows that ran have ended;
                what ends more than a row, as Ctrl-C.
        """
        num_workers = self.settings.num_workers(self.num_rows)
        base = sharing_threads(contextvars.copy_context(), num_workers)
        self.open()
        try:
            if num_workers == 1:
                yield from self._run_here(base)
            else:
                yield from self._run_in_threads(base, num_workers)
        finally:
            self.close()
        self.raise_if_stopped()

    def run_in_order(self) -> Generator[ProgramState, None, None]:
        """Give the states in the order of the rows."""
        waiting: dict[int, ProgramState] = {}
        expected = 0
        for index, state in self.run():
            waiting[index] = state
            while expected in waiting:
                expected += 1
                yield waiting.pop(expected - 1)

    def take(self, *, keeps_window: int | None = None) -> tuple[int, object] | None:
        """Return the next row and its index, or None when no more are to be begun.

        With `keeps_window` it waits while so many rows are taken and not handed out, and until
        the backend's pool has room for another.
        """
        with self._condition:
            while keeps_window is not None and not (self._stopped or self._is_exhausted):
                if self._num_out < keeps_window and self.may_begin():
                    break
                self._condition.wait(min(self.remaining() or LONGEST_WAIT, LONGEST_WAIT))
            if self._stopped is not None or self._is_exhausted:
                return None
        try:
            item = self._rows_context.run(next, self._rows, None)
        except BaseException as error:  # noqa: BLE001 raised when what runs has ended
            self._failure = error
            item = None
        return self.taken(item)

    def may_begin(self) -> bool:
        """Return whether the pool has room for another row; past the deadline it does not matter.

        Where it has none, `listener` is called once that changes.
        """
        return self.remaining() == 0.0 or self.pool.has_room()

    def remaining(self) -> float | None:
        """Seconds until the deadline, None without one."""
        return None if self.deadline is None else max(0.0, self.deadline - time.monotonic())

    def taken(self, item: tuple[int, object] | None) -> tuple[int, object] | None:
        """Note that a row was taken, or that there are no more, and return it."""
        with self._condition:
            if item is None:
                self._is_exhausted = True
            else:
                self.pool.begin(item[0])
                self._num_running += 1
                self._num_out += 1
            self._condition.notify_all()
        return item

    def begin_row(self, index: int, row: object) -> tuple[ProgramState, Any] | ProgramState:
        """Return a state and its arguments, or a state alone where there is nothing to run."""
        try:
            arguments = self.program.bind_row(row)
        except TypeError as error:
            return self._ended(index, error)
        if self.output is not None:
            stored = self.output.stored(index, arguments)
            if stored is not None:
                return stored
        run = self.program.new_run(self.options, row=index, deadline=self.deadline)
        run.footprint = self.pool.footprint(index) or run.footprint
        state = ProgramState(run, run.root)
        if run.remaining() == 0.0:
            run.end_body(
                noted(DeadlineError(f"the time limit passed before row {index} began"), index)
            )
            return state
        with self._condition:
            self._active.add(run)
            stopped = self._stopped
        if stopped is not None:
            run.cancel(RequestCancelledError(f"the batch was stopped by {stopped!r}"))
        return state, arguments

    def end_row(self, index: int, state: ProgramState) -> None:
        """Note that a row has ended."""
        error = state._run.body_error
        if error is not None:
            noted(error, index)
        if self.output is not None:
            self.output.write(index, state)
        with self._condition:
            self._active.discard(state._run)
            if self._progress is not None:
                self._progress.update()

    def handed_out(self) -> None:
        """Note that the reader has a row's state."""
        with self._condition:
            self._num_out -= 1
            self._condition.notify_all()

    def stop(self, error: BaseException) -> None:
        """Begin no more rows, and end those that run."""
        with self._condition:
            self._stopped = self._stopped or error
            active = list(self._active)
            self._condition.notify_all()
        reason = "its reader" if isinstance(error, GeneratorExit) else repr(error)
        for run in active:
            run.cancel(RequestCancelledError(f"the batch was stopped by {reason}"))

    def close(self) -> None:
        """Close the progress bar and the output file."""
        if self._progress is not None:
            self._progress.close()
        if self.output is not None:
            self.output.close()

    def raise_if_stopped(self) -> None:
        """Raise what ended the batch before its rows did."""
        error = self._stopped or self._failure
        if error is not None:
            raise error

    def _wake(self) -> None:
        with self._condition:
            self._condition.notify_all()
        if self.listener is not None:
            self.listener()

    def _ended(self, index: int, error: Exception) -> ProgramState:
        run = self.program.new_run(self.options, row=index, deadline=self.deadline)
        run.end_body(noted(error, index))
        return ProgramState(run, run.root)

    def _run_here(self, base: contextvars.Context) -> Iterator[Finished]:
        while (item := self.take()) is not None:
            self._run_row(base, *item)
            if self._stopped is not None:
                return
            self.handed_out()
            yield self._finished.popleft()

    def _run_in_threads(self, base: contextvars.Context, num_workers: int) -> Iterator[Finished]:
        def next_job() -> Callable[[], None] | None:
            item = self.take(keeps_window=LOOK_AHEAD * num_workers)
            return None if item is None else partial(self._run_row, base, *item)

        workers = WorkerThreads(next_job, num_workers, "ramet-batch")
        try:
            workers.start()
            while (finished := self._next_finished()) is not None:
                yield finished
                self.handed_out()
        except BaseException as error:  # Ctrl-C, or the reader goes: end every row, leave soon
            self.stop(error)
            workers.stop()
            raise
        workers.stop()

    def _next_finished(self) -> Finished | None:
        with self._condition:
            while not self._finished:
                is_over = self._is_exhausted or self._stopped is not None
                if is_over and not self._num_running:
                    return None
                self._condition.wait(LONGEST_WAIT)
            return self._finished.popleft()

    def _run_row(self, base: contextvars.Context, index: int, row: object) -> None:
        try:
            state = base.copy().run(self._execute, index, row)
            self.end_row(index, state)
            with self._condition:
                self._finished.append((index, state))
        except BaseException as error:  # noqa: BLE001 Ctrl-C or exit: not this row's alone
            self.stop(error)
        finally:
            self.pool.end(index)
            with self._condition:
                self._num_running -= 1
                self._condition.notify_all()

    def _execute(self, index: int, row: object) -> ProgramState:
        begun = self.begin_row(index, row)
        if isinstance(begun, ProgramState):
            return begun
        state, arguments = begun
        return self.program.execute(state, arguments, on_error="return")


class Completed:
    """The rows of a batch as they finish: `for index, state in …`, or `async for`.

    It can be gone through once. Leaving the loop early ends the rows that run.
    """

    def __init__(self, batch: Batch) -> None:
        self._batch: Batch | None = batch

    def __iter__(self) -> Iterator[Finished]:
        return self._take().run()

    def __aiter__(self) -> AsyncIterator[Finished]:
        from .async_batch import run_rows

        return run_rows(self._take())

    def _take(self) -> Batch:
        batch, self._batch = self._batch, None
        if batch is None:
            raise InvalidRequestError("these rows have been gone through: call as_completed again")
        return batch


def run_batch(batch: Batch) -> list[ProgramState]:
    """Return a state for each row, in order."""
    states = dict(batch.run())
    return [states[index] for index in sorted(states)]


def raise_failures(states: list[ProgramState]) -> None:
    """Raise one group of what the rows did not handle, if there is anything."""
    errors = (state._run.body_error for state in states)
    failures = [error for error in errors if isinstance(error, Exception)]
    if failures:
        raise ExceptionGroup(f"{len(failures)} of {len(states)} rows failed", failures)


def noted(error: BaseException, index: int) -> BaseException:
    """Return the error with a note of its row."""
    note = f"in row {index} of the batch"
    if note not in getattr(error, "__notes__", ()):
        error.add_note(note)
    return error


def _progress(total: int | None, name: str) -> Any:
    from tqdm.auto import tqdm

    return tqdm(total=total, desc=name, unit="row")
