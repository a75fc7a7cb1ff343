"""A program: the function that `@ramet.function` made into one, and how it is run."""

from __future__ import annotations

import contextvars
import functools
import inspect
import threading
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from ramet.runtime.protocol import (
    InvalidRequestError,
    RequestCancelledError,
    SamplingOptions,
    normalize_options,
    params_of,
    unknown_name,
)

from . import batch, context, transcript
from .backends.base import Backend
from .executor import KnownNothingError, Run, RunSettings, deadline_of
from .preview import PreviewBackend
from .seeds import check_seed, random_seed
from .state import ProgramState

_OWN_OPTIONS = ("backend", "stream", "seed", "timeout", "on_error")
_SAMPLING_OPTIONS = tuple(SamplingOptions.__annotations__)
_ON_ERROR = ("raise", "return")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """The options of a run that are not the program's own arguments.

    `sampling` holds the defaults of every gen in it.
    """

    backend: Backend | None = None
    stream: bool = False
    seed: int | None = None
    timeout: float | None = None
    on_error: str = "raise"
    sampling: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, given: dict[str, Any]) -> RunOptions:
        """Check the options that were given by keyword."""
        own = {name: given[name] for name in _OWN_OPTIONS if name in given}
        rest = {name: value for name, value in given.items() if name not in own}
        sampling = normalize_options(rest)
        params_of({"max_new_tokens": None, **sampling})
        options = cls(**own, sampling=sampling)
        if options.on_error not in _ON_ERROR:
            raise InvalidRequestError(
                f"on_error must be 'raise' or 'return', not {options.on_error!r}"
            )
        if options.seed is not None:
            check_seed(options.seed)
        return options


