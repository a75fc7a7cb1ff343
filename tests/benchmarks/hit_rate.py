"""How much of the prompts is found in the cache, by the scheduler alone: no model runs.

Workloads are lists of token ids. They run through scheduler, tree and pool with the default
settings over a runner that computes nothing and always draws the same token.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import cast

from ramet.runtime.config import EngineConfig
from ramet.runtime.prompts.tokenizer import Tokenizer
from ramet.runtime.protocol import Event, Finished, GenerateRequest, SamplingParams, TokenIds
from ramet.runtime.scheduling.generation import Generation
from ramet.runtime.scheduling.job import Ticket
from ramet.runtime.scheduling.kv_memory import KVMemory
from ramet.runtime.scheduling.limits import Limits
from ramet.runtime.scheduling.scheduler import Scheduler
from ramet.runtime.step import RowLogprobs, StepPlan, StepResult
from tests.benchmarks.report import Table

DRAWN = 7  # the only token that is ever generated
PER_STEP = 8.0  # calls that come in a step, where they come over time
NOTHING = 0.01  # a lower hit rate is a chance one


@dataclass(frozen=True)
class Call:
    """A prompt and how many tokens follow it; it comes after call number `after` has ended."""

    ids: tuple[int, ...]
    num_new: int = 16
    after: int | None = None


class _Tokenizer:
    vocab_size = 2**31 - 1
    bos_id = None

    def token_bytes(self, token: int) -> bytes:
        return b"x"

    def is_special(self, token: int) -> bool:
        return False


def no_op_result(plan: StepPlan) -> StepResult:
    """What a model would answer that always draws the same token."""
    return StepResult(
        tokens=[DRAWN] * len(plan.draws),
        gathered=[RowLogprobs([0.0] * len(gather.ids)) for gather in plan.gathers],
        reported=[None] * len(plan.draws),
    )


class _Replay:
    """Hands calls to a scheduler and collects what was cached of each."""

    def __init__(self, calls: Sequence[Call], num_slots: int, max_running: int | None) -> None:
        config = EngineConfig()
        self.calls = calls
        self.cached = self.prompt = 0
        self._limits = Limits(2**31, num_slots, frozenset())
        self._ended: list[int] = []
        self.scheduler = Scheduler(
            KVMemory(num_slots),
            max_running_requests=max_running or config.max_running_requests,
            chunked_prefill_size=config.chunked_prefill_size,
            schedule_policy=config.schedule_policy,
        )

    def submit(self, number: int) -> None:
        call = self.calls[number]
        sampling = SamplingParams(max_new_tokens=call.num_new, ignore_eos=True)
        ids = TokenIds.of(call.ids)
        request = GenerateRequest(id=str(number), prompt=(ids,), sampling=sampling)
        ticket = Ticket.of(request, self._on_event, number)
        tokenizer = cast(Tokenizer, _Tokenizer())
        self.scheduler.submit(Generation(request, ticket, ids, tokenizer, self._limits))

    def step(self) -> list[int]:
        """Run one step; return the calls that ended in it."""
        batch = self.scheduler.schedule()
        if batch is not None:
            self.scheduler.commit(batch, no_op_result(batch.plan))
        ended, self._ended = self._ended, []
        return ended

    def _on_event(self, event: Event) -> None:
        if not isinstance(event, Finished):
            raise RuntimeError(f"a call did not finish: {event}")
        self.cached += event.usage.cached_tokens
        self.prompt += event.usage.prompt_tokens
        self._ended.append(int(event.request_id))


def measure_calls(
    calls: Sequence[Call], num_slots: int, *, per_step: float = 0.0, max_running: int | None = None
) -> float:
    """Return cached ÷ prompt tokens with the default settings.

    All calls come at once, or `per_step` of them in each step (0.5: one every two steps); one
    that comes after another comes when that has ended.
    """
    replay = _Replay(calls, num_slots, max_running)
    followers: dict[int, list[int]] = {}
    for number, call in enumerate(calls):
        if call.after is not None:
            followers.setdefault(call.after, []).append(number)
    waiting = [number for number, call in enumerate(calls) if call.after is None]
    due, num_ended = 0.0, 0
    while num_ended < len(calls):
        due = min(due + per_step, len(waiting)) if per_step else len(waiting)
        for number in waiting[: int(due)]:
            replay.submit(number)
        del waiting[: int(due)]
        due -= int(due)
        for number in replay.step():
            num_ended += 1
            for follower in followers.get(number, []):
                replay.submit(follower)
    return replay.cached / replay.prompt


def measure_serial(calls: Sequence[Call], num_slots: int) -> float:
    """Return cached ÷ prompt tokens one at a time, depth first through the prefix tree, by LRU."""
    replay = _Replay(calls, num_slots, max_running=1)
    for number in sorted(range(len(calls)), key=lambda n: calls[n].ids):
        replay.submit(number)
        while not replay.step():
            continue
    return replay.cached / replay.prompt


def measure_requests(
    requests: Sequence[Sequence[int]], num_slots: int, *, num_new: int = 16, per_step: float = 0.0
) -> tuple[float, float]:
    """Return the hit rate of bare prompts and the optimal one."""
    calls = [Call(tuple(ids), num_new) for ids in requests]
    return measure_calls(calls, num_slots, per_step=per_step), optimal(calls)


def optimal(calls: Sequence[Call]) -> float:
    """Return 1 − distinct positions of the prompts' prefix tree ÷ their tokens."""
    return 1 - num_distinct(calls) / sum(len(call.ids) for call in calls)


