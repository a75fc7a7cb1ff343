"""Batch: the sequences of one step, as the plan that the runner takes and the answers it gives."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from ..step import Draw, Gather, Int32Array, RowLogprobs, StepPlan, StepResult
from .sequence import Sequence

_PROBE = (0,)  # any id: its log-probability is NaN where the KV before it is not finite


@dataclass(slots=True)
class Chunk:
    """Positions `start` to `end` of `sequence`.

    `twins` have the same ids and share the last logit row; they compute nothing.
    """

    sequence: Sequence
    start: int
    end: int
    twins: list[Sequence] = field(default_factory=list)

    @property
    def is_prefill(self) -> bool:
        """False for the one new token of a decode."""
        return self.start < self.sequence.prefill_end

    @property
    def is_last(self) -> bool:
        """True where the chunk reaches the end of the known ids."""
        return self.end == self.sequence.num_ids


@dataclass(frozen=True, slots=True)
class Answer:
    """What one sequence gets from the row of `position`: a token, scores, or only finiteness.

    `row` has the scores, or what was to be reported with the token.
    """

    sequence: Sequence
    position: int
    token: int | None = None
    row: RowLogprobs | None = None
    is_finite: bool = True


@dataclass(frozen=True, slots=True)
class _Question:
    chunk: int
    sequence: Sequence
    position: int
    is_draw: bool
    is_probe: bool
    index: int  # in the plan's draws or gathers


class Batch:
    """A step's chunks with their plan; every chunk has a logit row at least at its end.

    Where a chunk's end has nothing to answer, one entry of its row is looked at all the same:
    KV goes into the tree only once it is known to be finite.
    """

    def __init__(self, chunks: list[Chunk]) -> None:
        self.chunks = chunks
        self._draws: list[Draw] = []
        self._gathers: list[Gather] = []
        self._rows: list[int] = []
        self._questions: list[_Question] = []
        offset = 0
        for index, chunk in enumerate(chunks):
            self._ask(index, chunk, offset)
            offset += chunk.end - chunk.start
        self.plan = self._plan()

    def answers(self, result: StepResult) -> Iterator[tuple[Chunk, list[Answer]]]:
        """Return each chunk with its answers: its own sequence's first, then the twins'.

        Raises:
            ValueError: the result does not have one answer per question.
        """
        found = (len(result.tokens), len(result.reported), len(result.gathered))
        if found != (len(self._draws), len(self._draws), len(self._gathers)):
            raise ValueError(
                "the runner gave {} tokens, {} reports and {} gathers ".format(*found)
                + f"for {len(self._draws)} draws and {len(self._gathers)} gathers"
            )
        by_chunk: list[list[Answer]] = [[] for _ in self.chunks]
        for question in self._questions:
            by_chunk[question.chunk].append(_answer(question, result))
        return zip(self.chunks, by_chunk, strict=True)

    def _ask(self, index: int, chunk: Chunk, offset: int) -> None:
        sequence, last = chunk.sequence, chunk.end - 1
        first = min(max(chunk.start, sequence.logits_from), last)
        for position in range(first, chunk.end):
            self._rows.append(offset + position - chunk.start)
            self._put(index, sequence, position)
        for twin in chunk.twins:
            self._put(index, twin, last)

    def _put(self, chunk: int, sequence: Sequence, position: int) -> None:
        row = len(self._rows) - 1
        asked = sequence.job.ask(sequence, position, row)
        is_draw = isinstance(asked, Draw)
        if isinstance(asked, Draw):
            self._draws.append(asked)
        else:
            self._gathers.append(Gather(row, _PROBE) if asked is None else asked)
        answers = self._draws if is_draw else self._gathers
        question = _Question(chunk, sequence, position, is_draw, asked is None, len(answers) - 1)
        self._questions.append(question)

    def _plan(self) -> StepPlan:
        chunks = self.chunks
        lengths = [c.end - c.start for c in chunks]
        return StepPlan(
            input_ids=_join([c.sequence.ids[c.start : c.end] for c in chunks]),
            positions=_join([np.arange(c.start, c.end, dtype=np.int32) for c in chunks]),
            slot_mapping=_join([c.sequence.slots[c.start : c.end] for c in chunks]),
            q_indptr=_offsets(lengths),
            kv_indptr=_offsets([c.end for c in chunks]),
            kv_slots=_join([c.sequence.slots[: c.end] for c in chunks]),
            logit_rows=np.array(self._rows, dtype=np.int32),
            draws=tuple(self._draws),
            gathers=tuple(self._gathers),
        )


def _answer(question: _Question, result: StepResult) -> Answer:
    if question.is_draw:
        token = result.tokens[question.index]
        row = result.reported[question.index]
        return Answer(question.sequence, question.position, token, row, is_finite=token >= 0)
    scores = result.gathered[question.index]
    is_finite = not any(math.isnan(value) for value in scores.logprobs)
    kept = None if question.is_probe else scores
    return Answer(question.sequence, question.position, row=kept, is_finite=is_finite)


def _join(parts: list[Int32Array]) -> Int32Array:
    return np.concatenate(parts)


def _offsets(lengths: list[int]) -> Int32Array:
    offsets = np.zeros(len(lengths) + 1, dtype=np.int32)
    np.cumsum(lengths, out=offsets[1:])
    return offsets
