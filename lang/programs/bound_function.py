"""The function of a program with what is preset for it, and what a run of it needs."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable
from typing import Any, Self, cast

from ramet.runtime.protocol import unknown_name

from ..execution import context
from ..execution.executor import KnownNothingError, Run, RunSettings, deadline_of
from ..execution.seeds import random_seed
from ..states.state import ProgramState
from . import body
from .options import OPTIONS, RunOptions
from .parameters import Bound, Parameters


class BoundFunction:
    """A function over a state, with arguments and options of `run` that are preset."""

    __name__: str

    def __init__(
        self,
        func: Callable[..., object],
        bound: Bound = ((), {}),
        *,
        preset: dict[str, Any] | None = None,
        num_api_spec_tokens: int | None = None,
    ) -> None:
        self._method = "instance"
        if isinstance(func, (staticmethod, classmethod)):  # written below @ramet.function
            self._method = "static" if isinstance(func, staticmethod) else "class"
            func = func.__func__
        _check_function(func)
        self.func = func
        self.name = func.__name__
        self.file = func.__code__.co_filename
        self.num_api_spec_tokens = num_api_spec_tokens
        self.parameters = Parameters(self.name, func)
        self.bound = bound
        self._preset = preset or {}
        functools.update_wrapper(cast(Any, self), func)

    def __get__(self, instance: object, owner: type | None = None) -> Self:
        """Return the program of an instance: `self` is bound, and the state comes after it.

        With `@staticmethod` below `@ramet.function` nothing is bound, with `@classmethod` the
        class. Got from the class itself, a method is the program as it is written, and its first
        parameter is the state.
        """
        target = owner if self._method == "class" else instance
        if target is None or self._method == "static":
            return self
        return self._like(types.MethodType(self.func, target), self.bound, self._preset)

    def __repr__(self) -> str:
        return f"<Program {self.name}{self.parameters.signature}>"

    @property
    def is_async(self) -> bool:
        """True for a program that is an `async def`."""
        return inspect.iscoroutinefunction(self.func)

    def bind(self, *args: Any, **kwargs: Any) -> Self:
        """Return a program with these arguments preset, as `functools.partial` does it.

        Options of `run` can be preset too; what is given at the call wins.

        Raises:
            TypeError: an unknown keyword; the nearest known one is named.

        Example:
            >>> @ramet.function
            ... def greet(s, greeting, name):
            ...     s += f"{greeting}, {name}"
            >>> greet.bind("Hello")("Ada", backend=ramet.Fake()).text()
            'Hello, Ada'
        """
        for name in kwargs:
            self.parameters.check_name(name)
        before_args, before = self.bound
        bound = ((*before_args, *args), {**before, **kwargs})
        return self._like(self.func, bound, self._preset)

    def with_options(self, **options: Any) -> Self:
        """Return a program with these options of `run` preset; what is given at the call wins.

        Here a name is always the option, also where the function has a parameter of that name.

        Raises:
            TypeError: no option of that name; the nearest known one is named.
            InvalidRequestError: a value out of range.

        Example:
            >>> @ramet.function
            ... def tell(s, temperature):
            ...     s += f"It is {temperature} degrees. " + ramet.gen("advice")
            >>> cool = tell.with_options(temperature=0)
            >>> cool(temperature=31, backend=ramet.Fake({"advice": "Drink."}))["advice"]
            'Drink.'
        """
        for name in options:
            if name not in OPTIONS:
                raise TypeError(unknown_name(name, OPTIONS, "option of run"))
        preset = {**self._preset, **options}
        RunOptions.of(preset)
        return self._like(self.func, self.bound, preset)

    # -- for this package

    def split(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[inspect.BoundArguments, RunOptions]:
        """Return the function's arguments and the run options of a call."""
        arguments, options = self.parameters.split(self.bound, args, kwargs)
        return arguments, RunOptions.of({**self._preset, **options})

    def body_of(self, arguments: inspect.BoundArguments) -> body.Body:
        """Return what a run with these arguments executes."""
        return body.Body(self.name, self.file, self.func, arguments)

    def new_run(self, options: RunOptions, row: int = 0, deadline: float | None = None) -> Run:
        """Return a run with these options, called by the run in whose body we are."""
        caller = context.calling_run()
        if caller is not None and caller.settings.preview:
            raise KnownNothingError  # what the called program returns is unknown
        outer = None if caller is None else caller.settings
        seed = options.seed
        if seed is None:
            seed = random_seed() if caller is None else caller.derive_seed()
        run_settings = RunSettings(
            program=self.name,
            file=self.file,
            backend=context.backend_in_force(options.backend),
            sampling=options.sampling,
            seed=seed,
            is_seeded=options.is_seeded or (outer is not None and outer.is_seeded),
            row=row,
            deadline=deadline_of(options.timeout, caller) if deadline is None else deadline,
            priority=_first(options.priority, outer and outer.priority, 0),
            cache_salt=_first(options.cache_salt, outer and outer.cache_salt, ""),
            retries=_first(options.retries, outer and outer.retries, 0),
            stream=options.stream,
            num_api_spec_tokens=self.num_api_spec_tokens,
            on_loop=self.is_async,
        )
        return Run(run_settings, caller)

    def execute(
        self, state: ProgramState, arguments: inspect.BoundArguments, *, on_error: str
    ) -> ProgramState:
        """Run the function and wait for everything in it."""
        return body.execute(self.body_of(arguments), state, on_error=on_error)

    def bind_row(self, row: object) -> inspect.BoundArguments:
        """Return the arguments of a row of a batch, which stays as it is."""
        if isinstance(row, dict):
            arguments, options = self.parameters.split(self.bound, (), row)
        elif isinstance(row, tuple):
            arguments, options = self.parameters.split(self.bound, row, {})
        else:
            raise TypeError(f"a row must be a dict or a tuple of arguments, not {row!r}")
        unknown = [name for name in options if isinstance(row, dict) and name in row]
        if unknown:
            raise TypeError(f"{unknown[0]!r} is an option of run_batch, not an argument of a row")
        return arguments

    def _like(self, func: Callable[..., object], bound: Bound, preset: dict[str, Any]) -> Self:
        spec_tokens = self.num_api_spec_tokens
        result = type(self)(func, bound, preset=preset, num_api_spec_tokens=spec_tokens)
        result._method = self._method
        return result


def _first(*values: Any) -> Any:
    """Return the first value that is not None."""
    return next(value for value in values if value is not None)


def _check_function(func: object) -> None:
    if not inspect.isfunction(func) and not inspect.ismethod(func):
        raise TypeError(f"a program is made of a function, not {func!r}")
    if inspect.isgeneratorfunction(func) or inspect.isasyncgenfunction(func):
        raise TypeError(f"{func.__name__} has a yield: a program is a function that returns")
    parameters = list(inspect.signature(func).parameters.values())
    if not parameters or parameters[0].kind > inspect.Parameter.VAR_POSITIONAL:
        raise TypeError(f"{func.__name__} needs a first parameter: the state")
