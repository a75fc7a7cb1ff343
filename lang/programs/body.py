"""Running a program's function: in this thread, in one of its own, or on an event loop."""

from __future__ import annotations

import contextvars
import functools
import inspect
import logging
import sys
import threading
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import cast

from .. import settings
from ..errors import EngineClosedError, RequestCancelledError
from ..execution import context
from ..execution.executor import KnownNothingError, Run
from ..states.state import ProgramState

_log = logging.getLogger("ramet")


@dataclass(frozen=True, slots=True)
class Body:
    """A program's function with its arguments, but for the state.

    `file` is that of the function: errors name its lines.
    """

    program: str
    file: str
    func: Callable[..., object]
    arguments: inspect.BoundArguments

    @property
    def is_async(self) -> bool:
        """True for an `async def`."""
        return inspect.iscoroutinefunction(self.func)

    def call(self, state: object) -> object:
        """Call the function with a state."""
        return self.func(state, *self.arguments.args, **self.arguments.kwargs)


def execute(body: Body, state: ProgramState, *, on_error: str) -> ProgramState:
    """Run the function and wait for everything in it.

    An `async def` gets an event loop: one of this thread, or where one is running here already,
    one of another thread, for which this one waits.
    """
    if body.is_async:
        return _execute_on_a_loop(body, state, on_error)
    run = state._run
    failure: Exception | None = None
    run.begin_body()
    try:
        with context.executing(run):
            state._return_value = body.call(state)
            run.finish()
            settings.note_end(run)
    except BaseException as error:
        stop(body, run, error)
        run.settle()
        if on_error == "raise" or not isinstance(error, Exception):
            run.end_body(error)
            raise
        failure = error
    run.end_body(failure)
    return state


def start(body: Body, state: ProgramState, *, is_alone: bool = True) -> None:
    """Run the function in a thread of its own, with a copy of this context.

    `is_alone` says that nobody waits for it: a failure is then logged.

    Raises:
        RuntimeError: the process has too many threads.
    """
    run = state._run
    thread = threading.Thread(
        target=contextvars.copy_context().run,
        args=(functools.partial(_execute_alone, body, state, logs=is_alone),),
        name=f"ramet-{body.program}",
        daemon=True,
    )
    run.begin_body()
    try:
        thread.start()
    except RuntimeError as error:
        run.end_body(error)
        raise


def stop(body: Body, run: Run, error: BaseException) -> None:
    """Say in the exception where in the program it came from, and end what still runs."""
    if not isinstance(error, KnownNothingError):
        lines = [
            frame.lineno
            for frame in traceback.extract_tb(error.__traceback__)
            if frame.filename == body.file
        ]
        if lines:
            error.add_note(f"in the program {body.program}, {body.file} line {lines[-1]}")
    if isinstance(error, Exception):
        run.cancel(error)
    else:
        run.cancel(RequestCancelledError(f"{body.program} was interrupted"))


def call(body: Body, state: ProgramState) -> None:
    """Call the function, and return when it has; an `async def` gets an event loop."""
    if not body.is_async:
        body.call(state)
        return
    import asyncio

    from ..states.async_state import AsyncProgramState

    async def main() -> None:
        await cast(Awaitable[object], body.call(AsyncProgramState(state)))

    if not _has_running_loop():
        asyncio.run(main())
        return
    raised: list[BaseException] = []

    def work() -> None:
        try:
            asyncio.run(main())
        except BaseException as error:  # noqa: BLE001 raised by who waits
            raised.append(error)

    thread = threading.Thread(target=contextvars.copy_context().run, args=(work,), daemon=True)
    thread.start()
    thread.join()
    if raised:
        raise raised[0]


def _execute_alone(body: Body, state: ProgramState, *, logs: bool) -> None:
    """Run the function where nobody sees what it raises: the log says it, and reading raises it."""
    execute(body, state, on_error="return")
    error = state._run.body_error
    if isinstance(error, RequestCancelledError) or isinstance(
        getattr(error, "__cause__", None), EngineClosedError
    ):
        return  # somebody ended it on purpose
    if logs and error is not None:
        _log.warning("%s, which runs by itself, ended with %r", body.program, error)


def _execute_on_a_loop(body: Body, state: ProgramState, on_error: str) -> ProgramState:
    import asyncio

    from .async_body import execute_async

    if not _has_running_loop():
        return asyncio.run(execute_async(body, state, on_error=on_error))
    start(body, state, is_alone=False)
    run = state._run
    try:
        run.wait_for_end(None)
    except BaseException as error:  # Ctrl-C
        stop(body, run, error)
        run.wait_for_end(1.0)
        raise
    if run.body_error is not None and on_error == "raise":
        raise run.body_error.with_traceback(None)
    return state


def _has_running_loop() -> bool:
    if "asyncio" not in sys.modules:
        return False
    import asyncio

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
