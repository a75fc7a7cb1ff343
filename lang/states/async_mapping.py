"""`await forks.map(fn)`: a function for each branch, at the same time, on one event loop."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .mapping import check_function, check_num_threads, results_of

if TYPE_CHECKING:
    from .async_fork import AsyncForkGroup
    from .async_state import AsyncProgramState


async def map_async(
    group: AsyncForkGroup,
    fn: Callable[[AsyncProgramState, int], Any],
    num_at_once: int | None,
) -> list[Any]:
    """Return what `fn` returns for each branch; where some fail, raise the first when all ended."""
    limit = check_num_threads(num_at_once, len(group), most=len(group))
    check_function(fn)
    outcomes: list[Any] = [None] * len(group)
    places = iter(range(len(group)))

    async def work() -> None:
        for index in places:
            try:
                result = fn(group[index], index)
                if inspect.isawaitable(result):
                    result = await result
                outcomes[index] = (result, None)
            except Exception as error:  # noqa: BLE001 raised when all have ended
                outcomes[index] = (None, error)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(limit):
            tasks.create_task(work())
    return results_of(outcomes)
