"""The branches of a fork: append to all or to each, then join."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, overload

from ..errors import ForkEndedError, InvalidRequestError, UndefinedVariableError
from ..expressions.graph import Expression, as_nodes
from .mapping import map_branches
from .transcript import own_literals
from .value import JoinedValues, Value

if TYPE_CHECKING:
    from .state import ProgramState

MODES = ("gather_variable", "concate_and_append")


class ForkGroup:
    """Branches that began at one point of a state. They go on at the same time.

    `group += x` appends `x` to every branch; a list has one item for each, a function is called
    with each branch's index. `group[i]` is a branch, a slice is a group.

    Example:
        >>> @ramet.function
        ... def guess(s):
        ...     branches = s.fork(2)
        ...     branches += lambda i: f"Guess {i}: " + ramet.gen("guess")
        ...     branches.join()
        >>> guess(backend=ramet.Fake(lambda prompt, name: prompt[-3]))["guess"]
        ['0', '1']
    """

    def __init__(self, parent: ProgramState, branches: Sequence[ProgramState]) -> None:
        self._parent = parent
        self._branches = list(branches)

    def __len__(self) -> int:
        return len(self._branches)

    def __iter__(self) -> Iterator[ProgramState]:
        return iter(self._branches)

    def __repr__(self) -> str:
        return f"<ForkGroup of {len(self)} branches of {self._parent._run.program}>"

    @overload
    def __getitem__(self, index: int) -> ProgramState: ...

    @overload
    def __getitem__(self, index: slice) -> ForkGroup: ...

    def __getitem__(self, index: int | slice) -> ProgramState | ForkGroup:
        if isinstance(index, slice):
            return ForkGroup(self._parent, self._branches[index])
        return self._branches[index]

    def __setitem__(self, index: int | slice, branch: ProgramState | ForkGroup) -> None:
        """Take back what `group[i] += …` has appended to."""
        group = branch._branches if isinstance(branch, ForkGroup) else branch
        if group != self._branches[index]:
            raise TypeError("a branch cannot be replaced: append to it with +=")

    def __iadd__(self, other: str | Expression | list[Any] | Callable[[int], Any]) -> ForkGroup:
        if isinstance(other, list):
            if len(other) != len(self):
                raise InvalidRequestError(
                    f"{len(other)} items for {len(self)} branches: give one for each"
                )
            items = other
        elif callable(other):
            items = [other(index) for index in range(len(self))]
        else:
            items = [other] * len(self)
        nodes = [as_nodes(item) for item in items]  # checked before anything is appended
        for branch, own in zip(self._branches, nodes, strict=True):
            branch._append(own)
        return self

    def join(self, mode: str = "gather_variable", *, on_error: str = "raise") -> None:
        """Wait for the branches and end them.

        With "gather_variable" each name that any branch bound since the fork becomes a list in
        the parent, one place for each branch in order. A place of a branch that failed, or did
        not bind the name, raises when it is read; with `on_error="none"` it is None. With
        "concate_and_append" the branches' texts since the fork are appended to the parent's, as
        one literal run.

        Example:
            >>> @ramet.function
            ... def ask(s):
            ...     forks = s.fork(2)
            ...     forks += ramet.gen("a")
            ...     forks.join()
            >>> ask(backend=ramet.Fake({"a": ["yes", "no"]}))["a"]
            ['yes', 'yes']
        """
        self._check_join(mode, on_error)
        run = self._parent._run
        if not run.settings.preview:
            run.wait(self._idle_check())
        self._merge(mode, on_error)

    def map(
        self, fn: Callable[[ProgramState, int], Any], *, num_threads: int | None = None
    ) -> list[Any]:
        """Call `fn(branch, index)` for all branches at the same time, and return the results.

        Use it wherever a branch reads its own values: a plain loop that reads would run the
        branches one after another. The branches are not joined by it.

        Args:
            fn: called in a thread for each branch, with a copy of this context.
            num_threads: how many run at the same time; None = all, up to 64 (inside a row of a
                batch, the row's share of them).

        Raises:
            Exception: the first failure in the order of the branches, when all have ended; a note
                names the branch.

        Example:
            >>> @ramet.function
            ... def shout(s):
            ...     def one(branch, index):
            ...         branch += ramet.gen("word")
            ...         return branch["word"].upper()
            ...     return s.fork(2).map(one)
            >>> shout(backend=ramet.Fake({"word": "hey"})).ret_value
            ['HEY', 'HEY']
        """
        return map_branches(self, fn, num_threads)

    def _check_join(self, mode: str, on_error: str) -> None:
        if mode not in MODES:
            raise InvalidRequestError(f"mode must be one of {', '.join(MODES)}, not {mode!r}")
        if on_error not in ("raise", "none"):
            raise InvalidRequestError(f"on_error must be 'raise' or 'none', not {on_error!r}")
        if on_error == "none" and mode == "concate_and_append":
            raise InvalidRequestError(
                "on_error='none' is for variables: a branch that failed has no text to append"
            )
        for branch in self._branches:
            if branch._ended:
                raise ForkEndedError("these branches have been joined already")

    def _idle_check(self) -> Callable[[], bool]:
        """Return a function that says whether all branches are done; each is asked until it is."""
        streams = [stream for b in self._branches for stream in b._stream.all_streams()]

        def is_idle() -> bool:
            while streams and streams[-1].is_idle:
                streams.pop()
            return not streams

        return is_idle

    def _merge(self, mode: str, on_error: str) -> None:
        if mode == "concate_and_append":
            self._append_texts()
        else:
            self._parent._join(self._gathered(on_error), self._branches)
        for branch in self._branches:
            branch._ended = True

    def _append_texts(self) -> None:
        for branch in self._branches:
            branch.sync()
        texts = [text for branch in self._branches for text in own_literals(branch._stream)]
        self._parent._append(tuple(texts))

    def _gathered(self, on_error: str) -> dict[str, Value]:
        names = dict.fromkeys(name for branch in self._branches for name in branch._bound)
        return {name: self._gather(name, on_error) for name in names}

    def _gather(self, name: str, on_error: str) -> Value:
        places = [self._place(branch, index, name) for index, branch in enumerate(self._branches)]
        if not all(place.done for place in places):
            return Value(name)  # in a preview
        if on_error == "none":
            for branch in self._branches:
                branch._stream.error_seen = True
            return Value.known(name, [None if p.error else p.value for p in places])
        if any(place.error for place in places):
            return Value.known(name, JoinedValues(places))
        return Value.known(name, [place.value for place in places])

    @staticmethod
    def _place(branch: ProgramState, index: int, name: str) -> Value:
        if name in branch._bound:
            return branch._variables[name]
        missing = Value(name, branch._stream)
        missing.fail(
            branch._stream.error
            or UndefinedVariableError(f"branch {index} of the fork did not bind {name!r}")
        )
        return missing
