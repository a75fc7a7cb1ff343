"""A request inside the engine: its ticket (who asked, how to answer) and the job seam."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Lock
from time import monotonic
from typing import Protocol

from ..protocol import (
    ErrorCode,
    Event,
    Failed,
    Finished,
    RametError,
    Request,
    Scored,
    Timings,
    Usage,
    code_of_error,
)
from ..step import Draw, Gather, RowLogprobs
from .sequence import Sequence

_log = logging.getLogger("ramet.engine")


@dataclass(slots=True, eq=False)
class Ticket:
    """Who asked, when, and how far the answer has come. It ends exactly once.

    Times are `time.monotonic`. `is_broken` says that the receiver raised: the request is then
    given up.
    """

    request_id: str
    on_event: Callable[[Event], None]
    arrival: int
    on_end: Callable[[], None] | None = None  # called before the last event
    rank: int = 0
    priority: int = 0
    namespace: str = ""
    submitted: float = field(default_factory=monotonic)
    deadline: float | None = None
    usage: Usage = field(default_factory=Usage)
    started: float | None = None
    answered: float | None = None
    is_broken: bool = False
    has_ended: bool = False
    _ending: Lock = field(default_factory=Lock)

    @classmethod
    def of(cls, request: Request, on_event: Callable[[Event], None], arrival: int) -> Ticket:
        """Return the ticket of a request that arrives now."""
        ticket = cls(request.id, on_event, arrival, namespace=request.cache_salt)
        ticket.priority = request.priority
        ticket.rank = request.hints.rank if request.hints else 0
        if request.timeout is not None:
            ticket.deadline = ticket.submitted + request.timeout
        return ticket

    def emit(self, event: Event) -> None:
        """Hand `event` to the receiver. One that raises is logged once and gets no more."""
        if self.is_broken or (self.has_ended and not isinstance(event, Finished | Scored | Failed)):
            return
        try:
            self.on_event(event)
        except Exception:  # noqa: BLE001 - the receiver is foreign code on the engine's thread
            self.is_broken = True
            _log.exception(
                "the receiver of request %s raised on %s: the request is given up",
                self.request_id,
                type(event).__name__,
            )

    def end(self, event: Finished | Scored | Failed) -> None:
        """Hand over the last event; only the first call does anything."""
        with self._ending:
            if self.has_ended:
                return
            self.has_ended = True
        if self.on_end is not None:
            self.on_end()
        self.emit(event)

    def fail(self, code: ErrorCode, message: str) -> None:
        """End with an error."""
        self.end(Failed(request_id=self.request_id, code=code, message=message))

    def refuse(self, error: RametError) -> None:
        """End with an error that was raised for this request."""
        num_tokens, limit = getattr(error, "num_tokens", None), getattr(error, "limit", None)
        self.end(
            Failed(
                request_id=self.request_id,
                code=code_of_error(error),
                message=str(error),
                num_tokens=num_tokens,
                limit=limit,
            )
        )

    def start(self) -> None:
        """Its first sequence was admitted; only the first call counts."""
        if self.started is None:
            self.started = monotonic()

    def has_answer(self) -> None:
        """Its first token or score is there, of its prompt too; only the first call counts."""
        if self.answered is None:
            self.answered = monotonic()

    def timings(self) -> Timings:
        """Return the times up to now."""
        now = monotonic()
        return Timings(
            queue=(self.started or now) - self.submitted,
            first_token=(self.answered or now) - self.submitted,
            total=now - self.submitted,
        )


@dataclass(frozen=True, slots=True)
class Drawn:
    """A token that was drawn, and its log-probabilities where they were asked for."""

    token: int
    logprobs: RowLogprobs | None = None


class Job(Protocol):
    """What the scheduler runs: sequences whose logits answer a request."""

    ticket: Ticket
    sequences: list[Sequence]  # those that have not ended

    def ask(self, sequence: Sequence, position: int, row: int) -> Draw | Gather | None:
        """Return what to take from logit row `row`, the one of `position`."""
        ...

    def answer(self, sequence: Sequence, position: int, drawn: list[Drawn]) -> int:
        """Take the tokens drawn at `position`, in order; return how many, up to the end."""
        ...

    def answer_scores(self, sequence: Sequence, position: int, scores: RowLogprobs) -> None:
        """Take the log-probabilities gathered at `position`."""
        ...

    def complete(self, sequence: Sequence) -> list[Sequence]:
        """`sequence` has nothing left to compute: end, or return what runs after it."""
        ...
