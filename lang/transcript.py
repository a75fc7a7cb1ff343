"""What a state looks like: as text for people, HTML for notebooks, messages, and in pieces.

Printing never waits: generated text stands between «», and what is not there yet as `{name}`.
"""

from __future__ import annotations

import html as html_module
from collections.abc import Iterator
from dataclasses import dataclass, field

from ramet.runtime.protocol import RoleBegin as RoleBeginSegment
from ramet.runtime.protocol import RoleEnd as RoleEndSegment

from .errors import ProgramError
from .executor import Run
from .graph import Fork, Gen, Insert, Join, Node, RoleBegin, RoleEnd, Select, Text
from .stream import Stream
from .value import Value


@dataclass(slots=True)
class Piece:
    """A stretch of text; `name` is the variable of a generated one, `text` None if not there."""

    text: str | None
    name: str = ""


@dataclass(slots=True)
class Turn:
    """Text of one role (None: outside of all), or the branches of a fork.

    `continues` says that a fork or a join lies between this turn and its beginning.
    """

    role: str | None
    continues: bool = False
    pieces: list[Piece] = field(default_factory=list)
    branches: list[list[Turn]] = field(default_factory=list)


class _Reader:
    """A visitor that sorts nodes into turns."""

    def __init__(self, run: Run, role: str | None = None) -> None:
        self.run = run
        self.turns = [Turn(role, continues=role is not None)]

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
        self.turns[-1].pieces.append(Piece(value.value if is_text else None, value.name))

    visit_select = visit_gen

    def visit_role_begin(self, node: RoleBegin) -> None:
        self.turns.append(Turn(node.role))

    def visit_role_end(self, node: RoleEnd) -> None:
        self.turns.append(Turn(None))

    def visit_insert(self, node: Insert) -> None:
        pass

    def visit_fork(self, node: Fork) -> None:
        role = self.turns[-1].role
        branches = [
            _Reader(self.run, role).read(list(stream.log)) for stream in self.run.branches[node.id]
        ]
        self.turns += [Turn(role, branches=branches), Turn(role, continues=True)]

    def visit_join(self, node: Join) -> None:
        pass


def turns(stream: Stream) -> list[Turn]:
    """Return the turns of a state from its beginning."""
    with stream.run.condition:
        return _Reader(stream.run).read(stream.history())


def plain(stream: Stream) -> str:
    """Return the transcript as text, generated parts between «»."""
    return "\n".join(_lines(turns(stream), "«{}»"))


def preview(stream: Stream) -> str:
    """Return the transcript as text, generated parts as `{name}`."""
    return "\n".join(_lines(turns(stream), "{}"))


def html(stream: Stream) -> str:
    """Return the transcript as HTML, generated parts marked."""
    body = "<hr>".join(_html_turn(turn) for turn in turns(stream))
    return f'<div style="white-space: pre-wrap; font-family: monospace">{body}</div>'


def messages(stream: Stream) -> list[dict[str, str]]:
    """Return the chat messages; the state must be done.

    Raises:
        ProgramError: text outside of all roles, which messages cannot hold.
    """
    result: list[dict[str, str]] = []
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
            result.append({"role": turn.role, "content": text})
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
                texts.append(Text(stream.run.values[node.id].value))
            case RoleBegin() | RoleEnd():
                raise ProgramError(
                    "concate_and_append joins text, and this branch has chat turns of its own: "
                    "use join() and append what you need"
                )
    return [text for text in texts if text.text]


def value_pieces(value: Value, run: Run) -> Iterator[str]:
    """Give the text of a value in pieces as it comes, then raise what ended it, if anything.

    Raises:
        TypeError: a value without text, as of a variable that was joined.
    """
    index = 0
    while True:
        run.wait(lambda: len(value.chunks) > index or value.done)  # noqa: B023 awaited at once
        if index == len(value.chunks):
            break
        yield value.chunks[index]
        index += 1
    result = value.result()
    if not isinstance(result, str):
        raise TypeError(f"variable {value.name!r} is {type(result).__name__}, not text: read it")
    if not index and value.stream is None:
        yield result  # set by the program, so that it never came in pieces


def pieces(stream: Stream, follows_body: bool) -> Iterator[str]:
    """Give all text of a state in pieces as it comes, role markers rendered."""
    run = stream.run
    before = stream.history_before()
    previous: str | None = None
    index = 0

    def node_at(position: int) -> Node | None:
        """Wait for a node, unless no more are to come."""
        own = position - len(before)
        if own < 0:
            return before[position]
        run.wait(lambda: len(stream.log) > own or not follows_body or run.body_ended)
        return stream.log[own] if len(stream.log) > own else None

    while (node := node_at(index)) is not None:
        index += 1
        match node:
            case Text():
                yield node.text
            case Gen() | Select():
                yield from value_pieces(run.values[node.id], run)
            case RoleBegin():
                is_assistant = node.role == "assistant"
                generate = is_assistant and not isinstance(node_at(index), Text)
                yield run.settings.backend.render(
                    (RoleBeginSegment(node.role, previous, generate),)
                )
                previous = node.role
            case RoleEnd():
                yield run.settings.backend.render((RoleEndSegment(node.role),))
    if follows_body and run.body_error is not None:
        raise run.body_error.with_traceback(None)


def _lines(some: list[Turn], mark: str) -> Iterator[str]:
    for turn in some:
        for index, branch in enumerate(turn.branches):
            yield f"├─ branch {index}"
            yield from ("│  " + line for text in _lines(branch, mark) for line in text.split("\n"))
        if not turn.branches:
            head = f"[{turn.role}] " if turn.role and not turn.continues else ""
            yield head + "".join(_marked(piece, mark) for piece in turn.pieces)


def _marked(piece: Piece, mark: str) -> str:
    if not piece.name:
        return piece.text or ""
    return f"{{{piece.name}}}" if piece.text is None else mark.format(piece.text)


def _html_turn(turn: Turn) -> str:
    if turn.branches:
        return "".join(
            f'<div style="margin-left: 2em"><i>branch {index}</i>\n'
            + "<hr>".join(_html_turn(inner) for inner in branch)
            + "</div>"
            for index, branch in enumerate(turn.branches)
        )
    head = f"<b>{turn.role}</b> " if turn.role and not turn.continues else ""
    return head + "".join(_html_piece(piece) for piece in turn.pieces)


def _html_piece(piece: Piece) -> str:
    text = html_module.escape(piece.text if piece.text is not None else f"{{{piece.name}}}")
    if not piece.name:
        return text
    return f'<mark title="{html_module.escape(piece.name)}">{text}</mark>'
