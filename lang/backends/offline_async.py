"""`Engine.async_generate`: the offline API for asyncio, which only this module needs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any, Unpack

from ramet.runtime.protocol import DeadlineError, Event

from .base import Backend
from .calls import ANSWER_SECONDS, LONGEST_WAIT
from .offline import OfflineOptions, abort_open, taken
from .offline_answers import Answers
from .offline_requests import Call, requests_of


async def async_generate(
    backend: Backend,
    prompt: str | list[str] | None = None,
    sampling_params: dict[str, Any] | list[dict[str, Any]] | None = None,
    **options: Unpack[OfflineOptions],
) -> Any:
    """Continue a prompt, or several at the same time; see `Engine.async_generate`."""
    call = requests_of(prompt, sampling_params, dict(options))
    pieces = _pieces(backend, call)
    return pieces if call.stream else call.shaped([answer async for answer in pieces])


async def _pieces(backend: Backend, call: Call) -> AsyncIterator[dict[str, Any]]:
    """Send the requests, and give the answers as they come."""
    loop = asyncio.get_running_loop()
    events: asyncio.Queue[Event] = asyncio.Queue()
    answers = Answers(call)
    end = None if call.timeout is None else loop.time() + call.timeout + ANSWER_SECONDS

    def put(event: Event) -> None:
        with suppress(RuntimeError):  # the loop was closed meanwhile: nobody waits any more
            loop.call_soon_threadsafe(events.put_nowait, event)

    try:
        for request in call.requests:
            backend.submit(request, put)
        while answers.num_open:
            for answer in taken(answers, await _next(events, end)):
                yield answer
    finally:
        abort_open(backend, answers)


async def _next(events: asyncio.Queue[Event], end: float | None) -> Event:
    loop = asyncio.get_running_loop()
    while True:
        seconds = LONGEST_WAIT if end is None else max(0.0, end - loop.time())
        try:
            return await asyncio.wait_for(events.get(), seconds)
        except TimeoutError:
            if end is not None and loop.time() >= end:
                raise DeadlineError("the request did not end within its time limit") from None
