"""Continuation: one sample of a generation, its tokens as they come until something ends it."""

from __future__ import annotations

from dataclasses import dataclass

from ..prompts.text import TextStream
from ..prompts.tokenizer import Tokenizer
from ..protocol import Delta, FinishReason, Sample, SamplingParams, TokenIds, TokenLogprob
from ..step import Draw
from .job import Drawn
from .logprob_report import LogprobReport
from .sequence import Sequence


@dataclass(frozen=True, slots=True)
class Rules:
    """What all samples of a generation share: how to draw, when to stop, what to report.

    `banned` ids are not drawn before `sampling.min_new_tokens`.
    """

    sampling: SamplingParams
    tokenizer: Tokenizer
    max_new_tokens: int
    stop_ids: frozenset[int]
    banned: tuple[int, ...]
    report: LogprobReport | None


class Continuation:
    """The tokens of one sample. `num_generated` counts a stop token and what was cut off, too."""

    def __init__(self, rules: Rules, seed: int) -> None:
        self.num_generated = 0
        self._rules = rules
        self._seed = seed
        self._text = TextStream(rules.tokenizer, rules.sampling)
        self._outputs: list[int] = []
        self._logprobs: list[TokenLogprob] = []
        self._reason: FinishReason | None = None
        self._unsent: list[int] = []
        self._num_sent = 0  # characters of the text

    @property
    def has_ended(self) -> bool:
        """True once nothing more is to be drawn."""
        return self._reason is not None

    def draw(self, sequence: Sequence, row: int) -> Draw:
        """Return what is to be drawn next, from logit row `row`."""
        rules, count = self._rules, len(self._outputs)
        return Draw(
            row,
            self._seed,
            count,
            rules.sampling,
            rules.banned if count < rules.sampling.min_new_tokens else (),
            sequence.ids if rules.sampling.has_penalties else None,
            None if rules.report is None else rules.report.of_drawn(row),
        )

    def take(self, sequence: Sequence, drawn: list[Drawn]) -> int:
        """Take drawn tokens up to the first that ends the sample; return how many."""
        num_taken = 0
        for one in drawn:
            num_taken += 1
            self._take(sequence, one)
            if self._reason is not None:
                break
        self.num_generated += num_taken
        return num_taken

    def delta(self, request_id: str, index: int) -> Delta | None:
        """Return the text that became certain, None if there is none; the tokens come with it."""
        return self._delta(request_id, index, self._text.take())

    def last_delta(self, request_id: str, index: int, sample: Sample) -> Delta | None:
        """Return what is left to be sent of a finished sample."""
        return self._delta(request_id, index, sample.text[self._num_sent :], is_last=True)

    def finish(self) -> Sample:
        """End the sample and return it."""
        result = self._text.finish()
        reason = self._reason or FinishReason(kind="length")
        if result.matched is not None:
            reason = FinishReason(kind="stop", matched=result.matched)
        return Sample(
            reason=reason,
            ids=TokenIds.of(self._outputs[: result.num_kept]),
            text=result.text,
            tail=result.tail,
            logprobs=tuple(self._logprobs),
        )

    def _take(self, sequence: Sequence, drawn: Drawn) -> None:
        token, rules = drawn.token, self._rules
        self._unsent.append(token)
        if rules.report is not None:
            self._logprobs.append(rules.report.token(token, drawn.logprobs))
        if token in rules.stop_ids:
            self._reason = FinishReason(kind="stop", matched=token)
            return
        self._outputs.append(token)
        sequence.max_more -= 1
        if self._text.push(token):
            self._reason = FinishReason(kind="stop")  # `finish` says what matched
        elif len(self._outputs) >= rules.max_new_tokens:
            self._reason = FinishReason(kind="length")
        else:
            sequence.append_id(token)

    def _delta(
        self, request_id: str, index: int, text: str, *, is_last: bool = False
    ) -> Delta | None:
        if not text and not (is_last and self._unsent):
            return None
        ids, self._unsent = self._unsent, []
        self._num_sent += len(text)
        logprobs = tuple(self._logprobs[len(self._logprobs) - len(ids) :])
        return Delta(
            request_id=request_id,
            text=text,
            index=index,
            ids=TokenIds.of(ids),
            logprobs=logprobs if self._rules.report is not None else (),
        )
