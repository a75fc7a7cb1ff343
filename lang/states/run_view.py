"""What a state says of its run: whether it has ended, how, and what it used."""

from __future__ import annotations

from typing import Any

from ramet.runtime.protocol import Usage
from ramet.runtime.protocol.checks import check_number

from ..errors import RequestCancelledError
from ..execution.executor import Run
from ..execution.stream import Stream
from . import outcome
from .events import RunEvents


class RunView:
    """The side of `ramet.ProgramState` that looks at its run."""

    def __init__(self, run: Run, stream: Stream) -> None:
        self._run = run
        self._stream = stream
        self._return_value: object = None

    def events(self) -> RunEvents:
        """Give everything that happens in the run, its branches included, for `for` or `async for`.

        Each iteration begins with the first event and ends with the run; see `ProgramEvent`. Only a
        run of `start()` or `stream=True` keeps events.

        Raises:
            InvalidRequestError: another run.

        Example:
            >>> @ramet.function
            ... def ask(s):
            ...     s += ramet.user("Why?") + ramet.assistant(ramet.gen("answer"))
            >>> state = ask.start(backend=ramet.Fake({"answer": "So."}))
            >>> [event.kind for event in state.events()][-1]
            'end'
        """
        return RunEvents(self._run)

    @property
    def done(self) -> bool:
        """True once the program has ended and nothing of it runs any more.

        Example:
            >>> @ramet.function
            ... def ask(s):
            ...     s += ramet.user("Why?") + ramet.assistant(ramet.gen("answer"))
            >>> state = ask(backend=ramet.Fake({"answer": "So."}))
            >>> state.done
            True
        """
        return self._run.body_ended

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the program has ended; return whether it has, within `timeout` seconds.

        Raises:
            InvalidRequestError: `timeout` is neither None (the default, no limit) nor a number of
                at least 0.

        Example:
            >>> @ramet.function
            ... def ask(s):
            ...     s += ramet.user("Why?") + ramet.assistant(ramet.gen("answer"))
            >>> ask.start(backend=ramet.Fake({"answer": "So."})).wait(timeout=10)
            True
        """
        if timeout is not None:
            check_number("timeout", timeout, low=0.0)
        return self._run.wait_for_end(timeout)

    def sync(self) -> None:
        """Wait until everything appended so far is done; raise what failed.

        Example:
            >>> @ramet.function
            ... def ask(s):
            ...     s += ramet.user("Why?") + ramet.assistant(ramet.gen("answer"))
            >>> state = ask(backend=ramet.Fake({"answer": "So."}))
            >>> state.sync()
            >>> state.done
            True
        """
        self._wait_for_body()
        self._run.wait(lambda: self._stream.is_idle)
        if self._stream.error is not None:
            self._stream.error_seen = True
            raise self._stream.error.with_traceback(None)

    def error(self) -> BaseException | None:
        """Wait, and return what failed here or in a branch of this state, or None.

        Example:
            >>> @ramet.function
            ... def ask(s):
            ...     s += ramet.user("Why?") + ramet.assistant(ramet.gen("answer"))
            >>> state = ask(backend=ramet.Fake(), on_error="return")
            >>> type(state.error()).__name__
            'GenerationError'
        """
        return outcome.first_error(self)

    def cancel(self) -> None:
        """End every request of this run, of its branches and of the programs it called.

        What is not there yet raises `RequestCancelledError` when it is read.

        Example:
            >>> @ramet.function
            ... def ask(s):
            ...     s += ramet.user("Why?") + ramet.assistant(ramet.gen("answer"))
            >>> state = ask.start(backend=ramet.Fake({"answer": "So."}, delay=60))
            >>> state.cancel()
            >>> type(state.error()).__name__
            'RequestCancelledError'
        """
        self._run.cancel(RequestCancelledError(f"{self._run.program} was cancelled"))

    @property
    def ret_value(self) -> Any:
        """What the program's function returned; waits for it where it runs in another thread.

        Example:
            >>> @ramet.function
            ... def double(s, number):
            ...     return 2 * number
            >>> double(21, backend=ramet.Fake()).ret_value
            42
        """
        self._wait_for_body()
        if self._return_value is None and self._run.body_error is not None:
            raise self._run.body_error.with_traceback(None)
        return self._return_value

    @property
    def seed(self) -> int:
        """The run's seed: `run(seed=…)` with it repeats the run.

        Example:
            >>> @ramet.function
            ... def ask(s):
            ...     s += ramet.user("Why?") + ramet.assistant(ramet.gen("answer"))
            >>> state = ask(backend=ramet.Fake({"answer": "So."}), seed=7)
            >>> state.seed
            7
        """
        return self._run.settings.seed

    @property
    def usage(self) -> Usage:
        """The tokens of this state and its branches; waits. Called programs are not included.

        Example:
            >>> @ramet.function
            ... def ask(s):
            ...     s += ramet.user("Why?") + ramet.assistant(ramet.gen("answer"))
            >>> state = ask(backend=ramet.Fake({"answer": "So."}))
            >>> state.usage.generated_tokens
            3
        """
        return outcome.usage(self)

    def _body_is_elsewhere(self) -> bool:
        return outcome.body_is_elsewhere(self._run)

    def _wait_for_body(self) -> None:
        if self._body_is_elsewhere():
            self._run.wait(lambda: self._run.body_ended)
