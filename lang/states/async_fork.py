"""The branches of an `async def` program's state."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, overload

from .async_state import AsyncProgramState

if TYPE_CHECKING:
    from .fork import ForkGroup


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
        """Wait for the branches and end them; see `ForkGroup.join`.

        Example:
            >>> @ramet.function
            ... async def ask(s):
            ...     forks = s.fork(2)
            ...     forks += ramet.gen("a")
            ...     await forks.join()
            ...     return s["a"]
            >>> ask(backend=ramet.Fake({"a": "yes"})).ret_value
            ['yes', 'yes']
        """
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

        Example:
            >>> async def number(branch, index):
            ...     branch += ramet.gen("a")
            ...     return index, await branch.get("a")
            >>> @ramet.function
            ... async def ask(s):
            ...     return await s.fork(2).map(number)
            >>> ask(backend=ramet.Fake({"a": "yes"})).ret_value
            [(0, 'yes'), (1, 'yes')]
        """
        from .async_mapping import map_async

        return await map_async(self, fn, num_threads)
