"""StepPlanner: which positions of which sequences run next, under one token budget per step."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass

from ..protocol import Usage
from .admission import Reserve
from .batch import Chunk
from .counters import Counters
from .kv_memory import KVMemory
from .sequence import Sequence
from .waiting_queue import WaitingQueue, has_leader

_log = logging.getLogger("ramet.engine")

MAX_LOGIT_ROWS = 128  # per step: a row has one float32 per token of the vocabulary
EVEN_CONTEXT = 2048  # positions before a token that make it count twice in an even step


@dataclass(slots=True)
class _Budget:
    """What a step may still take: tokens to compute, and logit rows of them.

    Where generations wait for the step (`is_even`), a prompt's token counts as the more the more
    positions stand before it, so that the steps of a long prompt take equally long.
    """

    tokens: int
    rows: int
    is_even: bool

    @property
    def is_spent(self) -> bool:
        return self.tokens <= 0 or self.rows <= 0

    def end(self, sequence: Sequence) -> int:
        """Return how far `sequence` can be computed; at least one position."""
        start = sequence.num_computed
        by_tokens = start + max(int(self.tokens / self._weight(start)), 1)
        by_rows = max(start, sequence.logits_from) + self.rows
        return min(sequence.num_ids, by_tokens, by_rows)

    def take(self, chunk: Chunk) -> None:
        weight = self._weight(chunk.start) if chunk.is_prefill else 1
        self.tokens -= math.ceil((chunk.end - chunk.start) * weight)
        self.rows -= max(chunk.end - max(chunk.start, chunk.sequence.logits_from), 1)

    def _weight(self, start: int) -> float:
        return 1 + start / EVEN_CONTEXT if self.is_even else 1


class StepPlanner:
    """Decodes first, then prefills that are under way, then new ones from the queue.

    `running` holds the sequences that have KV, `waiting` the others.
    """

    def __init__(
        self,
        memory: KVMemory,
        counters: Counters,
        *,
        max_running_requests: int,
        chunked_prefill_size: int,
        schedule_policy: str = "lpm",
    ) -> None:
        self.running: dict[Sequence, None] = {}
        self.waiting = WaitingQueue(memory, schedule_policy)
        self.reserve = Reserve()
        self._memory = memory
        self._counters = counters
        self._max_running = max_running_requests
        self._token_budget = chunked_prefill_size
        self._row_budget = max(MAX_LOGIT_ROWS, max_running_requests)

    def next_chunks(self) -> list[Chunk]:
        """Return what runs next. A sequence whose step raised runs alone, before all others.

        Sequences admitted with nothing left to compute are in `running` and in no chunk.
        """
        suspect = next((s for s in self.running if s.is_suspect), None)
        has_decode = any(s.num_computed >= s.prefill_end for s in self.running)
        budget = _Budget(self._token_budget, self._row_budget, is_even=has_decode)
        if suspect is not None:
            return [self._chunk(suspect, budget)]
        self._make_room()
        chunks: list[Chunk] = []
        self._continue_running(chunks, budget)
        self._admit(chunks, budget)
        self._log_prefill(chunks)
        return chunks

    def has_room_for(self, sequence: Sequence) -> bool:
        """True if `sequence`, which has its KV, may go on running."""
        return len(self.running) < self._max_running and self._fits(sequence)

    def on_admission(self, sequence: Sequence, num_matched: int) -> None:
        """Count `sequence` in the usage, the first time only."""
        sequence.num_matched = num_matched
        sequence.prefill_end = sequence.num_ids
        self._start(sequence)
        if sequence.was_admitted:
            return
        sequence.was_admitted = True
        length = sequence.num_ids - sequence.count_from
        cached = max(num_matched - sequence.count_from, 0)
        usage = Usage(
            prompt_tokens=length,
            cached_tokens=cached,
            computed_tokens=length - cached,
            recomputed_tokens=max(num_matched - max(sequence.num_computed, sequence.count_from), 0),
        )
        sequence.job.ticket.usage += usage
        self._counters.usage += usage

    def _start(self, sequence: Sequence) -> None:
        """Note that its request runs: known to the queue while it still waits there."""
        ticket = sequence.job.ticket
        if ticket.started is None:
            self.waiting.on_start(sequence)
            ticket.start()

    def _make_room(self) -> None:
        """Retract sequences until every other one has a slot for its next token.

        Those of the lowest priority go first, and of them the latest.
        """
        while True:
            needed = sum(max(s.num_ids - s.num_slots, 0) for s in self.running)
            if needed <= self._memory.num_available:
                return
            self._retract(max(self.running, key=lambda s: (-s.job.ticket.priority, *s.order[1:])))

    def _retract(self, sequence: Sequence) -> None:
        """Send `sequence` back to the queue; it resumes with the same ids."""
        del self.running[sequence]
        self._memory.release(sequence, keep=True)
        self.waiting.add(sequence)
        self.reserve.on_retraction()
        self._counters.num_retractions += 1

    def _continue_running(self, chunks: list[Chunk], budget: _Budget) -> None:
        """Add what is under way.

        Where the budget does not reach everyone, those who ran go to the end.
        """
        for sequence in sorted(self.running, key=lambda s: s.num_pending > 1):
            if budget.is_spent:
                for chunk in chunks:
                    self.running[chunk.sequence] = self.running.pop(chunk.sequence)
                break
            self._memory.reserve(sequence, sequence.num_ids)
            chunks.append(self._chunk(sequence, budget))

    def _chunk(self, sequence: Sequence, budget: _Budget) -> Chunk:
        chunk = Chunk(sequence, sequence.num_computed, budget.end(sequence))
        budget.take(chunk)
        if chunk.is_last and chunk.is_prefill and not sequence.is_suspect:
            self._join_twins(chunk)
        return chunk

    def _join_twins(self, chunk: Chunk) -> None:
        """Let waiting sequences with the same ids share the chunk's last logit row."""
        if self._memory.enable_radix_cache:
            chunk.twins = self.waiting.twins_of(chunk.sequence)
            for twin in chunk.twins:
                self.waiting.remove(twin)

    def _admit(self, chunks: list[Chunk], budget: _Budget) -> None:
        if budget.is_spent or not self.waiting or len(self.running) >= self._max_running:
            return
        leaders = [s for s in self.running if s.num_pending > 1]
        joined: set[Sequence] = {twin for chunk in chunks for twin in chunk.twins}
        for sequence in self.waiting.next_first():
            if budget.is_spent or len(self.running) >= self._max_running:
                return
            if sequence in joined or has_leader(sequence, leaders, self._memory):
                continue
            if not self._take_in(sequence):
                return
            if not sequence.num_pending:
                continue
            chunk = self._chunk(sequence, budget)
            chunks.append(chunk)
            joined.update(chunk.twins)
            if sequence.num_pending > 1:
                leaders.append(sequence)

    def _take_in(self, sequence: Sequence) -> bool:
        """Give `sequence` its cached prefix and slots for the rest; False if there are too few."""
        num_matched = self._memory.attach(sequence, sequence.logits_from)
        if not self._fits(sequence):
            self._memory.release(sequence, keep=False)
            return False
        self._memory.reserve(sequence, sequence.num_ids)
        self._start(sequence)
        self.waiting.remove(sequence)
        self.running[sequence] = None
        self.on_admission(sequence, num_matched)
        return True

    def _fits(self, sequence: Sequence) -> bool:
        """True if the pool has room for its ids and for what may be generated.

        A lone sequence always fits: it was refused at the door if it never could.
        """
        missing = sequence.num_ids - sequence.num_slots
        if self.running:
            missing += self.reserve.tokens((sequence, *self.running))
        return missing <= self._memory.num_available

    def _log_prefill(self, chunks: list[Chunk]) -> None:
        if not _log.isEnabledFor(logging.DEBUG):
            return
        prefill = [chunk for chunk in chunks if chunk.is_prefill]
        if prefill:
            _log.debug(
                "prefill: %d sequences with %d new tokens and %d cached; %d decode, %d wait",
                len(prefill),
                sum(c.end - c.start for c in prefill),
                sum(c.start for c in prefill if c.start <= c.sequence.num_matched),
                len(chunks) - len(prefill),
                len(self.waiting),
            )
