"""Fills the cache with a prompt and waits until it is there."""

from __future__ import annotations

from collections.abc import Callable
from queue import SimpleQueue
from uuid import uuid4

from .protocol import (
    Event,
    Failed,
    Finished,
    GenerateRequest,
    Request,
    SamplingParams,
    Scored,
    Segment,
    error_from_code,
)


def fill_cache(
    submit: Callable[[Request, Callable[[Event], None]], None], segments: tuple[Segment, ...]
) -> None:
    """Run a prompt through the model and generate nothing. It ends when the request does.

    Raises:
        RametError: what the request has failed with.
    """
    last: SimpleQueue[Finished | Scored | Failed] = SimpleQueue()

    def on_event(event: Event) -> None:
        if isinstance(event, Finished | Scored | Failed):
            last.put(event)

    request = GenerateRequest(
        id=f"prefix-{uuid4().hex}", prompt=segments, sampling=SamplingParams(max_new_tokens=0)
    )
    submit(request, on_event)
    event = last.get()
    if isinstance(event, Failed):
        raise error_from_code(
            event.code, event.message, num_tokens=event.num_tokens, limit=event.limit
        )
