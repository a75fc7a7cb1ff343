"""Results across runs: a backend that remembers what another one has answered, in a file."""

from __future__ import annotations

import json
import threading
import weakref
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from os import PathLike
from typing import TYPE_CHECKING, Any

from ramet.runtime.protocol import (
    Accepted,
    Delta,
    Event,
    Finished,
    GenerateRequest,
    Request,
    Scored,
    ScoreRequest,
    Segment,
    Text,
    Timings,
    TokenIds,
    Usage,
    from_json,
    to_json,
)
from ramet.runtime.protocol.checks import path_text

from .base import Backend

if TYPE_CHECKING:
    from .result_file import ResultFile

_IDENTITY = ("model", "model_hash", "dtype", "context_length")
_GENERATE_KEY = ("sampling", "constraint", "logprobs", "cache_salt")
_SCORE_KEY = ("options", "unconditional", "cache_salt")


class Cached:
    """Answers from a file what `backend` has answered before, in this run or an earlier one.

    Only what repeats is remembered: a select, a gen at temperature 0, and a gen whose seed was
    given (`run(seed=…)`, `gen(seed=…)`); everything else goes to `backend` as it is. The key is
    the model (name, hash, dtype, context length), the prompt, the sampling options, the
    constraint, the wanted log-probabilities, the namespace and the seed, so changing any of them
    asks again. Failures are not remembered. A remembered answer counts its whole prompt as
    cached, and its meta info says `cached_result: True`.

    Args:
        backend: what answers the rest. It stays the caller's: `close` closes the file only.
        path: an SQLite file, made where there is none. Several processes may use it at once.

    Raises:
        TypeError: `backend` is none, or `path` is none.
        OSError: the file cannot be made, or is not such a file; the message names it.

    Example:
        >>> import tempfile
        >>> fake = ramet.Fake({"answer": "Paris"})
        >>> @ramet.function
        ... def ask(s, question):
        ...     s += question + ramet.gen("answer", temperature=0)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with ramet.Cached(fake, f"{folder}/results.sqlite") as backend:
        ...         for _ in range(3):
        ...             state = ask("Capital of France?", backend=backend)
        >>> state["answer"], len(fake.requests)
        ('Paris', 1)
    """

    def __init__(self, backend: Backend, path: str | PathLike[str]) -> None:
        if isinstance(backend, type) or not isinstance(backend, Backend):
            raise TypeError(f"Cached needs a backend, such as ramet.Engine(…), not {backend!r}")
        from .result_file import ResultFile  # sqlite3 takes its time

        self._backend = backend
        self._file = ResultFile(path_text("path", path))
        self._lock = threading.Lock()
        self._identity: str | None = None
        self._closing = weakref.finalize(self, self._file.close)

    def submit(self, request: Request, on_event: Callable[[Event], None]) -> None:
        """Take a request; a remembered answer is given at once, in the calling thread.

        Example:
            >>> import tempfile
            >>> from queue import SimpleQueue
            >>> from ramet.runtime.protocol import GenerateRequest, Text
            >>> events = SimpleQueue()
            >>> fake = ramet.Fake({"a": "yes"})
            >>> request = GenerateRequest(id="1", prompt=(Text("Ready? "),), label="a")
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     with ramet.Cached(fake, f"{folder}/results.sqlite") as backend:
            ...         backend.submit(request, events.put)
            ...         [type(events.get(timeout=10)).__name__ for _ in range(2)]
            ['Accepted', 'Finished']
        """
        if not _repeats(request):
            self._backend.submit(request, on_event)
            return
        key = self._key(request)
        stored = self._file.read(key)
        if stored is not None:
            for event in _replayed(request, stored):
                on_event(event)
            return
        self._backend.submit(request, _Recorder(self._file, key, on_event))

    def abort(self, request_id: str) -> None:
        """End a request, unless it has ended.

        Example:
            >>> import tempfile
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     with ramet.Cached(ramet.Fake(), f"{folder}/results.sqlite") as backend:
            ...         backend.abort("unknown")
        """
        self._backend.abort(request_id)

    @property
    def num_slots(self) -> int | None:
        """The size of the backend's KV pool, None where it says none.

        Example:
            >>> import tempfile
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     with ramet.Cached(ramet.Fake(), f"{folder}/results.sqlite") as backend:
            ...         print(backend.num_slots)
            None
        """
        slots = getattr(self._backend, "num_slots", None)
        return slots if isinstance(slots, int) else None

    def has_room(self, wake: Callable[[], None]) -> bool:
        """Return whether the backend welcomes another request; where not, `wake` is called then.

        Example:
            >>> import tempfile
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     with ramet.Cached(ramet.Fake(), f"{folder}/results.sqlite") as backend:
            ...         backend.has_room(lambda: None)
            True
        """
        has_room = getattr(self._backend, "has_room", None)
        return has_room is None or bool(has_room(wake))

    def render(self, segments: tuple[Segment, ...]) -> str:
        """Return the text that the model would see.

        Example:
            >>> import tempfile
            >>> from ramet.runtime.protocol import Text
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     with ramet.Cached(ramet.Fake(), f"{folder}/results.sqlite") as backend:
            ...         backend.render((Text("Hello"),))
            'Hello'
        """
        return self._backend.render(segments)

    def count_tokens(self, segments: tuple[Segment, ...]) -> int:
        """Return how many tokens the prompt has.

        Example:
            >>> import tempfile
            >>> from ramet.runtime.protocol import Text
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     with ramet.Cached(ramet.Fake(), f"{folder}/results.sqlite") as backend:
            ...         backend.count_tokens((Text("Hello"),))
            5
        """
        return self._backend.count_tokens(segments)

    def flush_cache(self) -> bool:
        """Empty the prefix cache of the backend; remembered results stay.

        Example:
            >>> import tempfile
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     with ramet.Cached(ramet.Fake(), f"{folder}/results.sqlite") as backend:
            ...         backend.flush_cache()
            True
        """
        return self._backend.flush_cache()

    def info(self) -> dict[str, object]:
        """Return what the backend says, with `results_path` and `results` (how many there are).

        Example:
            >>> import tempfile
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     with ramet.Cached(ramet.Fake(), f"{folder}/results.sqlite") as backend:
            ...         backend.info()["results"]
            0
        """
        return {
            **self._backend.info(),
            "results_path": self._file.path,
            "results": self._file.count(),
        }

    def close(self) -> None:
        """Write what is not written yet and close the file; the backend goes on.

        Example:
            >>> import tempfile
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     backend = ramet.Cached(ramet.Fake(), f"{folder}/results.sqlite")
            ...     backend.close()
        """
        self._closing()

    def __enter__(self) -> Cached:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Cached results of {self._backend!r} in {self._file.path}>"

    def _key(self, request: Request) -> str:
        with self._lock:
            if self._identity is None:
                info = self._backend.info()
                self._identity = json.dumps({name: str(info.get(name)) for name in _IDENTITY})
        if isinstance(request, GenerateRequest):
            seed = 0 if request.sampling.is_greedy else request.seed
            asked = {name: to_json(getattr(request, name)) for name in _GENERATE_KEY}
        else:
            seed = 0
            asked = {name: to_json(getattr(request, name)) for name in _SCORE_KEY}
        prompt = to_json(_canonical(request.prompt))
        parts = [self._identity, type(request).__name__, prompt, asked, seed]
        return sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


