"""The value of a variable: known at once, or when a request ends."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, overload

from ramet.runtime.protocol import SamplingParams, Timings, TokenIds, Usage

from .choices import Decision

if TYPE_CHECKING:
    from .stream import Stream


class Value:
    """A future that belongs to a run: it is read and written under the run's lock.

    Attributes:
        name: the variable's name.
        stream: the stream whose request gives the value; None for one that the program set.
        value: what reading gives, once `done` and without `error`.
        chunks: the generated text so far, in pieces as it came.
        evidence: what `get_meta_info` reports.
        sampling, seed: of a gen.
    """

    __slots__ = (
        "chunks",
        "done",
        "error",
        "evidence",
        "name",
        "sampling",
        "seed",
        "stream",
        "value",
    )

    def __init__(self, name: str, stream: Stream | None = None) -> None:
        self.name = name
        self.stream = stream
        self.value: Any = None
        self.error: BaseException | None = None
        self.done = False
        self.chunks: list[str] = []
        self.evidence: Evidence | None = None
        self.sampling = SamplingParams()
        self.seed = 0

    @classmethod
    def known(cls, name: str, value: object) -> Value:
        """Return a value that the program set."""
        result = cls(name)
        result.resolve(value)
        return result

    def resolve(self, value: object) -> None:
        """Set the value."""
        self.value = value
        self.done = True

    def resolve_text(self, text: str) -> None:
        """Set a text, and add what of it no chunk had yet."""
        rest = text[sum(map(len, self.chunks)) :]
        if rest:
            self.chunks.append(rest)
        self.resolve(text)

    def fail(self, error: BaseException) -> None:
        """Set the error that reading raises, unless the value is there."""
        if not self.done:
            self.error = error
            self.done = True

    def result(self) -> Any:
        """Return the value, or raise the error; the stream then knows that it was seen."""
        if self.error is not None:
            if self.stream is not None:
                self.stream.error_seen = True
            raise self.error.with_traceback(None)
        return self.value


class Evidence:
    """How a value came about, kept as it arrived; `get_meta_info` turns it into a dictionary."""

    __slots__ = (
        "decision",
        "matched",
        "method",
        "options",
        "reason",
        "request_id",
        "timings",
        "trunk",
        "usage",
    )

    def __init__(self, request_id: str, usage: Usage, timings: Timings) -> None:
        self.request_id = request_id
        self.usage = usage
        self.timings = timings
        self.reason = ""
        self.matched: str | int | None = None
        self.decision: Decision | None = None
        self.method = ""
        self.options: tuple[tuple[TokenIds, str], ...] = ()
        self.trunk = TokenIds()


class JoinedValues(Sequence[Any]):
    """A joined variable of which some branches have no value: reading such a place raises.

    Where all have one, a joined variable is a plain list.
    """

    def __init__(self, values: Sequence[Value]) -> None:
        self._values = tuple(values)

    @overload
    def __getitem__(self, index: int) -> Any: ...

    @overload
    def __getitem__(self, index: slice) -> JoinedValues: ...

    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return JoinedValues(self._values[index])
        return self._values[index].result()

    def __iter__(self) -> Iterator[Any]:
        return (value.result() for value in self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        places = (repr(v.value) if v.error is None else f"<{v.error}>" for v in self._values)
        return f"[{', '.join(places)}]"
