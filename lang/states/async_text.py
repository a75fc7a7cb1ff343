"""`text_async_iter`: text in pieces as it comes, for `async for`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from ..execution.async_waiting import wait
from ..execution.executor import Run
from ..execution.stream import Stream
from .text_iteration import Steps, TextPiece, stream_steps, value_steps

if TYPE_CHECKING:
    from .readable import ReadableState


async def text_of_async(state: ReadableState, name: str, *, with_meta: bool) -> AsyncIterator[Any]:
    """Give the text of a variable, which the program may not have bound yet."""
    run = state._run
    if name not in state and state._body_is_elsewhere():
        await wait(run, lambda: name in state or run.body_ended)
    async for piece in _awaiting(value_steps(state._find(name), run), run, with_meta=with_meta):
        yield piece


async def all_text_async(
    stream: Stream, follows_body: bool, *, with_meta: bool
) -> AsyncIterator[Any]:
    """Give all text of a state, role markers rendered."""
    steps = stream_steps(stream, follows_body)
    async for piece in _awaiting(steps, stream.run, with_meta=with_meta):
        yield piece


async def _awaiting(steps: Steps, run: Run, *, with_meta: bool) -> AsyncIterator[Any]:
    for step in steps:
        if not isinstance(step, TextPiece):
            await wait(run, step)
        elif with_meta:
            yield step.text, step.meta
        elif step.text:
            yield step.text
