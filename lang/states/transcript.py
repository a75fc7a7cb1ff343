"""What a state looks like: as text for people, HTML for notebooks, messages, and in pieces.

Printing never waits: generated text stands between «», and what is not there yet as `{name}`.
"""

from __future__ import annotations

import html as html_module
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from ..errors import ProgramError
from ..execution.executor import Run
from ..execution.stream import Stream
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


@dataclass(slots=True)
class Piece:
    """A stretch of text; `name` is the variable of a generated one, `text` None if not there."""

    text: str | None
    name: str = ""


@dataclass(slots=True)
class Turn:
    """Text of one role (None: outside of all), or the branches of a fork.

    `continues` says that a fork or a join lies between this turn and its beginning. `fields` are
    what `messages` says of the turn beside its role and text.
    """

    role: str | None
    continues: bool = False
    fields: dict[str, str] = field(default_factory=dict)
    pieces: list[Piece] = field(default_factory=list)
    branches: list[list[Turn]] = field(default_factory=list)


class _Reader:
    """A visitor that sorts nodes into turns."""

    def __init__(self, run: Run, role: str | None = None) -> None:
        self.run = run
        self.turns = [Turn(role, continues=role is not None)]
        self.ahead: list[tuple[list[Turn], Stream, str | None]] = []  # branches still to be read

    def read(self, nodes: list[Node]) -> list[Turn]:
        """Return the turns, without empty ones outside of roles."""
        for node in nodes:
            node.accept(self)
        return [t for t in self.turns if t.pieces or t.branches or (t.role and not t.continues)]

    def visit_text(self, node: Text) -> None:
        self.turns[-1].pieces.append(Piece(node.text))

    def visit_gen(self, node: Gen | Select) -> None:
        value = self.run.values[node.id]
        is_text = value.done and value.error is None
        self.turns[-1].pieces.append(Piece(value.text if is_text else None, value.name))

    visit_select = visit_gen

    def visit_role_begin(self, node: RoleBegin) -> None:
        self.turns.append(Turn(node.role, fields=dict(node.fields)))

    def visit_role_end(self, node: RoleEnd) -> None:
        self.turns.append(Turn(None))

    def visit_insert(self, node: Insert) -> None:
        pass

    def visit_fork(self, node: Fork) -> None:
        role = self.turns[-1].role
        streams = self.run.branches[node.id]
        branches: list[list[Turn]] = [[] for _ in streams]
        self.ahead += [(own, stream, role) for own, stream in zip(branches, streams, strict=True)]
        self.turns += [Turn(role, branches=branches), Turn(role, continues=True)]

    def visit_join(self, node: Join) -> None:
        pass

    def visit_scope(self, node: Scope) -> None:
        pass

    def visit_media(self, node: Media) -> None:
        self.turns[-1].pieces.append(Piece(None, node.kind))


def turns(stream: Stream) -> list[Turn]:
    """Return the turns of a state from its beginning."""
    with stream.run.condition:
        reader = _Reader(stream.run)
        result = reader.read(stream.history())
        ahead = reader.ahead
        while ahead:  # not by recursion: forks may be nested deeper than Python's calls
            own, branch, role = ahead.pop()
            reader = _Reader(stream.run, role)
            own += reader.read(list(branch.log))
            ahead += reader.ahead
    return result


def plain(stream: Stream) -> str:
    """Return the transcript as text, generated parts between «»."""
    return "\n".join(_lines(turns(stream), "«{}»"))


def preview(stream: Stream) -> str:
    """Return the transcript as text, generated parts as `{name}`."""
    return "\n".join(_lines(turns(stream), "{}"))


def html(stream: Stream) -> str:
    """Return the transcript as HTML, generated parts marked."""
    body = "".join(_html_turns(turns(stream)))
    return f'<div style="white-space: pre-wrap; font-family: monospace">{body}</div>'


def messages(stream: Stream) -> list[dict[str, Any]]:
    """Return the chat messages; the state must be done.

    Raises:
        ProgramError: text outside of all roles, which messages cannot hold.
    """
    result: list[dict[str, Any]] = []
    for turn in turns(stream):
        text = "".join(piece.text or "" for piece in turn.pieces)
        if turn.role is None:
            if text.strip():
                raise ProgramError(
                    f"messages() cannot hold text outside of roles, such as {text.strip()[:40]!r}: "
                    "use text(), or put it into system(…), user(…) or assistant(…)"
                )
        elif turn.continues or turn.branches:
            result[-1]["content"] += text
        else:
            result.append({"role": turn.role, **turn.fields, "content": text})
    return result


def own_literals(stream: Stream) -> list[Text]:
    """Return the text of a branch since its fork, as literals; the branch must be done.

    Raises:
        ProgramError: the branch opened or closed a role, which text alone cannot hold.
    """
    texts = []
    for node in stream.log:
        match node:
            case Text():
                texts.append(Text(node.text, node.parse_special))
            case Gen() | Select():
                texts.append(Text(stream.run.values[node.id].text))
            case RoleBegin() | RoleEnd():
                raise ProgramError(
                    "concate_and_append joins text, and this branch has chat turns of its own: "
                    "use join() and append what you need"
                )
    return [text for text in texts if text.text]


def _lines(some: list[Turn], mark: str) -> Iterator[str]:
    ahead: list[tuple[str, Turn | str]] = [("", turn) for turn in reversed(some)]
    while ahead:
        margin, item = ahead.pop()
        if isinstance(item, str):
            yield margin + item
            continue
        for index, branch in reversed(list(enumerate(item.branches))):
            ahead += [(f"{margin}│  ", turn) for turn in reversed(branch)]
            ahead.append((margin, f"├─ branch {index}"))
        if not item.branches:
            head = f"[{item.role}] " if item.role and not item.continues else ""
            text = head + "".join(_marked(piece, mark) for piece in item.pieces)
            yield from (margin + line for line in text.split("\n"))


def _marked(piece: Piece, mark: str) -> str:
    if not piece.name:
        return piece.text or ""
    return f"{{{piece.name}}}" if piece.text is None else mark.format(piece.text)


def _html_turns(some: list[Turn]) -> Iterator[str]:
    ahead = _with_rules(some)[::-1]
    while ahead:
        item = ahead.pop()
        if isinstance(item, str):
            yield item
            continue
        inner: list[Turn | str] = []
        for index, branch in enumerate(item.branches):
            inner.append(f'<div style="margin-left: 2em"><i>branch {index}</i>\n')
            inner += [*_with_rules(branch), "</div>"]
        ahead += inner[::-1]
        if not item.branches:
            yield f"<b>{item.role}</b> " if item.role and not item.continues else ""
            yield from (_html_piece(piece) for piece in item.pieces)


def _with_rules(some: list[Turn]) -> list[Turn | str]:
    return [item for turn in some for item in ("<hr>", turn)][1:]


def _html_piece(piece: Piece) -> str:
    text = html_module.escape(piece.text if piece.text is not None else f"{{{piece.name}}}")
    if not piece.name:
        return text
    return f'<mark title="{html_module.escape(piece.name)}">{text}</mark>'
