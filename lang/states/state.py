"""The state of a program: what it appends to, and where its variables are."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any, Literal

from ..errors import ForkEndedError
from ..execution import context
from ..execution.executor import Run
from ..execution.stream import Stream
from ..expressions.graph import (
    Expression,
    Gen,
    Insert,
    Join,
    Node,
    RoleBegin,
    RoleEnd,
    Select,
    as_nodes,
)
from . import scope
from .branching import start_fork
from .fork import ForkGroup
from .preparation import prepared
from .readable import ReadableState
from .value import Value

Appendable = str | Expression | list[Any] | tuple[Any, ...]


class ProgramState(ReadableState):
    """The text and the variables of one program call, or of one branch of it.

    Append with `+=`; read a variable with `state["name"]`, which waits for it. A variable is
    there for `in` as soon as its gen was appended. `str(state)` never waits.

    Example:
        >>> @ramet.function
        ... def talk(s):
        ...     s += ramet.user("Hello")
        ...     with s.assistant():
        ...         s += ramet.gen("answer")
        ...     s["length"] = len(s["answer"])
        >>> state = talk(backend=ramet.Fake({"answer": "Hi!"}), seed=1)
        >>> state["answer"], state["length"], state.seed, state.error()
        ('Hi!', 3, 1, None)
        >>> state.messages()[1]
        {'role': 'assistant', 'content': 'Hi!'}
    """

    def __init__(self, run: Run, stream: Stream, parent: ProgramState | None = None) -> None:
        super().__init__(run, stream, dict(parent._variables) if parent else {})
        self._bound: dict[str, None] = {}  # names bound in this state, in order
        self._role: str | None = parent._role if parent else None
        self._num_gens = 0
        self._num_unnamed: int = parent._num_unnamed if parent else 0
        self._num_forks = 0
        self._ended = False
        stream.state = self

    # -- appending

    def __iadd__(self, other: Appendable) -> ProgramState:
        self._append(as_nodes(other))
        return self

    def append(self, other: Appendable) -> ProgramState:
        """Append, as `+=` does, and return the state.

        Example:
            >>> @ramet.function
            ... def ask(s):
            ...     s.append("Where? ").append(ramet.gen("place"))
            >>> ask(backend=ramet.Fake({"place": "Here."}))["place"]
            'Here.'
        """
        self._append(as_nodes(other))
        return self

    def __setitem__(self, name: str, value: object) -> None:
        """Bind a variable to a value; the text stays as it is."""
        with self._run.condition:
            self._check_open()
            self._bind(name, Value.known(name, value))
            self._put(Insert(name))
            self._run.journal.add("value", self._stream, name=name, value=value)

    def set_var(self, name: str, value: object) -> None:
        """Bind a variable to a value; the text stays as it is.

        Example:
            >>> @ramet.function
            ... def note(s):
            ...     s.set_var("count", 3)
            >>> note(backend=ramet.Fake())["count"]
            3
        """
        self[name] = value

    def system(self, expr: Appendable | None = None) -> Any:
        """Append a system message; without content, a block whose appended text is the message.

        Example:
            >>> @ramet.function
            ... def talk(s):
            ...     s.system("Be brief.")
            >>> talk(backend=ramet.Fake({"x": "Hi"})).messages()
            [{'role': 'system', 'content': 'Be brief.'}]
        """
        return self._turn("system", expr)

    def user(self, expr: Appendable | None = None) -> Any:
        """Append a user's turn; without content, a block whose appended text is the turn.

        Example:
            >>> @ramet.function
            ... def talk(s):
            ...     with s.user():
            ...         s += "Hello"
            >>> talk(backend=ramet.Fake({"x": "Hi"})).messages()
            [{'role': 'user', 'content': 'Hello'}]
        """
        return self._turn("user", expr)

    def assistant(self, expr: Appendable | None = None) -> Any:
        """Append an assistant's turn; without content, a block.

        Example:
            >>> @ramet.function
            ... def talk(s):
            ...     s.assistant(ramet.gen("x"))
            >>> talk(backend=ramet.Fake({"x": "Hi"})).messages()
            [{'role': 'assistant', 'content': 'Hi'}]
        """
        return self._turn("assistant", expr)

    def var_scope(self, name: str) -> AbstractContextManager[ProgramState]:
        """Bind `name` to the text that is appended inside a `with` block, when it ends.

        Generated text is part of it, and so are the markers of roles.

        Example:
            >>> @ramet.function
            ... def greet(s):
            ...     with s.var_scope("greeting"):
            ...         s += "Hello " + ramet.gen("name")
            >>> greet(backend=ramet.Fake({"name": "Ada"}))["greeting"]
            'Hello Ada'
        """
        return scope.var_scope(self, name)

    def fork(self, size: int = 1, position_ids_offset: None = None) -> ForkGroup:
        """Start `size` branches from here. Each sees the variables bound so far.

        `position_ids_offset`, of SGLang, can only be None: branches go on at the positions after
        the text before them.

        Example:
            >>> @ramet.function
            ... def guess(s):
            ...     branches = s.fork(2)
            ...     branches += lambda i: f"{i}:" + ramet.gen("guess")
            ...     branches.join()
            >>> guess(backend=ramet.Fake(lambda prompt, name: prompt))["guess"]
            ['0:', '1:']
        """
        return start_fork(self, size, position_ids_offset)

    @contextmanager
    def copy(self, position_ids_offset: None = None) -> Iterator[ProgramState]:
        """Give one branch inside a `with` block, and join it at the end.

        Example:
            >>> @ramet.function
            ... def aside(s):
            ...     s += "Question. "
            ...     with s.copy() as branch:
            ...         branch += "Think: " + ramet.gen("thought")
            ...     s += "Answer."
            >>> state = aside(backend=ramet.Fake({"thought": "hm"}))
            >>> state.text(), state["thought"]
            ('Question. Answer.', ['hm'])
        """
        group = self.fork(1, position_ids_offset)
        yield group[0]
        group.join()

    # -- inside

    def _append(self, nodes: tuple[Node, ...]) -> None:
        if any(isinstance(node, (Gen, Select)) for node in nodes):
            self._run.wait_for_room()
        with self._run.condition:
            self._check_open()
            before = self._role, self._num_gens, self._num_unnamed
            try:
                ready = [prepared(self, node) for node in nodes]
            except Exception:
                self._role, self._num_gens, self._num_unnamed = before
                raise
            for node, value in ready:
                if value is not None:
                    self._bind(value.name, value)
                    if value.reasoning is not None:
                        self._bind(value.reasoning.name, value.reasoning)
                self._put(node, value)

    def _check_open(self) -> None:
        if self._ended:
            raise ForkEndedError("this branch has been joined: append to the state it came from")

    def _unnamed(self) -> str:
        name = f"gen_{self._num_unnamed}"
        self._num_unnamed += 1
        return name

    def _put(
        self, node: Node, value: Value | None = None, branches: tuple[Stream, ...] = ()
    ) -> None:
        run = self._run
        node = replace(node, id=run.next_node_id(), line=context.program_line(run.settings.file))
        if value is not None:
            run.values[node.id] = value
        if branches:
            run.branches[node.id] = branches
            self._stream.children.extend(branches)
        self._stream.append(node)
        run.notify()

    def _bind(self, name: str, value: Value) -> None:
        if not isinstance(name, str):
            raise TypeError(f"the name of a variable must be a string, not {name!r}")
        self._variables[name] = value
        self._bound[name] = None

    def _join(self, values: dict[str, Value], branches: list[ProgramState]) -> None:
        with self._run.condition:
            self._check_open()
            self._num_unnamed = max([self._num_unnamed, *(b._num_unnamed for b in branches)])
            for name, value in values.items():
                self._bind(name, value)
            paths = tuple(branch._stream.path for branch in branches)
            self._put(Join(tuple(values), paths))

    def _turn(
        self, role: Literal["system", "user", "assistant"], content: Appendable | None
    ) -> Any:
        if content is None:
            return self._role_block(role)
        self._append((RoleBegin(role), *as_nodes(content), RoleEnd(role)))
        return None

    @contextmanager
    def _role_block(self, role: str) -> Iterator[None]:
        self._append((RoleBegin(role),))
        yield
        self._append((RoleEnd(role),))
