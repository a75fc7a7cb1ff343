"""A backend with scripted answers: for tests of programs, and for examples. No model, no torch."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from ramet.runtime.protocol import (
    Accepted,
    ContextLengthError,
    ErrorCode,
    Event,
    Failed,
    Finished,
    GenerateRequest,
    InvalidRequestError,
    Request,
    Scored,
    ScoreRequest,
    Segment,
    Timings,
    TokenIds,
    code_of_error,
)
from ramet.runtime.protocol.checks import check_integer, check_number

from .fake_samples import deltas, prompt_logprobs, sample_of
from .fake_scores import scored
from .fake_text import PrefixHistory, decode, encode, num_known
from .timeline import Timeline

Answer = str | BaseException | Callable[[str, str], Any] | Sequence[Any]
Answers = Mapping[Any, Answer] | Callable[[str, str], Any]  # keys: str or re.Pattern[str]


class Fake:
    """Answers by the name of the variable, or by what stands in the prompt.

    Args:
        answers: a dict, or one function for everything. A key is a variable's name (`gen_0` …
            where the gen has none), or a compiled pattern that is searched in the prompt; names
            come first, then patterns in their order. A value is a text; a list, of which each
            state takes one after another (so a fork begins at the first); a function of (prompt
            text, variable name) that returns the text, called on the fake's own thread; or an
            exception, which makes the request fail.
        delay: seconds that an answer takes.
        stream_chunks: in how many pieces a streamed answer comes.
        context_length: the most tokens of a prompt and its answer; None = no limit.

    A gen with `n` samples asks for `n` answers: the same text each time, or the next ones of a
    list. A text must match the gen's regex, be JSON where there is a JSON schema (the schema itself
    is not checked), and be one of a select's options, else the request fails; the other grammars
    are refused. `stop` and `stop_regex` (with Python's `re`) cut a text. This backend's tokens are
    bytes, so limits of length do not (but `max_tokens=0` gives no text); stop token ids,
    `min_tokens`, `ignore_eos` and what changes probabilities have no effect either.
    Log-probabilities are made up, and always the same: that of id i is −(1 + i mod 8) ÷ 8, so of
    the ids 0 to 257 the likeliest are 0, 8, 16 … A gen without an answer fails, and says how to
    script it. `requests` lists what was asked, in order, and `num_running` how many have not ended.
    Usage counts bytes, as a prefix cache that forgets nothing would: what an earlier request had
    in common is cached.

    Raises:
        TypeError: `answers` is none.
        InvalidRequestError: `delay` or another argument is none, or out of range.

    Example:
        >>> @ramet.function
        ... def ask(s):
        ...     s += "Where? " + ramet.gen("place") + ramet.gen("time")
        >>> fake = ramet.Fake({"place": "Here", "time": lambda prompt, name: f" {len(prompt)}"})
        >>> ask(backend=fake).text(), len(fake.requests), fake.num_running
        ('Where? Here 11', 2, 0)
    """

    def __init__(
        self,
        answers: Answers | None = None,
        *,
        delay: float = 0.0,
        stream_chunks: int = 4,
        context_length: int | None = None,
    ) -> None:
        if answers is not None and not isinstance(answers, Mapping) and not callable(answers):
            raise TypeError(f"answers must be a dict or a function, not {answers!r}")
        check_number("delay", delay, low=0.0)
        check_integer("stream_chunks", stream_chunks, low=1)
        if context_length is not None:
            check_integer("context_length", context_length, low=1)
        self._context_length = context_length
        self._answers = {} if answers is None else answers
        self._delay = delay
        self._stream_chunks = stream_chunks
        self._lock = threading.Lock()
        self._live: dict[str, _Job] = {}
        self._taken: dict[tuple[str, str], int] = {}
        self._history = PrefixHistory()
        self._timeline = Timeline("ramet-fake")
        self._is_closed = False
        self.requests: list[Request] = []

    @property
    def num_running(self) -> int:
        """How many requests have not ended.

        Example:
            >>> ramet.Fake().num_running
            0
        """
        with self._lock:
            return len(self._live)

    def submit(self, request: Request, on_event: Callable[[Event], None]) -> None:
        """Take a request; its events come from the fake's own thread.

        Example:
            >>> from queue import SimpleQueue
            >>> from ramet.runtime.protocol import GenerateRequest, Text
            >>> events = SimpleQueue()
            >>> fake = ramet.Fake({"a": "yes"})
            >>> request = GenerateRequest(id="1", prompt=(Text("Ready? "),), label="a")
            >>> fake.submit(request, events.put)
            >>> [type(events.get(timeout=10)).__name__ for _ in range(2)]
            ['Accepted', 'Finished']
        """
        job = _Job(request, on_event)
        with self._lock:
            self.requests.append(request)
            if self._is_closed:
                message = "this Fake was closed"
                on_event(
                    Failed(request_id=request.id, code=ErrorCode.ENGINE_CLOSED, message=message)
                )
                return
            self._live[request.id] = job
        if request.timeout is not None and request.timeout <= self._delay:
            late = f"the time limit of {request.timeout:.3g} seconds passed"
            self._timeline.at(
                request.timeout, request.id, partial(self._end, job, ErrorCode.DEADLINE, late)
            )
        else:
            self._timeline.at(0.0, request.id, partial(self._begin, job))

    def abort(self, request_id: str) -> None:
        """End a request, unless it has ended.

        Example:
            >>> ramet.Fake().abort("unknown")
        """
        with self._lock:
            job = self._live.get(request_id)
        if job is not None:
            self._end(job, ErrorCode.CANCELLED, "the request was cancelled")

    def render(self, segments: tuple[Segment, ...]) -> str:
        """Return the prompt as text; roles stand in ChatML.

        Example:
            >>> from ramet.runtime.protocol import Text
            >>> ramet.Fake().render((Text("Hello"),))
            'Hello'
        """
        return decode(encode(segments))

    def count_tokens(self, segments: tuple[Segment, ...]) -> int:
        """Return how many bytes the prompt has: they are this backend's tokens.

        Example:
            >>> from ramet.runtime.protocol import Text
            >>> ramet.Fake().count_tokens((Text("Hello"),))
            5
        """
        return len(encode(segments))

    def info(self) -> dict[str, object]:
        """Return what this is.

        Example:
            >>> ramet.Fake(context_length=100).info()["context_length"]
            100
        """
        info: dict[str, object] = {"model": "fake: scripted answers", "running": self.num_running}
        if self._context_length is not None:
            info["context_length"] = self._context_length
        return info

    def flush_cache(self) -> bool:
        """Forget what `usage` counts as cached.

        Example:
            >>> ramet.Fake().flush_cache()
            True
        """
        self._history = PrefixHistory()
        return True

    def close(self) -> None:
        """Take no more requests; those that run end with `ENGINE_CLOSED`.

        Example:
            >>> ramet.Fake().close()
        """
        with self._lock:
            self._is_closed = True
            jobs = list(self._live.values())
        for job in jobs:
            self._end(job, ErrorCode.ENGINE_CLOSED, "this Fake was closed")

    def _begin(self, job: _Job) -> None:
        """Find the answer, and plan the events."""
        request = job.request
        job.prompt = encode(request.prompt)
        only_fills = isinstance(request, GenerateRequest) and request.sampling.max_new_tokens == 0
        try:
            texts = [""] if only_fills else self._answers_to(request, decode(job.prompt))
            self._check_context(job)
            events = list(self._events(job, texts))
        except BaseException as error:  # noqa: BLE001 a scripted error, or a function's
            ours = code_of_error(error) is not ErrorCode.INTERNAL or isinstance(error, RuntimeError)
            message = str(error) if ours else f"{type(error).__name__}: {error}"
            self._end(job, code_of_error(error), message, error)
            return
        with self._lock:
            if self._live.get(request.id) is not job:
                return  # ended while its answer was made
            for index, event in enumerate(events):
                when = self._delay * (index / (len(events) - 1) if len(events) > 1 else 1.0)
                self._timeline.at(when, request.id, partial(self._send, job, event))

    def _send(self, job: _Job, event: Event) -> None:
        with self._lock:
            if self._live.get(job.request.id) is not job:
                return
            if isinstance(event, (Finished, Scored, Failed)):
                del self._live[job.request.id]
            job.on_event(event)

    def _end(
        self, job: _Job, code: ErrorCode, message: str, error: BaseException | None = None
    ) -> None:
        self._send(
            job,
            Failed(
                request_id=job.request.id,
                code=code,
                message=message,
                num_tokens=getattr(error, "num_tokens", None),
                limit=getattr(error, "limit", None),
            ),
        )
        self._timeline.drop(job.request.id)

    def _check_context(self, job: _Job) -> None:
        if self._context_length is not None and len(job.prompt) >= self._context_length:
            raise ContextLengthError(
                f"the prompt has {len(job.prompt)} tokens and there must be room for one more; the "
                f"context length is {self._context_length}",
                num_tokens=len(job.prompt),
                limit=self._context_length,
            )

    def _answers_to(self, request: Request, prompt: str) -> list[str]:
        count = request.sampling.n if isinstance(request, GenerateRequest) else 1
        return [self._answer(request, prompt) for _ in range(count)]

    def _answer(self, request: Request, prompt: str) -> str:
        name = request.label
        answer: Any = self._answers
        if isinstance(answer, Mapping):
            answer = self._scripted(name, prompt)
        if isinstance(answer, (list, tuple)):
            answer = self._next_of(answer, request.state_id, name)
        if callable(answer) and not isinstance(answer, type):
            answer = answer(prompt, name)
        if isinstance(answer, BaseException):
            raise answer
        if not isinstance(answer, str):
            raise InvalidRequestError(
                f"the answer scripted for {name!r} is {answer!r}, not a string"
            )
        return answer

    def _scripted(self, name: str, prompt: str) -> Answer:
        if not isinstance(self._answers, Mapping):
            return self._answers
        if name in self._answers:
            return self._answers[name]
        for key, answer in self._answers.items():
            if isinstance(key, re.Pattern) and key.search(prompt):
                return answer
        raise InvalidRequestError(
            f"no answer is scripted for {name!r}: give one, as in ramet.Fake({{{name!r}: '…'}})"
        )

    def _next_of(self, answers: Sequence[Any], state_id: str, name: str) -> Any:
        with self._lock:
            index = self._taken.get((state_id, name), 0)
            self._taken[state_id, name] = index + 1
        if index >= len(answers):
            raise InvalidRequestError(
                f"{len(answers)} answers are scripted for {name!r}: this state asks for another"
            )
        return answers[index]

    def _events(self, job: _Job, texts: list[str]) -> Iterator[Event]:
        request = job.request
        prefix = num_known(request.prompt)
        prompt_ids = TokenIds.of(job.prompt)
        yield Accepted(request_id=request.id, prefix_tokens=prefix, ids=prompt_ids[prefix:])
        if isinstance(request, ScoreRequest):
            yield scored(request, texts[0], self._history, self._delay)
            return
        samples = tuple(sample_of(request, text) for text in texts)
        if request.stream:
            yield from deltas(request, samples, self._stream_chunks)
        usages = [self._history.usage(job.prompt, list(sample.ids)) for sample in samples]
        yield Finished(
            request_id=request.id,
            samples=samples,
            prompt_logprobs=prompt_logprobs(request, job.prompt),
            usage=replace(
                usages[0], generated_tokens=sum(usage.generated_tokens for usage in usages)
            ),
            timings=Timings(first_token=0.0, total=self._delay),
        )


@dataclass(slots=True)
class _Job:
    request: Request
    on_event: Callable[[Event], None]
    prompt: list[int] = field(default_factory=list)
