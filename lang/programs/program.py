"""A program: the function that `@ramet.function` made into one, and how it is run."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import Any, Literal, overload

from ramet.runtime.protocol import Usage, unknown_name

from ..states.state import ProgramState
from . import batch, body, exploring
from .batch_options import BatchOptions, check_result, take_rows
from .bound_function import BoundFunction
from .call_graph import CallGraph
from .options import OPTIONS, RunOptions, check_on_error

BATCH_OPTIONS = ("num_threads", "max_live", "progress_bar", "output")


class Program(BoundFunction):
    """A function over a state. Calling it is the same as `run`.

    The function's own parameters come first, then run options, then its `**kwargs`. In a class it
    is a method: the instance comes first, then the state.

    Example:
        >>> @ramet.function
        ... def ask(s, question):
        ...     s += question + ramet.gen("answer")
        >>> ask("Why? ", backend=ramet.Fake({"answer": "Because."}))["answer"]
        'Because.'
    """

    def __call__(self, *args: Any, **kwargs: Any) -> ProgramState:
        """Run the program; see `run`."""
        return self.run(*args, **kwargs)

    def run(self, *args: Any, **kwargs: Any) -> ProgramState:
        """Run the function with a new state, and return the state when everything in it is done.

        Keywords that are not parameters of the function are options: `backend`; `stream=True`
        (as `start`); `seed`; `timeout` in seconds, None = none; `on_error="return"` (return the
        state whatever happens, `state.error()` tells); `priority`, an integer, 0 by default:
        requests of a higher one run first; `cache_salt`, a name: only runs of the same one share
        cached prefixes; `retries`, 0 by default: how often a gen or select is sent again when the
        backend was overloaded or failed for a reason that may pass; and the sampling options, such
        as `temperature` and `max_tokens`, that are the defaults of every gen in it. Programs called
        in the function take over backend, time limit, `priority`, `cache_salt` and `retries`.

        An `async def` runs on an event loop of its own; where one is running in this thread already
        that one is blocked meanwhile (and where `asyncio.run` started it, it takes the first Ctrl-C
        for itself, so that the second one ends the run): `await program.arun(…)` is the better way.

        Raises:
            TypeError: an unknown keyword (the nearest known one is named), a missing argument.
            GenerationError: a gen failed, and the function did not handle it.
            DeadlineError: the time limit passed.

        Example:
            >>> @ramet.function
            ... def ask(s, question):
            ...     s += question + ramet.gen("answer")
            >>> ask.run("Why? ", temperature=0, backend=ramet.Fake({"answer": "So."})).text()
            'Why? So.'
        """
        arguments, options = self.split(args, kwargs)
        run = self.new_run(options)
        state = ProgramState(run, run.root)
        if options.stream:
            body.start(self.body_of(arguments), state)
            return state
        return self.execute(state, arguments, on_error=options.on_error)

    def start(self, *args: Any, **kwargs: Any) -> ProgramState:
        """Return at once; the function runs in a thread of its own, with a copy of this context.

        The state can be read meanwhile, which waits for what is not there yet, and has `done`,
        `wait(timeout)`, `cancel()`, `error()`, `text_iter()` and `events()`. What the function
        raises is raised by reads and told by `error()`, and the log has a line.

        Options are those of `run`.

        Raises:
            TypeError: an unknown keyword (the nearest known one is named), a missing argument,
                `on_error="raise"`, which a run that returns at once cannot do.

        Example:
            >>> @ramet.function
            ... def ask(s):
            ...     s += "Where? " + ramet.gen("place")
            >>> state = ask.start(backend=ramet.Fake({"place": "Here."}))
            >>> state.wait(timeout=10), state["place"]
            (True, 'Here.')
        """
        arguments, options = self.split(args, {**kwargs, "stream": True})
        run = self.new_run(options)
        state = ProgramState(run, run.root)
        body.start(self.body_of(arguments), state)
        return state

    def stream(self, *args: Any, **kwargs: Any) -> ProgramState:
        """Return at once, to be read with `text_iter` or `events`: the same as `start`.

        Example:
            >>> @ramet.function
            ... def ask(s):
            ...     s += ramet.gen("answer")
            >>> list(ask.stream(backend=ramet.Fake({"answer": "abcd"})).text_iter("answer"))
            ['a', 'b', 'c', 'd']
        """
        return self.start(*args, **kwargs)

    async def arun(self, *args: Any, **kwargs: Any) -> ProgramState:
        """Run on the caller's event loop, and return the state when everything in it is done.

        An `async def` runs on the loop itself, another function in a thread. Cancelling the task
        that awaits it ends the run and its requests. Options are those of `run`; with `stream=True`
        text comes in pieces, for who reads it inside the function.

        Raises:
            TypeError: an unknown keyword (the nearest known one is named), a missing argument.
            GenerationError: a gen failed, and the function did not handle it.
            DeadlineError: the time limit passed.

        Example:
            >>> import asyncio
            >>> @ramet.function
            ... async def ask(s):
            ...     s += "Where? " + ramet.gen("place")
            >>> state = asyncio.run(ask.arun(backend=ramet.Fake({"place": "Here."})))
            >>> state["place"]
            'Here.'
        """
        from .async_body import run_awaited

        arguments, options = self.split(args, kwargs)
        run = self.new_run(options)
        state = ProgramState(run, run.root)
        return await run_awaited(self.body_of(arguments), state, on_error=options.on_error)

    @overload
    def run_batch(
        self,
        rows: Iterable[dict[str, Any] | tuple[Any, ...]] | None = None,
        *,
        generator_style: Literal[False] = False,
        on_error: str = "return",
        **options: Any,
    ) -> list[ProgramState]: ...

    @overload
    def run_batch(
        self,
        rows: Iterable[dict[str, Any] | tuple[Any, ...]] | None = None,
        *,
        generator_style: Literal[True],
        on_error: str = "return",
        **options: Any,
    ) -> Generator[ProgramState, None, None]: ...

    def run_batch(
        self,
        rows: Iterable[dict[str, Any] | tuple[Any, ...]] | None = None,
        *,
        generator_style: bool = False,
        on_error: str = "return",
        **options: Any,
    ) -> list[ProgramState] | Generator[ProgramState, None, None]:
        """Run once for each row of arguments, and return the states in the order of the rows.

        A row that fails has its state in its place: `state.error()` tells, and reading it raises.

        Args:
            rows: a dict of keyword arguments or a tuple of positional ones for each run; any
                iterable, taken as it goes on. SGLang's name for it, `batch_kwargs`, is taken too.
            generator_style: return an iterator of the states in the order of the rows, each given
                as soon as it and those before it are there; rows without end are fine then.
            on_error: "raise" finishes all rows, then raises one `ExceptionGroup` of what the
                function itself did not handle; not with `generator_style`.
            **options: `num_threads`, how many run at the same time ("auto" = up to 64, fewer where
                the engine's KV pool cannot hold them to their end; a number is kept whatever the
                pool; 1 runs them in order in this thread); `max_live`, how many rows may be taken
                and not finished, None = as many as threads; `progress_bar`, False by default;
                `output`, a file to which each finished row is appended, so that a rerun skips the
                rows that are in it and ended well (see `ramet.programs.row_output`),
                None = none; and the options of `run`, for all rows; `timeout` is that of all.

        Raises:
            TypeError: an unknown option, no rows, or rows under both names; with `output`, an
                argument that JSON cannot hold.
            InvalidRequestError: a value out of range; another batch writes to `output`.
            Exception: what the iterable raised, when the rows that ran have ended.

        Example:
            >>> @ramet.function
            ... def ask(s, question):
            ...     s += question + ramet.gen("answer")
            >>> rows = [{"question": "One?"}, {"question": "Two?"}]
            >>> fake = ramet.Fake(lambda prompt, name: prompt.lower())
            >>> [state["answer"] for state in ask.run_batch(rows, backend=fake)]
            ['one?', 'two?']
        """
        check_result(generator_style, on_error)
        rows_to_run = self._batch(take_rows(rows, options), options)
        if generator_style:
            return rows_to_run.run_in_order()
        states = batch.run_batch(rows_to_run)
        if on_error == "raise":
            batch.raise_failures(states)
        return states

    def as_completed(
        self, rows: Iterable[dict[str, Any] | tuple[Any, ...]], **options: Any
    ) -> batch.Completed:
        """Run once for each row, and give `(index, state)` of each as it finishes.

        For `for` and for `async for`, once; rows may be without end. Leaving the loop early ends
        the rows that run. Nothing begins before the loop does.

        Args:
            rows: as in `run_batch`.
            **options: as in `run_batch`.

        Raises:
            TypeError, InvalidRequestError, Exception: as `run_batch`.

        Example:
            >>> @ramet.function
            ... def ask(s, question):
            ...     s += question + ramet.gen("answer")
            >>> fake = ramet.Fake({"answer": "Yes."})
            >>> for index, state in ask.as_completed([("One?",)], backend=fake):
            ...     print(index, state["answer"])
            0 Yes.
        """
        return batch.Completed(self._batch(rows, options))

    async def arun_batch(
        self,
        rows: Iterable[dict[str, Any] | tuple[Any, ...]],
        *,
        on_error: str = "return",
        **options: Any,
    ) -> list[ProgramState]:
        """Run once for each row on the caller's event loop, and return the states in order.

        Rows of an `async def` run on the loop, those of another function in threads. Cancelling the
        task that awaits it ends all of them.

        Args:
            rows: as in `run_batch`; taking the next one must not block.
            on_error: as in `run_batch`.
            **options: as in `run_batch`; `max_live`, None = up to 64, is how many run at once.

        Raises:
            TypeError, InvalidRequestError, Exception: as `run_batch`.

        Example:
            >>> import asyncio
            >>> @ramet.function
            ... async def ask(s, question):
            ...     s += question + ramet.gen("answer")
            >>> fake = ramet.Fake({"answer": "Yes."})
            >>> states = asyncio.run(ask.arun_batch([("One?",), ("Two?",)], backend=fake))
            >>> [state["answer"] for state in states]
            ['Yes.', 'Yes.']
        """
        from .async_batch import collect

        check_on_error(on_error)
        states = await collect(self._batch(rows, options))
        if on_error == "raise":
            batch.raise_failures(states)
        return states

    def preview(self, *args: Any, **kwargs: Any) -> str:
        """Return the transcript up to the first read of an unknown value; no model is used.

        The function runs up to there, side effects included. Generated text stands as `{name}`.
        Options of `run` are taken and checked; without a model only `seed` is of any use.

        Example:
            >>> @ramet.function
            ... def ask(s, question):
            ...     s += question + ramet.gen("answer")
            >>> ask.preview("Why? ")
            'Why? {answer}'
        """
        return exploring.preview(self, args, kwargs)

    def trace(self, *args: Any, **kwargs: Any) -> CallGraph:
        """Return the graph of a run in which every gen is answered by `{name}`; no model is used.

        The function runs once, side effects included. A select is its first option, a gen of a
        dtype a value of it, and an argument that is not given stands as `{its name}`. With
        `backend=…` roles are rendered as that backend does it. Options of `run` are taken.

        Raises:
            Exception: what the function raises, as where it cannot go on with a placeholder.

        Example:
            >>> @ramet.function
            ... def ask(s, question):
            ...     s += question + ramet.gen("answer")
            >>> ask.trace("Why?").print_graph_dfs()
            ask
              0 text 'Why?' (line 3)
              1 gen 'answer' (line 3)
        """
        return exploring.trace(self, args, kwargs)

    def cache(self, *args: Any, **kwargs: Any) -> Usage:
        """Compute the beginning of the prompt, so that later runs find it in the cache.

        The function runs, side effects included, up to its first gen, select or read, or the
        first use of an argument that is not given: append the arguments last. Its text up to
        there is sent without generating anything, and `cache` waits for it.

        Options are `backend`, `timeout` in seconds (None, the default, is no limit), and the
        others of `run`, which change nothing here.

        Returns:
            The tokens of the beginning: how many there are, and were cached already.

        Raises:
            DeadlineError: the time limit passed.

        Example:
            >>> @ramet.function
            ... def ask(s, question):
            ...     s += "Answer in one word. " + ramet.gen("answer")
            >>> ask.cache(backend=ramet.Fake()).prompt_tokens
            20
        """
        return exploring.cache(self, args, kwargs)

    # -- for this package

    def _batch(self, rows: object, options: dict[str, Any]) -> batch.Batch:
        how = {name: options.pop(name) for name in BATCH_OPTIONS if name in options}
        for name in options:
            if name not in OPTIONS:
                raise TypeError(unknown_name(name, (*OPTIONS, *BATCH_OPTIONS), "option of a batch"))
        preset = {n: v for n, v in self.bound[1].items() if self.parameters.is_option(n)}
        given = RunOptions.of({**self._preset, **preset, **options})
        if given.stream:
            raise TypeError("a batch does not stream: use run(stream=True)")
        return batch.Batch(self, rows, given, BatchOptions(**how))
