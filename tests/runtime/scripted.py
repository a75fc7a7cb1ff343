"""A runner without a model, and an encoder without a tokenizer, for tests of the engine.

The runner keeps which (token, position) each slot holds. In every step it checks that the slots
of each sequence hold its very ids at the right positions: that is the engine's bookkeeping.
"""

from __future__ import annotations

import math
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from threading import Condition
from typing import cast

import numpy as np

from ramet.runtime.prompts.prompt import EncodedPrompt, PromptEncoder
from ramet.runtime.prompts.tokenizer import Tokenizer
from ramet.runtime.protocol import (
    Event,
    Failed,
    Finished,
    GenerateRequest,
    InvalidRequestError,
    Request,
    Scored,
    ScoreRequest,
    Segment,
    Text,
    TokenIds,
    sample_seed,
)
from ramet.runtime.scheduling.batch import Batch
from ramet.runtime.scheduling.generation import Generation
from ramet.runtime.scheduling.job import Ticket
from ramet.runtime.scheduling.kv_memory import KVMemory
from ramet.runtime.scheduling.limits import Limits
from ramet.runtime.scheduling.scheduler import Scheduler
from ramet.runtime.scheduling.scoring import Scoring
from ramet.runtime.step import RowLogprobs, StepPlan, StepResult

VOCAB_SIZE = 128
EOS = 127


class ScriptedTokenizer:
    """One id per ASCII character."""

    vocab_size = VOCAB_SIZE
    eos_ids = frozenset({EOS})
    bos_id: int | None = None

    def token_bytes(self, token: int) -> bytes:
        return bytes([token])

    def is_special(self, token: int) -> bool:
        return token == EOS

    def decode(self, ids: Sequence[int]) -> str:
        return bytes(ids).decode()


class TokenizerWithStart(ScriptedTokenizer):
    """Prompts begin with id 1."""

    bos_id = 1


class ScriptedEncoder:
    tokenizer = ScriptedTokenizer()
    stop_ids = frozenset({EOS})

    def encode(self, prompt: Sequence[Segment]) -> EncodedPrompt:
        prefix = prompt[0] if prompt and isinstance(prompt[0], TokenIds) else TokenIds()
        ids = TokenIds()
        for segment in prompt:
            if isinstance(segment, TokenIds):
                ids = ids + segment
            elif isinstance(segment, Text):
                ids = ids + TokenIds.of(list(segment.text.encode("ascii")))
            else:
                raise InvalidRequestError("roles are not scripted")
        if not len(ids):
            raise InvalidRequestError("the prompt is empty")
        return EncodedPrompt(len(prefix), ids, ())

    def encode_options(self, prompt: Sequence[Segment], options: Sequence[str]) -> list[TokenIds]:
        return [self.encode((*prompt, Text(option))).ids for option in options]

    def render(self, segments: Sequence[Segment]) -> str:
        return "".join(s.text for s in segments if isinstance(s, Text))


TOKENIZER = cast(Tokenizer, ScriptedTokenizer())
ENCODER = cast(PromptEncoder, ScriptedEncoder())


def next_token(ids: Sequence[int], seed: int, position: int, banned: Sequence[int] = ()) -> int:
    """What the scripted model draws: a pure function, EOS about once in 20 tokens."""
    key = f"{list(ids)} {seed} {position}".encode()
    for attempt in range(100):
        value = zlib.crc32(key + bytes([attempt]))
        token = EOS if value % 20 == 0 else 97 + value // 20 % 26
        if token not in banned:
            return token
    raise AssertionError("everything is banned")


def logprob(ids: Sequence[int], token: int) -> float:
    return -(zlib.crc32(f"{list(ids)} {token}".encode()) % 1000) / 100


def row_logprobs(ids: Sequence[int], tokens: Sequence[int], top: int) -> RowLogprobs:
    """What the scripted model reports of the row after `ids`."""
    every = sorted((-logprob(ids, token), token) for token in range(VOCAB_SIZE)) if top else []
    return RowLogprobs(
        [logprob(ids, token) for token in tokens],
        [(token, -value) for value, token in every[:top]],
    )


