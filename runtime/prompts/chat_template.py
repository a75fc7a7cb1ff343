"""What a model's chat template puts before and after each turn, found by rendering probes.

A state appends turns and is never rewritten, so the template is asked once, with short
conversations whose contents are marks. Between two marks stands the end of one turn and the
beginning of the next; what all continuations of a turn have in common is its end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Self

from ..protocol import ROLES, ChatTemplateError
from .jinja_template import JinjaTemplate
from .tokenizer import Tokenizer

SpansOf = Callable[[str], list[tuple[int, int]]]  # where a text spells special tokens
Order = tuple[str | None, str]  # the role of the turn before, None at the first, and a turn's role

_USUAL_HISTORY = {"system": (), "user": (), "assistant": ("user",), "tool": ("user", "assistant")}
_USUAL_FOLLOWER = {"system": "user", "user": "assistant", "assistant": "user", "tool": "assistant"}
_HISTORIES: tuple[tuple[str, ...], ...] = ((), ("user",), ("user", "assistant"), ("system", "user"))


class ChatTemplate:
    """Prefix and suffix of each role's turn.

    Attributes:
        is_append_only: rendering a whole conversation with the template gives the same text as
            appending its turns one by one.
        differences: in words, what differs where it is not; else empty.
    """

    def __init__(self, source: str | None, tokenizer: Tokenizer | None = None) -> None:
        """Probe the Jinja template `source`; None where the model has none.

        Raises:
            ChatTemplateError: the template has a syntax error.
        """
        self._tokenizer = tokenizer
        self._spans_of: SpansOf = tokenizer.special_spans if tokenizer else lambda text: []
        self._jinja: JinjaTemplate | None = None
        self._turns: _Turns | None = None
        self.differences = "the model has no chat template"
        if source is not None:
            self._jinja = JinjaTemplate(source, tokenizer.named_tokens if tokenizer else {})
            self._turns = _Turns(self._jinja, self._spans_of)
            self.differences = "; ".join(dict.fromkeys(_differences(self._jinja, self._turns)))
        self.is_append_only = not self.differences

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> Self:
        """Probe the template that came with the model's tokenizer."""
        return cls(tokenizer.chat_template, tokenizer)

    def prefix(self, role: str, previous: str | None = None, generate: bool = False) -> str:
        """Return what stands before the content of a turn of `role`.

        `previous` is the role of the turn before, None at the first turn, where the template may
        add a default system message or the date. With `generate` it is the generation prompt,
        which exists for the assistant only.

        Raises:
            ChatTemplateError: no template, or it forbids this order; in the template's words.
        """
        turns = self._require(role)
        if generate and role == "assistant":
            return turns.generation_prompt(previous)
        return turns.prefix(role, previous)

    def suffix(self, role: str) -> str:
        """Return what stands after the content of a turn of `role`.

        Raises:
            ChatTemplateError: no template, or it does not know the role.
        """
        return self._require(role).suffix(role)

    def stop_ids(self) -> frozenset[int]:
        """Return the ids that end an assistant's turn; empty where it ends in plain text."""
        if self._tokenizer is None or self._turns is None:
            return frozenset()
        firsts = (
            self._tokenizer.split_special(end.lstrip())[0]
            for end in self._turns.ends.get("assistant", ())
        )
        return frozenset(first for first in firsts if isinstance(first, int))

    def _require(self, role: str) -> _Turns:
        if self._turns is None or self._jinja is None:
            raise ChatTemplateError(
                f"the model has no chat template, so it has no role {role!r}: append plain text "
                "instead, or use a model that was tuned for chat"
            )
        if self._jinja.uses_clock and self._jinja.renew_clock():
            self._turns = _Turns(self._jinja, self._spans_of)
        return self._turns


class _Turns:
    """What stands around each role's content, in each order of roles that is allowed."""

    def __init__(self, jinja: JinjaTemplate, spans_of: SpansOf) -> None:
        self._jinja = jinja
        self._between: dict[Order, str] = {}
        self._refusals: dict[Order, str] = {}
        self._generation: dict[str, str] = {}  # after a turn of that role, its end included
        self.ends: dict[str, list[str]] = {}  # all that was seen to follow a turn of that role
        for role in ROLES:
            self._probe_order(None, role)
            for previous in ROLES:
                self._probe_order(previous, role)
        for role in ROLES:
            self._probe_end(role)
        self._suffixes = {
            role: _common_beginning(ends, spans_of) for role, ends in self.ends.items()
        }

    def prefix(self, role: str, previous: str | None) -> str:
        """Return what stands before a turn of `role` that follows one of `previous`."""
        between = self._between.get((previous, role))
        if between is None:
            place = "as the first turn" if previous is None else f"after {previous!r}"
            refusal = self._refusals.get((previous, role), "it is not a role of the template")
            advice = (
                "put its text into the user's turn" if role == "system" else "reorder the turns"
            )
            raise ChatTemplateError(
                f"the model's chat template does not allow {role!r} {place}: {refusal}; {advice}, "
                "or append plain text without roles"
            )
        return between if previous is None else between[len(self._suffixes[previous]) :]

    def suffix(self, role: str) -> str:
        """Return what ends a turn of `role`."""
        if role not in self._suffixes:
            raise ChatTemplateError(
                f"the model's chat template has no turns of {role!r}: "
                f"{self._refusals.get((None, role), 'it is not a role of the template')}"
            )
        return self._suffixes[role]

    def generation_prompt(self, previous: str | None) -> str:
        """Return what stands before an answer that is generated now."""
        if previous is None:
            return self._opening_generation()
        after = self._generation.get(previous)
        if after is None:
            return self.prefix("assistant", previous)  # raises in the template's words
        return after[len(self._suffixes[previous]) :]

    def _opening_generation(self) -> str:
        """Return the generation prompt of an empty conversation.

        A template that puts something first (a default system message) puts it before a past
        assistant turn; keep it, and put the generation prompt in that turn's place.
        """
        opening = self.prefix("assistant", None)
        if "user" not in self._generation or ("user", "assistant") not in self._between:
            return opening
        past = self.prefix("assistant", "user")
        if not opening.endswith(past):
            return opening
        return opening[: len(opening) - len(past)] + self.generation_prompt("user")

    def _probe_order(self, previous: str | None, role: str) -> None:
        order = () if previous is None else (previous,)
        follower = (_USUAL_FOLLOWER[role],)
        # What follows may change a turn: a turn that is not the last one is the usual case.
        for tail in ((role, *follower), (role,)):
            for history in _histories(previous):
                roles = (*history, *order, *tail)
                try:
                    pieces = _pieces(self._jinja, roles)
                except ChatTemplateError as error:
                    self._refusals.setdefault((previous, role), str(error))
                    continue
                between = pieces[len(history) + len(order)]
                self._between[previous, role] = between
                if previous is not None:
                    self.ends.setdefault(previous, []).append(between)
                return

    def _probe_end(self, role: str) -> None:
        for generate in (False, True):
            for history in _histories(role):
                try:
                    end = _pieces(self._jinja, (*history, role), generate=generate)[-1]
                except ChatTemplateError:
                    continue
                self.ends.setdefault(role, []).append(end)
                if generate:
                    self._generation[role] = end
                break


