"""The one event-driven executor, for every backend and every mode.

A state appends nodes to its stream; whatever can be carried out is, at once and in the appending
thread. A request's events arrive on any thread and are only put in a queue there; **one**
dispatcher thread takes them and carries on the stream they belong to. Programs never run on it.

A `Run` is one call of a program with all its forks: one lock, one deadline, one way to end it all.
"""

from __future__ import annotations

import itertools
import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from ramet.runtime.protocol import Request

from ..backends.base import Backend
from ..errors import DeadlineError, RequestCancelledError
from ..states.events import Journal
from ..states.value import Value
from . import dispatcher
from .footprint import Footprint
from .seeds import nested_seed
from .stream import Stream

_log = logging.getLogger("ramet")
_run_numbers = itertools.count(1)
LONGEST_WAIT = 3600.0  # seconds; longer waits go round again
MOST_NAMED = 5  # variables in a message
SETTLE_SECONDS = 1.0  # for the backend to confirm that cancelled requests have ended


class KnownNothingError(BaseException):
    """Ends the body of a preview at its first read of an unknown value. Never leaves Ramet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """What a run is given and never changes.

    `deadline` is on the clock of `time.monotonic()`. `retries` is how often a request that failed
    is sent again. `is_seeded` says that somebody named the seed. In a preview nothing is ever
    waited for. With `on_loop` the body runs on an event loop, which nothing may block.
    """

    program: str
    file: str
    backend: Backend
    sampling: Mapping[str, Any]
    seed: int
    is_seeded: bool = False
    row: int = 0
    deadline: float | None = None
    priority: int = 0
    cache_salt: str = ""
    retries: int = 0
    stream: bool = False
    preview: bool = False
    num_api_spec_tokens: int | None = None
    on_loop: bool = False


class Run:
    """One call of a program: its streams, its requests in flight, its lock."""

    def __init__(self, settings: RunSettings, parent: Run | None = None) -> None:
        self.settings = settings
        self.id = f"run{next(_run_numbers)}"
        self.parent = parent
        self.condition = threading.Condition(threading.RLock())
        self.requests: dict[str, Stream] = {}
        self.values: dict[int, Value] = {}
        self.branches: dict[int, tuple[Stream, ...]] = {}
        self.root = Stream(self)
        self.body_ended = False
        self.body_error: BaseException | None = None
        self.cancelled: BaseException | None = None
        self._node_ids = itertools.count()
        self._nested_numbers = itertools.count()
        self._nested: set[Run] = set()
        self._listeners: dict[object, Callable[[], None]] = {}
        self.journal = Journal(enabled=settings.stream)
        self.footprint = None if parent is None else parent.footprint_on(settings.backend)

    @property
    def program(self) -> str:
        """The program's name, for messages."""
        return self.settings.program

    @property
    def stream(self) -> bool:
        """True where text is wanted as it comes."""
        return self.settings.stream

    def next_node_id(self) -> int:
        """Return the id of the next node of this run."""
        return next(self._node_ids)

    def derive_seed(self) -> int:
        """Return the run seed of the next program that this run calls."""
        return nested_seed(self.settings.seed, self.settings.row, next(self._nested_numbers))

    def remaining(self) -> float | None:
        """Seconds until the deadline, None without one."""
        deadline = self.settings.deadline
        return None if deadline is None else max(0.0, deadline - time.monotonic())

    def footprint_on(self, backend: object) -> Footprint | None:
        """Return where what this run and those it calls keep on `backend` is counted, if it is."""
        return self.footprint if self.settings.backend is backend else None

    def submit(self, stream: Stream, request: Request) -> None:
        """Send a request whose events go to `stream`."""
        self.requests[request.id] = stream
        if self.footprint is not None:
            self.footprint.begin_call()
        self.settings.backend.submit(request, partial(dispatcher.put, stream))

    def notify(self) -> None:
        """Wake everyone who waits for something of this run; the lock is held."""
        self.condition.notify_all()
        for listener in tuple(self._listeners.values()):
            listener()

    @contextmanager
    def listening(self, listener: Callable[[], None]) -> Iterator[None]:
        """Call `listener` with every `notify`, under the lock: it must only pass the news on."""
        key = object()
        with self.condition:
            self._listeners[key] = listener
        try:
            yield
        finally:
            with self.condition:
                del self._listeners[key]

    def wait_for_room(self) -> None:
        """Wait until the backend has room for one more request, where it says whether it has.

        The deadline, Ctrl-C and the end of the run end the wait too. On an event loop, and in a
        preview, nothing waits: the backend then keeps the requests.
        """
        has_room = getattr(self.settings.backend, "has_room", None)
        if has_room is None or self.settings.on_loop or self.settings.preview:
            return
        wake = partial(dispatcher.put, self.root, _nothing)
        if not has_room(wake):
            self.wait(lambda: self.cancelled is not None or has_room(wake))

    def wait_for_end(self, seconds: float | None) -> bool:
        """Return whether the body has ended within `seconds`; None = until it does.

        At the run's deadline the run is ended; a body that does not notice is not waited for.
        """
        end = math.inf if seconds is None else time.monotonic() + seconds
        deadline = self.settings.deadline
        with self.condition:
            while not self.body_ended:
                now = time.monotonic()
                if deadline is not None and now >= deadline and self.cancelled is None:
                    self.cancel(self.late_error())
                    end = min(end, now + SETTLE_SECONDS)
                    deadline = None
                if now >= end:
                    return False
                until = min(end, math.inf if deadline is None else deadline)
                self.condition.wait(min(max(until - now, 0.0), LONGEST_WAIT))
        return True

    def wait(self, is_ready: Callable[[], bool]) -> None:
        """Return when `is_ready()`, which is asked under the lock.

        The deadline ends the wait by ending the run, and so does Ctrl-C.
        """
        try:
            with self.condition:
                while not is_ready():
                    if self.settings.preview:
                        raise KnownNothingError
                    remaining = self.remaining()
                    if remaining == 0.0:
                        break
                    self.condition.wait(min(LONGEST_WAIT, remaining or LONGEST_WAIT))
                else:
                    return
        except KeyboardInterrupt:
            self.cancel(RequestCancelledError(f"{self.program} was interrupted"))
            raise
        error = self.late_error()
        self.cancel(error)
        with self.condition:
            ended = is_ready()
        if not ended:
            raise error

    def cancel(self, error: BaseException) -> None:
        """End every request of this run and of the programs it called; later ones fail at once."""
        with self.condition:
            if self.cancelled is None:
                self.cancelled = error
            requests = list(self.requests)
            for stream in self.root.all_streams():
                if not stream.is_idle:
                    stream.error_seen = True
                    stream.fail(error)
            nested = list(self._nested)
            self.notify()
        for request_id in requests:
            try:
                self.settings.backend.abort(request_id)
            except Exception:  # noqa: BLE001 whatever a backend raises: the others end too
                _log.exception("the backend could not end request %s", request_id)
        for run in nested:
            run._cancel_with_caller(self.program, error)

    def finish(self) -> None:
        """Wait until every node has been carried out, and every program called from here has ended.

        Raises:
            BaseException: the first failure that the program has not met.
        """
        self.wait(self.is_finished)
        self.raise_unseen()

    def is_finished(self) -> bool:
        """True when nothing of the run, or of the programs that it called, is left to do."""
        return self.is_idle() and not self._nested

    def raise_unseen(self) -> None:
        """Raise the first failure that the program has not met."""
        error = self.first_error(unseen=True) or self.cancelled
        if error is not None:
            raise error.with_traceback(None)

    def settle(self) -> None:
        """Give cancelled requests a moment to end, so that they no longer run when we return."""
        end = time.monotonic() + SETTLE_SECONDS
        with self.condition:
            while self.requests and (left := end - time.monotonic()) > 0:
                self.condition.wait(left)

    def begin_body(self) -> None:
        """Note that the body is about to run; what ends the caller ends it too."""
        if self.parent is not None:
            self.parent._adopt(self)

    def end_body(self, error: BaseException | None = None) -> None:
        """Note that the program's body has ended, and how."""
        with self.condition:
            self.body_ended = True
            self.body_error = error
            self.journal.add_end(self.root, error)
            self.notify()
        if self.parent is not None:
            self.parent._release(self)

    def is_idle(self) -> bool:
        """True when no stream of the run has anything left to do."""
        if self.requests and self.cancelled is None:
            return False
        return all(stream.is_idle for stream in self.root.all_streams())

    def first_error(self, *, unseen: bool = False) -> BaseException | None:
        """Return the first failure among the streams, of those the program has not met if asked."""
        for stream in self.root.all_streams():
            if stream.error is not None and not (unseen and stream.error_seen):
                return stream.error
        return None

    def late_error(self) -> DeadlineError:
        """Return the error that says what was not there at the deadline."""
        with self.condition:
            pending = dict.fromkeys(stream.pending for stream in self.root.all_streams())
        names = [name for name in pending if name]
        if len(names) > MOST_NAMED:
            names[MOST_NAMED:] = ["…"]
        waits = f", waiting for {', '.join(names)}" if names else ""
        return DeadlineError(
            f"{self.program} did not end within its time limit{waits}: allow more with timeout=…"
        )

    def _adopt(self, run: Run) -> None:
        with self.condition:
            self._nested.add(run)
            error = self.cancelled
        if error is not None:
            run._cancel_with_caller(self.program, error)

    def _cancel_with_caller(self, caller: str, error: BaseException) -> None:
        """End because the caller does: with an error of our own, since other threads raise it."""
        kind = DeadlineError if isinstance(error, DeadlineError) else RequestCancelledError
        own = kind(f"{self.program} was ended because {caller}, which called it, has: {error}")
        own.__cause__ = error
        self.cancel(own)

    def _release(self, run: Run) -> None:
        with self.condition:
            self._nested.discard(run)
            self.notify()


def _nothing() -> None:
    pass


def deadline_of(timeout: float | None, parent: Run | None) -> float | None:
    """Return the earlier of `timeout` seconds from now and the caller's deadline."""
    outer = parent.settings.deadline if parent else None
    if timeout is None:
        return outer
    own = time.monotonic() + timeout
    return own if outer is None else min(own, outer)
