"""The nodes of a call graph: frozen data, one visitor method each.

`gen(…)`, `select(…)` and the role functions return nodes; they add up with `+`, strings on
either side, and a state gives each its `id` and source `line` when it is appended.
"""

from __future__ import annotations

import inspect
from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeVar

from ramet.runtime.protocol import Constraint

R_co = TypeVar("R_co", covariant=True)

Rows = tuple[tuple[float, ...], ...]
ChoicesMethod = Callable[[Rows], int] | Callable[[Rows, Rows], int]
"""Takes the log-probabilities of each option's own tokens, returns the index of the winner.

One that is marked `with_unconditional` also takes those of the tokens with no prompt before them.

It is called while the executor carries on the program, so it must only compute.
"""


class Visitor(Protocol[R_co]):
    """What handles nodes: one method per kind."""

    def visit_text(self, node: Text) -> R_co:
        """Handle literal text."""
        ...

    def visit_gen(self, node: Gen) -> R_co:
        """Handle a generation."""
        ...

    def visit_select(self, node: Select) -> R_co:
        """Handle a choice."""
        ...

    def visit_role_begin(self, node: RoleBegin) -> R_co:
        """Handle the opening of a chat turn."""
        ...

    def visit_role_end(self, node: RoleEnd) -> R_co:
        """Handle the end of a chat turn."""
        ...

    def visit_insert(self, node: Insert) -> R_co:
        """Handle a variable that the program sets."""
        ...

    def visit_fork(self, node: Fork) -> R_co:
        """Handle the start of branches."""
        ...

    def visit_join(self, node: Join) -> R_co:
        """Handle the end of branches."""
        ...

    def visit_scope(self, node: Scope) -> R_co:
        """Handle the end of a stretch of text that has a name."""
        ...

    def visit_media(self, node: Media) -> R_co:
        """Handle an image or a video."""
        ...


class Expression:
    """Something that can be appended to a state, and added to others with `+`."""

    __slots__ = ()

    @abstractmethod
    def nodes(self) -> tuple[Node, ...]:
        """Return the nodes in order."""

    def __add__(self, other: str | Expression) -> Sequence:
        if not isinstance(other, (str, Expression)):
            return NotImplemented
        return Sequence(self.nodes() + as_nodes(other))

    def __radd__(self, other: str) -> Sequence:
        if not isinstance(other, str):
            return NotImplemented
        return Sequence(as_nodes(other) + self.nodes())

    def __format__(self, format_spec: str) -> str:
        raise TypeError(
            f"{type(self).__name__} cannot stand in an f-string or format(): its text is not known "
            "yet; add it with +, as in s += 'Answer: ' + gen('answer')"
        )


@dataclass(frozen=True, slots=True)
class Node(Expression):
    """One step of a state. `id` counts the nodes of a run, −1 before it is appended."""

    id: int = field(default=-1, kw_only=True)
    line: int = field(default=0, kw_only=True)

    def nodes(self) -> tuple[Node, ...]:
        """Return this one node."""
        return (self,)

    @abstractmethod
    def accept(self, visitor: Visitor[R_co]) -> R_co:
        """Call the visitor's method for this kind of node."""


@dataclass(frozen=True, slots=True)
class Text(Node):
    """Literal text; special tokens spelled in it stay plain text unless `parse_special`."""

    text: str
    parse_special: bool = False

    def accept(self, visitor: Visitor[R_co]) -> R_co:
        """Call `visit_text`."""
        return visitor.visit_text(self)


@dataclass(frozen=True, slots=True)
class Gen(Node):
    """Text to generate, bound to variable `name` (None: `gen_0`, `gen_1` … when appended).

    `options` are the sampling options given here, under their field names; `stops` are stop
    strings beside those of `options` or of the run. `seed` is one of its own, None = derived from
    the run's. `reasoning` is the format in which the model writes down its reasoning, which is
    then kept apart from the answer; None = all of the text is the answer.
    """

    name: str | None
    options: tuple[tuple[str, Any], ...] = ()
    constraint: Constraint | None = None
    stops: tuple[str, ...] = ()
    seed: int | None = None
    reasoning: str | None = None

    def accept(self, visitor: Visitor[R_co]) -> R_co:
        """Call `visit_gen`."""
        return visitor.visit_gen(self)


