"""Running a program for somebody who awaits it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable
from typing import cast

from .. import settings
from ..errors import RequestCancelledError
from ..execution import context
from ..execution.async_waiting import wait, wait_at_most
from ..execution.executor import SETTLE_SECONDS, Run
from ..states.async_state import AsyncProgramState
from ..states.state import ProgramState
from .body import Body, start, stop


async def run_awaited(body: Body, state: ProgramState, *, on_error: str) -> ProgramState:
    """Run the function, an `async def` on this loop and another one in a thread.

    Cancelling the task that awaits it ends the run and its requests.
    """
    if body.is_async:
        return await execute_async(body, state, on_error=on_error)
    run = state._run
    start(body, state, is_alone=False)
    try:
        if not await wait_at_most(run, lambda: run.body_ended, run.remaining()):
            run.cancel(run.late_error())
            if not await wait_at_most(run, lambda: run.body_ended, SETTLE_SECONDS):
                raise run.late_error()
    except asyncio.CancelledError:
        run.cancel(RequestCancelledError(f"the task that awaited {body.program} was cancelled"))
        await wait_at_most(run, lambda: run.body_ended, SETTLE_SECONDS)
        raise
    error = run.body_error
    if error is not None and (on_error == "raise" or not isinstance(error, Exception)):
        raise error.with_traceback(None)
    return state


async def execute_async(body: Body, state: ProgramState, *, on_error: str) -> ProgramState:
    """Run an `async def` on this loop, and wait for everything in it."""
    run = state._run
    failure: Exception | None = None
    run.begin_body()
    watch = _Watch(run)
    with run.listening(watch.note):
        try:
            with context.executing(run):
                result = cast(Awaitable[object], body.call(AsyncProgramState(state)))
                state._return_value = await result
                await wait(run, run.is_finished)
                run.raise_unseen()
                settings.note_end(run)
        except BaseException as error:
            own = watch.end(error)
            stop(body, run, own)
            await wait_at_most(run, lambda: not run.requests, SETTLE_SECONDS)
            if on_error == "raise" or not isinstance(own, Exception):
                run.end_body(own)
                if own is error:
                    raise
                raise own from None
            failure = own
        finally:
            watch.close()
    run.end_body(failure)
    return state


class _Watch:
    """Cancels the body's task when the run is cancelled or its time is over."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self._is_told = False
        self._has_interrupted = False
        self._is_closed = False
        remaining = run.remaining()
        self._timer = None if remaining is None else self._loop.call_later(remaining, self._late)

    def note(self) -> None:
        """See whether the run was cancelled; called under its lock, on any thread."""
        if self._run.cancelled is not None and not self._is_told:
            self._is_told = True
            with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
                self._loop.call_soon_threadsafe(self._interrupt)

    def end(self, error: BaseException) -> BaseException:
        """Return why the body ended: the run's own reason where that has cancelled the task."""
        self.close()
        cancelled = self._run.cancelled
        if not self._has_interrupted or self._task is None or cancelled is None:
            return error
        is_ours_alone = self._task.uncancel() == 0
        is_from_it = isinstance(error, asyncio.CancelledError)
        return cancelled.with_traceback(None) if is_from_it and is_ours_alone else error

    def close(self) -> None:
        """Interrupt nothing from now on."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()

    def _late(self) -> None:
        self._run.cancel(self._run.late_error())

    def _interrupt(self) -> None:
        if not self._is_closed and self._task is not None:
            self._has_interrupted = True
            self._task.cancel()
