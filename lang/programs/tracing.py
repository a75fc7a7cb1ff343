"""`program.trace(…)`: the graph of a run on a backend that answers with placeholders.

The body runs as ordinary Python, once, with its forks and joins; nothing is shared with other
runs, so traces can be taken in many threads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ramet.runtime.protocol import (
    Accepted,
    Constraint,
    Event,
    Finished,
    FinishReason,
    GenerateRequest,
    OptionScore,
    Request,
    Sample,
    Scored,
    ScoreRequest,
    Segment,
    TokenIds,
)

from ..backends.base import Backend
from ..backends.fake_text import END_ID, common_prefix, decode, encode
from ..expressions.dtypes import REGEX_BOOL, REGEX_FLOAT, REGEX_INT, REGEX_STR

if TYPE_CHECKING:
    import inspect

_ANSWERS = {
    Constraint("regex", REGEX_INT): "0",
    Constraint("regex", REGEX_FLOAT): "0.0",
    Constraint("regex", REGEX_BOOL): "True",
    Constraint("regex", REGEX_STR): '"text"',
}


class TraceBackend:
    """Answers every gen with `{name}` and every select with its first option, at once.

    A gen of a dtype gets a value of it, and one with a JSON schema `{}`. Roles are rendered, and
    tokens counted, as `like` does it; as ChatML and bytes without one.
    """

    def __init__(self, like: Backend | None = None) -> None:
        self._like = like

    def submit(self, request: Request, on_event: Callable[[Event], None]) -> None:
        """Answer a request."""
        prompt = encode(request.prompt)
        first = request.prompt[0] if request.prompt else None
        prefix = len(first) if isinstance(first, TokenIds) else 0
        ids = TokenIds.of(prompt[prefix:])
        on_event(Accepted(request_id=request.id, prefix_tokens=prefix, ids=ids))
        if isinstance(request, ScoreRequest):
            on_event(_scored(request, prefix))
        else:
            on_event(_finished(request))

    def abort(self, request_id: str) -> None:
        """Do nothing: every request has ended."""

    def render(self, segments: tuple[Segment, ...]) -> str:
        """Return the prompt as text."""
        if self._like is None or any(isinstance(item, TokenIds) for item in segments):
            return decode(encode(segments))
        return self._like.render(segments)

    def count_tokens(self, segments: tuple[Segment, ...]) -> int:
        """Return how many tokens the prompt has."""
        if self._like is None or any(isinstance(item, TokenIds) for item in segments):
            return len(encode(segments))
        return self._like.count_tokens(segments)

    def flush_cache(self) -> bool:
        """Return True: nothing is cached."""
        return True

    def info(self) -> dict[str, object]:
        """Return that there is no model."""
        return {"model": "trace: no model"}

    def close(self) -> None:
        """Do nothing."""


def fill(signature: inspect.Signature, args: tuple[Any, ...], names: set[str]) -> dict[str, str]:
    """Return a placeholder `{name}` for each parameter that is not given and has no default."""
    kinds = ("POSITIONAL_OR_KEYWORD", "KEYWORD_ONLY")
    own = [p for p in signature.parameters.values() if p.kind.name in kinds]
    by_position = [p.name for p in own if p.kind.name == kinds[0]][: len(args)]
    given = names.union(by_position)
    return {p.name: f"{{{p.name}}}" for p in own if p.name not in given and p.default is p.empty}


def _finished(request: GenerateRequest) -> Finished:
    constraint = request.constraint
    text = f"{{{request.label}}}"
    if constraint is not None:
        text = "{}" if constraint.kind == "json_schema" else _ANSWERS.get(constraint, text)
    reason = FinishReason(kind="stop", matched=END_ID)
    sample = Sample(reason=reason, ids=TokenIds.of(encode((), text)), text=text)
    return Finished(request_id=request.id, samples=(sample,) * request.sampling.n)


def _scored(request: ScoreRequest, prefix: int) -> Scored:
    rows = [encode(request.prompt, option) for option in request.options]
    length = min(common_prefix(rows[0], row) for row in rows)
    return Scored(
        request_id=request.id,
        prefix_tokens=prefix,
        trunk=TokenIds.of(rows[0][prefix:length]),
        options=tuple(_option(row[length:], is_first=i == 0) for i, row in enumerate(rows)),
    )


def _option(ids: list[int], *, is_first: bool) -> OptionScore:
    """Return scores by which the first option wins under every choice method."""
    return OptionScore(
        ids=TokenIds.of(ids),
        logprobs=(-0.01 if is_first else -10.0,) * len(ids),
        text=decode(ids),
        unconditional=(0.0,) * len(ids),
    )
