"""The state that an `async def` program is given: what waits is awaited."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any

from .async_readable import AsyncReadable

if TYPE_CHECKING:
    from .async_fork import AsyncForkGroup
    from .state import Appendable


class AsyncProgramState(AsyncReadable):
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

    def __iadd__(self, other: Appendable) -> AsyncProgramState:
        self._state += other
        return self

    def append(self, other: Appendable) -> AsyncProgramState:
        """Append, as `+=` does, and return the state.

        Example:
            >>> @ramet.function
            ... async def ask(s):
            ...     return await s.append("Ready? " + ramet.gen("a")).text()
            >>> ask(backend=ramet.Fake({"a": "yes"})).ret_value
            'Ready? yes'
        """
        self._state += other
        return self

    def __setitem__(self, name: str, value: object) -> None:
        self._state[name] = value

    def set_var(self, name: str, value: object) -> None:
        """Bind a variable to a value; the text stays as it is.

        Example:
            >>> @ramet.function
            ... async def ask(s):
            ...     s.set_var("size", 3)
            ...     return s["size"]
            >>> ask(backend=ramet.Fake({"a": "yes"})).ret_value
            3
        """
        self._state[name] = value

    def system(self, expr: Appendable | None = None) -> Any:
        """Append a system message; without content, a block whose appended text is the message.

        Example:
            >>> @ramet.function
            ... async def ask(s):
            ...     s.system("Be brief.")
            ...     return await s.messages()
            >>> ask(backend=ramet.Fake({"a": "yes"})).ret_value
            [{'role': 'system', 'content': 'Be brief.'}]
        """
        return self._state.system(expr)

    def user(self, expr: Appendable | None = None) -> Any:
        """Append a user's turn; without content, a block whose appended text is the turn.

        Example:
            >>> @ramet.function
            ... async def ask(s):
            ...     s.user("Ready?")
            ...     return await s.messages()
            >>> ask(backend=ramet.Fake({"a": "yes"})).ret_value
            [{'role': 'user', 'content': 'Ready?'}]
        """
        return self._state.user(expr)

    def assistant(self, expr: Appendable | None = None) -> Any:
        """Append an assistant's turn; without content, a block.

        Example:
            >>> @ramet.function
            ... async def ask(s):
            ...     s.assistant(ramet.gen("a"))
            ...     return await s.messages()
            >>> ask(backend=ramet.Fake({"a": "yes"})).ret_value
            [{'role': 'assistant', 'content': 'yes'}]
        """
        return self._state.assistant(expr)

    def var_scope(self, name: str) -> AbstractContextManager[Any]:
        """Give a block whose appended text becomes variable `name`.

        Example:
            >>> @ramet.function
            ... async def ask(s):
            ...     with s.var_scope("line"):
            ...         s += "Ready? " + ramet.gen("a")
            ...     return await s.get("line")
            >>> ask(backend=ramet.Fake({"a": "yes"})).ret_value
            'Ready? yes'
        """
        return self._state.var_scope(name)

    def fork(self, size: int = 1) -> AsyncForkGroup:
        """Start `size` branches from here. Each sees the variables bound so far.

        Example:
            >>> @ramet.function
            ... async def ask(s):
            ...     forks = s.fork(2)
            ...     forks += ramet.gen("a")
            ...     return [await fork.get("a") for fork in forks]
            >>> ask(backend=ramet.Fake({"a": "yes"})).ret_value
            ['yes', 'yes']
        """
        from .async_fork import AsyncForkGroup  # it needs this module

        return AsyncForkGroup(self._state.fork(size))

    @asynccontextmanager
    async def copy(self) -> AsyncIterator[AsyncProgramState]:
        """Give one branch inside an `async with` block, and join it at the end.

        Example:
            >>> @ramet.function
            ... async def ask(s):
            ...     async with s.copy() as aside:
            ...         aside += ramet.gen("a")
            ...     return await s.get("a")
            >>> ask(backend=ramet.Fake({"a": "yes"})).ret_value
            ['yes']
        """
        group = self.fork(1)
        yield group[0]
        await group.join()