def num_distinct(calls: Sequence[Call]) -> int:
    """Return how many positions the prefix tree of the prompts has."""
    total = 0
    before: tuple[int, ...] = ()
    for ids in sorted(call.ids for call in calls):
        shared = next(
            (i for i, (a, b) in enumerate(zip(ids, before, strict=False)) if a != b),
            min(len(ids), len(before)),
        )
        total += len(ids) - shared
        before = ids
    return total


# -- workloads ----------------------------------------------------------------------------------


class _Tokens:
    """Makes runs of tokens that nothing else begins with."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def run(self, low: int, high: int | None = None) -> tuple[int, ...]:
        length = self.random.randint(low, high or low)
        return tuple(self.random.randrange(100, 49_000) for _ in range(length))


def few_shot(tokens: _Tokens, scale: int) -> Iterator[Call]:
    """Subjects with five examples each, many questions."""
    for _ in range(8):
        examples = tokens.run(400, 700)
        for _ in range(scale):
            yield Call(examples + tokens.run(40, 120), 4)


def tree_of_thought(tokens: _Tokens, scale: int) -> Iterator[Call]:
    """A question, its proposals, their steps: each level shares the one above."""
    for _ in range(scale // 2 + 1):
        question = tokens.run(150, 300)
        for _ in range(4):
            proposal = question + tokens.run(60, 100)
            for _ in range(4):
                step = proposal + tokens.run(60, 100)
                for _ in range(2):
                    yield Call(step + tokens.run(10, 30), 48)


def multi_turn(tokens: _Tokens, scale: int, first: int = 0) -> Iterator[Call]:
    """Conversations: each turn follows the answer to the one before."""
    number = first
    for _ in range(scale):
        ids, after = tokens.run(60, 200), None
        for _ in range(4):
            yield Call(ids, 64, after)
            after, number = number, number + 1
            ids = ids + (DRAWN,) * 64 + tokens.run(30, 100)


def rag(tokens: _Tokens, scale: int) -> Iterator[Call]:
    """One template, a few long documents, many questions to each."""
    template = tokens.run(80)
    for _ in range(6):
        document = template + tokens.run(800, 1500)
        for _ in range(scale):
            yield Call(document + tokens.run(15, 40), 32)


def agent(tokens: _Tokens, scale: int, first: int = 0) -> Iterator[Call]:
    """One system prompt with tools and examples; each task grows by thought and observation."""
    system, number = tokens.run(900), first
    for _ in range(scale):
        ids, after = system + tokens.run(30, 80), None
        for _ in range(5):
            yield Call(ids, 40, after)
            after, number = number, number + 1
            ids = ids + (DRAWN,) * 40 + tokens.run(30, 150)


def nothing_shared(tokens: _Tokens, scale: int) -> Iterator[Call]:
    """Prompts that have nothing in common."""
    for _ in range(scale * 4):
        yield Call(tokens.run(100, 400), 16)


def mixture(tokens: _Tokens, scale: int) -> Iterator[Call]:
    """All of them together."""
    calls: list[Call] = []
    for make in (few_shot, tree_of_thought, rag, nothing_shared):
        calls += make(tokens, scale // 2)
    calls += multi_turn(tokens, scale // 2, len(calls))
    calls += agent(tokens, scale // 2, len(calls))
    return iter(calls)


WORKLOADS = {
    "few-shot": few_shot,
    "tree of thought": tree_of_thought,
    "multi-turn": multi_turn,
    "RAG": rag,
    "agent": agent,
    "mixture": mixture,
    "nothing shared": nothing_shared,
}


def workload(name: str, scale: int, seed: int = 0) -> list[Call]:
    """Return the calls of a workload, in random order."""
    calls = list(WORKLOADS[name](_Tokens(seed), scale))
    places = list(range(len(calls)))
    random.Random(seed).shuffle(places)
    new_place = {old: new for new, old in enumerate(places)}
    return [
        Call(
            calls[old].ids,
            calls[old].num_new,
            None if calls[old].after is None else new_place[cast(int, calls[old].after)],
        )
        for old in places
    ]


def shares(calls: Sequence[Call]) -> dict[str, float]:
    """Return the hit rates: large pool over the optimal, a quarter over the serial replay."""
    longest = max(len(call.ids) + call.num_new for call in calls)
    quarter = max(num_distinct(calls) // 4, longest + 1)
    best, serial = optimal(calls), measure_serial(calls, quarter)
    found: dict[str, float] = {"optimal": best, "serial": serial}
    for name, per_step in (("at once", 0.0), ("over time", PER_STEP)):
        large = measure_calls(calls, 4 * num_distinct(calls) + 200_000, per_step=per_step)
        small = measure_calls(calls, quarter, per_step=per_step)
        found[f"large, {name}"] = large / best if best > NOTHING else 1.0
        found[f"quarter, {name}"] = small / serial if serial > NOTHING else 1.0
    return found


def measure(quick: bool) -> Table:
    rows: list[tuple[str, ...]] = []
    for name in WORKLOADS:
        calls = workload(name, 10 if quick else 60)
        found = shares(calls)
        rows.append(
            (
                name,
                str(len(calls)),
                f"{found['optimal']:.1%}",
                f"{found['large, at once']:.1%}",
                f"{found['large, over time']:.1%}",
                f"{found['serial']:.1%}",
                f"{found['quarter, at once']:.1%}",
                f"{found['quarter, over time']:.1%}",
            )
        )
    return Table(
        title="Hit rate of the scheduler",
        what="Cached ÷ prompt tokens, default settings, no model: shuffled calls, all at once and "
        f"{PER_STEP:g} more per step. Optimal: 1 − distinct prompt positions ÷ prompt "
        "tokens. Serial: one call at a time, depth first through the prefix tree, in a pool of a "
        "quarter of the distinct tokens.",
        notes=[
            "Multi-turn and agent: bare requests, each turn sent when the one before has ended, "
            "all conversations at the same time. Nothing tells the scheduler that a turn will be "
            "followed by another, so in a quarter of the tokens conversations evict each other. "
            "`run_batch` begins no more rows than the pool holds to their end: see the workloads "
            "in a small pool."
        ],
        target="large pool ≥ 96 % of the optimal; quarter pool ≥ 90 % of the serial replay",
        columns=(
            "workload",
            "calls",
            "optimal",
            "of it, at once",
            "of it, over time",
            "serial, quarter pool",
            "of it, at once",
            "of it, over time",
        ),
        rows=rows,
    )
