"""The answers of `Engine.generate`, in SGLang's layout, from events as they come."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from ramet.runtime.protocol import (
    Accepted,
    Delta,
    Event,
    Finished,
    FinishReason,
    GenerateRequest,
    Sample,
    TokenLogprob,
)

from ..states.logprobs import report
from .offline_requests import Call


@dataclass(slots=True)
class _Growing:
    """What is there of one sample."""

    text: str = ""
    ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)


@dataclass(slots=True)
class _Open:
    """A request that has not ended."""

    request: GenerateRequest
    index: int
    samples: list[_Growing]
    num_prompt_tokens: int = 0


class Answers:
    """Turns the events of a call's requests into answers."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._open = {
            request.id: _Open(request, index, [_Growing() for _ in range(call.num_samples)])
            for index, request in enumerate(call.requests)
        }

    @property
    def num_open(self) -> int:
        """How many requests have not ended."""
        return len(self._open)

    def open_ids(self) -> list[str]:
        """Return the ids of the requests that have not ended."""
        return list(self._open)

    def note_end(self, request_id: str) -> None:
        """Note that a request has ended."""
        self._open.pop(request_id, None)

    def take(self, event: Event) -> Iterator[dict[str, Any]]:
        """Take an event; give the answers that it changes, those of a stream included."""
        ours = self._open.get(event.request_id)
        if ours is None:
            return
        match event:
            case Accepted():
                ours.num_prompt_tokens = event.prefix_tokens + len(event.ids)
            case Delta():
                grown = ours.samples[event.index]
                grown.text += event.text
                grown.ids += event.ids
                grown.logprobs += event.logprobs
                if self._call.stream:
                    yield self._so_far(ours, event.index)
            case Finished():
                self.note_end(event.request_id)
                for index, sample in enumerate(event.samples):
                    yield self._whole(ours, index, sample, event)

    def _so_far(self, ours: _Open, index: int) -> dict[str, Any]:
        grown = ours.samples[index]
        meta_info = {
            "id": ours.request.id,
            "finish_reason": None,
            "prompt_tokens": ours.num_prompt_tokens,
            "completion_tokens": len(grown.ids),
        }
        if self._call.logprobs is not None:
            meta_info |= report(
                self._call.logprobs, (), grown.logprobs, with_text=self._call.with_text
            )
        return self._answer(ours, index, grown.text, list(grown.ids), meta_info)

    def _whole(self, ours: _Open, index: int, sample: Sample, event: Finished) -> dict[str, Any]:
        is_only = len(event.samples) == 1
        num_tokens = event.usage.generated_tokens if is_only else len(sample.ids)
        meta_info = {
            "id": ours.request.id,
            "finish_reason": _reason(sample.reason, num_tokens),
            "prompt_tokens": ours.num_prompt_tokens or event.usage.prompt_tokens,
            "completion_tokens": num_tokens,
            "cached_tokens": event.usage.cached_tokens,
            "queue_time": event.timings.queue,
            "first_token_latency": event.timings.first_token,
            "e2e_latency": event.timings.total,
            "seed": ours.request.seed,
        }
        if self._call.logprobs is not None:
            meta_info |= report(
                self._call.logprobs,
                event.prompt_logprobs,
                sample.logprobs,
                with_text=self._call.with_text,
            )
        return self._answer(ours, index, sample.text, list(sample.ids), meta_info)

    def _answer(
        self, ours: _Open, index: int, text: str, ids: list[int], meta_info: dict[str, Any]
    ) -> dict[str, Any]:
        answer: dict[str, Any] = {"text": text, "output_ids": ids, "meta_info": meta_info}
        if self._call.has_index:
            answer["index"] = ours.index * self._call.num_samples + index
        return answer


def _reason(reason: FinishReason, num_tokens: int) -> dict[str, Any]:
    if reason.kind == "length":
        return {"type": "length", "length": num_tokens}
    return {"type": "stop", "matched": reason.matched}
