"""The value of a variable: known at once, or when a request ends."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, overload

from ramet.runtime.protocol import (
    Finished,
    LogprobParams,
    Sample,
    SamplingParams,
    Scored,
    TokenIds,
    TokenLogprob,
)

from ..choices import Decision
from ..expressions.reasoning import REASONING_FORMATS, SUFFIX, ReasoningSplitter, split_reasoning

if TYPE_CHECKING:
    from ..execution.stream import Stream


class Value:
    """A future that belongs to a run: it is read and written under the run's lock.

    Attributes:
        name: the variable's name.
        stream: the stream whose request gives the value; None for one that the program set.
        value: what reading gives, once `done` and without `error`.
        chunks: the generated text so far, in pieces as it came.
        logprobs: of the generated tokens so far, where they are wanted; with chunk i the first
            `chunk_ends[i]` were there.
        attempts: how many times its request was sent.
        ordinal: of a gen, its place among those of its state; −1 where it has a seed of its own.
        evidence: what `get_meta_info` reports.
        sampling, seed: of a gen.
        wanted, with_text: which log-probabilities a gen reports, and whether with their text.
        reasoning, splitter: of a gen whose reasoning has a variable of its own: that variable's
            value, and what splits the text.
    """

    __slots__ = (
        "attempts",
        "chunk_ends",
        "chunks",
        "done",
        "error",
        "evidence",
        "logprobs",
        "name",
        "num_received",
        "ordinal",
        "reasoning",
        "reasoning_format",
        "sampling",
        "seed",
        "splitter",
        "stream",
        "value",
        "wanted",
        "with_text",
    )

    def __init__(self, name: str, stream: Stream | None = None) -> None:
        self.name = name
        self.stream = stream
        self.value: Any = None
        self.error: BaseException | None = None
        self.done = False
        self.chunks: list[str] = []
        self.chunk_ends: list[int] = []
        self.logprobs: list[TokenLogprob] = []
        self.attempts = 1
        self.ordinal = -1
        self.evidence: Evidence | None = None
        self.sampling = SamplingParams()
        self.seed = 0
        self.wanted: LogprobParams | None = None
        self.with_text = False
        self.num_received = 0  # characters of the generated text
        self.reasoning: Value | None = None
        self.reasoning_format = ""
        self.splitter: ReasoningSplitter | None = None

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

    @property
    def text(self) -> str:
        """The text that the state goes on with, once it is there."""
        value = self.value[0] if isinstance(self.value, list) else self.value
        return str(value)

    def separate_reasoning(self, model_type: str) -> Value:
        """Keep the reasoning apart, and return its value."""
        self.reasoning = Value(self.name + SUFFIX, self.stream)
        self.reasoning_format = model_type
        self.splitter = ReasoningSplitter(REASONING_FORMATS[model_type])
        return self.reasoning

    def add_chunk(self, text: str) -> None:
        """Add a piece of the generated text."""
        self.num_received += len(text)
        parts = ("", text) if self.splitter is None else self.splitter.feed(text)
        self._add_parts(*parts)

    def resolve_text(self, text: str) -> None:
        """Set a text, and add what of it no chunk had yet."""
        self.add_chunk(text[self.num_received :])
        if self.splitter is None or self.reasoning is None:
            self.resolve(text)
            return
        self._add_parts(*self.splitter.finish())
        self.reasoning.resolve("".join(self.reasoning.chunks))
        self.resolve("".join(self.chunks))

    def resolve_texts(self, texts: Sequence[str]) -> None:
        """Set the texts of the samples: one alone, or the list of them."""
        self.resolve_text(texts[0])
        if len(texts) == 1:
            return
        rest = [self._split(text) for text in texts[1:]]
        self.value = [self.value, *(answer for _, answer in rest)]
        if self.reasoning is not None:
            self.reasoning.value = [self.reasoning.value, *(reasoning for reasoning, _ in rest)]

    def _split(self, text: str) -> tuple[str, str]:
        """Return the reasoning and the answer of a whole text."""
        if self.reasoning is None:
            return "", text
        return split_reasoning(text, self.reasoning_format)

    def _add_parts(self, reasoning: str, answer: str) -> None:
        if reasoning and self.reasoning is not None:
            self.reasoning._add_parts("", reasoning)
        if answer:
            self.chunks.append(answer)
            self.chunk_ends.append(len(self.logprobs))

    def fail(self, error: BaseException) -> None:
        """Set the error that reading raises, unless the value is there."""
        if not self.done:
            self.error = error
            self.done = True
        if self.reasoning is not None:
            self.reasoning.fail(error)

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
        "is_remembered",
        "matched",
        "method",
        "options",
        "prompt_logprobs",
        "reason",
        "request_id",
        "samples",
        "timings",
        "trunk",
        "usage",
    )

    def __init__(self, event: Finished | Scored) -> None:
        self.request_id = event.request_id
        self.usage = event.usage
        self.timings = event.timings
        self.reason = ""
        self.matched: str | int | None = None
        self.decision: Decision | None = None
        self.is_remembered = event.is_remembered
        self.method = ""
        self.options: tuple[tuple[TokenIds, str], ...] = ()
        self.trunk = TokenIds()
        self.samples: tuple[Sample, ...] = ()
        self.prompt_logprobs: tuple[TokenLogprob, ...] = ()

    @classmethod
    def of_gen(cls, event: Finished) -> Evidence:
        """Return how a generation went."""
        result = cls(event)
        result.reason, result.matched = event.sample.reason.kind, event.sample.reason.matched
        result.samples, result.prompt_logprobs = event.samples, event.prompt_logprobs
        return result

    @classmethod
    def of_select(cls, event: Scored, decision: Decision, method: object) -> Evidence:
        """Return how a choice went."""
        result = cls(event)
        result.reason, result.decision, result.trunk = "select", decision, event.trunk
        result.method = getattr(method, "__name__", repr(method))
        result.options = tuple((option.ids, option.text) for option in event.options)
        return result


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
