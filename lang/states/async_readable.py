"""What can be read of an async program's state: everything that waits is awaited."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any, overload

from ramet.runtime.protocol import Usage

from ..errors import ProgramError
from . import reading
from .events import RunEvents

if TYPE_CHECKING:
    from .state import ProgramState


class AsyncReadable:
    """The half of `AsyncProgramState` that reads."""

    def __init__(self, state: ProgramState) -> None:
        self._state = state

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

        Example:
            >>> @ramet.function
            ... async def ask(s):
            ...     s += "Ready? " + ramet.gen("a")
            ...     return await s.get("a")
            >>> ask(backend=ramet.Fake({"a": "yes"})).ret_value
            'yes'
        """
        reading.check_type(type)
        await self._until_done(name)
        return reading.of_type(name, self._state[name], type)

    async def raw(self, name: str) -> Any:
        """Return the text that was generated for a variable; see `ProgramState.raw`.

        Example:
            >>> @ramet.function
            ... async def ask(s):
            ...     s += "Ready? " + ramet.gen("a")
            ...     return await s.raw("a")
            >>> ask(backend=ramet.Fake({"a": "yes"})).ret_value
            'yes'
        """
        await self._until_done(name)
        return self._state.raw(name)

    async def get_var(self, name: str) -> Any:
        """Return the value of a variable, once it is there; as `get`.

        Example:
            >>> @ramet.function
            ... async def ask(s):
            ...     s += "Ready? " + ramet.gen("a")
            ...     return await s.get_var("a")
            >>> ask(backend=ramet.Fake({"a": "yes"})).ret_value
            'yes'
        """
        return await self.get(name)

    async def get_meta_info(self, name: str) -> dict[str, Any]:
        """Return how a variable's value came about, once it is there.

        `ramet.states.meta_info` lists what there is.

        Example:
            >>> @ramet.function
            ... async def ask(s):
            ...     s += "Ready? " + ramet.gen("a")
            ...     return (await s.get_meta_info("a"))["completion_tokens"]
            >>> ask(backend=ramet.Fake({"a": "yes"})).ret_value
            3
        """
        await self._until_done(name)
        return self._state.get_meta_info(name)

    async def text(self) -> str:
        """Return the whole text as the model sees it, role markers included.

        Example:
            >>> @ramet.function
            ... async def ask(s):
            ...     s += "Ready? " + ramet.gen("a")
            ...     return await s.text()
            >>> ask(backend=ramet.Fake({"a": "yes"})).ret_value
            'Ready? yes'
        """
        await self.sync()
        return self._state.text()

    async def messages(self) -> list[dict[str, Any]]:
        """Return the turns as `{"role": …, "content": …}`.

        Example:
            >>> @ramet.function
            ... async def ask(s):
            ...     s += ramet.user(ramet.gen("a"))
            ...     return await s.messages()
            >>> ask(backend=ramet.Fake({"a": "yes"})).ret_value
            [{'role': 'user', 'content': 'yes'}]
        """
        await self.sync()
        return list(self._state.messages())

    async def num_tokens(self) -> int:
        """Return how many tokens the text has, once all of it is there.

        Example:
            >>> @ramet.function
            ... async def ask(s):
            ...     s += "Ready? " + ramet.gen("a")
            ...     return await s.num_tokens()
            >>> ask(backend=ramet.Fake({"a": "yes"})).ret_value
            10
        """
        await self.sync()
        return self._state.num_tokens

    async def remaining_tokens(self) -> int | None:
        """Return how many tokens still fit the model's context, once all of the text is there.

        Example:
            >>> @ramet.function
            ... async def room(s):
            ...     s += "Ready?"
            ...     return await s.remaining_tokens()
            >>> room(backend=ramet.Fake(context_length=100)).ret_value
            94
        """
        await self.sync()
        return self._state.remaining_tokens

    async def sync(self) -> None:
        """Return when everything appended so far is done; raise what failed.

        Example:
            >>> @ramet.function
            ... async def ask(s):
            ...     s += "Ready? " + ramet.gen("a")
            ...     await s.sync()
            ...     return s["a"]
            >>> ask(backend=ramet.Fake({"a": "yes"})).ret_value
            'yes'
        """
        stream = self._state._stream
        await self._until(lambda: stream.is_idle)
        self._state.sync()

    async def error(self) -> BaseException | None:
        """Return what failed here or in a branch of this state, once all is done, or None.

        Example:
            >>> @ramet.function
            ... async def ask(s):
            ...     s += "Ready? " + ramet.gen("a")
            ...     return await s.error() is None
            >>> ask(backend=ramet.Fake({"a": "yes"})).ret_value
            True
        """
        await self._until_all_done()
        return self._state.error()

    async def usage(self) -> Usage:
        """Return the tokens of this state and its branches, once all is done.

        Example:
            >>> @ramet.function
            ... async def ask(s):
            ...     s += "Ready? " + ramet.gen("a")
            ...     return (await s.usage()).prompt_tokens
            >>> ask(backend=ramet.Fake({"a": "yes"})).ret_value
            7
        """
        await self._until_all_done()
        return self._state.usage

    def text_async_iter(
        self, var: str | None = None, return_meta_data: bool = False
    ) -> AsyncIterator[Any]:
        """Give the text of a variable, or of everything, in pieces as it comes.

        See `ProgramState.text_async_iter`.

        Example:
            >>> @ramet.function
            ... async def ask(s):
            ...     s += "Ready? " + ramet.gen("a")
            ...     return "".join([piece async for piece in s.text_async_iter("a")])
            >>> ask(backend=ramet.Fake({"a": "yes"})).ret_value
            'yes'
        """
        return self._state.text_async_iter(var, return_meta_data)

    def events(self) -> RunEvents:
        """Give everything that happens in the run; see `ProgramState.events`.

        Example:
            >>> @ramet.function
            ... async def ask(s):
            ...     s += "Ready? " + ramet.gen("a")
            ...     async for event in s.events():
            ...         if event.kind == "value":
            ...             return event.value
            >>> state = ask.start(backend=ramet.Fake({"a": "yes"}))
            >>> state.wait(timeout=10), state.ret_value
            (True, 'yes')
        """
        return self._state.events()

    def cancel(self) -> None:
        """End every request of this run, of its branches and of the programs it called.

        Example:
            >>> @ramet.function
            ... async def give_up(s):
            ...     s.cancel()
            >>> type(give_up(backend=ramet.Fake(), on_error="return").error()).__name__
            'RequestCancelledError'
        """
        self._state.cancel()

    @property
    def seed(self) -> int:
        """The run's seed: `run(seed=…)` with it repeats the run.

        Example:
            >>> @ramet.function
            ... async def seed_of(s):
            ...     return s.seed
            >>> seed_of(backend=ramet.Fake(), seed=7).ret_value
            7
        """
        return self._state.seed

    @property
    def variables(self) -> tuple[str, ...]:
        """The names of the variables, in the order in which they were bound.

        Example:
            >>> @ramet.function
            ... async def ask(s):
            ...     s += "Ready? " + ramet.gen("a")
            ...     return s.variables
            >>> ask(backend=ramet.Fake({"a": "yes"})).ret_value
            ('a',)
        """
        return self._state.variables

    def __str__(self) -> str:
        return str(self._state)

    def __repr__(self) -> str:
        return f"<Async{repr(self._state)[1:]}"

    async def _until(self, is_ready: Callable[[], bool]) -> None:
        from ..execution.async_waiting import wait

        await wait(self._state._run, is_ready)

    async def _until_done(self, name: str) -> None:
        value = self._state._find(name)
        await self._until(lambda: value.done)

    async def _until_all_done(self) -> None:
        streams = self._state._stream.all_streams()
        await self._until(lambda: all(stream.is_idle for stream in streams))
