"""The stream of one state: its nodes in program order, and how far they have been carried out.

A stream is a visitor of its own nodes. All its methods run under the run's lock, in whichever
thread appended a node or carries an event; none of them waits.
"""

from __future__ import annotations

import logging
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ramet.runtime.protocol import (
    Accepted,
    Delta,
    ErrorCode,
    Event,
    Failed,
    Finished,
    GenerateRequest,
    Scored,
    ScoreRequest,
    Usage,
    error_from_code,
)

from ..choices import decide
from ..errors import DeadlineError, GenerationError, RequestCancelledError
from ..expressions import media
from ..expressions.graph import (
    Fork,
    Gen,
    Insert,
    Join,
    Media,
    Node,
    RoleBegin,
    RoleEnd,
    Scope,
    Select,
    Text,
)
from ..states.value import Evidence, Value
from . import requests, retries
from .seeds import ForkPath
from .tokens import Tokens

if TYPE_CHECKING:
    from ..states.state import ProgramState
    from .executor import Run

_log = logging.getLogger("ramet")
_warned: set[tuple[str, int, str]] = set()


class Stream:
    """One state's queue of nodes and its tokens.

    Attributes:
        log: every node that was appended, in order; the first `cursor` have begun or are done.
        base: where a fork left its parent: the parent's stream and how long its log was.
        tokens: None until the parent's stream reaches the fork.
        error: why nothing more is carried out; `error_seen` when the program has met it.
    """

    def __init__(self, run: Run, path: ForkPath = (), base: tuple[Stream, int] | None = None):
        self.run = run
        self.path = path
        self.base = base
        self.tokens: Tokens | None = None if base else Tokens()
        self.log: list[Node] = []
        self.cursor = 0
        self.children: list[Stream] = []
        self.state: ProgramState | None = None
        self.usage = Usage()
        self.error: BaseException | None = None
        self.error_seen = False
        self._active: tuple[str, Gen | Select] | None = None  # the request in flight
        self._num_known = 0  # ids that it began with

    @cached_property
    def state_id(self) -> str:
        """A name for the state in requests: the run, then the branch taken at each fork."""
        return ".".join((self.run.id, *(f"{fork}-{branch}" for fork, branch in self.path)))

    @property
    def is_idle(self) -> bool:
        """True when there is nothing to wait for."""
        return self.error is not None or (
            self.tokens is not None and self._active is None and self.cursor == len(self.log)
        )

    @property
    def pending(self) -> str:
        """The variable whose request is in flight and its line; empty where none is."""
        if self._active is None:
            return ""
        node = self._active[1]
        return f"{self.run.values[node.id].name!r} (line {node.line})"

    def append(self, node: Node) -> None:
        """Add a node and carry out what can be."""
        self.log.append(node)
        if self.error is None and self.run.cancelled is not None:
            self.error_seen = True  # the run itself raises it
            self.fail(self.run.cancelled)
        elif self.error is not None:
            self._fail_rest(self.error)
        else:
            self._advance()

    def fail(self, error: BaseException) -> None:
        """End with an error: it stands for every value that is not there yet."""
        if self.error is None and not self.is_idle:
            self.error = error
            active, self._active = self._active, None
            node = active[1] if active else None
            name = self.run.values[node.id].name if node else ""
            if node:
                self.run.values[node.id].fail(error)
            self.run.journal.add("error", self, node, name=name, value=error)
            self._fail_rest(error)

    def all_streams(self) -> list[Stream]:
        """Return this stream and those of all branches under it."""
        streams, ahead = [], [self]
        while ahead:
            stream = ahead.pop()
            streams.append(stream)
            ahead += reversed(stream.children)
        return streams

    def history(self) -> list[Node]:
        """Return every node from the beginning of the state, those before its fork included."""
        return self.history_before() + self.log

    def history_before(self) -> list[Node]:
        """Return the nodes of the parents up to the fork."""
        parts: list[list[Node]] = []
        base = self.base
        while base is not None:
            parent, length = base
            parts.append(parent.log[: length - 1])
            base = parent.base
        return [node for part in reversed(parts) for node in part]

    def handle(self, event: Event) -> None:
        """Take an event of a request of this stream."""
        if not isinstance(event, (Accepted, Delta)):
            self.run.requests.pop(event.request_id, None)
        if self._active is None or self._active[0] != event.request_id:
            return  # cancelled meanwhile
        node = self._active[1]
        match event:
            case Accepted():
                self._on_accepted(node, event)
            case Delta():
                self._on_delta(node, event)
            case Finished():
                self._on_finished(node, event)
            case Scored():
                self._on_scored(node, event)
            case Failed():
                if not retries.send_again(self, node, event):
                    cause = error_from_code(
                        event.code, event.message, num_tokens=event.num_tokens, limit=event.limit
                    )
                    self.fail(self._failure(node, event.code, event.message, cause))

    def visit_text(self, node: Text) -> None:
        """Append to the open literal run."""
        self.tokens = self._now.add_text(node.text, parse_special=node.parse_special)

    def visit_role_begin(self, node: RoleBegin) -> None:
        """Append the marker."""
        self.tokens = self._now.begin_role(node.role)

    def visit_role_end(self, node: RoleEnd) -> None:
        """Append the marker."""
        self.tokens = self._now.end_role(node.role)

    def visit_insert(self, node: Insert) -> None:
        """Do nothing: the variable was bound when it was set."""

    def visit_join(self, node: Join) -> None:
        """Do nothing: the state waits and binds."""

    def visit_scope(self, node: Scope) -> None:
        """Put the text together: all of it is there."""
        values = self.run.values
        parts = [p if isinstance(p, str) else values[p].text for p in node.parts]
        values[node.id].resolve_text("".join(parts))

    def visit_media(self, node: Media) -> None:
        """Refuse it, as a state does before it appends one."""
        media.refuse(node)

    def visit_fork(self, node: Fork) -> None:
        """Let the branches start from here."""
        self.run.journal.add("fork", self, node, value=node.count)
        for child in self.run.branches[node.id]:
            child.tokens = self.tokens

    def visit_gen(self, node: Gen) -> None:
        """Send a request."""
        self._submit(node, requests.of_gen(self, node, self._now.prompt()))

    def visit_select(self, node: Select) -> None:
        """Send a request."""
        self._submit(node, requests.of_select(self, node, self._now.prompt()))

    @property
    def _now(self) -> Tokens:
        if self.tokens is None:
            raise RuntimeError("a fork's node was carried out before the fork began")
        return self.tokens

    def _advance(self) -> None:
        """Carry out what can be: this stream's nodes, after each fork its branches' first."""
        going = [self]
        while going:
            stream = going[-1]
            if stream.tokens is None or stream._active or stream.is_idle:
                going.pop()
                continue
            node = stream.log[stream.cursor]
            stream.cursor += 1
            node.accept(stream)
            going += reversed(self.run.branches.get(node.id, ()))

    def _fail_rest(self, error: BaseException) -> None:
        """Fail every value that was still to come, those of branches not begun included."""
        failing = [self]
        while failing:
            stream = failing.pop()
            for node in stream.log[stream.cursor :]:
                if node.id in self.run.values:
                    self.run.values[node.id].fail(error)
                for child in self.run.branches.get(node.id, ()):
                    child.error_seen = True  # reported once, by the parent
                    child.error = child.error or error
                    failing.append(child)
            stream.cursor = len(stream.log)

    def resend(self, request_id: str, node: Gen | Select) -> None:
        """Send a failed request once more, unless it was cancelled meanwhile."""
        if self._active is not None and self._active[0] == request_id:
            node.accept(self)

    def _submit(self, node: Gen | Select, request: GenerateRequest | ScoreRequest) -> None:
        self._active = request.id, node
        self._num_known = self._now.num_known
        self.run.journal.add("start", self, node, name=request.label)
        try:
            self.run.submit(self, request)
        except Exception as error:  # noqa: BLE001 whatever a backend raises is this gen's failure
            self.run.requests.pop(request.id, None)
            self.fail(self._failure(node, ErrorCode.INTERNAL, str(error), error))

    def _failure(
        self, node: Gen | Select, code: ErrorCode, message: str, cause: Exception | None = None
    ) -> Exception:
        """Return the error that reading the node's variable raises."""
        name = self.run.values[node.id].name
        where = f"{self.run.program} line {node.line}: variable {name!r}"
        if code is ErrorCode.DEADLINE:
            return DeadlineError(f"{where} was not there in time: {message}")
        if code is ErrorCode.CANCELLED:
            return RequestCancelledError(f"{where}: {message}")
        error = GenerationError(
            f"{where} failed: {message}", state=self.state, variable=name, line=node.line
        )
        error.__cause__ = cause or error_from_code(code, message)
        return error

    def _on_accepted(self, node: Gen | Select, event: Accepted) -> None:
        self.tokens = self._now.add_ids(event.prefix_tokens, event.ids)
        for warning in event.warnings:
            key = (self.run.program, node.line, warning)
            if key not in _warned:
                _warned.add(key)
                _log.warning("%s before line %d: %s", self.run.program, node.line, warning)

    def _on_delta(self, node: Gen | Select, event: Delta) -> None:
        if event.index == 0:  # the sample that the state goes on with
            value = self.run.values[node.id]
            value.logprobs += event.logprobs
            value.add_chunk(event.text)
            self.run.journal.add_text(self, node, value)

    def _on_finished(self, node: Gen | Select, event: Finished) -> None:
        value = self.run.values[node.id]
        value.resolve_texts([sample.text for sample in event.samples])
        tokens = self._now
        if value.reasoning is None:
            tokens = tokens.add_ids(tokens.num_known, event.sample.ids)
            self.tokens = tokens.add_text(event.sample.tail)
        else:  # the reasoning is no part of what follows
            self.tokens = tokens.add_text(value.text)
        self._done(value, Evidence.of_gen(event))

    def _on_scored(self, node: Any, event: Scored) -> None:
        value = self.run.values[node.id]
        try:
            decision = decide(node.method, event.options)
        except Exception as error:  # noqa: BLE001 a choice method may be the user's own
            self.fail(self._failure(node, ErrorCode.INTERNAL, str(error), error))
            return
        winner = event.options[decision.index]
        self.tokens = self._now.add_ids(event.prefix_tokens, event.trunk + winner.ids)
        value.resolve_text(node.options[decision.index])
        self._done(value, Evidence.of_select(event, decision, node.method))

    def _done(self, value: Value, evidence: Evidence) -> None:
        value.evidence = evidence
        self.usage += evidence.usage
        if self.run.footprint is not None and not evidence.is_remembered:
            self.run.footprint.end_call(evidence.usage, self._num_known)
        if self._active is not None:
            self.run.journal.add_value(self, self._active[1], value)
        self._active = None
        self._advance()