@dataclass
class ScriptedRunner:
    """`fail(plan)` may raise; `poison` ids make every row after them non-finite."""

    num_slots: int = 1000
    token_budget: int = 10**9
    fail: Callable[[StepPlan], None] = lambda plan: None
    poison: frozenset[int] = frozenset()
    num_plans: int = 0
    max_draws_per_row: int = 0
    max_rows: int = 0
    slots: dict[int, tuple[int, int]] = field(default_factory=dict)
    computed: Counter[tuple[int, ...]] = field(default_factory=Counter)  # prefix -> how often

    def launch(self, plan: StepPlan) -> object:
        self.num_plans += 1
        self.max_rows = max(self.max_rows, len(plan.logit_rows))
        assert len(plan.input_ids) <= self.token_budget
        assert len(set(plan.slot_mapping.tolist())) == len(plan.slot_mapping), "written twice"
        assert plan.slot_mapping.min() >= 1
        assert plan.slot_mapping.max() <= self.num_slots
        rows: dict[int, list[int]] = {}
        for token, position, slot in zip(
            plan.input_ids.tolist(),
            plan.positions.tolist(),
            plan.slot_mapping.tolist(),
            strict=True,
        ):
            self.slots[slot] = (token, position)
        self.fail(plan)
        for s in range(len(plan.q_indptr) - 1):
            start, end = int(plan.q_indptr[s]), int(plan.q_indptr[s + 1])
            kv = plan.kv_slots[plan.kv_indptr[s] : plan.kv_indptr[s + 1]].tolist()
            held = [self.slots[slot] for slot in kv]
            assert [position for _, position in held] == list(range(len(kv))), "wrong positions"
            assert len(set(kv)) == len(kv)
            ids = [token for token, _ in held]
            count = end - start
            assert ids[len(ids) - count :] == plan.input_ids[start:end].tolist()
            assert kv[len(kv) - count :] == plan.slot_mapping[start:end].tolist()
            for index in range(count):
                rows[start + index] = ids[: len(ids) - count + index + 1]
                self.computed[tuple(rows[start + index])] += 1
        return plan, [rows[int(row)] for row in plan.logit_rows]

    def collect(self, pending: object) -> StepResult:
        plan, rows = cast(tuple[StepPlan, list[list[int]]], pending)
        bad = [not self.poison.isdisjoint(row) for row in rows]
        draws = Counter(draw.row for draw in plan.draws)
        self.max_draws_per_row = max([self.max_draws_per_row, *draws.values()])
        tokens = [
            -1 if bad[d.row] else next_token(rows[d.row], d.seed, d.position, d.banned)
            for d in plan.draws
        ]
        gathered = [
            RowLogprobs([math.nan] * len(g.ids))
            if bad[g.row]
            else row_logprobs(rows[g.row], g.ids, g.top)
            for g in plan.gathers
        ]
        reported = [
            None
            if d.report is None
            else row_logprobs(rows[d.row], (token, *d.report.ids), d.report.top)
            for d, token in zip(plan.draws, tokens, strict=True)
        ]
        for draw in plan.draws:
            if draw.sampling.has_penalties:
                assert draw.history is not None
                assert draw.history.tolist() == rows[draw.row], "a wrong history"
            else:
                assert draw.history is None
        return StepResult(tokens, gathered, reported)


def reference(ids: Sequence[int], request: GenerateRequest, sample: int = 0) -> list[int]:
    """The tokens of a generation, computed straight from the definition (no stop strings)."""
    seed = sample_seed(request.seed, sample)
    sampling = request.sampling
    assert sampling.max_new_tokens is not None
    outputs: list[int] = []
    stops = {*sampling.stop_token_ids, *(() if sampling.ignore_eos else (EOS,))}
    while len(outputs) < sampling.max_new_tokens:
        banned = tuple(stops) if len(outputs) < sampling.min_new_tokens else ()
        token = next_token([*ids, *outputs], seed, len(outputs), banned)
        if token in stops:
            break
        outputs.append(token)
    return outputs


