"""Generation: a `GenerateRequest` as a job of one sequence per sample."""

from __future__ import annotations

import numpy as np

from ..prompts.tokenizer import Tokenizer
from ..protocol import (
    Finished,
    GenerateRequest,
    InvalidRequestError,
    Sample,
    TokenIds,
    UnsupportedFeatureError,
    Usage,
    sample_seed,
)
from ..step import Draw, Gather, RowLogprobs
from .continuation import Continuation, Rules
from .job import Drawn, Ticket
from .limits import Limits
from .logprob_report import LogprobReport, check_ids
from .sequence import Sequence


class Generation:
    """Draws tokens after the prompt, `n` times, until something ends each sample.

    The samples have equal prompts and so share its last logit row; the prompt is counted once.
    The first sample's sequence also brings the log-probabilities of the prompt.
    """

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
        self.ticket = ticket
        self._request = request
        self._prompt = np.frombuffer(ids.packed, dtype=np.int32)
        self._rules = _rules(request, len(ids), tokenizer, limits)
        sampling = request.sampling
        self._continuations = [
            Continuation(self._rules, sample_seed(request.seed, index))
            for index in range(sampling.n)
        ]
        self._samples: dict[int, Sample] = {}
        self._prompt_scores: dict[int, RowLogprobs] = {}  # by the position of the token
        # With no token to generate all samples are one and the same.
        count = sampling.n if self._rules.max_new_tokens else 1
        self.sequences = [self._sequence(index) for index in range(count)]

    def ask(self, sequence: Sequence, position: int, row: int) -> Draw | Gather | None:
        """Draw at the last position; before it, ask for what the prompt goes on with."""
        if position >= sequence.num_ids - 1:
            if not self._rules.max_new_tokens:
                return None
            return self._continuations[sequence.index].draw(sequence, row)
        report = self._rules.report
        if report is None or position < sequence.logits_from:
            return None
        return report.of_prompt(row, int(self._prompt[position + 1]))

    def answer(self, sequence: Sequence, position: int, drawn: list[Drawn]) -> int:
        """Take drawn tokens up to the first that ends the sample."""
        continuation = self._continuations[sequence.index]
        num_taken = continuation.take(sequence, drawn)
        if self._request.stream and not continuation.has_ended:
            delta = continuation.delta(self._request.id, sequence.index)
            if delta is not None:
                self.ticket.emit(delta)
        return num_taken

    def answer_scores(self, sequence: Sequence, position: int, scores: RowLogprobs) -> None:
        """Keep what the row of `position` says of the prompt's next token."""
        self._prompt_scores[position + 1] = scores
        sequence.logits_from = max(sequence.logits_from, position + 1)

    def complete(self, sequence: Sequence) -> list[Sequence]:
        """Send the rest of the sample's text; after the last sample the answer."""
        self.sequences.remove(sequence)
        indices = (
            [sequence.index] if self._rules.max_new_tokens else range(len(self._continuations))
        )
        for index in indices:
            self._finish_sample(index)
        if not self.sequences:
            self._finish()
        return []

    def _sequence(self, index: int) -> Sequence:
        length, rules = len(self._prompt), self._rules
        logits_from = length - (1 if rules.max_new_tokens else 0)
        if index == 0 and rules.report is not None and rules.report.first_row < length - 1:
            logits_from = rules.report.first_row
        sequence = Sequence(self, self._prompt, index, logits_from=logits_from)
        sequence.max_more = rules.max_new_tokens
        sequence.count_from = 0 if index == 0 else length
        return sequence

    def _finish_sample(self, index: int) -> None:
        continuation = self._continuations[index]
        self._samples[index] = sample = continuation.finish()
        if self._request.stream:
            delta = continuation.last_delta(self._request.id, index, sample)
            if delta is not None:
                self.ticket.emit(delta)

    def _finish(self) -> None:
        report = self._rules.report
        generated = sum(continuation.num_generated for continuation in self._continuations)
        self.ticket.end(
            Finished(
                request_id=self._request.id,
                samples=tuple(self._samples[index] for index in range(len(self._continuations))),
                prompt_logprobs=()
                if report is None
                else report.prompt(self._prompt.tolist(), self._prompt_scores),
                usage=self.ticket.usage + Usage(generated_tokens=generated),
                timings=self.ticket.timings(),
            )
        )


def _rules(
    request: GenerateRequest, num_prompt: int, tokenizer: Tokenizer, limits: Limits
) -> Rules:
    """Return how the samples of `request` are drawn.

    Raises:
        InvalidRequestError: an id that the model does not have, or a start beyond the prompt.
    """
    sampling, vocab_size = request.sampling, tokenizer.vocab_size
    check_ids("stop_token_ids", sampling.stop_token_ids, vocab_size)
    check_ids("logit_bias", tuple(token for token, _ in sampling.logit_bias), vocab_size)
    room, wanted = limits.room(num_prompt), sampling.max_new_tokens
    stop_ids = frozenset(sampling.stop_token_ids)
    if not sampling.ignore_eos:
        stop_ids |= limits.eos_ids
    report = None
    if request.logprobs is not None:
        report = LogprobReport(request.logprobs, tokenizer, num_prompt)
    return Rules(
        sampling=sampling,
        tokenizer=tokenizer,
        max_new_tokens=room if wanted is None else min(wanted, room),
        stop_ids=stop_ids,
        banned=tuple(sorted(token for token in stop_ids if token < vocab_size)),
        report=report,
    )
