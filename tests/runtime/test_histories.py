"""Random histories: whatever happens, no slot is lost and every request ends exactly once."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from ramet.runtime.protocol import (
    ErrorCode,
    Event,
    Failed,
    Finished,
    GenerateRequest,
    LogprobParams,
    Request,
    SamplingParams,
    Scored,
)
from ramet.runtime.step import StepPlan

from .scripted import Harness, ScriptedError, generate, reference, score

PROMPTS = ["a" * 50, "a" * 40 + "b" * 10, "ab" * 20, "ba", "c" * 45 + "ab", "XYZ"]
POLICIES = ["lru", "lfu", "slru", "fifo", "priority"]


@st.composite
def any_request(draw: st.DrawFn, name: str) -> Request:
    prompt = draw(st.sampled_from(PROMPTS))
    more: dict[str, object] = {
        "priority": draw(st.integers(-1, 1)),
        "cache_salt": draw(st.sampled_from(["", "", "salt"])),
    }
    if draw(st.integers(0, 4)) == 0:
        options = draw(st.lists(st.sampled_from(["yes", "no", "never", "n"]), min_size=1))
        return score(name, prompt, *options, unconditional=draw(st.booleans()), **more)
    sampling = SamplingParams(
        max_new_tokens=draw(st.integers(0, 14)),
        n=draw(st.sampled_from([1, 1, 2, 5])),
        presence_penalty=draw(st.sampled_from([0.0, 0.5])),
        ignore_eos=draw(st.booleans()),
    )
    start = draw(st.sampled_from([None, -1, 0, 1, 2]))
    logprobs = None if start is None else LogprobParams(start=start, top=draw(st.integers(0, 2)))
    return generate(
        name,
        prompt,
        sampling=sampling,
        logprobs=logprobs,
        stream=draw(st.booleans()),
        seed=draw(st.integers(0, 5)),
        **more,
    )


def is_last(event: Event) -> bool:
    return isinstance(event, Finished | Scored | Failed)


@settings(max_examples=150, deadline=None)
@given(data=st.data(), policy=st.sampled_from(POLICIES), num=st.integers(1, 10))
def test_every_history_keeps_the_books_and_ends_every_request_once(
    data: st.DataObject, policy: str, num: int
) -> None:
    harness = Harness(
        num_slots=data.draw(st.sampled_from([75, 100, 160, 1000])),
        budget=data.draw(st.sampled_from([3, 16, 64])),
        max_running=data.draw(st.integers(1, 8)),
        evict_policy=policy,
        watermark=data.draw(st.sampled_from([0.0, 0.2])),
        schedule_policy=data.draw(st.sampled_from(["lpm", "lpm", "fcfs"])),
    )
    harness.runner.poison = data.draw(st.sampled_from([frozenset(), frozenset(), frozenset(b"Z")]))
    failing = data.draw(st.sets(st.integers(1, 40), max_size=4))

    def fail(plan: StepPlan) -> None:
        if harness.runner.num_plans in failing:
            raise ScriptedError("scripted")

    harness.runner.fail = fail
    broken = data.draw(st.sets(st.integers(0, num - 1), max_size=2))
    submitted: list[Request] = []
    for index in range(num):
        request = data.draw(any_request(f"r{index}"))
        submitted.append(request)
        harness.submit(request)
        if index in broken:  # its receiver raises from now on
            harness.scheduler.jobs[request.id].ticket.on_event = _raise
        for _ in range(data.draw(st.integers(0, 4))):
            harness.step()
        end_broken(harness)
        victim = data.draw(st.integers(-num, num - 1))
        job = harness.scheduler.jobs.get(f"r{victim}")
        if job is not None:
            code = data.draw(st.sampled_from([ErrorCode.CANCELLED, ErrorCode.DEADLINE]))
            harness.scheduler.end(job, code, "scripted")
            harness.check()
    harness.run()
    for index, request in enumerate(submitted):
        if index in broken:
            continue
        events = harness.receiver.events[request.id]
        assert [is_last(event) for event in events] == [False] * (len(events) - 1) + [True]
        if isinstance(events[-1], Finished):
            assert isinstance(request, GenerateRequest)
            prompt = request.prompt[0].text.encode()  # type: ignore[union-attr]
            assert [list(sample.ids) for sample in events[-1].samples] == [
                reference(prompt, request, sample) for sample in range(request.sampling.n)
            ]


def _raise(event: Event) -> None:
    raise ScriptedError("a receiver")


def end_broken(harness: Harness) -> None:
    """What the engine's loop does between two steps."""
    for job in list(harness.scheduler.jobs.values()):
        if job.ticket.is_broken:
            harness.scheduler.end(job, ErrorCode.CANCELLED, "its receiver raised")
    harness.check()
