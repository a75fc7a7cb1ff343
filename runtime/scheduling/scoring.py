"""Scoring: a `ScoreRequest` as a job, first the shared trunk, then every option after it."""

from __future__ import annotations

from collections.abc import Sequence as Items

import numpy as np

from ..prompts.prompt import EncodedPrompt
from ..prompts.tokenizer import Tokenizer
from ..protocol import InvalidRequestError, OptionScore, Scored, ScoreRequest, TokenIds
from ..step import Gather, Int32Array
from .generation import Limits
from .job import Ticket
from .sequence import Sequence

_TRUNK = -1  # index of the trunk's sequence; options count from 0


class Scoring:
    """Log-probabilities of each option's own tokens, the ids after the shared trunk.

    The trunk's last logit row scores the first own token of every option at once. An option
    with m own tokens then runs m − 1 positions: its last token is scored, never computed.
    """

    def __init__(
        self,
        request: ScoreRequest,
        ticket: Ticket,
        prompt: EncodedPrompt,
        options: Items[TokenIds],
        tokenizer: Tokenizer,
    ) -> None:
        self.ticket = ticket
        self._request = request
        self._prefix_tokens = prompt.prefix_tokens
        self._tokenizer = tokenizer
        self._ids = [list(option) for option in options]
        self._num_trunk = _trunk_length(list(prompt.ids), self._ids)
        if not self._num_trunk:
            raise InvalidRequestError(
                "the options share no first token, so nothing precedes their first difference: "
                "put a prompt before them"
            )
        self._first_own = tuple(dict.fromkeys(ids[self._num_trunk] for ids in self._with_own()))
        self._logprobs: list[dict[int, float]] = [{} for _ in self._ids]
        trunk = Sequence(
            self,
            _array(self._ids[0][: self._num_trunk]),
            _TRUNK,
            logits_from=self._num_trunk - (1 if self._first_own else 0),
        )
        self.sequences = [trunk]

    def check(self, limits: Limits) -> None:
        """Refuse options that do not fit the context or the pool."""
        limits.check(
            max(len(ids) for ids in self._ids) - 1, "the prompt and its longest option have"
        )

    def ask(self, sequence: Sequence, position: int, row: int) -> Gather | None:
        """Gather the ids that follow `position` in the options."""
        if position < sequence.logits_from:
            return None
        index = sequence.order[2]
        if index == _TRUNK:
            return Gather(row, self._first_own)
        return Gather(row, (self._ids[index][position + 1],))

    def answer(self, sequence: Sequence, position: int, tokens: list[int]) -> int:
        """Scoring draws nothing."""
        raise TypeError("a scoring was given tokens that it had not asked for")

    def answer_scores(self, sequence: Sequence, position: int, logprobs: list[float]) -> None:
        """Keep the log-probabilities of the ids that follow `position`."""
        index = sequence.order[2]
        if index != _TRUNK:
            self._logprobs[index][position + 1] = logprobs[0]
            return
        first = dict(zip(self._first_own, logprobs, strict=True))
        for ids, kept in zip(self._ids, self._logprobs, strict=True):
            if len(ids) > self._num_trunk:
                kept[self._num_trunk] = first[ids[self._num_trunk]]

    def complete(self, sequence: Sequence) -> list[Sequence]:
        """After the trunk the options run; after the last option the answer goes out."""
        self.sequences.remove(sequence)
        if sequence.order[2] == _TRUNK:
            self.sequences = [
                self._option(index, ids)
                for index, ids in enumerate(self._ids)
                if len(ids) > self._num_trunk + 1
            ]
            if self.sequences:
                return list(self.sequences)
        if not self.sequences:
            self._finish()
        return []

    def _option(self, index: int, ids: list[int]) -> Sequence:
        sequence = Sequence(self, _array(ids[:-1]), index, logits_from=self._num_trunk)
        sequence.count_from = self._num_trunk
        return sequence

    def _with_own(self) -> list[list[int]]:
        return [ids for ids in self._ids if len(ids) > self._num_trunk]

    def _finish(self) -> None:
        scores = []
        for ids, logprobs in zip(self._ids, self._logprobs, strict=True):
            own = ids[self._num_trunk :]
            values = tuple(logprobs[self._num_trunk + i] for i in range(len(own)))
            text = self._tokenizer.decode(own)
            scores.append(OptionScore(ids=TokenIds.of(own), logprobs=values, text=text))
        self.ticket.end(
            Scored(
                request_id=self._request.id,
                prefix_tokens=self._prefix_tokens,
                trunk=TokenIds.of(self._ids[0][self._prefix_tokens : self._num_trunk]),
                options=tuple(scores),
                usage=self.ticket.usage,
                timings=self.ticket.timings(),
            )
        )


def _trunk_length(prompt: list[int], options: list[list[int]]) -> int:
    """Return how many leading ids all options share.

    Where one option is the beginning of all others, the trunk ends one token earlier, so that
    this option too is scored on a token of its own; unless it is the bare prompt.
    """
    shared = _common_length(options)
    shortest = min(len(ids) for ids in options)
    if shared < shortest:
        return shared
    return max(shortest - 1, _common_length([prompt, *options]))


def _common_length(lists: list[list[int]]) -> int:
    """Return how many leading ids are the same in all; of a sorted list the ends tell."""
    first, last = min(lists), max(lists)
    for index, (a, b) in enumerate(zip(first, last, strict=False)):
        if a != b:
            return index
    return len(first)


def _array(ids: list[int]) -> Int32Array:
    return np.array(ids, dtype=np.int32)
