"""Running a program once for each row, for somebody who awaits it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from ..errors import RequestCancelledError
from ..states.state import ProgramState
from .async_body import run_awaited
from .batch import LOOK_AHEAD, Batch, Finished


async def run_rows(batch: Batch) -> AsyncIterator[Finished]:
    """Give the index and the state of each row as it finishes; `max_live` run at the same time.

    Leaving the loop, and cancelling the task, ends the rows that run.
    """
    limit = batch.settings.num_workers(batch.num_rows)
    finished: asyncio.Queue[Finished | None] = asyncio.Queue()
    window = asyncio.Semaphore(LOOK_AHEAD * limit)
    room = _Room(batch)
    batch.open()

    async def work() -> None:
        try:
            while await window.acquire() and await room.wait() and (item := batch.take()):
                try:
                    state = await _run_row(batch, *item)
                    batch.end_row(item[0], state)
                finally:
                    batch.pool.end(item[0])
                finished.put_nowait((item[0], state))
        except Exception as error:  # noqa: BLE001 of the output file: it ends the batch
            batch.stop(error)

    async def work_all() -> None:
        try:
            await asyncio.gather(*(work() for _ in range(limit)))
        finally:
            finished.put_nowait(None)

    task = asyncio.create_task(work_all())
    try:
        while (item := await finished.get()) is not None:
            yield item
            window.release()
        await task
    finally:
        if not task.done():
            batch.stop(RequestCancelledError(f"the reader of {batch.program.name} has gone"))
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        batch.close()
    batch.raise_if_stopped()


async def collect(batch: Batch) -> list[ProgramState]:
    """Return a state for each row, in order."""
    states = {index: state async for index, state in run_rows(batch)}
    return [states[index] for index in sorted(states)]


class _Room:
    """Waits until the backend's pool has room for another row."""

    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        batch.listener = self._tell

    async def wait(self) -> bool:
        """Return True once another row may begin; until the next await, that is."""
        while not self._batch.may_begin():
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), self._batch.remaining())
        return True

    def _tell(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
            self._loop.call_soon_threadsafe(self._changed.set)


async def _run_row(batch: Batch, index: int, row: object) -> ProgramState:
    begun = batch.begin_row(index, row)
    if isinstance(begun, ProgramState):
        return begun
    state, arguments = begun
    return await run_awaited(batch.program.body_of(arguments), state, on_error="return")
