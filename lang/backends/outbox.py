"""Requests on their way to an engine of this machine: never more there than it takes.

An engine refuses a request where its queue is full. A program on the same machine should wait
instead: the outbox has at most `limit` requests under way and keeps the others, in order, and who
appends to a state waits while that many are kept (see `Run.wait_for_room`).
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from ramet.runtime.protocol import (
    ErrorCode,
    Event,
    Failed,
    Finished,
    Request,
    Scored,
    code_of_error,
)

from .timeline import Timeline

Submit = Callable[[Request, Callable[[Event], None]], None]


@dataclass(slots=True)
class _Kept:
    request: Request
    on_event: Callable[[Event], None]
    end: float | None  # of its time limit, on the clock of `time.monotonic()`


class Outbox:
    """Hands requests to an engine, as many as it takes.

    Args:
        submit: the engine's own.
        abort: the engine's own.
        limit: how many requests may be under way, and how many more are kept without waiting.
    """

    def __init__(self, submit: Submit, abort: Callable[[str], None], limit: int) -> None:
        self._submit = submit
        self._abort = abort
        self._limit = limit
        self._lock = threading.Lock()
        self._under_way: set[str] = set()
        self._kept: deque[_Kept] = deque()
        self._waiting: dict[Callable[[], None], None] = {}
        self._timeline = Timeline("ramet-outbox")
        self._is_draining = False
        self._sending = ""  # the request that is being handed over, and may not be known yet
        self._is_aborted = False  # that one is to end as soon as it is

    @property
    def num_kept(self) -> int:
        """How many requests have not gone to the engine yet."""
        return len(self._kept)

    def submit(self, request: Request, on_event: Callable[[Event], None]) -> None:
        """Take a request; it goes to the engine at once where there is room."""
        timeout = request.timeout
        end = None if timeout is None else time.monotonic() + timeout
        with self._lock:
            if self._kept or len(self._under_way) >= self._limit:
                self._kept.append(_Kept(request, on_event, end))
                return
            self._under_way.add(request.id)
        self._send(request, on_event)

    def abort(self, request_id: str) -> None:
        """End a request, unless it has ended."""
        kept = self._take(request_id)
        if kept is not None:
            message = "the request was cancelled before the engine had it"
            _fail(request_id, kept.on_event, ErrorCode.CANCELLED, message)
            self._tell()
            return
        with self._lock:
            if request_id == self._sending:  # the engine may not know it yet
                self._is_aborted = True
                return
        self._abort(request_id)

    def close(self) -> None:
        """End what the engine has not had."""
        with self._lock:
            kept, self._kept = list(self._kept), deque()
        for item in kept:
            message = "the engine was closed"
            _fail(item.request.id, item.on_event, ErrorCode.ENGINE_CLOSED, message)
        self._tell()

    def has_room(self, wake: Callable[[], None]) -> bool:
        """Return whether another request is welcome; where not, `wake` is called once it is.

        `wake` may be called on the engine's thread, and must only pass the news on.
        """
        with self._lock:
            if len(self._kept) < self._limit:
                return True
            self._waiting[wake] = None
            return False

    def _send(self, request: Request, on_event: Callable[[Event], None]) -> None:
        try:
            self._submit(request, partial(self._pass_on, on_event))
        except BaseException:
            self._ended(request.id)
            raise

    def _pass_on(self, on_event: Callable[[Event], None], event: Event) -> None:
        on_event(event)
        if isinstance(event, (Finished, Scored, Failed)):
            self._ended(event.request_id)

    def _ended(self, request_id: str) -> None:
        """Note that there is room. What is kept goes on in a thread of the outbox.

        The engine's own must not: it would wait for the engine while the engine waits for it.
        """
        with self._lock:
            self._under_way.discard(request_id)
            drains = bool(self._kept) and not self._is_draining
            self._is_draining = self._is_draining or drains
        if drains:
            self._timeline.at(0.0, "drain", self._drain)
        else:
            self._tell()

    def _drain(self) -> None:
        """Send on what there is room for."""
        while (item := self._next()) is not None:
            self._send_kept(item)
            with self._lock:
                request_id, self._sending = self._sending, ""
                is_aborted, self._is_aborted = self._is_aborted, False
            if is_aborted:
                self._abort(request_id)
        self._tell()

    def _next(self) -> _Kept | None:
        with self._lock:
            if not self._kept or len(self._under_way) >= self._limit:
                self._is_draining = False
                return None
            item = self._kept.popleft()
            self._sending = item.request.id
            self._under_way.add(item.request.id)
            return item

    def _send_kept(self, item: _Kept) -> None:
        request = item.request
        on_event = partial(self._pass_on, item.on_event)
        if item.end is not None:
            left = item.end - time.monotonic()
            if left <= 0:
                late = "the time limit passed before the engine had room"
                _fail(request.id, on_event, ErrorCode.DEADLINE, late)
                return
            request = replace(request, timeout=left)
        try:
            self._submit(request, on_event)
        except Exception as error:  # noqa: BLE001 whatever the engine raises is this request's end
            _fail(request.id, on_event, code_of_error(error), str(error))

    def _take(self, request_id: str) -> _Kept | None:
        with self._lock:
            for item in self._kept:
                if item.request.id == request_id:
                    self._kept.remove(item)
                    return item
        return None

    def _tell(self) -> None:
        """Wake who waits for room, if there is some."""
        with self._lock:
            if len(self._kept) >= self._limit:
                return
            waiting, self._waiting = self._waiting, {}
        for wake in waiting:
            wake()


def _fail(
    request_id: str, on_event: Callable[[Event], None], code: ErrorCode, message: str
) -> None:
    on_event(Failed(request_id=request_id, code=code, message=message))
