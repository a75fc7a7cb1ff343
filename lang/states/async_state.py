"""The state that an `async def` program is given: what waits is awaited."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any, overload

from ramet.runtime.protocol import Usage

from ..errors import ProgramError
from . import reading
from .events import RunEvents

if TYPE_CHECKING:
    from .fork import ForkGroup
    from .state import Appendable, ProgramState


class AsyncProgramState:
    """The state of an `async def` program: `ProgramState` for an event loop.

    Append with `+=`, which never waits. `await s.get("name")` reads a variable; `s["name"]` is for
    one that is there already.

    Example:
        >>> @ramet.function
        ... async def ask(s: ramet.AsyncProgramState) -> str:
        ...     s += "Where? " + ramet.gen("place")
        ...     return (await s.get("place")).upper()
        >>> ask(backend=ramet.Fake({"place": "here"})).ret_value
        'HERE'
    """

    def __init__(self, state: ProgramState) -> None:
        self._state = state

    # -- appending

    def __iadd__(self, other: Appendable) -> AsyncProgramState:
        self._state += other
        return self

    def append(self, other: Appendable) -> AsyncProgramState:
        """Append, as `+=` does, and return the state."""
        self._state += other
        return self

    def __setitem__(self, name: str, value: object) -> None:
        self._state[name] = value

    def set_var(self, name: str, value: object) -> None:
        """Bind a variable to a value; the text stays as it is."""
        self._state[name] = value

    def system(self, expr: Appendable | None = None) -> Any:
        """Append a system message; without content, a block whose appended text is the message."""
        return self._state.system(expr)

    def user(self, expr: Appendable | None = None) -> Any:
        """Append a user's turn; without content, a block whose appended text is the turn."""
        return self._state.user(expr)

    def assistant(self, expr: Appendable | None = None) -> Any:
        """Append an assistant's turn; without content, a block."""
        return self._state.assistant(expr)

    def var_scope(self, name: str) -> AbstractContextManager[Any]:
        """Give a block whose appended text becomes variable `name`."""
        return self._state.var_scope(name)

    def fork(self, size: int = 1) -> AsyncForkGroup:
        """Start `size` branches from here. Each sees the variables bound so far."""
        return AsyncForkGroup(self._state.fork(size))

    @asynccontextmanager
    async def copy(self) -> AsyncIterator[AsyncProgramState]:
        """Give one branch inside an `async with` block, and join it at the end."""
        group = self.fork(1)
        yield group[0]
        await group.join()

    # -- reading

    def __contains__(self, name: object) -> bool:
        return name in self._state

    def __getitem__(self, name: str) -> Any:
        value = self._state._find(name)
        if not value.done and not self._state._run.settings.preview:
            raise ProgramError(
                f"variable {name!r} is not there yet, and reading it here would block the event "
                f"loop: use await s.get({name!r})"
            )
        return self._state[name]

    @overload
    async def get(self, name: str) -> Any: ...

    @overload
    async def get(self, name: str, type: type[str]) -> str: ...

    async def get(self, name: str, type: type[str] | None = None) -> Any:
        """Return the value of a variable, once it is there; `type` is as in `ProgramState.get`.

        Raises:
            UndefinedVariableError: there is no such variable.
            GenerationError: its gen failed.
            TypeError: the value is not of that type, or the type is another than `str`.
        """
        reading.check_type(type)
        await self._until_done(name)
        return reading.of_type(name, self._state[name], type)

    async def raw(self, name: str) -> Any:
        """Return the text that was generated for a variable; see `ProgramState.raw`."""
        await self._until_done(name)
        return self._state.raw(name)

    async def get_var(self, name: str) -> Any:
        """Return the value of a variable, once it is there; as `get`."""
        return await self.get(name)

    async def get_meta_info(self, name: str) -> dict[str, Any]:
        """Return how a variable's value came about, once it is there.

        `ramet.states.meta_info` lists what there is.
        """
        await self._until_done(name)
        return self._state.get_meta_info(name)

    async def text(self) -> str:
        """Return the whole text as the model sees it, role markers included."""
        await self.sync()
        return self._state.text()

    async def messages(self) -> list[dict[str, Any]]:
        """Return the turns as `{"role": …, "content": …}`."""
        await self.sync()
        return list(self._state.messages())

    async def num_tokens(self) -> int:
        """Return how many tokens the text has, once all of it is there."""
        await self.sync()
        return self._state.num_tokens

    async def remaining_tokens(self) -> int | None:
        """Return how many tokens still fit the model's context, once all of the text is there."""
        await self.sync()
        return self._state.remaining_tokens

    async def sync(self) -> None:
        """Return when everything appended so far is done; raise what failed."""
        stream = self._state._stream
        await self._until(lambda: stream.is_idle)
        self._state.sync()

    async def error(self) -> BaseException | None:
        """Return what failed here or in a branch of this state, once all is done, or None."""
        await self._until_all_done()
        return self._state.error()

    async def usage(self) -> Usage:
        """Return the tokens of this state and its branches, once all is done."""
        await self._until_all_done()
        return self._state.usage

    def text_async_iter(
        self, var: str | None = None, return_meta_data: bool = False
    ) -> AsyncIterator[Any]:
        """Give the text of a variable, or of everything, in pieces as it comes.

        See `ProgramState.text_async_iter`.
        """
        return self._state.text_async_iter(var, return_meta_data)

    def events(self) -> RunEvents:
        """Give everything that happens in the run; see `ProgramState.events`."""
        return self._state.events()

    def cancel(self) -> None:
        """End every request of this run, of its branches and of the programs it called."""
        self._state.cancel()

    @property
    def seed(self) -> int:
        """The run's seed: `run(seed=…)` with it repeats the run."""
        return self._state.seed

    @property
    def variables(self) -> tuple[str, ...]:
        """The names of the variables, in the order in which they were bound."""
        return self._state.variables

    def __str__(self) -> str:
        return str(self._state)

    def __repr__(self) -> str:
        return f"<Async{repr(self._state)[1:]}"

    # -- inside

    async def _until(self, is_ready: Callable[[], bool]) -> None:
        from ..execution.async_waiting import wait

        await wait(self._state._run, is_ready)

    async def _until_done(self, name: str) -> None:
        value = self._state._find(name)
        await self._until(lambda: value.done)

    async def _until_all_done(self) -> None:
        streams = self._state._stream.all_streams()
        await self._until(lambda: all(stream.is_idle for stream in streams))


