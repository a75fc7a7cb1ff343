"""`forks.map(fn)`: a function for each branch, at the same time, in a bounded number of threads."""

from __future__ import annotations

import contextvars
import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from ..errors import InvalidRequestError, RequestCancelledError
from ..execution.executor import KnownNothingError
from ..programs.worker_threads import WorkerThreads, share_of_threads, sharing_threads

if TYPE_CHECKING:
    from .fork import ForkGroup
    from .state import ProgramState

Outcome = tuple[Any, BaseException | None]


def map_branches(
    group: ForkGroup, fn: Callable[[ProgramState, int], Any], num_threads: int | None
) -> list[Any]:
    """Return what `fn` returns for each branch; where some fail, raise the first when all ended."""
    limit = check_num_threads(num_threads, len(group), most=share_of_threads())
    check_function(fn)
    if inspect.iscoroutinefunction(fn):
        raise TypeError(
            f"{fn.__name__} is an async def, and this program is none: write the program as "
            "async def too, and await forks.map(…)"
        )
    run = group._parent._run
    outcomes: list[Outcome] = [(None, None)] * len(group)
    if limit == 1 or run.settings.preview:
        for index, branch in enumerate(group):
            outcomes[index] = _call(fn, branch, index)
        return results_of(outcomes)
    context = sharing_threads(contextvars.copy_context(), limit)
    branches = iter(enumerate(group))

    def work(index: int, branch: ProgramState) -> None:
        outcomes[index] = context.copy().run(_call, fn, branch, index)

    def next_job() -> Callable[[], None] | None:
        item = next(branches, None)
        return None if item is None else partial(work, *item)

    workers = WorkerThreads(next_job, limit, "ramet-map")
    try:
        workers.run()
    except BaseException as error:  # Ctrl-C
        run.cancel(RequestCancelledError(f"{run.program} was interrupted by {error!r}"))
        workers.stop()
        raise
    return results_of(outcomes)


def check_function(fn: object) -> None:
    """Refuse what cannot be called."""
    if not callable(fn):
        raise TypeError(f"map takes a function of a branch and its index, not {fn!r:.80}")


def check_num_threads(num_threads: object, num_branches: int, *, most: int) -> int:
    """Return how many branches run at the same time."""
    if num_threads is None:
        return max(1, min(num_branches, most))
    if isinstance(num_threads, bool) or not isinstance(num_threads, int) or num_threads < 1:
        raise InvalidRequestError(
            f"num_threads must be None or an integer of at least 1, not {num_threads!r}"
        )
    return max(1, min(num_threads, num_branches))


def results_of(outcomes: Sequence[Outcome]) -> list[Any]:
    """Return the results in order; where there are failures, raise the first of them."""
    for index, (_, error) in enumerate(outcomes):
        if error is not None:
            if not isinstance(error, KnownNothingError):
                error.add_note(f"in branch {index} of the fork")
            raise error
    return [result for result, _ in outcomes]


def _call(fn: Callable[[ProgramState, int], Any], branch: ProgramState, index: int) -> Outcome:
    try:
        return fn(branch, index), None
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        return None, error
