"""One request at a time, without a program: send it, and wait for how it ends."""

from __future__ import annotations

import itertools
import os
import time
from queue import Empty, SimpleQueue

from ramet.runtime.protocol import (
    DeadlineError,
    Event,
    Failed,
    Finished,
    Request,
    Scored,
    error_from_code,
)

from .base import Backend

LONGEST_WAIT = 3600.0  # seconds; longer waits go round again
ANSWER_SECONDS = 2.0  # beyond the request's own time limit, for a backend to keep it

_numbers = itertools.count(1)


def call_id(prefix: str) -> str:
    """Return an id for a request that no program makes."""
    return f"{prefix}-{os.getpid():x}-{next(_numbers)}"


def call(backend: Backend, request: Request) -> Finished | Scored:
    """Send a request and return its last event; `request.timeout` bounds the wait.

    Raises:
        RametError: what the request failed with.
    """
    events: SimpleQueue[Event] = SimpleQueue()
    backend.submit(request, events.put)
    end = end_of(request.timeout)
    while True:
        try:
            event = next_event(events, end)
        except BaseException:  # Ctrl-C, or a backend that does not keep the time limit
            backend.abort(request.id)
            raise
        if isinstance(event, Failed):
            raise failure_of(event)
        if isinstance(event, (Finished, Scored)):
            return event


def end_of(timeout: float | None) -> float | None:
    """Return when to stop waiting for a request of this time limit, None = never."""
    return None if timeout is None else time.monotonic() + timeout + ANSWER_SECONDS


def next_event(events: SimpleQueue[Event], end: float | None) -> Event:
    """Return the next event, waiting until `end` on the monotonic clock; None = until it comes.

    Raises:
        DeadlineError: it did not come.
    """
    while True:
        left = LONGEST_WAIT if end is None else end - time.monotonic()
        try:
            return events.get(timeout=min(max(left, 0.0), LONGEST_WAIT))
        except Empty:
            if end is not None and time.monotonic() >= end:
                raise DeadlineError("the request did not end within its time limit") from None


def failure_of(event: Failed) -> Exception:
    """Return the exception that stands for a failed request."""
    return error_from_code(
        event.code, event.message, num_tokens=event.num_tokens, limit=event.limit
    )