class AsyncForkGroup:
    """Branches that began at one point of an async program's state; see `ForkGroup`.

    Example:
        >>> @ramet.function
        ... async def vote(s: ramet.AsyncProgramState) -> list[str]:
        ...     forks = s.fork(2)
        ...     forks += ramet.gen("answer")
        ...     await forks.join()
        ...     return s["answer"]
        >>> vote(backend=ramet.Fake({"answer": "yes"})).ret_value
        ['yes', 'yes']
    """

    def __init__(self, group: ForkGroup) -> None:
        self._group = group
        self._branches = [AsyncProgramState(branch) for branch in group]

    def __len__(self) -> int:
        return len(self._branches)

    def __iter__(self) -> Iterator[AsyncProgramState]:
        return iter(self._branches)

    def __repr__(self) -> str:
        return f"<Async{repr(self._group)[1:]}"

    @overload
    def __getitem__(self, index: int) -> AsyncProgramState: ...

    @overload
    def __getitem__(self, index: slice) -> AsyncForkGroup: ...

    def __getitem__(self, index: int | slice) -> AsyncProgramState | AsyncForkGroup:
        if isinstance(index, slice):
            return AsyncForkGroup(self._group[index])
        return self._branches[index]

    def __setitem__(self, index: int | slice, branch: AsyncProgramState | AsyncForkGroup) -> None:
        """Take back what `group[i] += …` has appended to."""
        own = branch._group if isinstance(branch, AsyncForkGroup) else branch._state
        self._group[index] = own

    def __iadd__(self, other: Any) -> AsyncForkGroup:
        self._group += other
        return self

    async def join(self, mode: str = "gather_variable", *, on_error: str = "raise") -> None:
        """Wait for the branches and end them; see `ForkGroup.join`."""
        from ..execution.async_waiting import wait

        self._group._check_join(mode, on_error)
        run = self._group._parent._run
        await wait(run, self._group._idle_check())
        self._group._merge(mode, on_error)

    async def map(
        self, fn: Callable[[AsyncProgramState, int], Any], *, num_threads: int | None = None
    ) -> list[Any]:
        """Call `fn(branch, index)` for all branches at the same time, and return the results.

        Args:
            fn: an `async def`, or a function that returns something to be awaited. A plain value
                is taken as it is; a function that blocks would stop the loop.
            num_threads: how many run at the same time; None = all.

        Raises:
            Exception: the first failure in the order of the branches, when all have ended; a note
                names the branch.
        """
        from .async_mapping import map_async

        return await map_async(self, fn, num_threads)
