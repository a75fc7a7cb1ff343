"""The graph of a run as plain data: what `program.trace(…)` returns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..expressions.graph import (
    Fork,
    Gen,
    Insert,
    Join,
    Media,
    RoleBegin,
    RoleEnd,
    Scope,
    Select,
    Text,
)

if TYPE_CHECKING:
    from ..execution.executor import Run
    from ..execution.seeds import ForkPath
    from ..execution.stream import Stream

SHOWN_CHARACTERS = 60


@dataclass(frozen=True, slots=True)
class CallNode:
    """One node of a call graph.

    Attributes:
        id: its number in the run; a node's parents have smaller ones.
        kind: "text", "gen", "select", "role_begin", "role_end", "variable", "scope", "fork",
            "join" or "media".
        line: of the program.
        parents: the node before it; for the first node of a branch that is the fork, and a join
            has the last node of each of its branches besides. Empty for the first of all.
        branch: for each fork on the way, its ordinal in its state and the branch's index.
        details: what else there is, by kind: `text`, `name`, `options`, `role`, `count`, `names`.

    Example:
        >>> @ramet.function
        ... def ask(s, question):
        ...     s += question
        >>> node = ask.trace("Why?").nodes[0]
        >>> node.kind, node.details
        ('text', {'text': 'Why?'})
    """

    id: int
    kind: str
    line: int
    parents: tuple[int, ...]
    branch: ForkPath
    details: dict[str, Any]

    def __str__(self) -> str:
        words = " ".join(_shown(value) for value in self.details.values())
        return f"{self.id} {self.kind} {words}".rstrip() + f" (line {self.line})"


@dataclass(frozen=True, slots=True)
class CallGraph:
    """What a run of a program does, in what order; printing it gives one line for each node.

    A program that is called inside has a graph of its own: trace that program.

    Attributes:
        program: its name.
        nodes: all nodes, by id.

    Example:
        >>> @ramet.function
        ... def ask(s, question):
        ...     s += question + ramet.gen("answer")
        >>> graph = ask.trace("Why?")
        >>> [node.kind for node in graph.nodes], graph.variables
        (['text', 'gen'], ('answer',))
    """

    program: str
    nodes: tuple[CallNode, ...]

    @property
    def variables(self) -> tuple[str, ...]:
        """The names that are bound, those in branches included, in the order of their nodes."""
        names: dict[str, None] = {}
        for node in self.nodes:
            bound = node.details.get("names") or [node.details.get("name")]
            names.update(dict.fromkeys(name for name in bound if name))
        return tuple(names)

    def print_graph_dfs(self) -> None:
        """Print one line for each node, the branches of a fork after it and indented."""
        print(self)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as lists, dicts, strings and numbers, for JSON."""
        nodes = [
            {
                "id": node.id,
                "kind": node.kind,
                "line": node.line,
                "parents": list(node.parents),
                "branch": [list(step) for step in node.branch],
                **node.details,
            }
            for node in self.nodes
        ]
        return {"program": self.program, "variables": list(self.variables), "nodes": nodes}

    def __str__(self) -> str:
        return "\n".join((self.program, *self._lines()))

    def _lines(self) -> Iterator[str]:
        by_branch: dict[ForkPath, list[CallNode]] = {}
        for node in self.nodes:
            by_branch.setdefault(node.branch, []).append(node)
        ahead: list[str | tuple[ForkPath, int]] = [((), 1)]  # lines, and branches with their depth
        while ahead:
            item = ahead.pop()
            if isinstance(item, str):
                yield item
            else:
                ahead += reversed(list(_parts(by_branch.get(item[0], []), *item)))


def graph_of(run: Run) -> CallGraph:
    """Return the graph of a run."""
    with run.condition:
        streams = run.root.all_streams()
        nodes = [node for stream in streams for node in _nodes_of(stream, run)]
    return CallGraph(run.program, tuple(sorted(nodes, key=lambda node: node.id)))


def _parts(
    nodes: list[CallNode], branch: ForkPath, depth: int
) -> Iterator[str | tuple[ForkPath, int]]:
    """Give the lines of a branch, and after each fork its branches."""
    num_forks = 0
    for node in nodes:
        yield "  " * depth + str(node)
        if node.kind == "fork":
            for index in range(node.details["count"]):
                yield "  " * (depth + 1) + f"branch {index}"
                yield (*branch, (num_forks, index)), depth + 2
            num_forks += 1


def _nodes_of(stream: Stream, run: Run) -> Iterator[CallNode]:
    before: tuple[int, ...] = ()
    if stream.base is not None:
        parent, length = stream.base
        before = (parent.log[length - 1].id,)
    for node in stream.log:
        kind, details = node.accept(_DESCRIBER)
        parents = before
        if isinstance(node, Join):
            parents = (*before, *_ends(node, run))
        yield CallNode(node.id, kind, node.line, parents, stream.path, details)
        before = (node.id,)


def _ends(node: Join, run: Run) -> Iterator[int]:
    """Give the last nodes of the branches that a join ends; an empty branch has none."""
    for stream in run.root.all_streams():
        if stream.path in node.branches and stream.log:
            yield stream.log[-1].id


def _shown(value: object) -> str:
    text = value if isinstance(value, str) else str(value)
    text = text if len(text) <= SHOWN_CHARACTERS else text[: SHOWN_CHARACTERS - 1] + "…"
    return repr(text) if isinstance(value, str) else text


class _Describer:
    """A visitor that gives a node's kind and its details, JSON-safe."""

    def visit_text(self, node: Text) -> tuple[str, dict[str, Any]]:
        return "text", {"text": node.text}

    def visit_gen(self, node: Gen) -> tuple[str, dict[str, Any]]:
        details: dict[str, Any] = {"name": node.name}
        if node.options:
            details["options"] = {name: _plain(value) for name, value in node.options}
        if node.constraint is not None:
            details["constraint"] = {"kind": node.constraint.kind, "value": node.constraint.value}
        return "gen", details

    def visit_select(self, node: Select) -> tuple[str, dict[str, Any]]:
        return "select", {"name": node.name, "choices": list(node.options)}

    def visit_role_begin(self, node: RoleBegin) -> tuple[str, dict[str, Any]]:
        return "role_begin", {"role": node.role}

    def visit_role_end(self, node: RoleEnd) -> tuple[str, dict[str, Any]]:
        return "role_end", {"role": node.role}

    def visit_insert(self, node: Insert) -> tuple[str, dict[str, Any]]:
        return "variable", {"name": node.name}

    def visit_fork(self, node: Fork) -> tuple[str, dict[str, Any]]:
        return "fork", {"count": node.count}

    def visit_join(self, node: Join) -> tuple[str, dict[str, Any]]:
        return "join", {"names": list(node.names)}

    def visit_scope(self, node: Scope) -> tuple[str, dict[str, Any]]:
        return "scope", {"name": node.name}

    def visit_media(self, node: Media) -> tuple[str, dict[str, Any]]:
        return "media", {"media": node.kind}


_DESCRIBER = _Describer()


def _plain(value: object) -> object:
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value
