"""Scoring: a `ScoreRequest` as a job, first the shared trunk, then every option after it.

With `unconditional` the options' own ids also run with no prompt before them, beside the trunk.
"""

from __future__ import annotations

from collections.abc import Sequence as Items

import numpy as np

from ..prompts.prompt import EncodedPrompt
from ..prompts.tokenizer import Tokenizer
from ..protocol import InvalidRequestError, OptionScore, Scored, ScoreRequest, TokenIds
from ..step import Gather, Int32Array, RowLogprobs
from .job import Drawn, Ticket
from .limits import Limits
from .sequence import Sequence

_TRUNK = (
    -1
)  # index of the trunk's sequence; options count from 0, those with no prompt from −2 down


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
        self._bos_id = tokenizer.bos_id
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
        self._unconditional: list[dict[int, float]] = [{} for _ in self._ids]
        self.sequences = [trunk]
        if request.unconditional:
            self.sequences += self._without_prompt()

    def check(self, limits: Limits) -> None:
        """Refuse options that do not fit the context or the pool."""
        limits.check(
            max(len(ids) for ids in self._ids) - 1, "the prompt and its longest option have"
        )

    def ask(self, sequence: Sequence, position: int, row: int) -> Gather | None:
        """Gather the ids that follow `position` in the options."""
        if position < sequence.logits_from:
            return None
        index = sequence.index
        if index == _TRUNK:
            return Gather(row, self._first_own)
        if index < _TRUNK:
            place = self._place(position)
            return Gather(row, (self._own(_option_of(index))[place],))
        return Gather(row, (self._ids[index][position + 1],))

    def answer(self, sequence: Sequence, position: int, drawn: list[Drawn]) -> int:
        """Scoring draws nothing."""
        raise TypeError("a scoring was given tokens that it had not asked for")

    def answer_scores(self, sequence: Sequence, position: int, scores: RowLogprobs) -> None:
        """Keep the log-probabilities of the ids that follow `position`."""
        index = sequence.index
        if index < _TRUNK:
            self._unconditional[_option_of(index)][self._place(position)] = scores.logprobs[0]
            return
        if index != _TRUNK:
            self._logprobs[index][position + 1] = scores.logprobs[0]
            return
        first = dict(zip(self._first_own, scores.logprobs, strict=True))
        for ids, kept in zip(self._ids, self._logprobs, strict=True):
            if len(ids) > self._num_trunk:
                kept[self._num_trunk] = first[ids[self._num_trunk]]

    def complete(self, sequence: Sequence) -> list[Sequence]:
        """After the trunk the options run; after the last option the answer goes out."""
        self.sequences.remove(sequence)
        following: list[Sequence] = []
        if sequence.index == _TRUNK:
            following = [
                self._option(index, ids)
                for index, ids in enumerate(self._ids)
                if len(ids) > self._num_trunk + 1
            ]
            self.sequences += following
        if not self.sequences:
            self._finish()
        return following

    def _option(self, index: int, ids: list[int]) -> Sequence:
        sequence = Sequence(self, _array(ids[:-1]), index, logits_from=self._num_trunk)
        sequence.count_from = self._num_trunk
        return sequence

    def _without_prompt(self) -> list[Sequence]:
        """Return a sequence for each option whose own ids have anything before the last.

        With no start token nothing precedes the first one, and it counts 0.
        """
        sequences = []
        start = [] if self._bos_id is None else [self._bos_id]
        for option, scores in enumerate(self._unconditional):
            own = self._own(option)
            if own and not start:
                scores[0] = 0.0
            before = [*start, *own[:-1]]
            if own and before:
                index = _TRUNK - 1 - option
                sequences.append(Sequence(self, _array(before), index, logits_from=0))
        return sequences

    def _own(self, option: int) -> list[int]:
        return self._ids[option][self._num_trunk :]

    def _place(self, position: int) -> int:
        """Return which of an option's own ids the row of `position`, with no prompt, scores."""
        return position + (1 if self._bos_id is None else 0)

    def _with_own(self) -> list[list[int]]:
        return [ids for ids in self._ids if len(ids) > self._num_trunk]

    def _finish(self) -> None:
        scores = []
        for option, logprobs in enumerate(self._logprobs):
            own = self._own(option)
            alone = self._unconditional[option]
            score = OptionScore(
                ids=TokenIds.of(own),
                logprobs=tuple(logprobs[self._num_trunk + i] for i in range(len(own))),
                text=self._tokenizer.decode(own),
                unconditional=tuple(alone[i] for i in range(len(own)))
                if self._request.unconditional
                else None,
            )
            scores.append(score)
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


def _option_of(index: int) -> int:
    """Return the option of a sequence that runs with no prompt."""
    return _TRUNK - 1 - index


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
