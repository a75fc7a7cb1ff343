"""Reasoning apart from the answer: what a model writes down between `<think>` and `</think>`.

Text is split as it comes, so streamed and whole texts give the same two parts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal

from ramet.runtime.protocol import InvalidRequestError, unknown_name

from .graph import Expression, Gen, Sequence, as_nodes

SUFFIX = "_reasoning_content"


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    """How a model marks its reasoning.

    Attributes:
        begin, end: the marks around it.
        is_open: the model's template has opened it already, so that the text begins inside it.
    """

    begin: str = "<think>"
    end: str = "</think>"
    is_open: bool = False


REASONING_FORMATS: Mapping[str, ReasoningFormat] = MappingProxyType(
    {
        "deepseek-r1": ReasoningFormat(is_open=True),
        "deepseek-v3": ReasoningFormat(),
        "glm45": ReasoningFormat(),
        "interns1": ReasoningFormat(),
        "kimi": ReasoningFormat("◁think▷", "◁/think▷"),
        "kimi_k2": ReasoningFormat(),
        "qwen3": ReasoningFormat(),
        "qwen3-thinking": ReasoningFormat(is_open=True),
        "step3": ReasoningFormat(is_open=True),
    }
)
"""The known formats by the names of the models that write them."""


def separate_reasoning(
    expr: Expression | str | list[Expression | str] | None = None, model_type: str | None = None
) -> Sequence:
    """Keep the reasoning of every gen in `expr` apart from its answer.

    The gen's variable is the answer, `<name>_reasoning_content` is the reasoning, and the state
    goes on with the answer alone, as text. A text that has no reasoning is the answer as it is.

    Args:
        expr: the gen, or an expression with some.
        model_type: whose format it is: "deepseek-r1", "deepseek-v3", "glm45", "interns1", "kimi",
            "kimi_k2", "qwen3", "qwen3-thinking" or "step3".

    Raises:
        TypeError: no `expr`, or one without a gen.
        InvalidRequestError: an unknown `model_type`; the known ones are named.

    Example:
        >>> @ramet.function
        ... def think(s):
        ...     s += ramet.separate_reasoning(ramet.gen("answer"), model_type="qwen3")
        >>> state = think(backend=ramet.Fake({"answer": "<think>2 and 2</think>4"}))
        >>> state["answer"], state["answer_reasoning_content"], state.text()
        ('4', '2 and 2', '4')
    """
    if model_type not in REASONING_FORMATS:
        known = ", ".join(REASONING_FORMATS)
        message = unknown_name(str(model_type), REASONING_FORMATS, "model_type")
        raise InvalidRequestError(f"{message}; the known ones are {known}")
    nodes = () if expr is None else as_nodes(expr)
    if not any(isinstance(node, Gen) for node in nodes):
        raise TypeError("separate_reasoning needs a gen: separate_reasoning(gen('answer'), …)")
    return Sequence(
        tuple(replace(n, reasoning=model_type) if isinstance(n, Gen) else n for n in nodes)
    )


def split_reasoning(text: str, model_type: str) -> tuple[str, str]:
    """Return the reasoning and the answer of a whole text."""
    splitter = ReasoningSplitter(REASONING_FORMATS[model_type])
    parts = splitter.feed(text), splitter.finish()
    return "".join(part[0] for part in parts), "".join(part[1] for part in parts)


class ReasoningSplitter:
    """Splits a text that comes in pieces. Both parts lose the whitespace around them.

    A text without reasoning stays as it is.
    """

    def __init__(self, marks: ReasoningFormat) -> None:
        self._marks = marks
        self._where: Literal["start", "reasoning", "answer", "plain"] = "start"
        self._held = ""  # what may be the beginning of a mark
        self._reasoning, self._answer = _Trimmed(), _Trimmed()

    def feed(self, piece: str) -> tuple[str, str]:
        """Take the next piece, and return what of reasoning and answer is certain now."""
        self._held += piece
        if self._where == "start":
            self._leave_start()
        reasoning = answer = ""
        if self._where == "reasoning":
            reasoning = self._take_reasoning()
        if self._where == "answer":
            answer, self._held = self._answer.add(self._held), ""
        elif self._where == "plain":
            answer, self._held = self._held, ""
        return reasoning, answer

    def finish(self) -> tuple[str, str]:
        """Return what is left at the end of the text."""
        rest, self._held = self._held, ""
        if self._where == "reasoning" or (self._where == "start" and self._marks.is_open):
            return self._reasoning.add(rest), ""
        return "", rest

    def _leave_start(self) -> None:
        begin = self._marks.begin
        text = self._held.lstrip()
        if text.startswith(begin):
            self._where, self._held = "reasoning", text[len(begin) :]
        elif not begin.startswith(text):
            self._where = "reasoning" if self._marks.is_open else "plain"

    def _take_reasoning(self) -> str:
        before, mark, after = self._held.partition(self._marks.end)
        if mark:
            self._where, self._held = "answer", after
            return self._reasoning.add(before)
        kept = _overlap(before, self._marks.end)
        certain = before[: len(before) - kept]
        self._held = before[len(certain) :]
        return self._reasoning.add(certain)


class _Trimmed:
    """Takes the whitespace around a text away, whatever pieces it comes in."""

    def __init__(self) -> None:
        self._has_begun = False
        self._spaces = ""

    def add(self, piece: str) -> str:
        text = self._spaces + piece
        if not self._has_begun:
            text = text.lstrip()
        certain = text.rstrip()
        self._spaces = text[len(certain) :]
        self._has_begun = self._has_begun or bool(certain)
        return certain


def _overlap(text: str, mark: str) -> int:
    """Return how many characters at the end of `text` may be the beginning of `mark`."""
    longest = min(len(text), len(mark) - 1)
    return next((size for size in range(longest, 0, -1) if mark.startswith(text[-size:])), 0)
