"""Generation: a `GenerateRequest` as a job of one sequence."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..prompts.text import TextStream
from ..prompts.tokenizer import Tokenizer
from ..protocol import (
    ContextLengthError,
    Delta,
    Finished,
    FinishReason,
    GenerateRequest,
    InvalidRequestError,
    Sample,
    TokenIds,
    UnsupportedFeatureError,
    Usage,
)
from ..step import Draw
from .job import Ticket
from .sequence import Sequence


@dataclass(frozen=True, slots=True)
class Limits:
    """How long a prompt and its answer can be, and which ids end a turn."""

    context_length: int
    num_slots: int
    eos_ids: frozenset[int]

    def check(self, num_tokens: int, what: str = "the prompt has") -> None:
        """Refuse a prompt that leaves no room for one more token.

        Raises:
            ContextLengthError: the message states both numbers.
        """
        if num_tokens + 1 > self.context_length:
            raise ContextLengthError(
                f"{what} {num_tokens} tokens and the model's context is "
                f"{self.context_length}: shorten the prompt or use a model with a longer context"
            )
        if num_tokens + 1 > self.num_slots:
            raise ContextLengthError(
                f"{what} {num_tokens} tokens and the KV pool {self.num_slots} slots: "
                "shorten the prompt or raise max_total_tokens"
            )


class Generation:
    """Draws tokens after the prompt until something ends it."""

    def __init__(
        self,
        request: GenerateRequest,
        ticket: Ticket,
        ids: TokenIds,
        tokenizer: Tokenizer,
        limits: Limits,
    ) -> None:
        if request.constraint is not None:
            raise UnsupportedFeatureError(
                f"this engine cannot constrain the output to a {request.constraint.kind} yet: "
                "leave the constraint out"
            )
        if not len(ids):
            raise InvalidRequestError("the prompt is empty: give at least one token")
        limits.check(len(ids))
        sampling = request.sampling
        room = min(limits.context_length, limits.num_slots) - len(ids)
        wanted = sampling.max_new_tokens
        self.ticket = ticket
        self._request = request
        self._max_new_tokens = room if wanted is None else min(wanted, room)
        stop_ids = set(sampling.stop_token_ids)
        if stop_ids and max(stop_ids) >= tokenizer.vocab_size:
            raise InvalidRequestError(
                f"stop_token_ids has {max(stop_ids)}, which cannot be generated: the model's ids "
                f"are 0 to {tokenizer.vocab_size - 1}"
            )
        self._stop_ids = stop_ids if sampling.ignore_eos else stop_ids | limits.eos_ids
        self._banned = tuple(sorted(i for i in self._stop_ids if i < tokenizer.vocab_size))
        self._text = TextStream(tokenizer, sampling)
        self._num_sent = 0  # characters of the text
        self._num_generated = 0  # with a stop token, and what a stop string cut off
        self._outputs: list[int] = []
        self._reason: FinishReason | None = None
        prompt = np.frombuffer(ids.packed, dtype=np.int32)
        sequence = Sequence(
            self, prompt, 0, logits_from=len(ids) - (1 if self._max_new_tokens else 0)
        )
        sequence.max_more = self._max_new_tokens
        self.sequences = [sequence]

    def ask(self, sequence: Sequence, position: int, row: int) -> Draw | None:
        """Draw at the last position, unless only the cache is to be filled."""
        if position != sequence.num_ids - 1 or not self._max_new_tokens:
            return None
        count = len(self._outputs)
        sampling = self._request.sampling
        banned = self._banned if count < sampling.min_new_tokens else ()
        return Draw(row, self._request.seed, count, sampling, banned)

    def answer(self, sequence: Sequence, position: int, tokens: list[int]) -> int:
        """Take drawn tokens up to the first that ends the generation."""
        num_taken = 0
        for token in tokens:
            num_taken += 1
            self._take(sequence, token)
            if self._reason is not None:
                break
        self._num_generated += num_taken
        if self._request.stream and self._reason is None:
            self._send(self._text.take())
        return num_taken

    def _send(self, text: str) -> None:
        if text:
            self._num_sent += len(text)
            self.ticket.emit(Delta(request_id=self._request.id, text=text))

    def _take(self, sequence: Sequence, token: int) -> None:
        if token in self._stop_ids:
            self._reason = FinishReason(kind="stop", matched=token)
            return
        self._outputs.append(token)
        sequence.max_more -= 1
        if self._text.push(token):
            self._reason = FinishReason(kind="stop")  # `complete` says which string
        elif len(self._outputs) >= self._max_new_tokens:
            self._reason = FinishReason(kind="length")
        else:
            sequence.append_id(token)

    def answer_scores(self, sequence: Sequence, position: int, logprobs: list[float]) -> None:
        """A generation gathers nothing."""
        raise TypeError("a generation was given scores that it had not asked for")

    def complete(self, sequence: Sequence) -> list[Sequence]:
        """Send the rest of the text and the answer."""
        self.sequences = []
        reason = self._reason or FinishReason(kind="length")
        result = self._text.finish()
        if result.matched is not None:
            reason = FinishReason(kind="stop", matched=result.matched)
        if self._request.stream:
            self._send(result.text[self._num_sent :])
        self.ticket.end(
            Finished(
                request_id=self._request.id,
                samples=(
                    Sample(
                        reason=reason,
                        ids=TokenIds.of(self._outputs[: result.num_kept]),
                        text=result.text,
                        tail=result.tail,
                    ),
                ),
                usage=self.ticket.usage + Usage(generated_tokens=self._num_generated),
                timings=self.ticket.timings(),
            )
        )
        return []
