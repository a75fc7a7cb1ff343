"""What can be read of a state: its variables and its text."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any, overload

from ..conversations import conversation
from ..execution.executor import Run
from ..execution.stream import Stream
from . import meta_info, reading, text_iteration, transcript
from .run_view import RunView
from .value import Value


class ReadableState(RunView):
    """The reading side of `ramet.ProgramState`."""

    def __init__(self, run: Run, stream: Stream, variables: dict[str, Value]) -> None:
        super().__init__(run, stream)
        self._variables = variables

    @property
    def variables(self) -> tuple[str, ...]:
        """The names of all variables so far, in the order in which they were first bound.

        Example:
            >>> @ramet.function
            ... def ask(s):
            ...     s += ramet.gen("answer")
            >>> ask(backend=ramet.Fake({"answer": "So."})).variables
            ('answer',)
        """
        return tuple(self._variables)

    def __contains__(self, name: object) -> bool:
        return name in self._variables

    def __getitem__(self, name: str) -> Any:
        value = self._find(name)
        self._run.wait(lambda: value.done)
        return value.result()

    def get_var(self, name: str) -> Any:
        """Return the value of a variable, waiting for it.

        Example:
            >>> @ramet.function
            ... def ask(s):
            ...     s += ramet.user("Why?") + ramet.assistant(ramet.gen("answer"))
            >>> state = ask(backend=ramet.Fake({"answer": "So."}))
            >>> state.get_var("answer")
            'So.'
        """
        return self[name]

    @overload
    def get(self, name: str) -> Any: ...

    @overload
    def get(self, name: str, type: type[str]) -> str: ...

    def get(self, name: str, type: type[str] | None = None) -> Any:
        """Return the value of a variable, waiting for it; with `type=str` a type checker knows it.

        Raises:
            TypeError: the value is not of that type, or the type is another than `str`.

        Example:
            >>> @ramet.function
            ... def ask(s):
            ...     s += ramet.gen("answer")
            >>> ask(backend=ramet.Fake({"answer": "So."})).get("answer", str)
            'So.'
        """
        reading.check_type(type)
        return reading.of_type(name, self[name], type)

    def raw(self, name: str) -> Any:
        """Return the text that was generated for a variable, waiting for it.

        It is a list of texts where the gen asked for several with `n`.

        Raises:
            InvalidRequestError: the program set the variable, or a join made it.

        Example:
            >>> @ramet.function
            ... def ask(s):
            ...     s += ramet.user("Why?") + ramet.assistant(ramet.gen("answer"))
            >>> state = ask(backend=ramet.Fake({"answer": "So."}))
            >>> state.raw("answer")
            'So.'
        """
        value = self._find(name)
        self._run.wait(lambda: value.done)
        return reading.raw(value)

    def get_meta_info(self, name: str) -> dict[str, Any]:
        """Return how a variable's value came about, waiting for it; see `ramet.states.meta_info`.

        Example:
            >>> @ramet.function
            ... def ask(s):
            ...     s += ramet.user("Why?") + ramet.assistant(ramet.gen("answer"))
            >>> state = ask(backend=ramet.Fake({"answer": "So."}))
            >>> state.get_meta_info("answer")["finish_reason"]["type"]
            'stop'
        """
        value = self._find(name)
        self._run.wait(lambda: value.done)
        value.result()
        return meta_info.describe(value, self._run.settings.backend)

    def text(self) -> str:
        """Return the whole text as the model sees it, role markers included; waits for it.

        Example:
            >>> @ramet.function
            ... def ask(s):
            ...     s += ramet.user("Why?") + ramet.assistant(ramet.gen("answer"))
            >>> state = ask(backend=ramet.Fake({"answer": "So."}))
            >>> state.text()
            '<|im_start|>user\\nWhy?<|im_end|>\\n<|im_start|>assistant\\nSo.<|im_end|>\\n'
        """
        self.sync()
        tokens = self._stream.tokens
        return self._run.settings.backend.render(tokens.prompt()) if tokens else ""

    def messages(self) -> list[dict[str, Any]]:
        """Return the turns as `{"role": …, "content": …}`, JSON-safe; waits for all of them.

        A turn of `ramet.tool_result` or `ramet.messages` also has its `name` and `tool_call_id`.
        `ramet.messages(s.messages())` appends the same conversation.

        Example:
            >>> @ramet.function
            ... def ask(s):
            ...     s += ramet.user("Why?") + ramet.assistant(ramet.gen("answer"))
            >>> state = ask(backend=ramet.Fake({"answer": "So."}))
            >>> state.messages()[1]
            {'role': 'assistant', 'content': 'So.'}
        """
        self.sync()
        return transcript.messages(self._stream)

    @property
    def num_tokens(self) -> int:
        """How many tokens the text has so far, role markers included; waits for all of it.

        Example:
            >>> @ramet.function
            ... def ask(s):
            ...     s += ramet.user("Why?") + ramet.assistant(ramet.gen("answer"))
            >>> state = ask(backend=ramet.Fake({"answer": "So."}))
            >>> state.num_tokens
            28
        """
        self.sync()
        return conversation.num_tokens(self)

    @property
    def remaining_tokens(self) -> int | None:
        """How many more tokens fit into the model's context, at least 0; waits as `num_tokens`.

        None where the backend has no limit, as `ramet.Fake()`.

        Example:
            >>> @ramet.function
            ... def ask(s):
            ...     s += ramet.user("Why?") + ramet.assistant(ramet.gen("answer"))
            >>> state = ask(backend=ramet.Fake({"answer": "So."}, context_length=100))
            >>> state.remaining_tokens
            72
        """
        self.sync()
        return conversation.remaining_tokens(self)

    def text_iter(self, var: str | None = None) -> Iterator[str]:
        """Give the text of a variable, or of everything, in pieces as it comes.

        Raises the error that ended it. Without `run(stream=True)` each gen comes in one piece.

        Example:
            >>> @ramet.function
            ... def ask(s):
            ...     s += ramet.user("Why?") + ramet.assistant(ramet.gen("answer"))
            >>> state = ask(backend=ramet.Fake({"answer": "So."}))
            >>> list(state.text_iter("answer"))
            ['So.']
        """
        if var is None:
            return text_iteration.all_text(self._stream, self._body_is_elsewhere())
        return text_iteration.text_of(self._find(var), self._run)

    def text_async_iter(
        self, var: str | None = None, return_meta_data: bool = False
    ) -> AsyncIterator[Any]:
        """Give the text of a variable, or of everything, in pieces as it comes, for `async for`.

        With `return_meta_data` each item is `(text, meta)`: `meta` has the `variable` (None for
        literal text), and of a gen whose log-probabilities are wanted `output_token_logprobs`,
        those that came since the last piece. A variable's last item has no text and its whole
        meta info.

        Example:
            >>> @ramet.function
            ... def ask(s):
            ...     s += ramet.user("Why?") + ramet.assistant(ramet.gen("answer"))
            >>> async def show(state):
            ...     async for text in state.text_async_iter("answer"):
            ...         print(text, end="")
            >>> import asyncio
            >>> asyncio.run(show(ask.start(backend=ramet.Fake({"answer": "So."}))))
            So.
        """
        from .async_text import all_text_async, text_of_async

        if var is None:
            follows = self._body_is_elsewhere()
            return all_text_async(self._stream, follows, with_meta=return_meta_data)
        return text_of_async(self, var, with_meta=return_meta_data)

    def __str__(self) -> str:
        return transcript.plain(self._stream)

    def _repr_html_(self) -> str:
        return transcript.html(self._stream)

    def __repr__(self) -> str:
        return (
            f"<ProgramState of {self._run.program}: {', '.join(self._variables) or 'no variables'}>"
        )

    def _find(self, name: str) -> Value:
        return reading.find(self, name)
