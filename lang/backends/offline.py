"""SGLang's offline API, `Engine.generate(prompt, sampling_params)`, over any backend.

Answers are dicts in SGLang's layout: `text`, `output_ids` and `meta_info`.
"""

from __future__ import annotations

from collections.abc import Iterator
from queue import SimpleQueue
from typing import Any, TypedDict, Unpack

from ramet.runtime.protocol import Event, Failed

from .base import Backend
from .calls import end_of, failure_of, next_event
from .offline_answers import Answers
from .offline_requests import Call, requests_of


class OfflineOptions(TypedDict, total=False):
    """Options of `generate` beside prompt and sampling parameters, each optional.

    `input_ids` are token ids instead of a prompt, or a list of such lists. `return_logprob` (False)
    asks for log-probabilities; `logprob_start_len` (−1: none of the prompt), `top_logprobs_num`
    (0), `token_ids_logprob` (None) and `return_text_in_logprobs` (False) say which. `stream`
    (False) gives the answers as they grow. `priority` (0): higher runs first. `cache_salt` ("")
    is a namespace of the prefix cache. `rid` (None) is the request's id, or a list of them.
    `timeout` (None) is in seconds. `image_data`, `audio_data` and `video_data` can only be None.
    """

    input_ids: list[int] | list[list[int]] | None
    return_logprob: bool
    logprob_start_len: int
    top_logprobs_num: int
    token_ids_logprob: list[int] | None
    return_text_in_logprobs: bool
    stream: bool
    priority: int
    cache_salt: str
    rid: str | list[str] | None
    timeout: float | None
    image_data: None
    audio_data: None
    video_data: None


def generate(
    backend: Backend,
    prompt: str | list[str] | None = None,
    sampling_params: dict[str, Any] | list[dict[str, Any]] | None = None,
    **options: Unpack[OfflineOptions],
) -> Any:
    """Continue a prompt, or several at the same time; see `Engine.generate`."""
    call = requests_of(prompt, sampling_params, dict(options))
    pieces = _pieces(backend, call)
    return pieces if call.stream else call.shaped(list(pieces))


def _pieces(backend: Backend, call: Call) -> Iterator[dict[str, Any]]:
    """Send the requests, and give the answers as they come."""
    events: SimpleQueue[Event] = SimpleQueue()
    answers = Answers(call)
    end = end_of(call.timeout)
    try:
        for request in call.requests:
            backend.submit(request, events.put)
        while answers.num_open:
            yield from taken(answers, next_event(events, end))
    finally:
        abort_open(backend, answers)


def taken(answers: Answers, event: Event) -> Iterator[dict[str, Any]]:
    """Take an event; raise what it failed with, else return the answers that it changes."""
    if isinstance(event, Failed):
        answers.note_end(event.request_id)
        raise failure_of(event)
    return answers.take(event)


def abort_open(backend: Backend, answers: Answers) -> None:
    """End what still runs, as when one request failed or the reader has left."""
    for request_id in answers.open_ids():
        backend.abort(request_id)
