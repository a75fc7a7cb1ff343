"""Waiting on an event loop for something of a run: nothing polls and nothing blocks the loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from .executor import KnownNothingError, Run


async def wait(run: Run, is_ready: Callable[[], bool]) -> None:
    """Return when `is_ready()`, which is asked under the run's lock.

    Raises:
        DeadlineError: the run's time limit passed; the run has been ended.
    """
    if await wait_at_most(run, is_ready, run.remaining()):
        return
    error = run.late_error()
    run.cancel(error)
    with run.condition:
        if is_ready():
            return
    raise error


async def wait_at_most(run: Run, is_ready: Callable[[], bool], seconds: float | None) -> bool:
    """Return whether `is_ready()` came true within `seconds`; None = until it does."""
    loop = asyncio.get_running_loop()
    woken = asyncio.Event()
    end = None if seconds is None else loop.time() + seconds

    def wake() -> None:
        with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
            loop.call_soon_threadsafe(woken.set)

    with run.listening(wake):
        while True:
            woken.clear()
            with run.condition:
                if is_ready():
                    return True
                if run.settings.preview:
                    raise KnownNothingError
            left = None if end is None else end - loop.time()
            if left is not None and left <= 0:
                return False
            try:
                await asyncio.wait_for(woken.wait(), left)
            except TimeoutError:
                continue