class _Recorder:
    """Passes the events of one request on, and keeps the answer."""

    def __init__(self, file: ResultFile, key: str, on_event: Callable[[Event], None]) -> None:
        self._file = file
        self._key = key
        self._on_event = on_event
        self._accepted: Accepted | None = None

    def __call__(self, event: Event) -> None:
        if isinstance(event, Accepted):
            self._accepted = event
        elif isinstance(event, (Finished, Scored)) and self._accepted is not None:
            body = [to_json(self._accepted), to_json(event)]
            self._file.write(self._key, json.dumps(body))
        self._on_event(event)


def _repeats(request: Request) -> bool:
    if isinstance(request, ScoreRequest):
        return True
    return request.is_repeatable or request.sampling.is_greedy


def _canonical(prompt: tuple[Segment, ...]) -> tuple[Segment, ...]:
    """Join neighbours that are encoded as one, so that cutting a text does not matter."""
    result: list[Segment] = []
    for segment in prompt:
        last = result[-1] if result else None
        if isinstance(segment, TokenIds) and isinstance(last, TokenIds):
            result[-1] = last + segment
        elif (
            isinstance(segment, Text)
            and isinstance(last, Text)
            and segment.parse_special == last.parse_special
        ):
            result[-1] = replace(last, text=last.text + segment.text)
        else:
            result.append(segment)
    return tuple(result)


def _replayed(request: Request, stored: str) -> list[Event]:
    """Return the events of an earlier answer as those of `request`."""
    body: list[Any] = json.loads(stored)
    accepted, answer = (replace(from_json(event), request_id=request.id) for event in body)
    usage = Usage(
        prompt_tokens=answer.usage.prompt_tokens,
        cached_tokens=answer.usage.prompt_tokens,
        generated_tokens=answer.usage.generated_tokens,
    )
    answer = replace(answer, usage=usage, timings=Timings(), is_remembered=True)
    events: list[Event] = [accepted]
    if isinstance(request, GenerateRequest) and request.stream:
        events += [
            Delta(
                request_id=request.id,
                text=sample.text,
                index=index,
                ids=sample.ids,
                logprobs=sample.logprobs,
            )
            for index, sample in enumerate(answer.samples)
        ]
    return [*events, answer]