class Program:
    """A function over a state. Calling it is the same as `run`.

    The function's own parameters come first, then run options, then its `**kwargs`.
    """

    __name__: str

    def __init__(
        self,
        func: Callable[..., object],
        bound: tuple[tuple[Any, ...], dict[str, Any]] = ((), {}),
    ) -> None:
        _check_function(func)
        self.func = func
        self.name = func.__name__
        self.file = func.__code__.co_filename
        self._bound = bound
        parameters = list(inspect.signature(func).parameters.values())
        self._signature = inspect.Signature(
            parameters[1:] if parameters[0].kind < 2 else parameters
        )
        keyword_kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        own = self._signature.parameters.values()
        self._names = tuple(p.name for p in own if p.kind in keyword_kinds)
        self._takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in own)
        functools.update_wrapper(self, func)

    def __call__(self, *args: Any, **kwargs: Any) -> ProgramState:
        """Run the program; see `run`."""
        return self.run(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<Program {self.name}{self._signature}>"

    def bind(self, *args: Any, **kwargs: Any) -> Program:
        """Return a program with these arguments preset, as `functools.partial` does it.

        Options of `run` can be preset too; what is given at the call wins.
        """
        for name in kwargs:
            self._check_name(name)
        before_args, before = self._bound
        return Program(self.func, ((*before_args, *args), {**before, **kwargs}))

    def run(self, *args: Any, **kwargs: Any) -> ProgramState:
        """Run the function with a new state, and return the state when everything in it is done.

        Keywords that are not parameters of the function are options: `backend`; `stream=True`
        (return at once, the function runs in a thread, read with `text_iter`); `seed`; `timeout`
        in seconds; `on_error="return"` (return the state whatever happens, `state.error()`
        tells); and the sampling options, such as `temperature` and `max_tokens`, that are the
        defaults of every gen in it.

        Raises:
            TypeError: an unknown keyword (the nearest known one is named), a missing argument.
            GenerationError: a gen failed, and the function did not handle it.
            DeadlineError: the time limit passed.
        """
        arguments, given = self._split(args, kwargs)
        options = RunOptions.of(given)
        run = self.new_run(options)
        state = ProgramState(run, run.root)
        if not options.stream:
            return self.execute(state, arguments, on_error=options.on_error)
        thread = threading.Thread(
            target=contextvars.copy_context().run,
            args=(functools.partial(self.execute, state, arguments, on_error="return"),),
            name=f"ramet-{self.name}",
            daemon=True,
        )
        run.begin_body()
        try:
            thread.start()
        except RuntimeError as error:  # the process has too many threads
            run.end_body(error)
            raise
        return state

    def stream(self, *args: Any, **kwargs: Any) -> ProgramState:
        """Run with `stream=True`: return at once; read with `text_iter`."""
        return self.run(*args, **{**kwargs, "stream": True})

    def run_batch(
        self,
        rows: Iterable[dict[str, Any] | tuple[Any, ...]],
        *,
        num_threads: int | str = "auto",
        progress_bar: bool = False,
        on_error: str = "return",
        **options: Any,
    ) -> list[ProgramState]:
        """Run once for each row of arguments, and return the states in the order of the rows.

        A row that fails has its state in its place: `state.error()` tells, and reading it raises.

        Args:
            rows: a dict of keyword arguments or a tuple of positional ones for each run.
            num_threads: how many run at the same time; 1 runs them in order in this thread.
            progress_bar: show one on stderr.
            on_error: "raise" finishes all rows, then raises one `ExceptionGroup` of what the
                function itself did not handle.
            **options: options of `run`, for all rows; `timeout` is for the whole batch.
        """
        for name in options:
            if name not in _OWN_OPTIONS and name not in _SAMPLING_OPTIONS:
                known = (*_OWN_OPTIONS, *_SAMPLING_OPTIONS, "num_threads", "progress_bar")
                raise TypeError(unknown_name(name, known, "option of run_batch"))
        bound = {name: value for name, value in self._bound[1].items() if self._is_option(name)}
        given = RunOptions.of({**bound, **options})
        if given.stream:
            raise TypeError("run_batch does not stream: use run(stream=True)")
        if on_error not in _ON_ERROR:
            raise InvalidRequestError(f"on_error must be 'raise' or 'return', not {on_error!r}")
        pool = batch.BatchOptions(num_threads, progress_bar, raises=on_error == "raise")
        return batch.run_batch(self, rows, given, pool)

    def preview(self, *args: Any, **kwargs: Any) -> str:
        """Return the transcript up to the first read of an unknown value; no model is used.

        The function runs up to there, side effects included. Generated text stands as `{name}`.
        Options of `run` are taken and checked; without a model only `seed` is of any use.
        """
        arguments, given = self._split(args, kwargs)
        options = RunOptions.of(given)
        settings = RunSettings(
            program=self.name,
            file=self.file,
            backend=PreviewBackend(),
            sampling=options.sampling,
            seed=options.seed or 0,
            preview=True,
        )
        run = Run(settings)
        state = ProgramState(run, run.root)
        try:
            with context.executing(run):
                self.func(state, *arguments.args, **arguments.kwargs)
        except KnownNothingError:
            pass
        finally:
            run.end_body()
        return transcript.preview(run.root)

    # -- for this package

    def new_run(self, options: RunOptions, row: int = 0, deadline: float | None = None) -> Run:
        """Return a run with these options, called by the run in whose body we are."""
        caller = context.calling_run()
        if caller is not None and caller.settings.preview:
            raise KnownNothingError  # what the called program returns is unknown
        seed = options.seed
        if seed is None:
            seed = random_seed() if caller is None else caller.derive_seed()
        settings = RunSettings(
            program=self.name,
            file=self.file,
            backend=context.backend_in_force(options.backend),
            sampling=options.sampling,
            seed=seed,
            row=row,
            deadline=deadline_of(options.timeout, caller) if deadline is None else deadline,
            stream=options.stream,
        )
        return Run(settings, caller)

    def execute(
        self, state: ProgramState, arguments: inspect.BoundArguments, *, on_error: str
    ) -> ProgramState:
        """Run the function and wait for everything in it."""
        run = state._run
        failure: Exception | None = None
        run.begin_body()
        try:
            with context.executing(run):
                state._return_value = self.func(state, *arguments.args, **arguments.kwargs)
                run.finish()
        except BaseException as error:
            self._stop(run, error)
            if on_error == "raise" or not isinstance(error, Exception):
                run.end_body(error)
                raise
            failure = error
        run.end_body(failure)
        return state

    def bind_row(self, row: object) -> inspect.BoundArguments:
        """Return the arguments of a row of a batch, which stays as it is."""
        if isinstance(row, dict):
            arguments, options = self._split((), row)
        elif isinstance(row, tuple):
            arguments, options = self._split(row, {})
        else:
            raise TypeError(f"a row must be a dict or a tuple of arguments, not {row!r}")
        unknown = [name for name in options if isinstance(row, dict) and name in row]
        if unknown:
            raise TypeError(f"{unknown[0]!r} is an option of run_batch, not an argument of a row")
        return arguments

    def _stop(self, run: Run, error: BaseException) -> None:
        """Say in the exception where in the program it came from, and end what still runs."""
        if not isinstance(error, KnownNothingError):
            lines = [
                frame.lineno
                for frame in traceback.extract_tb(error.__traceback__)
                if frame.filename == self.file
            ]
            if lines:
                error.add_note(f"in the program {self.name}, {self.file} line {lines[-1]}")
        if isinstance(error, Exception):
            run.cancel(error)
        else:
            run.cancel(RequestCancelledError(f"{self.name} was interrupted"))
        run.settle()

    def _split(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[inspect.BoundArguments, dict[str, Any]]:
        """Return the function's arguments and the run options."""
        bound_args, bound = self._bound
        own: dict[str, Any] = {}
        options: dict[str, Any] = {}
        for name, value in {**bound, **kwargs}.items():
            if name in self._names:
                own[name] = value
            elif self._is_option(name):
                options[name] = value
            else:
                self._check_name(name)
                own[name] = value
        try:
            return self._signature.bind(*bound_args, *args, **own), options
        except TypeError as error:
            raise TypeError(f"{self.name}{self._signature}: {error}") from None

    def _is_option(self, name: str) -> bool:
        return name not in self._names and (name in _OWN_OPTIONS or name in _SAMPLING_OPTIONS)

    def _check_name(self, name: object) -> None:
        if not isinstance(name, str):
            raise TypeError(f"the name of an argument must be a string, not {name!r}")
        known = (*self._names, *_OWN_OPTIONS, *_SAMPLING_OPTIONS)
        if name not in known and not self._takes_any:
            raise TypeError(unknown_name(name, known, f"argument of {self.name}"))


def _check_function(func: object) -> None:
    if not inspect.isfunction(func):
        raise TypeError(f"a program is made of a function, not {func!r}")
    if inspect.iscoroutinefunction(func) or inspect.isasyncgenfunction(func):
        raise TypeError(f"{func.__name__} is async: programs are plain functions")
    if inspect.isgeneratorfunction(func):
        raise TypeError(f"{func.__name__} has a yield: programs are plain functions")
    parameters = list(inspect.signature(func).parameters.values())
    if not parameters or parameters[0].kind > inspect.Parameter.VAR_POSITIONAL:
        raise TypeError(f"{func.__name__} needs a first parameter: the state")