def _common_beginning(texts: Sequence[str], spans_of: SpansOf) -> str:
    """Return what all texts begin with, ending before a special token rather than inside one."""
    first, last = min(texts), max(texts)
    same = (left == right for left, right in zip(first, last, strict=False))
    length = sum(takewhile(bool, same))
    spans = {span for text in texts for span in spans_of(text)}
    for start, end in sorted(spans, reverse=True):
        if start < length < end:
            length = start
    return first[:length]


def _histories(role: str | None) -> Sequence[tuple[str, ...]]:
    """Return what may stand before a turn of `role`, the usual first."""
    if role is None:
        return ((),)
    usual = _USUAL_HISTORY[role]
    return (usual, *(history for history in _HISTORIES if history != usual))


def _messages(roles: Sequence[str], contents: Sequence[str]) -> list[Mapping[str, str]]:
    return [
        {"role": role, "content": content} for role, content in zip(roles, contents, strict=True)
    ]


def _pieces(jinja: JinjaTemplate, roles: Sequence[str], generate: bool = False) -> list[str]:
    """Render marks as the contents and return the texts before, between and after them."""
    marks = [f"ramet{place}probe" for place in range(len(roles))]
    rest = jinja.render(_messages(roles, marks), add_generation_prompt=generate)
    pieces = []
    for role, mark in zip(roles, marks, strict=True):
        if rest.count(mark) != 1:
            what = "leaves out" if mark not in rest else "moves or repeats"
            raise ChatTemplateError(f"it {what} the content of {role!r} in {', '.join(roles)}")
        piece, rest = rest.split(mark)
        pieces.append(piece)
    return [*pieces, rest]


_CONVERSATIONS = (
    ("user",),
    ("user", "assistant", "user"),
    ("system", "user"),
    ("system", "user", "assistant", "user"),
    ("user", "assistant", "user", "assistant", "user"),
)
_CONTENTS = (  # what a difference means; a user's content, an assistant's
    ("", "question {}", "answer {}"),
    ("it strips white space around contents", "\n question {} \n", "\n answer {} \n"),
    (
        "it drops the thinking of earlier assistant turns",
        "question {}",
        "<think>\nthought {}\n</think>\n\nanswer",
    ),
)


def _differences(jinja: JinjaTemplate, turns: _Turns) -> Iterator[str]:
    """Yield in words where a rendered conversation is not its turns one after the other."""
    if _joined(turns, ("user",), ("content",)) is None:
        yield "it does not render a user's turn"
    for roles in _CONVERSATIONS:
        for words, question, answer in _CONTENTS:
            contents = [
                (answer if role == "assistant" else question).format(place)
                for place, role in enumerate(roles)
            ]
            joined = _joined(turns, roles, contents)
            if joined is None:
                break
            if joined != _rendered(jinja, roles, contents):
                yield words or f"it renders {', '.join(roles)} unlike the turns one by one"
                if not words:
                    break
    try:
        past, now = turns.prefix("assistant", "user"), turns.generation_prompt("user")
    except ChatTemplateError:
        return
    if past != now:
        yield f"the generation prompt {now!r} is not what precedes an earlier answer, {past!r}"


def _joined(turns: _Turns, roles: Sequence[str], contents: Sequence[str]) -> str | None:
    """Return the turns one after the other with a generation prompt; None where forbidden."""
    text, previous = "", None
    try:
        for role, content in zip(roles, contents, strict=True):
            text += turns.prefix(role, previous) + content + turns.suffix(role)
            previous = role
        return text + turns.generation_prompt(previous)
    except ChatTemplateError:
        return None


def _rendered(jinja: JinjaTemplate, roles: Sequence[str], contents: Sequence[str]) -> str | None:
    try:
        return jinja.render(_messages(roles, contents), add_generation_prompt=True)
    except ChatTemplateError:
        return None
