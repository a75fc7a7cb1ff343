"""Several samples of a prompt, log-probabilities and penalties, over the scripted runner."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramet.runtime.prompts.tokenizer import Tokenizer
from ramet.runtime.protocol import (
    Delta,
    ErrorCode,
    GenerateRequest,
    InvalidRequestError,
    LogprobParams,
    SamplingParams,
    TokenLogprob,
    sample_seed,
)

from .scripted import (
    EOS,
    Harness,
    TokenizerWithStart,
    generate,
    logprob,
    reference,
    row_logprobs,
    score,
)


def sampling(max_new_tokens: int | None = 8, **options: object) -> SamplingParams:
    return SamplingParams(max_new_tokens=max_new_tokens, **options)  # type: ignore[arg-type]


def expected_logprob(
    ids: list[int], token: int, params: LogprobParams, *, is_first: bool = False
) -> TokenLogprob:
    if is_first:
        return TokenLogprob(id=token, text=chr(token), logprob=None)
    scores = row_logprobs(ids, (token, *params.token_ids), params.top)
    return TokenLogprob(
        id=token,
        text=chr(token),
        logprob=scores.logprobs[0],
        top_ids=tuple(one for one, _ in scores.top),
        top_texts=tuple(bytes([one]).decode(errors="replace") for one, _ in scores.top),
        top_logprobs=tuple(value for _, value in scores.top),
        token_logprobs=tuple(scores.logprobs[1:]),
    )


def expected_prompt(prompt: str, params: LogprobParams) -> tuple[TokenLogprob, ...]:
    ids = list(prompt.encode())
    return tuple(
        expected_logprob(ids[:position], ids[position], params, is_first=position == 0)
        for position in range(params.start, len(ids))
    )


def drawn(request: GenerateRequest, prompt: str, sample: int = 0) -> list[int]:
    """The generated tokens with the stop token that ended them."""
    ids = reference(prompt.encode(), request, sample)
    assert request.sampling.max_new_tokens is not None
    return ids if len(ids) == request.sampling.max_new_tokens else [*ids, EOS]


@settings(max_examples=80, deadline=None)
@given(
    prompt=st.text("ab", min_size=1, max_size=60),
    n=st.integers(1, 6),
    max_new=st.integers(0, 12),
    seed=st.integers(0, 100),
    cache=st.booleans(),
    max_running=st.integers(1, 8),
    budget=st.sampled_from([3, 16, 64]),
    num_slots=st.sampled_from([80, 100, 1000]),
    is_warm=st.booleans(),
)
def test_samples_are_what_single_requests_with_their_seeds_give(
    prompt: str,
    n: int,
    max_new: int,
    seed: int,
    cache: bool,
    max_running: int,
    budget: int,
    num_slots: int,
    is_warm: bool,
) -> None:
    harness = Harness(num_slots, budget, max_running, cache)
    if is_warm:
        harness.submit(generate("warm", prompt, sampling=sampling(0)))
        harness.run()
    request = generate("r", prompt, sampling=sampling(max_new, n=n), seed=seed, stream=True)
    harness.submit(request)
    harness.run()
    finished = harness.receiver.finished("r")
    found = [list(sample.ids) for sample in finished.samples]
    assert found == [reference(prompt.encode(), request, i) for i in range(n)]
    singles = [
        reference(prompt.encode(), replace(request, seed=sample_seed(seed, i))) for i in range(n)
    ]
    assert found == singles
    usage = finished.usage
    assert usage.prompt_tokens == len(prompt)
    assert usage.cached_tokens == (len(prompt) if is_warm and cache else 0)
    assert usage.recomputed_tokens <= usage.cached_tokens
    for index, sample in enumerate(finished.samples):
        deltas = [
            e for e in harness.receiver.events["r"] if isinstance(e, Delta) and e.index == index
        ]
        assert "".join(e.text for e in deltas) == sample.text
        expected = drawn(request, prompt, index) if max_new else []
        assert [token for e in deltas for token in e.ids] == expected


def test_a_prompt_with_samples_is_computed_once() -> None:
    harness = Harness(num_slots=2000, max_running=3)
    prompt = "some prompt " * 10
    harness.submit(generate("r", prompt, sampling=sampling(6, n=8, ignore_eos=True), seed=4))
    harness.run()
    computed = [n for ids, n in harness.runner.computed.items() if len(ids) <= len(prompt)]
    assert computed == [1] * len(prompt)
    assert harness.receiver.finished("r").usage.generated_tokens == 8 * 6


@pytest.mark.parametrize("num_steps", [0, 1, 2, 4])
def test_ending_a_request_ends_all_its_samples(num_steps: int) -> None:
    harness = Harness(budget=8, max_running=3)
    harness.submit(generate("r", "x" * 20, sampling=sampling(50, n=5, ignore_eos=True)))
    for _ in range(num_steps):
        harness.step()
    harness.scheduler.end(harness.scheduler.jobs["r"], ErrorCode.CANCELLED, "cancelled")
    harness.check_nothing_held()
    assert harness.scheduler.schedule() is None
    assert harness.receiver.failed("r").code == ErrorCode.CANCELLED


def test_non_finite_logits_of_one_sample_end_the_request_once() -> None:
    harness = Harness()
    harness.runner.poison = frozenset(range(97, 105))
    harness.submit(generate("r", "XYZ", sampling=sampling(30, n=6, ignore_eos=True)))
    harness.run()
    assert harness.receiver.failed("r").code == ErrorCode.NON_FINITE


@settings(max_examples=80, deadline=None)
@given(
    prompt=st.text("ab", min_size=1, max_size=50),
    share=st.floats(0, 1),
    top=st.integers(0, 3),
    token_ids=st.lists(st.integers(0, 127), max_size=3).map(tuple),
    n=st.integers(1, 3),
    max_new=st.integers(0, 8),
    cached=st.integers(0, 50),
    budget=st.sampled_from([1, 3, 16, 64]),
    num_slots=st.sampled_from([75, 1000]),
)
def test_logprobs_are_those_of_the_definition_whatever_is_cached(
    prompt: str,
    share: float,
    top: int,
    token_ids: tuple[int, ...],
    n: int,
    max_new: int,
    cached: int,
    budget: int,
    num_slots: int,
) -> None:
    harness = Harness(num_slots, budget)
    if prompt[:cached]:
        harness.submit(generate("warm", prompt[:cached], sampling=sampling(0)))
        harness.run()
    params = LogprobParams(start=round(share * len(prompt)), top=top, token_ids=token_ids)
    request = generate("r", prompt, sampling=sampling(max_new, n=n), logprobs=params, stream=True)
    harness.submit(request)
    harness.submit(generate("other", "ab" * 20, sampling=sampling(4)))
    harness.run()
    finished = harness.receiver.finished("r")
    assert finished.prompt_logprobs == expected_prompt(prompt, params)
    ids = list(prompt.encode())
    for index, sample in enumerate(finished.samples):
        outputs = drawn(request, prompt, index) if max_new else []
        expected = tuple(
            expected_logprob(ids + outputs[:place], token, params)
            for place, token in enumerate(outputs)
        )
        assert sample.logprobs == expected
        deltas = [
            e for e in harness.receiver.events["r"] if isinstance(e, Delta) and e.index == index
        ]
        assert tuple(one for e in deltas for one in e.logprobs) == expected
    usage = finished.usage
    assert usage.prompt_tokens == len(prompt) == usage.cached_tokens + usage.computed_tokens
    assert usage.recomputed_tokens <= usage.cached_tokens


def test_prompt_logprobs_over_a_cached_prefix_count_as_recomputed() -> None:
    harness = Harness()
    harness.submit(generate("warm", "x" * 30, sampling=sampling(0)))
    harness.run()
    request = generate("r", "x" * 30, sampling=sampling(1), logprobs=LogprobParams(start=11))
    harness.submit(request)
    harness.run()
    usage = harness.receiver.finished("r").usage
    assert (usage.cached_tokens, usage.computed_tokens, usage.recomputed_tokens) == (30, 0, 20)


def test_many_prompt_rows_are_reduced_in_pieces() -> None:
    harness = Harness(num_slots=4000, budget=512)
    prompt = "abcdefghij" * 100
    request = generate("r", prompt, sampling=sampling(2), logprobs=LogprobParams(start=0))
    harness.submit(request)
    harness.submit(score("s", "pick ", *(chr(97 + i) * 60 for i in range(20))))
    harness.run()
    assert harness.runner.max_rows <= 128
    assert len(harness.receiver.finished("r").prompt_logprobs) == 1000


def test_a_start_beyond_the_prompt_names_both_numbers() -> None:
    with pytest.raises(InvalidRequestError, match=r"logprob_start_len=31 .* 30 tokens"):
        Harness().submit(generate("r", "x" * 30, logprobs=LogprobParams(start=31)))


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"sampling": sampling(logit_bias=((5, 1.0), (128, 1.0)))}, "logit_bias has 128"),
        ({"logprobs": LogprobParams(token_ids=(200,))}, "token_ids_logprob has 200"),
        ({"sampling": sampling(stop_token_ids=(300,))}, "stop_token_ids has 300"),
    ],
)
def test_ids_that_the_model_does_not_have_are_refused(
    options: dict[str, object], name: str
) -> None:
    with pytest.raises(InvalidRequestError, match=f"{name}.* 0 to 127"):
        Harness().submit(generate("r", "x", **options))


def test_penalties_see_prompt_and_output_after_retraction_too() -> None:
    harness = Harness(num_slots=90)
    harness.scheduler._planner.reserve.on_step = lambda: None  # type: ignore[method-assign]
    harness.scheduler._planner.reserve.ratio = 0.05
    params = sampling(40, ignore_eos=True, repetition_penalty=1.2)
    for index in range(4):
        harness.submit(generate(f"r{index}", f"{index}prompt", sampling=params, seed=index))
    harness.run()  # the runner checks every history
    assert harness.scheduler.counters.num_retractions > 0


@pytest.mark.parametrize("bos", [None, 1])
@pytest.mark.parametrize("options", [("yes", "no", "never"), ("y", "n"), ("same", "same")])
def test_unconditional_scores_have_no_prompt_before_them(
    bos: int | None, options: tuple[str, ...]
) -> None:
    harness = Harness(max_running=2)
    if bos is not None:
        harness.tokenizer = cast(Tokenizer, TokenizerWithStart())
    for name in ("first", "again"):
        harness.submit(score(name, "pick ", *options, unconditional=True))
        harness.run()
        for option in harness.receiver.scored(name).options:
            own = list(option.ids)
            start = [] if bos is None else [bos]
            expected = [
                logprob([*start, *own[:place]], token) if start or place else 0.0
                for place, token in enumerate(own)
            ]
            assert option.unconditional is not None
            assert list(option.unconditional) == expected


def test_without_being_asked_nothing_is_scored_alone() -> None:
    harness = Harness()
    harness.submit(score("s", "pick ", "yes", "no"))
    harness.run()
    assert {option.unconditional for option in harness.receiver.scored("s").options} == {None}


def test_an_answer_that_cannot_be_taken_is_the_requests_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    harness = Harness()
    for name in ("bad", "good"):
        harness.submit(generate(name, name, sampling=sampling(4, n=2)))

    def answer(*_: object) -> int:
        raise KeyError("vocab")

    monkeypatch.setattr(harness.scheduler.jobs["bad"], "answer", answer)
    harness.run()
    assert harness.receiver.failed("bad").code == ErrorCode.INTERNAL
    assert "KeyError" in harness.receiver.failed("bad").message
    harness.receiver.finished("good")