class Receiver:
    """Collects events; `wait` blocks until every request that was named has ended."""

    def __init__(self) -> None:
        self.events: dict[str, list[Event]] = {}
        self._changed = Condition()

    def __call__(self, event: Event) -> None:
        with self._changed:
            self.events.setdefault(event.request_id, []).append(event)
            self._changed.notify_all()

    def ended(self, request_id: str) -> bool:
        events = self.events.get(request_id, [])
        return bool(events) and isinstance(events[-1], (Finished, Scored, Failed))

    def wait(self, *request_ids: str, timeout: float = 20.0) -> None:
        with self._changed:
            done = self._changed.wait_for(
                lambda: all(self.ended(i) for i in request_ids), timeout=timeout
            )
        assert done, f"no end of {[i for i in request_ids if not self.ended(i)]}"

    def finished(self, request_id: str) -> Finished:
        event = self.events[request_id][-1]
        assert isinstance(event, Finished), event
        return event

    def scored(self, request_id: str) -> Scored:
        event = self.events[request_id][-1]
        assert isinstance(event, Scored), event
        return event

    def failed(self, request_id: str) -> Failed:
        event = self.events[request_id][-1]
        assert isinstance(event, Failed), event
        return event


@dataclass
class Harness:
    """A scheduler over a scripted runner, driven step by step on the test's own thread."""

    num_slots: int = 1000
    budget: int = 64
    max_running: int = 8
    cache: bool = True
    context: int = 10**6
    watermark: float = 0.0
    evict_policy: str = "lru"
    schedule_policy: str = "lpm"
    tokenizer: Tokenizer = field(default_factory=lambda: TOKENIZER)

    def __post_init__(self) -> None:
        self.runner = ScriptedRunner(self.num_slots, token_budget=self.budget)
        self.memory = KVMemory(
            self.num_slots,
            enable_radix_cache=self.cache,
            evict_policy=self.evict_policy,
            eviction_watermark=self.watermark,
        )
        self.scheduler = Scheduler(
            self.memory,
            max_running_requests=self.max_running,
            chunked_prefill_size=self.budget,
            schedule_policy=self.schedule_policy,
        )
        self.receiver = Receiver()
        self.num_arrived = 0

    def submit(self, request: Request) -> None:
        self.num_arrived += 1
        ticket = Ticket.of(request, self.receiver, self.num_arrived)
        encoded = ENCODER.encode(request.prompt)
        limits = Limits(self.context, self.num_slots, frozenset({EOS}))
        if isinstance(request, GenerateRequest):
            job = Generation(request, ticket, encoded.ids, self.tokenizer, limits)
            self.scheduler.submit(job)
        else:
            options = ENCODER.encode_options(request.prompt, request.options)
            scoring = Scoring(request, ticket, encoded, options, self.tokenizer)
            scoring.check(limits)
            self.scheduler.submit(scoring)

    def step(self) -> Batch | None:
        batch = self.scheduler.schedule()
        if batch is None:
            return None
        try:
            result = self.runner.collect(self.runner.launch(batch.plan))
        except ScriptedError as error:
            self.scheduler.recover(batch, error)
        else:
            self.scheduler.commit(batch, result)
        self.check()
        return batch

    def run(self, limit: int = 10_000) -> None:
        for _ in range(limit):
            if self.step() is None:
                assert not self.scheduler.jobs
                self.check_nothing_held()
                return
        raise AssertionError("it does not end")

    def check(self) -> None:
        """Free + cached + held = total, and no slot has two owners."""
        pool, tree = self.memory.pool, self.memory.tree
        running = self.scheduler.running
        own = [s.slots[s.num_shared :] for s in running]
        cached = list(tree.stored_slots())
        everything = np.concatenate([pool.free_slots, *cached, *own])
        assert sorted(everything.tolist()) == list(range(1, self.num_slots + 1))
        assert tree.num_tokens == sum(len(slots) for slots in cached)
        assert self.scheduler.num_running <= self.max_running + 0

    def check_nothing_held(self) -> None:
        self.check()
        tree = self.memory.tree
        assert tree.num_evictable == tree.num_tokens
        assert self.memory.pool.num_free + tree.num_tokens == self.num_slots


class ScriptedError(RuntimeError):
    """What a scripted forward pass raises."""


def generate(request_id: str, prompt: str, **options: object) -> GenerateRequest:
    return GenerateRequest(id=request_id, prompt=(Text(prompt),), **options)  # type: ignore[arg-type]


def score(request_id: str, prompt: str, *options: str, **more: object) -> ScoreRequest:
    return ScoreRequest(id=request_id, prompt=(Text(prompt),), options=options, **more)  # type: ignore[arg-type]
