"""Scheduler: `batch = schedule()`, the runner runs `batch.plan`, then `commit(batch, result)`.

It decides what becomes of the answers of a step, and of requests that fail. It never sees a
tensor or a thread; all of it happens on the engine's thread.
"""

from __future__ import annotations

import logging
from collections.abc import Collection

from ..protocol import ErrorCode
from ..step import StepResult
from .batch import Answer, Batch, Chunk
from .counters import Counters
from .job import Drawn, Job
from .kv_memory import KVMemory
from .sequence import Sequence
from .step_planner import StepPlanner

_log = logging.getLogger("ramet.engine")


class Scheduler:
    """Runs jobs step by step over a shared KV memory."""

    def __init__(
        self,
        memory: KVMemory,
        *,
        max_running_requests: int,
        chunked_prefill_size: int,
        schedule_policy: str = "lpm",
    ) -> None:
        self.memory = memory
        self.counters = Counters()
        self._planner = StepPlanner(
            memory,
            self.counters,
            max_running_requests=max_running_requests,
            chunked_prefill_size=chunked_prefill_size,
            schedule_policy=schedule_policy,
        )
        self._running = self._planner.running
        self._waiting = self._planner.waiting
        self._jobs: dict[str, Job] = {}

    @property
    def jobs(self) -> dict[str, Job]:
        """Jobs that have not ended, by request id. Not to be changed."""
        return self._jobs

    @property
    def running(self) -> Collection[Sequence]:
        """Sequences that hold KV."""
        return self._running.keys()

    @property
    def num_running(self) -> int:
        """Sequences that hold KV."""
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        """Sequences in the queue."""
        return len(self._waiting)

    @property
    def num_queued(self) -> int:
        """Requests in the queue."""
        return self._waiting.num_requests

    def submit(self, job: Job) -> None:
        """Queue a job's sequences."""
        self._jobs[job.ticket.request_id] = job
        for sequence in job.sequences:
            self._waiting.add(sequence)

    def end(self, job: Job, code: ErrorCode, message: str) -> None:
        """End `job` with an error and free everything it holds, at once.

        What it computed since it was last put into the tree is not kept.
        """
        for sequence in job.sequences:
            if not self._waiting.remove(sequence):
                self._running.pop(sequence, None)
                self.memory.release(sequence, keep=False)
        job.sequences = []
        self._forget(job)
        job.ticket.fail(code, message)

    def schedule(self) -> Batch | None:
        """Choose what runs next; None if there is nothing to run."""
        while True:
            chunks = self._planner.next_chunks()
            idle = [s for s in self._running if not s.num_pending]
            for sequence in idle:  # all of it was cached, and no logits are wanted
                self._complete(sequence)
            if chunks:
                return Batch(chunks)
            if not idle:
                return None

    def commit(self, batch: Batch, result: StepResult) -> None:
        """Take the answers of a step.

        Raises:
            ValueError: the result does not fit the batch; nothing has changed then.
        """
        answers = batch.answers(result)
        self.counters.num_steps += 1
        self._planner.reserve.on_step()
        for chunk, of_chunk in answers:
            self._commit_chunk(chunk, of_chunk)
        self.memory.evict_ahead()

    def recover(self, batch: Batch, error: Exception) -> None:
        """The step raised: its sequences run alone, once; who fails alone ends with the error."""
        self.counters.num_failed_steps += 1
        for chunk in batch.chunks:
            self._put_back(chunk.twins)
        for chunk in batch.chunks:
            sequence = chunk.sequence
            if sequence.is_suspect:
                message = f"the forward pass failed, alone as well: {type(error).__name__}: {error}"
                self.end(sequence.job, ErrorCode.INTERNAL, message)
            else:
                sequence.is_suspect = sequence in self._running

    def _commit_chunk(self, chunk: Chunk, answers: list[Answer]) -> None:
        sequence = chunk.sequence
        if sequence not in self._running:  # its job ended since the step began
            self._put_back(chunk.twins)
            return
        sequence.is_suspect = False
        sequence.num_computed = chunk.end
        own = [answer for answer in answers if answer.sequence is sequence]
        if not all(answer.is_finite for answer in own):
            self._fail_non_finite(sequence)
        else:
            if chunk.is_prefill:
                self.memory.publish(sequence)
                self._waiting.on_publish(sequence)
            for answer in own:
                self._give(answer)
        for answer in answers[len(own) :]:
            self._commit_twin(answer)
        if sequence in self._running and not sequence.num_pending:
            self._complete(sequence)

    def _commit_twin(self, answer: Answer) -> None:
        """The twin takes its answer and holds the leader's KV through the tree."""
        twin = answer.sequence
        if twin.job.ticket.has_ended:
            return
        if not answer.is_finite:
            self._fail_non_finite(twin)
            return
        self.memory.attach(twin, twin.num_ids)
        self._planner.on_admission(twin, twin.num_ids)
        can_run = self._planner.has_room_for(twin)
        self._running[twin] = None
        self._give(answer)
        if twin not in self._running:
            return  # the answer could not be taken
        if not twin.num_pending:
            self._complete(twin)
        elif not can_run:
            del self._running[twin]
            self.memory.release(twin, keep=False)
            self._waiting.add(twin)

    def _put_back(self, twins: list[Sequence]) -> None:
        for twin in twins:
            if not twin.job.ticket.has_ended:
                self._waiting.add(twin)

    def _give(self, answer: Answer) -> None:
        job = answer.sequence.job
        if job.ticket.has_ended:
            return  # by an answer before, in the same step
        try:
            if answer.token is not None:
                drawn = [Drawn(answer.token, answer.row)]
                taken = job.answer(answer.sequence, answer.position, drawn)
                self.counters.num_generated += taken
            elif answer.row is not None:
                job.answer_scores(answer.sequence, answer.position, answer.row)
            else:
                return  # the row only showed that what was computed is finite
        except Exception as error:  # noqa: BLE001 - whatever it is, it is this request's alone
            self._fail_internal(job, error)
            return
        job.ticket.has_answer()

    def _complete(self, sequence: Sequence) -> None:
        """Everything of `sequence` is computed: its KV goes to the tree, its job goes on."""
        job = sequence.job
        del self._running[sequence]
        self.memory.release(sequence, keep=True)
        try:
            for following in job.complete(sequence):
                self._waiting.add(following)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is this request's alone
            self._fail_internal(job, error)
        if not job.sequences:
            self._forget(job)

    def _forget(self, job: Job) -> None:
        if self._jobs.get(job.ticket.request_id) is job:
            del self._jobs[job.ticket.request_id]

    def _fail_internal(self, job: Job, error: Exception) -> None:
        _log.exception("the answer to request %s could not be taken", job.ticket.request_id)
        message = f"the answer could not be taken: {type(error).__name__}: {error}"
        self.end(job, ErrorCode.INTERNAL, message)

    def _fail_non_finite(self, sequence: Sequence) -> None:
        self.end(
            sequence.job,
            ErrorCode.NON_FINITE,
            f"the model gave NaN or infinite logits after {sequence.num_ids} tokens of request "
            f"{sequence.job.ticket.request_id}: check the weights and their dtype",
        )
