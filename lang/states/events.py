"""`state.events()`: everything that happens in a run, in order, for any number of readers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from ..errors import InvalidRequestError
from .json_fields import JsonFields

if TYPE_CHECKING:
    from ..execution.executor import Run
    from ..execution.seeds import ForkPath
    from ..execution.stream import Stream
    from ..expressions.graph import Node
    from .value import Value

EventKind = Literal["start", "delta", "field", "value", "fork", "error", "end"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramEvent:
    """One thing that happened in a run.

    Attributes:
        kind: "start": a variable's request was made (`name`); "delta": the next piece of its text
            (`text`); "field": a field of a gen with a JSON schema is complete (`field`, `value`);
            "value": a variable has its value, set by the program or generated (`value`); "fork":
            branches began (`value` is their number); "error": a variable failed, or with an empty
            `name` the program itself (`value` is the exception); "end": the run has ended, and
            nothing follows.
        name: the variable's name.
        text: the piece of text of a "delta".
        field: where in the JSON text a "field" stands, such as "people[2].name".
        value: see `kind`.
        path: the branch: for each fork on the way its number in its state, and the branch's index.
        line: of the program, where what happened was appended; 0 where there is none.

    Example:
        >>> @ramet.function
        ... def ask(s):
        ...     s += "Where? " + ramet.gen("place")
        >>> state = ask.start(backend=ramet.Fake({"place": "Here."}))
        >>> [event.value for event in state.events() if event.kind == "value"]
        ['Here.']
    """

    kind: EventKind
    name: str = ""
    text: str = ""
    field: str = ""
    value: Any = None
    path: ForkPath = ()
    line: int = 0


class Journal:
    """What has happened in a run so far; written and read under the run's lock.

    Only a run that is read while it goes on keeps one.
    """

    def __init__(self, *, enabled: bool) -> None:
        self.enabled = enabled
        self.has_ended = False
        self.events: list[ProgramEvent] = []
        self._num_chunks: dict[int, tuple[int, int]] = {}  # by node: of the text, of the reasoning
        self._fields: dict[int, JsonFields] = {}

    def add(
        self,
        kind: EventKind,
        stream: Stream,
        node: Node | None = None,
        *,
        name: str = "",
        value: object = None,
    ) -> None:
        """Note that something happened."""
        if self.enabled and not self.has_ended:
            line = 0 if node is None else node.line
            self.events.append(
                ProgramEvent(kind=kind, name=name, value=value, path=stream.path, line=line)
            )
            self.has_ended = kind == "end"

    def add_text(self, stream: Stream, node: Node, value: Value) -> None:
        """Note the pieces of a variable's text that have come since the last time."""
        if not self.enabled:
            return
        num_text, num_reasoning = self._num_chunks.get(node.id, (0, 0))
        reasoning = value.reasoning
        if reasoning is not None:
            for text in reasoning.chunks[num_reasoning:]:
                self._add_delta(stream, node, reasoning.name, text)
            num_reasoning = len(reasoning.chunks)
        for text in value.chunks[num_text:]:
            self._add_delta(stream, node, value.name, text)
            self._add_fields(stream, node, value.name, text)
        self._num_chunks[node.id] = len(value.chunks), num_reasoning

    def add_value(self, stream: Stream, node: Node, value: Value) -> None:
        """Note that a variable has its value, and what of its text had not come before."""
        self.add_text(stream, node, value)
        if value.reasoning is not None:
            reasoning = value.reasoning
            self.add("value", stream, node, name=reasoning.name, value=reasoning.value)
        self.add("value", stream, node, name=value.name, value=value.value)

    def add_end(self, stream: Stream, error: BaseException | None) -> None:
        """Note that the run has ended."""
        if self.enabled and not self.has_ended:
            if error is not None:
                self.add("error", stream, value=error)
            self.add("end", stream)

    def _add_delta(self, stream: Stream, node: Node, name: str, text: str) -> None:
        self.events.append(
            ProgramEvent(kind="delta", name=name, text=text, path=stream.path, line=node.line)
        )

    def _add_fields(self, stream: Stream, node: Node, name: str, text: str) -> None:
        constraint = getattr(node, "constraint", None)
        if constraint is None or constraint.kind != "json_schema":
            return
        scanner = self._fields.setdefault(node.id, JsonFields())
        for field, value in scanner.feed(text):
            self.events.append(
                ProgramEvent(
                    kind="field",
                    name=name,
                    field=field,
                    value=value,
                    path=stream.path,
                    line=node.line,
                )
            )


class RunEvents:
    """The events of a run from its beginning, for `for` and for `async for`.

    Each iteration is independent, ends with the run, and raises `DeadlineError` where the run's
    time limit passes while it waits.
    """

    def __init__(self, run: Run) -> None:
        if not run.journal.enabled:
            raise InvalidRequestError(
                f"{run.program} keeps no events: events() needs start(…) or run(stream=True)"
            )
        self._run = run

    def __iter__(self) -> Iterator[ProgramEvent]:
        journal = self._run.journal
        index = 0
        while True:
            self._run.wait(lambda: len(journal.events) > index or journal.has_ended)  # noqa: B023
            if index == len(journal.events):
                return
            yield journal.events[index]
            index += 1

    async def __aiter__(self) -> AsyncIterator[ProgramEvent]:
        from ..execution.async_waiting import wait

        journal = self._run.journal
        index = 0
        while True:
            await wait(self._run, lambda: len(journal.events) > index or journal.has_ended)  # noqa: B023
            if index == len(journal.events):
                return
            yield journal.events[index]
            index += 1