@dataclass(frozen=True, slots=True)
class Select(Node):
    """One of `options` to choose by their log-probabilities, bound to variable `name`."""

    name: str | None
    options: tuple[str, ...]
    method: ChoicesMethod

    def accept(self, visitor: Visitor[R_co]) -> R_co:
        """Call `visit_select`."""
        return visitor.visit_select(self)


@dataclass(frozen=True, slots=True)
class RoleBegin(Node):
    """Opens a chat turn.

    `fields` are names and texts that `messages()` has of it beside its role, such as
    ("tool_call_id", "call_1"); the model does not see them.
    """

    role: str
    fields: tuple[tuple[str, str], ...] = ()

    def accept(self, visitor: Visitor[R_co]) -> R_co:
        """Call `visit_role_begin`."""
        return visitor.visit_role_begin(self)


@dataclass(frozen=True, slots=True)
class RoleEnd(Node):
    """Closes a chat turn."""

    role: str

    def accept(self, visitor: Visitor[R_co]) -> R_co:
        """Call `visit_role_end`."""
        return visitor.visit_role_end(self)


@dataclass(frozen=True, slots=True)
class Insert(Node):
    """Binds variable `name` to a value that the program gives; the text stays as it is."""

    name: str

    def accept(self, visitor: Visitor[R_co]) -> R_co:
        """Call `visit_insert`."""
        return visitor.visit_insert(self)


@dataclass(frozen=True, slots=True)
class Fork(Node):
    """Starts `count` branches at this point of the state."""

    count: int

    def accept(self, visitor: Visitor[R_co]) -> R_co:
        """Call `visit_fork`."""
        return visitor.visit_fork(self)


@dataclass(frozen=True, slots=True)
class Join(Node):
    """Ends branches and binds `names`, each to the list of the branches' values.

    `branches` are their paths: for each fork on the way, its ordinal and the branch's index.
    """

    names: tuple[str, ...]
    branches: tuple[tuple[tuple[int, int], ...], ...] = ()

    def accept(self, visitor: Visitor[R_co]) -> R_co:
        """Call `visit_join`."""
        return visitor.visit_join(self)


@dataclass(frozen=True, slots=True)
class Scope(Node):
    """Binds `name` to the text of a stretch that ends here.

    `parts` are its literal texts, and the ids of the nodes whose values stand between them.
    """

    name: str
    parts: tuple[str | int, ...]

    def accept(self, visitor: Visitor[R_co]) -> R_co:
        """Call `visit_scope`."""
        return visitor.visit_scope(self)


@dataclass(frozen=True, slots=True)
class Media(Node):
    """An image or a video: a path or an address, or the bytes of the file.

    `num_frames` is how many pictures of a video the model sees.
    """

    kind: Literal["image", "video"]
    source: str | bytes
    num_frames: int | None = None

    def accept(self, visitor: Visitor[R_co]) -> R_co:
        """Call `visit_media`."""
        return visitor.visit_media(self)


@dataclass(frozen=True, slots=True)
class Sequence(Expression):
    """Nodes one after another: what `+` makes."""

    items: tuple[Node, ...]

    def nodes(self) -> tuple[Node, ...]:
        """Return the nodes in order."""
        return self.items

    def __iter__(self) -> Iterator[Node]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)


def as_nodes(value: object) -> tuple[Node, ...]:
    """Return the nodes of a string, an expression, or a list or tuple of them.

    Raises:
        TypeError: something else; a number must be turned into text by the program.
    """
    if isinstance(value, str):
        return (Text(str(value)),) if value else ()
    if isinstance(value, Expression):
        return value.nodes()
    if isinstance(value, (list, tuple)):
        return tuple(node for item in value for node in as_nodes(item))
    raise TypeError(
        f"cannot append {value!r:.80} of type {type(value).__name__}: {_what_to_append(value)}"
    )


def _what_to_append(value: object) -> str:
    if inspect.isawaitable(value):
        return "it has to be awaited first, as in s += await s.get('name')"
    if hasattr(value, "get_var"):  # a state of another program, or a branch
        return "append its text() or one of its variables"
    return (
        "append a string, gen(…), select(…) or a role; turn other values into text yourself, "
        "as with str(…)"
    )
