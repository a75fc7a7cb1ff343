"""The text of a state in pieces as it comes: what `text_iter` and `text_async_iter` share.

The functions named `…_steps` give a function where something is to be waited for (until it returns
True, asked under the run's lock), and a `TextPiece` where there is one; who waits decides how.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import Any, NamedTuple

from ramet.runtime.protocol import RoleBegin as RoleBeginSegment
from ramet.runtime.protocol import RoleEnd as RoleEndSegment

from ..execution.executor import Run
from ..execution.stream import Stream
from ..expressions.graph import Gen, Node, RoleBegin, RoleEnd, Select, Text
from . import meta_info
from .value import Value


class TextPiece(NamedTuple):
    """A piece of text, and what is known of it."""

    text: str
    meta: dict[str, Any]


Steps = Iterator[Callable[[], bool] | TextPiece]
_LITERAL: dict[str, Any] = {"variable": None}


def text_of(value: Value, run: Run) -> Iterator[str]:
    """Give the text of a value in pieces as it comes, then raise what ended it, if anything.

    Raises:
        TypeError: a value without text, as of a variable that was joined.
    """
    return _waiting(value_steps(value, run), run)


def all_text(stream: Stream, follows_body: bool) -> Iterator[str]:
    """Give all text of a state in pieces as it comes, role markers rendered."""
    return _waiting(stream_steps(stream, follows_body), stream.run)


def value_steps(value: Value, run: Run) -> Steps:
    """Give the pieces of a value, and at last one without text that has the whole meta info."""
    index, num_reported = 0, 0
    while True:
        yield lambda: len(value.chunks) > index or value.done  # noqa: B023 awaited at once
        if index == len(value.chunks):
            break
        end = value.chunk_ends[index]
        meta = {"variable": value.name, **_logprobs(value, num_reported, end)}
        yield TextPiece(value.chunks[index], meta)
        index, num_reported = index + 1, end
    result = value.result()
    if isinstance(result, list) and value.chunks:  # of several samples the first came in pieces
        result = result[0]
    if not isinstance(result, str):
        raise TypeError(f"variable {value.name!r} is {type(result).__name__}, not text: read it")
    if not index and value.stream is None:
        yield TextPiece(result, {"variable": value.name})  # set by the program, not in pieces
    whole = meta_info.describe(value, run.settings.backend)
    rest = _logprobs(value, num_reported, len(value.logprobs))
    yield TextPiece("", {"variable": value.name, **whole, **rest})


def stream_steps(stream: Stream, follows_body: bool) -> Steps:
    """Give the pieces of all text of a state, role markers rendered."""
    run = stream.run
    before = stream.history_before()
    previous: str | None = None
    index = 0

    def node_at(position: int) -> Generator[Callable[[], bool], None, Node | None]:
        """Return a node when it is there; None when no more are to come."""
        own = position - len(before)
        if own < 0:
            return before[position]
        yield lambda: len(stream.log) > own or not follows_body or run.body_ended
        return stream.log[own] if len(stream.log) > own else None

    while (node := (yield from node_at(index))) is not None:
        index += 1
        match node:
            case Text():
                yield TextPiece(node.text, _LITERAL)
            case Gen() | Select():
                yield from value_steps(run.values[node.id], run)
            case RoleBegin():
                generate = False
                if node.role == "assistant":
                    generate = not isinstance((yield from node_at(index)), Text)
                segment = RoleBeginSegment(node.role, previous, generate)
                yield TextPiece(run.settings.backend.render((segment,)), _LITERAL)
                previous = node.role
            case RoleEnd():
                text = run.settings.backend.render((RoleEndSegment(node.role),))
                yield TextPiece(text, _LITERAL)
    if follows_body and run.body_error is not None:
        raise run.body_error.with_traceback(None)


def _waiting(steps: Steps, run: Run) -> Iterator[str]:
    for step in steps:
        if not isinstance(step, TextPiece):
            run.wait(step)
        elif step.text:
            yield step.text


def _logprobs(value: Value, start: int, end: int) -> dict[str, Any]:
    """Return the log-probabilities of some tokens, where they are wanted."""
    if not value.logprobs:
        return {}
    rows = [[token.logprob, token.id, token.text] for token in value.logprobs[start:end]]
    return {"output_token_logprobs": rows}
