"""The scheduler over a scripted runner that checks the contents of every slot it reads."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramet.runtime.protocol import (
    ContextLengthError,
    ErrorCode,
    Failed,
    GenerateRequest,
    InvalidRequestError,
    Request,
    SamplingParams,
    ScheduleHints,
    UnsupportedFeatureError,
    Usage,
)
from ramet.runtime.protocol.sampling import Constraint
from ramet.runtime.step import StepPlan

from .scripted import EOS, Harness, ScriptedError, generate, logprob, reference, score

ALPHABET = "ab"
PROMPTS = st.text(ALPHABET, min_size=1, max_size=40) | st.sampled_from(
    ["a" * 50, "a" * 40 + "b", "ab" * 30, "ab" * 20]
)


def sampling(max_new_tokens: int | None = 8, **options: object) -> SamplingParams:
    return SamplingParams(max_new_tokens=max_new_tokens, **options)  # type: ignore[arg-type]


@st.composite
def requests(draw: st.DrawFn, max_size: int = 8) -> list[Request]:
    result: list[Request] = []
    for index in range(draw(st.integers(1, max_size))):
        prompt = draw(PROMPTS)
        hints = ScheduleHints(rank=draw(st.integers(-1, 1))) if draw(st.booleans()) else None
        salt = draw(st.sampled_from(["", "", "", "salt"]))
        name = f"r{index}"
        if draw(st.integers(0, 3)) == 0:
            options = draw(st.lists(st.text(ALPHABET, min_size=1, max_size=5), min_size=1))
            result.append(score(name, prompt, *options, hints=hints, cache_salt=salt))
        else:
            params = sampling(
                draw(st.integers(0, 12)), stop_token_ids=draw(st.sampled_from([(), (97, 98)]))
            )
            seed = draw(st.integers(0, 3))
            result.append(
                generate(name, prompt, sampling=params, seed=seed, hints=hints, cache_salt=salt)
            )
    return result


def expected_scores(prompt: str, options: Sequence[str]) -> list[list[float]]:
    """By definition: the log-probability of each character after all before it."""
    ids = [list((prompt + option).encode()) for option in options]
    return [
        [logprob(option[:position], option[position]) for position in range(1, len(option))]
        for option in ids
    ]


def check_outputs(harness: Harness, submitted: Sequence[Request]) -> None:
    for request in submitted:
        text = request.prompt[0].text  # type: ignore[union-attr]
        if isinstance(request, GenerateRequest):
            finished = harness.receiver.finished(request.id)
            assert list(finished.sample.ids) == reference(text.encode(), request)
            usage = finished.usage
            assert usage.prompt_tokens == len(text)
        else:
            scored = harness.receiver.scored(request.id)
            trunk = len(scored.trunk)
            for option, expected in zip(
                scored.options, expected_scores(text, request.options), strict=True
            ):
                assert list(option.logprobs) == expected[trunk - 1 :]
            usage = scored.usage
            assert usage.prompt_tokens == trunk + sum(
                max(len(option.ids) - 1, 0) for option in scored.options
            )
        assert usage.prompt_tokens == usage.cached_tokens + usage.computed_tokens
        assert usage.recomputed_tokens <= usage.cached_tokens


@settings(max_examples=150, deadline=None)
@given(
    submitted=requests(),
    cache=st.booleans(),
    budget=st.sampled_from([1, 2, 3, 7, 16, 64, 512]),
    max_running=st.integers(1, 8),
    num_slots=st.sampled_from([70, 80, 100, 1000]),
    gaps=st.lists(st.integers(0, 4), min_size=8, max_size=8),
)
def test_outputs_do_not_depend_on_how_they_were_scheduled(
    submitted: list[Request],
    cache: bool,
    budget: int,
    max_running: int,
    num_slots: int,
    gaps: list[int],
) -> None:
    harness = Harness(num_slots, budget, max_running, cache)
    for request, gap in zip(submitted, gaps, strict=False):
        harness.submit(request)
        for _ in range(gap):
            harness.step()
    harness.run()
    check_outputs(harness, submitted)


@settings(max_examples=150, deadline=None)
@given(
    submitted=requests(),
    ends=st.lists(
        st.tuples(st.integers(0, 7), st.integers(0, 6), st.sampled_from(list(ErrorCode))),
        max_size=4,
    ),
    failing_steps=st.sets(st.integers(1, 30), max_size=12),
    poison=st.sampled_from([frozenset(), frozenset({98}), frozenset(range(99, 110))]),
    num_slots=st.sampled_from([70, 90, 1000]),
    budget=st.sampled_from([3, 16, 64]),
)
def test_any_history_of_failures_leaves_nothing_held(
    submitted: list[Request],
    ends: list[tuple[int, int, ErrorCode]],
    failing_steps: set[int],
    poison: frozenset[int],
    num_slots: int,
    budget: int,
) -> None:
    harness = Harness(num_slots, budget)
    harness.runner.poison = poison

    def fail(plan: StepPlan) -> None:
        if harness.runner.num_plans in failing_steps:
            raise ScriptedError("scripted")

    harness.runner.fail = fail
    for request in submitted:
        harness.submit(request)
    for index, num_steps, code in ends:
        for _ in range(num_steps):
            harness.step()
        job = harness.scheduler.jobs.get(f"r{index}")
        if job is not None:
            harness.scheduler.end(job, code, "scripted")
            harness.check()
    harness.run()
    for request in submitted:
        assert harness.receiver.ended(request.id)
        terminal = [e for e in harness.receiver.events[request.id] if hasattr(e, "usage")]
        assert len(terminal) <= 1
    check_outputs(harness, [r for r in submitted if not has_failed(harness, r)])
    stored = {harness.runner.slots[s][0] for part in tree_slots(harness) for s in part}
    assert not stored & poison, "KV that is not finite stayed in the tree"


def has_failed(harness: Harness, request: Request) -> bool:
    return any(isinstance(event, Failed) for event in harness.receiver.events[request.id])


def tree_slots(harness: Harness) -> list[list[int]]:
    return [slots.tolist() for slots in harness.memory.tree.stored_slots()]


@pytest.mark.parametrize("k", [1, 2, 5, 40, 300])
@pytest.mark.parametrize("budget", [16, 64, 512])
def test_equal_prompts_are_computed_once(k: int, budget: int) -> None:
    harness = Harness(num_slots=4000, budget=budget)
    prompt = "the quick brown fox " * 5
    for index in range(k):
        harness.submit(generate(f"r{index}", prompt, sampling=sampling(4), seed=index))
    harness.run()
    prompts = [n for ids, n in harness.runner.computed.items() if len(ids) <= len(prompt)]
    assert prompts == [1] * len(prompt)
    usage = [harness.receiver.finished(f"r{index}").usage for index in range(k)]
    assert sum(u.computed_tokens for u in usage) == len(prompt)
    assert sum(u.recomputed_tokens for u in usage) == 0
    assert harness.runner.max_draws_per_row == k


@pytest.mark.parametrize("budget", [16, 64, 512])
def test_a_shared_trunk_is_computed_once(budget: int) -> None:
    harness = Harness(num_slots=4000, budget=budget)
    trunk = "0123456789" * 8
    for index in range(20):
        prompt = trunk + chr(97 + index) * 10
        harness.submit(generate(f"r{index}", prompt, sampling=sampling(4), seed=index))
    harness.run()
    prompts = [n for ids, n in harness.runner.computed.items() if len(ids) <= len(trunk) + 10]
    assert prompts == [1] * (len(trunk) + 20 * 10)


def test_a_trunk_is_not_shared_across_namespaces() -> None:
    harness = Harness(num_slots=4000)
    for index in range(3):
        harness.submit(generate(f"r{index}", "x" * 80, cache_salt=str(index)))
    harness.run()
    assert {harness.receiver.finished(f"r{i}").usage.computed_tokens for i in range(3)} == {80}


def test_the_first_follower_leads_when_the_leader_ends() -> None:
    harness = Harness(num_slots=4000, budget=16)
    for index in range(3):
        harness.submit(generate(f"r{index}", "x" * 100 + str(index), sampling=sampling(2)))
    harness.step()
    assert harness.scheduler.num_running == 1
    harness.scheduler.end(harness.scheduler.jobs["r0"], ErrorCode.CANCELLED, "")
    harness.step()
    assert [s.job.ticket.request_id for s in harness.scheduler.running] == ["r1"]
    harness.run()
    assert harness.receiver.finished("r2").usage.cached_tokens == 100


def test_short_shared_beginnings_do_not_wait() -> None:
    harness = Harness(budget=512)
    for index in range(3):
        harness.submit(generate(f"r{index}", "x" * 31 + str(index)))
    batch = harness.step()
    assert batch is not None
    assert len(batch.chunks) == 3


def test_a_prompt_that_is_cached_runs_its_last_position_again() -> None:
    harness = Harness()
    for name in ("a", "b"):
        harness.submit(generate(name, "hello", sampling=sampling(1)))
        harness.run()
    usage = harness.receiver.finished("b").usage
    assert usage == Usage(prompt_tokens=5, cached_tokens=5, recomputed_tokens=1, generated_tokens=1)
    assert harness.memory.tree.num_tokens == 5


def test_the_next_call_reuses_all_but_the_last_token() -> None:
    harness = Harness()
    harness.submit(generate("a", "hello", sampling=sampling(4, ignore_eos=True), seed=1))
    harness.run()
    text = harness.receiver.finished("a").sample.text
    harness.submit(generate("b", "hello" + text, sampling=sampling(1)))
    harness.run()
    assert harness.receiver.finished("b").usage.cached_tokens == 5 + 4 - 1


def test_zero_new_tokens_only_fill_the_cache() -> None:
    harness = Harness()
    harness.submit(generate("a", "hello", sampling=sampling(0)))
    harness.run()
    assert harness.memory.tree.num_tokens == 5
    assert harness.receiver.finished("a").usage.generated_tokens == 0
    harness.submit(generate("b", "hello", sampling=sampling(0)))
    harness.run()
    assert harness.receiver.finished("b").usage == Usage(prompt_tokens=5, cached_tokens=5)
    assert harness.runner.num_plans == 1


def test_a_small_pool_retracts_and_resumes_with_the_same_tokens() -> None:
    small, large = Harness(num_slots=90), Harness(num_slots=4000)
    submitted = [
        generate(f"r{i}", f"{i}prompt", sampling=sampling(40, ignore_eos=True), seed=i)
        for i in range(4)
    ]
    for harness in (small, large):
        harness.scheduler._planner.reserve.on_step = lambda: None  # type: ignore[method-assign]
        harness.scheduler._planner.reserve.ratio = 0.05
        for request in submitted:
            harness.submit(request)
        harness.run()
    assert small.scheduler.counters.num_retractions > 0
    assert large.scheduler.counters.num_retractions == 0
    for request in submitted:
        ids = [which.receiver.finished(request.id).sample.ids for which in (small, large)]
        assert ids[0] == ids[1]


def test_hint_rank_orders_before_arrival() -> None:
    harness = Harness(max_running=1)
    for name, rank in (("late", 5), ("early", -5), ("plain", 0)):
        harness.submit(generate(name, name, hints=ScheduleHints(rank=rank)))
    harness.run()
    assert list(harness.receiver.events) == ["early", "plain", "late"]


def test_the_longest_cached_prefix_goes_first() -> None:
    harness = Harness(max_running=1)
    harness.submit(generate("warm", "cached prefix", sampling=sampling(0)))
    harness.run()
    for name, prompt in (("cold", "something"), ("hot", "cached prefix and more")):
        harness.submit(generate(name, prompt, sampling=sampling(1)))
    harness.run()
    assert list(harness.receiver.events) == ["warm", "hot", "cold"]


@pytest.mark.parametrize(
    ("context", "num_slots", "message"),
    [
        (10, 1000, "the prompt has 10 tokens and the model's context is 10"),
        (1000, 10, "the prompt has 10 tokens and the KV pool 10 slots"),
    ],
)
def test_what_can_never_fit_is_refused_with_both_numbers(
    context: int, num_slots: int, message: str
) -> None:
    harness = Harness(num_slots=num_slots, context=context)
    with pytest.raises(ContextLengthError, match=message):
        harness.submit(generate("a", "x" * 10))
    with pytest.raises(ContextLengthError):
        harness.submit(score("b", "x" * 10, "yes"))


@pytest.mark.parametrize("max_new_tokens", [None, 100])
@pytest.mark.parametrize(("context", "num_slots"), [(12, 1000), (1000, 12)])
def test_the_answer_ends_where_the_context_is_full(
    max_new_tokens: int | None, context: int, num_slots: int
) -> None:
    harness = Harness(num_slots=num_slots, context=context)
    harness.submit(generate("a", "x" * 9, sampling=sampling(max_new_tokens, ignore_eos=True)))
    harness.run()
    finished = harness.receiver.finished("a")
    assert len(finished.sample.ids) == 3
    assert finished.sample.reason.kind == "length"


def test_a_constraint_is_refused_not_ignored() -> None:
    request = generate("a", "x", constraint=Constraint("regex", "[0-9]+"))
    with pytest.raises(UnsupportedFeatureError, match="regex"):
        Harness().submit(request)


def test_a_stop_token_ends_and_is_not_kept() -> None:
    seeds = (s for s in count() if reference(b"x", with_seed(s)) == [])
    harness = Harness()
    harness.submit(with_seed(next(seeds)))
    harness.run()
    finished = harness.receiver.finished("a")
    assert (finished.sample.reason.kind, finished.sample.reason.matched) == ("stop", EOS)
    assert len(finished.sample.ids) == 0
    assert finished.usage.generated_tokens == 1


def with_seed(seed: int, **options: object) -> GenerateRequest:
    return generate("a", "x", sampling=sampling(8, **options), seed=seed)


def test_min_new_tokens_bans_the_stop_tokens() -> None:
    for seed in range(100):
        harness = Harness()
        harness.submit(with_seed(seed, min_new_tokens=6, stop_token_ids=(97, 98)))
        harness.run()
        finished = harness.receiver.finished("a")
        assert len(finished.sample.ids) >= 6
        assert not {EOS, 97, 98} & set(finished.sample.ids)


def test_a_stop_string_ends_the_text_before_it() -> None:
    full = Harness()
    request = generate("a", "x", sampling=sampling(20, ignore_eos=True), seed=3)
    full.submit(request)
    full.run()
    text = full.receiver.finished("a").sample.text
    stop = text[4:6]
    harness = Harness()
    params = sampling(20, ignore_eos=True, stop=(stop,))
    harness.submit(generate("a", "x", sampling=params, seed=3, stream=True))
    harness.run()
    finished = harness.receiver.finished("a")
    assert finished.sample.text == text[: text.index(stop)]
    assert (finished.sample.reason.kind, finished.sample.reason.matched) == ("stop", stop)
    deltas = [e.text for e in harness.receiver.events["a"] if hasattr(e, "text")]
    assert "".join(deltas) == finished.sample.text


def test_scores_of_an_option_that_begins_another() -> None:
    harness = Harness()
    harness.submit(score("s", "pick ", "no", "none"))
    harness.run()
    scored = harness.receiver.scored("s")
    assert "".join(map(chr, scored.trunk)) == "pick n"
    assert [o.text for o in scored.options] == ["o", "one"]


def test_one_option_is_scored_on_its_last_token() -> None:
    harness = Harness()
    harness.submit(score("s", "pick ", "yes"))
    harness.run()
    assert [len(o.ids) for o in harness.receiver.scored("s").options] == [1]


def test_the_bare_prompt_as_an_option_has_no_scores() -> None:
    harness = Harness()
    harness.submit(score("s", "pick ", "", "yes"))
    harness.run()
    scored = harness.receiver.scored("s")
    assert [len(o.logprobs) for o in scored.options] == [0, 3]
    assert len(scored.trunk) == 5


def test_options_without_a_common_token_are_refused() -> None:
    harness = Harness()
    request = score("s", "", "yes", "no")
    request = type(request)(id="s", prompt=(), options=("yes", "no"))
    with pytest.raises(InvalidRequestError):
        harness.submit(request)


def test_options_run_in_one_step_after_the_trunk() -> None:
    harness = Harness(budget=512)
    harness.submit(score("s", "pick one: ", "alpha", "beta", "gamma"))
    harness.run()
    assert harness.runner.num_plans == 2
    usage = harness.receiver.scored("s").usage
    assert usage == Usage(prompt_tokens=10 + 4 + 3 + 4, computed_tokens=21)
    harness.submit(score("again", "pick one: ", "alpha", "beta", "gamma"))
    harness.run()
    usage = harness.receiver.scored("again").usage
    assert (usage.cached_tokens, usage.computed_tokens) == (21, 0)


def test_equal_selects_share_the_trunks_row() -> None:
    harness = Harness(budget=512)
    for name in ("a", "b", "c"):
        harness.submit(score(name, "pick one: ", "yes", "no"))
    harness.run()
    trunks = [n for ids, n in harness.runner.computed.items() if len(ids) <= 10]
    assert trunks == [1] * 10
    answers = {harness.receiver.scored(name).options for name in ("a", "b", "c")}
    assert len(answers) == 1


def test_non_finite_logits_fail_their_own_request_only() -> None:
    harness = Harness()
    harness.runner.poison = frozenset(b"!")
    harness.submit(generate("bad", "hello!" + "x" * 100))
    harness.submit(generate("good", "hello"))
    harness.submit(score("bad select", "pick ", "one!two", "three"))
    harness.run()
    assert harness.receiver.failed("bad").code == ErrorCode.NON_FINITE
    assert harness.receiver.failed("bad select").code == ErrorCode.NON_FINITE
    harness.receiver.finished("good")


def test_equal_options_end_with_their_request() -> None:
    harness = Harness()
    harness.runner.poison = frozenset(b"!")
    harness.submit(score("s", "a", "!a", "aa", "aa"))
    harness.run()
    assert harness.receiver.failed("s").code == ErrorCode.NON_FINITE


def test_a_step_that_raises_is_repeated_alone() -> None:
    harness = Harness(budget=512)

    def fail(plan: StepPlan) -> None:
        if ord("!") in plan.input_ids:
            raise ScriptedError("no exclamation marks")

    harness.runner.fail = fail
    good, bad, fine = (
        generate("good", "hello"),
        generate("bad", "hello!"),
        generate("fine", "world"),
    )
    for request in (good, bad, fine):
        harness.submit(request)
    harness.run()
    failed = harness.receiver.failed("bad")
    assert failed.code == ErrorCode.INTERNAL
    assert "ScriptedError: no exclamation marks" in failed.message
    check_outputs(harness, [good, fine])


def test_an_engine_goes_on_when_every_step_has_failed() -> None:
    harness = Harness()

    def fail(plan: StepPlan) -> None:
        raise ScriptedError("broken")

    healthy = harness.runner.fail
    harness.runner.fail = fail
    for index in range(3):
        harness.submit(generate(f"r{index}", "hello"))
    harness.run()
    assert {harness.receiver.failed(f"r{i}").code for i in range(3)} == {ErrorCode.INTERNAL}
    harness.runner.fail = healthy
    harness.submit(generate("again", "hello"))
    harness.run()
    harness.receiver.finished("again")


@pytest.mark.parametrize("num_steps", [0, 1, 2, 5])
def test_ending_a_job_frees_at_once(num_steps: int) -> None:
    harness = Harness(budget=8)
    harness.submit(generate("a", "x" * 20, sampling=sampling(50, ignore_eos=True)))
    harness.submit(score("s", "pick ", "one of them", "another"))
    for _ in range(num_steps):
        harness.step()
    for name in ("a", "s"):
        harness.scheduler.end(harness.scheduler.jobs[name], ErrorCode.DEADLINE, "too late")
    harness.check_nothing_held()
    assert harness.scheduler.schedule() is None
    assert harness.receiver.failed("s").code == ErrorCode.DEADLINE


@pytest.mark.parametrize("options", [("a" * 12, "b"), ("a" * 12, "a" * 12, "b")])
def test_scores_that_are_cached_run_again_in_a_pool_with_no_room_for_a_copy(
    options: tuple[str, ...],
) -> None:
    harness = Harness(num_slots=20, budget=64)
    for request_id in ("first", "again"):
        harness.submit(score(request_id, "x" * 5, *options))
        harness.run()
    first, again = (harness.receiver.scored(name).options for name in ("first", "again"))
    assert first == again


def test_a_prompt_in_chunks_has_no_first_token_before_its_last_chunk() -> None:
    harness = Harness(budget=16)
    harness.submit(generate("a", "x" * 40))
    ticket = harness.scheduler.jobs["a"].ticket
    harness.step()
    harness.step()
    assert ticket.answered is None
    harness.step()
    assert ticket.answered is not None
