"""The state of a program: what it appends to, and where its variables are."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Literal

from ramet.runtime.protocol import Usage, params_of

from . import context, meta_info, transcript
from .errors import (
    DeadlineError,
    ForkEndedError,
    InvalidRequestError,
    RequestCancelledError,
    RoleOrderError,
    UndefinedVariableError,
)
from .executor import Run
from .fork import ForkGroup
from .graph import Expression, Fork, Gen, Insert, Join, Node, RoleBegin, RoleEnd, Select, as_nodes
from .seeds import gen_seed
from .stream import Stream
from .value import Value

Appendable = str | Expression | list[Any] | tuple[Any, ...]


class ProgramState:
    """The text and the variables of one program call, or of one branch of it.

    Append with `+=`; read a variable with `state["name"]`, which waits for it. A variable is
    there for `in` as soon as its gen was appended. `str(state)` never waits.
    """

    def __init__(self, run: Run, stream: Stream, parent: ProgramState | None = None) -> None:
        self._run = run
        self._stream = stream
        self._variables: dict[str, Value] = dict(parent._variables) if parent else {}
        self._bound: dict[str, None] = {}  # names bound in this state, in order
        self._role: str | None = parent._role if parent else None
        self._num_gens = 0
        self._num_unnamed: int = parent._num_unnamed if parent else 0
        self._num_forks = 0
        self._ended = False
        self._return_value: object = None
        stream.state = self

    # -- appending

    def __iadd__(self, other: Appendable) -> ProgramState:
        self._append(as_nodes(other))
        return self

    def __setitem__(self, name: str, value: object) -> None:
        """Bind a variable to a value; the text stays as it is."""
        with self._run.condition:
            self._check_open()
            self._bind(name, Value.known(name, value))
            self._put(Insert(name))

    def set_var(self, name: str, value: object) -> None:
        """Bind a variable to a value; the text stays as it is."""
        self[name] = value

    def system(self, content: Appendable | None = None) -> Any:
        """Append a system message; without content, a block whose appended text is the message."""
        return self._turn("system", content)

    def user(self, content: Appendable | None = None) -> Any:
        """Append a user's turn; without content, a block whose appended text is the turn."""
        return self._turn("user", content)

    def assistant(self, content: Appendable | None = None) -> Any:
        """Append an assistant's turn; without content, a block."""
        return self._turn("assistant", content)

    def fork(self, size: int = 1) -> ForkGroup:
        """Start `size` branches from here. Each sees the variables bound so far."""
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise InvalidRequestError(
                f"fork needs a number of branches of at least 1, not {size!r}"
            )
        with self._run.condition:
            self._check_open()
            path = [(self._num_forks, index) for index in range(size)]
            base = (self._stream, len(self._stream.log) + 1)
            streams = tuple(Stream(self._run, (*self._stream.path, step), base) for step in path)
            children = [ProgramState(self._run, stream, self) for stream in streams]
            self._num_forks += 1
            self._put(Fork(size), branches=streams)
        return ForkGroup(self, children)

    @contextmanager
    def copy(self) -> Iterator[ProgramState]:
        """Give one branch inside a `with` block, and join it at the end."""
        group = self.fork(1)
        yield group[0]
        group.join()

    # -- reading

    def __contains__(self, name: object) -> bool:
        return name in self._variables

    def __getitem__(self, name: str) -> Any:
        value = self._find(name)
        self._run.wait(lambda: value.done)
        return value.result()

    def get_var(self, name: str) -> Any:
        """Return the value of a variable, waiting for it."""
        return self[name]

    def get(self, name: str) -> Any:
        """Return the value of a variable, waiting for it."""
        return self[name]

    def get_meta_info(self, name: str) -> dict[str, Any]:
        """Return how a variable's value came about, waiting for it; see `ramet.meta_info`."""
        value = self._find(name)
        self._run.wait(lambda: value.done)
        value.result()
        return meta_info.describe(value, self._run.settings.backend)

    def text(self) -> str:
        """Return the whole text as the model sees it, role markers included; waits for it."""
        self.sync()
        tokens = self._stream.tokens
        return self._run.settings.backend.render(tokens.prompt()) if tokens else ""

    def messages(self) -> list[dict[str, str]]:
        """Return the turns as `{"role": …, "content": …}`; waits for all of them."""
        self.sync()
        return transcript.messages(self._stream)

    def text_iter(self, name: str | None = None) -> Iterator[str]:
        """Give the text of a variable, or of everything, in pieces as it comes.

        Raises the error that ended it. Without `run(stream=True)` each gen comes in one piece.
        """
        if name is None:
            return transcript.pieces(self._stream, self._body_is_elsewhere())
        return transcript.value_pieces(self._find(name), self._run)

    def sync(self) -> None:
        """Wait until everything appended so far is done; raise what failed."""
        self._wait_for_body()
        self._run.wait(lambda: self._stream.is_idle)
        if self._stream.error is not None:
            self._stream.error_seen = True
            raise self._stream.error.with_traceback(None)

    def error(self) -> BaseException | None:
        """Wait, and return what failed here or in a branch of this state, or None."""
        try:
            self._wait_for_body()
            streams = self._stream.all_streams()
            self._run.wait(lambda: all(stream.is_idle for stream in streams))
        except DeadlineError as error:
            return error
        if self._stream is self._run.root and self._run.body_error is not None:
            return self._run.body_error
        for stream in streams:
            if stream.error is not None:
                stream.error_seen = True
                return stream.error
        return None

    def cancel(self) -> None:
        """End every request of this run, of its branches and of the programs it called.

        What is not there yet raises `RequestCancelledError` when it is read.
        """
        self._run.cancel(RequestCancelledError(f"{self._run.program} was cancelled"))

    @property
    def ret_value(self) -> Any:
        """What the program's function returned; waits for it where it runs in another thread."""
        self._wait_for_body()
        if self._return_value is None and self._run.body_error is not None:
            raise self._run.body_error.with_traceback(None)
        return self._return_value

    @property
    def seed(self) -> int:
        """The run's seed: `run(seed=…)` with it repeats the run."""
        return self._run.settings.seed

    @property
    def usage(self) -> Usage:
        """The tokens of this state and its branches; waits. Called programs are not included."""
        streams = self._stream.all_streams()
        self._wait_for_body()
        self._run.wait(lambda: all(stream.is_idle for stream in streams))
        return sum((stream.usage for stream in self._stream.all_streams()), Usage())

    def __str__(self) -> str:
        return transcript.plain(self._stream)

    def _repr_html_(self) -> str:
        return transcript.html(self._stream)

    def __repr__(self) -> str:
        return (
            f"<ProgramState of {self._run.program}: {', '.join(self._variables) or 'no variables'}>"
        )

    # -- inside

    def _append(self, nodes: tuple[Node, ...]) -> None:
        with self._run.condition:
            self._check_open()
            before = self._role, self._num_gens, self._num_unnamed
            try:
                prepared = [self._prepared(node) for node in nodes]
            except Exception:
                self._role, self._num_gens, self._num_unnamed = before
                raise
            for node, value in prepared:
                if value is not None:
                    self._bind(value.name, value)
                self._put(node, value)

    def _prepared(self, node: Node) -> tuple[Node, Value | None]:
        """Check a node and give it its name, before anything is appended."""
        match node:
            case Gen():
                name = node.name or self._unnamed()
                value = Value(name, self._stream)
                options = {**self._run.settings.sampling, **dict(node.options)}
                value.sampling, _ = params_of(options)
                settings = self._run.settings
                value.seed = gen_seed(
                    settings.seed, settings.row, self._stream.path, self._num_gens
                )
                self._num_gens += 1
                return replace(node, name=name), value
            case Select():
                name = node.name or self._unnamed()
                return replace(node, name=name), Value(name, self._stream)
            case RoleBegin():
                if self._role is not None:
                    raise RoleOrderError(
                        f"cannot open {node.role!r} inside {self._role!r}: close that role first"
                    )
                self._role = node.role
            case RoleEnd():
                if self._role != node.role:
                    open_now = f"{self._role!r} is open" if self._role else "no role is open"
                    raise RoleOrderError(f"cannot close the role {node.role!r}: {open_now}")
                self._role = None
        return node, None

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
        run.condition.notify_all()

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
            self._put(Join(tuple(values)))

    def _find(self, name: str) -> Value:
        if name not in self._variables and self._body_is_elsewhere():
            self._run.wait(lambda: name in self._variables or self._run.body_ended)
        if name in self._variables:
            return self._variables[name]
        stopped = self._stream.error or self._run.body_error or self._run.cancelled
        if stopped is not None:
            self._stream.error_seen = True
            raise stopped.with_traceback(None)
        near = difflib.get_close_matches(str(name), self._variables, n=3)
        known = near or list(self._variables)[:8]
        hint = (
            f"; did you mean {' or '.join(map(repr, known))}?" if known else "; there are none yet"
        )
        line = context.program_line(self._run.settings.file)
        raise UndefinedVariableError(
            f"{self._run.program} line {line}: the state has no variable {name!r}{hint}"
        )

    def _body_is_elsewhere(self) -> bool:
        """True where the program's function has its own thread, and does not wait for us.

        It does where it asks itself, and where a program asks that it has called.
        """
        caller = context.calling_run()
        while caller is not None and caller is not self._run:
            caller = caller.parent
        return self._run.stream and caller is None

    def _wait_for_body(self) -> None:
        if self._body_is_elsewhere():
            self._run.wait(lambda: self._run.body_ended)

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
