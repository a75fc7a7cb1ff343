"""`s.var_scope(name)`: a stretch of a state's text as a variable."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import zip_longest
from typing import TYPE_CHECKING

from ramet.runtime.protocol import RoleBegin as RoleBeginSegment
from ramet.runtime.protocol import RoleEnd as RoleEndSegment
from ramet.runtime.protocol import Segment

from ..expressions.graph import Gen, Node, RoleBegin, RoleEnd, Scope, Select, Text
from .value import Value

if TYPE_CHECKING:
    from ..execution.stream import Stream
    from .state import ProgramState


@contextmanager
def var_scope(state: ProgramState, name: str) -> Iterator[ProgramState]:
    """Bind `name` to the text that is appended inside the block, when the block ends.

    Nothing is bound where the block raises.
    """
    if not isinstance(name, str) or not name:
        raise TypeError(f"the name of a variable must be a non-empty string, not {name!r}")
    stream = state._stream
    start = len(stream.log)
    yield state
    parts = tuple(_parts(stream, start))
    with state._run.condition:
        state._check_open()
        value = Value(name, stream)
        state._bind(name, value)
        state._put(Scope(name, parts), value)


def _parts(stream: Stream, start: int) -> Iterator[str | int]:
    """Give the literal texts since `start`, markers of roles rendered, and the ids of gens."""
    previous: str | None = None
    before = [*stream.history_before(), *stream.log[:start]]
    for node in reversed(before):
        if isinstance(node, RoleBegin):
            previous = node.role
            break
    nodes = stream.log[start:]
    for node, following in zip_longest(nodes, nodes[1:]):
        match node:
            case Text():
                yield node.text
            case Gen() | Select():
                yield node.id
            case RoleBegin():
                yield _rendered(stream, _begin(node, previous, following))
                previous = node.role
            case RoleEnd():
                yield _rendered(stream, RoleEndSegment(node.role))


def _begin(node: RoleBegin, previous: str | None, following: Node | None) -> RoleBeginSegment:
    is_generated = node.role == "assistant" and isinstance(following, (Gen, Select))
    return RoleBeginSegment(node.role, previous, is_generated)


def _rendered(stream: Stream, segment: Segment) -> str:
    return stream.run.settings.backend.render((segment,))
