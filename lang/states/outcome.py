"""How a state ended: waiting for its body and its branches, what failed, what it used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ramet.runtime.protocol import Usage

from ..errors import DeadlineError
from ..execution import context

if TYPE_CHECKING:
    from ..execution.executor import Run
    from .run_view import RunView


def body_is_elsewhere(run: Run) -> bool:
    """Return whether the program's function has its own thread, and does not wait for us.

    It does where it asks itself, and where a program asks that it has called.
    """
    caller = context.calling_run()
    while caller is not None and caller is not run:
        caller = caller.parent
    return run.stream and caller is None


def first_error(state: RunView) -> BaseException | None:
    """Wait, and return what failed in a state or in a branch of it; the program has then met it."""
    run = state._run
    try:
        _wait_for_all(state)
    except DeadlineError as error:
        return error
    if state._stream is run.root and run.body_error is not None:
        return run.body_error
    for stream in state._stream.all_streams():
        if stream.error is not None:
            stream.error_seen = True
            return stream.error
    return None


def usage(state: RunView) -> Usage:
    """Wait, and return the tokens of a state and its branches."""
    _wait_for_all(state)
    return sum((stream.usage for stream in state._stream.all_streams()), Usage())


def _wait_for_all(state: RunView) -> None:
    state._wait_for_body()
    streams = state._stream.all_streams()
    state._run.wait(lambda: all(stream.is_idle for stream in streams))
