"""Draws are pure functions of row, mask, parameters, seed and position, and follow the softmax."""

import math
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ramet.runtime.candidates import kept_ids
from ramet.runtime.logit_changes import change_logits
from ramet.runtime.protocol import SamplingParams
from ramet.runtime.sampler import NOT_FINITE, draw_tokens, gather_logprobs, report_logprobs
from ramet.runtime.step import Draw, Gather, Int32Array

GREEDY = SamplingParams(temperature=0.0)
RANDOM = SamplingParams()


def rows_of(count: int, vocab: int = 500, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, vocab, generator=torch.Generator().manual_seed(seed)) * 3


def draw(logits: torch.Tensor, params: SamplingParams, seed: int = 1, **fields: object) -> int:
    position = fields.pop("position", 0)
    banned = fields.pop("banned", ())
    assert isinstance(position, int)
    assert isinstance(banned, tuple)
    one = Draw(0, seed, position, params, banned)
    return draw_tokens(logits.view(1, -1), [one], logits.shape[-1])[0]


def test_greedy_takes_the_lowest_of_equal_ids() -> None:
    row = torch.zeros(300)
    row[[17, 40, 250]] = 5.0
    assert draw(row, GREEDY) == 17
    assert draw(row, GREEDY, banned=(17,)) == 40


def test_ids_beyond_the_tokenizer_are_never_drawn() -> None:
    row = torch.zeros(64)
    row[60:] = 50.0
    draws = [Draw(0, seed, 0, params) for seed in range(20) for params in (GREEDY, RANDOM)]
    assert max(draw_tokens(row.view(1, -1), draws, 60)) < 60


@pytest.mark.parametrize("params", [GREEDY, RANDOM, SamplingParams(top_k=5, top_p=0.9)])
def test_banned_ids_are_never_drawn(params: SamplingParams) -> None:
    row = rows_of(1)[0]
    likely = tuple(row.topk(3).indices.tolist())
    drawn = {draw(row, params, seed, banned=likely) for seed in range(60)}
    assert drawn.isdisjoint(likely)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("params", [GREEDY, RANDOM])
def test_row_that_is_not_finite_gives_no_token(bad: float, params: SamplingParams) -> None:
    logits = rows_of(3)
    logits[1, 77] = bad
    draws = [Draw(row, 5, 0, params) for row in range(3)]
    tokens = draw_tokens(logits, draws, 500)
    assert tokens[1] == NOT_FINITE
    assert min(tokens[0], tokens[2]) >= 0


def test_row_of_minus_infinity_gives_no_token_but_some_minus_infinity_is_fine() -> None:
    row = torch.full((100,), -math.inf)
    assert draw(row, GREEDY) == draw(row, RANDOM) == NOT_FINITE
    row[42] = 0.0
    assert draw(row, GREEDY) == draw(row, RANDOM) == 42
    assert draw(row, RANDOM, banned=(42,)) == NOT_FINITE


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**64 - 1),
    position=st.integers(0, 10_000),
    temperature=st.sampled_from([0.0, 0.3, 1.0, 2.5]),
    top_k=st.sampled_from([-1, 1, 7, 600]),
    top_p=st.sampled_from([1.0, 0.9, 0.05]),
    min_p=st.sampled_from([0.0, 0.1, 1.0]),
)
def test_draw_does_not_depend_on_the_batch(
    seed: int, position: int, temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    logits = rows_of(5, seed=seed % 1000)
    others = [Draw(row, row, 3, p) for row in (4, 0, 2) for p in (GREEDY, RANDOM)]
    wanted = Draw(3, seed, position, params, (9,))
    batched = draw_tokens(logits, [*others, wanted], 500)[-1]
    alone = Draw(0, seed, position, params, (9,))
    assert draw_tokens(logits[3:4].clone(), [alone], 500) == [batched]


def of_history(ids: list[int], num_outputs: int, **params: float) -> Draw:
    history = np.array(ids, np.int32)
    return Draw(0, 1, num_outputs, SamplingParams(**params), history=history)  # type: ignore[arg-type]


def changed(row: torch.Tensor, one: Draw) -> torch.Tensor:
    """Return the row as `change_logits` leaves it."""
    result = row.clone()
    change_logits(result, one)
    return result


HISTORIES = st.lists(st.integers(0, 59), min_size=1, max_size=40)


@settings(max_examples=40, deadline=None)
@given(
    history=HISTORIES,
    share=st.floats(0, 1),
    repetition=st.sampled_from([0.5, 1.0, 1.3, 2.0]),
    frequency=st.sampled_from([-2.0, 0.0, 0.7]),
    presence=st.sampled_from([-1.0, 0.0, 1.1]),
    bias=st.dictionaries(st.integers(0, 49), st.floats(-100, 100, width=32), max_size=4),
)
def test_changes_are_those_of_the_formulas(
    history: list[int],
    share: float,
    repetition: float,
    frequency: float,
    presence: float,
    bias: dict[int, float],
) -> None:
    num_outputs = int(share * len(history))
    params = SamplingParams(
        repetition_penalty=repetition,
        frequency_penalty=frequency,
        presence_penalty=presence,
        logit_bias=tuple(bias.items()),
    )
    row = rows_of(1, 50)[0]  # ids from 50 on cannot be drawn, but a prompt may hold them
    one = Draw(0, 1, num_outputs, params, (7, 55), np.array(history, np.int32))
    expected = row.double().numpy()
    outputs = Counter(history[len(history) - num_outputs :])
    for token in range(50):
        if token in history:
            expected[token] *= 1 / repetition if expected[token] > 0 else repetition
        if token in outputs:
            expected[token] -= outputs[token] * frequency + presence
        expected[token] += bias.get(token, 0.0)
    expected[7] = -math.inf
    np.testing.assert_allclose(changed(row, one).numpy(), expected, rtol=1e-5, atol=1e-4)


@settings(max_examples=30, deadline=None)
@given(HISTORIES.map(lambda ids: [token % 50 for token in ids]), st.sampled_from([0.3, 1.2, 2.0]))
def test_repetition_penalty_has_the_bits_of_transformers(
    history: list[int], penalty: float
) -> None:
    from transformers import RepetitionPenaltyLogitsProcessor

    row = rows_of(1, 50)[0]
    process = RepetitionPenaltyLogitsProcessor(penalty)
    expected = process(torch.tensor([history]), row.clone().unsqueeze(0))[0]
    assert torch.equal(changed(row, of_history(history, 0, repetition_penalty=penalty)), expected)


@settings(max_examples=60, deadline=None)
@given(
    spread=st.sampled_from([0.0, 0.05, 1.0, 4.0]),
    temperature=st.sampled_from([0.5, 1.0, 2.0]),
    top_k=st.sampled_from([-1, 1, 40, 128, 300, 1500, 5000]),
    top_p=st.sampled_from([1.0, 0.9, 0.31, 0.01]),
    min_p=st.sampled_from([0.0, 0.013, 0.5, 1.0]),
    seed=st.integers(0, 999),
)
def test_filters_leave_what_the_definition_leaves(
    spread: float, temperature: float, top_k: int, top_p: float, min_p: float, seed: int
) -> None:
    params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    row = torch.randn(2000, generator=torch.Generator().manual_seed(seed)) * spread
    row[::7] = row[0]  # equals
    row[1::9] = -math.inf
    row -= row.max()
    (found,) = kept_ids(row.unsqueeze(0), [params])
    is_kept = found.scaled[0] > -math.inf
    scaled = row.double().numpy() / temperature
    order = [int(i) for i in np.argsort(-scaled, kind="stable") if scaled[i] > -math.inf]
    order = order[: top_k if top_k > 0 else len(order)]
    shares = np.exp(scaled[order]) / np.exp(scaled[order]).sum()
    nucleus = int((np.cumsum(shares) - shares < top_p - 1e-6).sum()) if top_p < 1 else len(order)
    expected = [i for i in order[:nucleus] if min_p == 0 or scaled[i] >= math.log(min_p)]
    ids = found.ids[0][is_kept].tolist()
    assert ids[: len(expected)] == expected
    assert len(ids) - len(expected) in (0, 1 if top_p < 1 else 0)  # rounding at the very edge


def test_filters_leave_what_those_of_transformers_leave() -> None:
    from transformers import MinPLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

    rows = rows_of(8, 3000)
    rows -= rows.amax(-1, keepdim=True)
    cases = (
        (SamplingParams(top_k=37), TopKLogitsWarper(37)),
        (SamplingParams(top_p=0.83), TopPLogitsWarper(0.83)),
        (SamplingParams(min_p=0.07), MinPLogitsWarper(0.07)),
    )
    for params, process in cases:
        expected = process(torch.zeros(8, 1, dtype=torch.long), rows.clone()) > -math.inf
        for kept_rows in kept_ids(rows, [params] * 8):
            for row, ids, scaled in zip(
                kept_rows.rows, kept_rows.ids, kept_rows.scaled, strict=True
            ):
                left = set(ids[scaled > -math.inf].tolist())
                assert left == set(expected[row].nonzero().view(-1).tolist())


def test_greedy_takes_the_likeliest_of_the_changed_row() -> None:
    row = torch.tensor([3.0, 2.9, 2.9, -1.0])
    for one, want in (
        (of_history([0, 3], 1, temperature=0.0, repetition_penalty=1.1), 1),
        (of_history([0, 3], 2, temperature=0.0, presence_penalty=0.2), 1),
        (of_history([0, 1, 3], 1, temperature=0.0, presence_penalty=0.2), 0),
        (of_history([0, 0, 1], 3, temperature=0.0, frequency_penalty=0.08), 2),
        (of_history([3] * 9, 9, temperature=0.0, frequency_penalty=-2.0), 3),
    ):
        assert draw_tokens(row.view(1, -1), [one], 4) == [want]
    assert row.tolist() == pytest.approx([3.0, 2.9, 2.9, -1.0])  # the row itself stays


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_bias_against_all_others_forces_an_id(temperature: float) -> None:
    others = tuple((token, -100.0) for token in range(500) if token != 321)
    for params in (
        SamplingParams(temperature=temperature, logit_bias=others),
        SamplingParams(temperature=temperature, logit_bias=((321, 100.0),)),
    ):
        assert {draw(rows_of(1)[0], params, seed) for seed in range(20)} == {321}


def test_penalties_without_a_history_are_a_mistake_of_the_caller() -> None:
    with pytest.raises(ValueError, match="history"):
        draw(rows_of(1)[0], SamplingParams(presence_penalty=1.0))


def test_row_that_is_not_finite_gives_no_token_whatever_changes_it() -> None:
    logits = rows_of(2)
    logits[1, 3] = math.nan
    params = SamplingParams(logit_bias=((3, -100.0),))
    tokens = draw_tokens(logits, [Draw(row, 1, 0, params, (3,)) for row in (0, 1)], 500)
    assert tokens[0] >= 0
    assert tokens[1] == NOT_FINITE


KINDS = (
    GREEDY,
    RANDOM,
    SamplingParams(temperature=0.8, top_p=0.9),
    SamplingParams(top_k=50, min_p=0.02),
    SamplingParams(repetition_penalty=1.2, frequency_penalty=0.3),
    SamplingParams(temperature=0.0, presence_penalty=1.5),
    SamplingParams(temperature=1.3, top_p=0.95, logit_bias=((4, 3.0), (400, -9.0))),
)


@pytest.mark.parametrize("spread", [0.1, 1.0])
def test_many_draws_of_many_kinds_equal_each_alone(spread: float, threads: int) -> None:
    rng = np.random.default_rng(threads)
    logits = rows_of(90, 5003) * spread

    def make(row: int) -> Draw:
        params = KINDS[int(rng.integers(len(KINDS)))]
        history: Int32Array = rng.integers(0, 5003, 60).astype(np.int32)
        return Draw(row, row * 77, 30, params, (row,), history if params.has_penalties else None)

    draws = [make(int(row)) for row in rng.integers(0, 90, 80)]
    together = draw_tokens(logits, draws, 5000)
    for one, token in zip(draws, together, strict=True):
        alone = Draw(0, one.seed, 30, one.sampling, one.banned, one.history)
        assert draw_tokens(logits[one.row : one.row + 1].clone(), [alone], 5000) == [token]


def kept(row: torch.Tensor, params: SamplingParams, tries: int = 400) -> set[int]:
    draws = [Draw(0, seed, 0, params) for seed in range(tries)]
    return set(draw_tokens(row.view(1, -1), draws, len(row)))


def test_top_k_keeps_the_likeliest_and_of_equals_the_lowest() -> None:
    row = torch.zeros(50)
    row[30] = 0.5
    assert kept(row, SamplingParams(top_k=3)) == {0, 1, 30}
    assert kept(row, SamplingParams(top_k=1)) == {30}


def test_top_p_keeps_the_fewest_that_reach_it() -> None:
    row = torch.tensor([0.1, 0.4, 0.2, 0.3]).log()
    assert kept(row, SamplingParams(top_p=0.65)) == {1, 3}
    assert kept(row, SamplingParams(top_p=0.75)) == {1, 2, 3}
    assert kept(row, SamplingParams(top_p=0.01)) == {1}


def test_top_p_of_a_flat_row_needs_more_than_the_first_tries() -> None:
    drawn = kept(torch.zeros(5000), SamplingParams(top_p=0.9), tries=60)
    assert max(drawn) < 4500
    assert max(drawn) > 2048


def test_top_p_counts_what_top_k_left() -> None:
    row = torch.tensor([0.4, 0.3, 0.2, 0.1]).log()
    assert kept(row, SamplingParams(top_k=2, top_p=0.5)) == {0}


def test_min_p_is_a_share_of_the_likeliest() -> None:
    row = torch.tensor([0.5, 0.3, 0.15, 0.05]).log()
    assert kept(row, SamplingParams(min_p=0.29)) == {0, 1, 2}


@pytest.mark.parametrize("temperature", [0.7, 1.0, 2.0])
def test_frequencies_follow_the_softmax(temperature: float) -> None:
    row = torch.tensor([2.0, 1.0, 0.0, -1.0, 1.5, 0.5])
    params = SamplingParams(temperature=temperature)
    tries = 6000
    draws = [Draw(0, seed * 7919 + 13, seed % 5, params) for seed in range(tries)]
    counts = Counter(draw_tokens(row.view(1, -1), draws, 6))
    expected = torch.softmax(row.double() / temperature, -1) * tries
    chi_squared = sum((counts[i] - float(e)) ** 2 / float(e) for i, e in enumerate(expected))
    assert chi_squared < 20.5  # 5 degrees of freedom: exceeded once in 1,000


def test_positions_of_one_seed_are_independent_draws() -> None:
    row = torch.zeros(16)
    draws = [Draw(0, 1, position, RANDOM) for position in range(3200)]
    counts = Counter(draw_tokens(row.view(1, -1), draws, 16))
    assert max(counts.values()) < 200 * 1.35
    assert min(counts.values()) > 200 * 0.65


def test_logprobs_are_of_the_whole_row_and_nan_stays() -> None:
    logits = rows_of(4)
    logits[2, 0] = math.nan
    asked = [Gather(3, (1, 499, 1)), Gather(0, ()), Gather(2, (5,))]
    found = [row.logprobs for row in gather_logprobs(logits, asked, 500)]
    expected = torch.log_softmax(logits[3].double(), -1)
    assert found[0] == pytest.approx([float(expected[i]) for i in (1, 499, 1)], abs=1e-5)
    assert found[1] == []
    assert math.isnan(found[2][0])


def test_top_logprobs_are_the_likeliest_usable_ids_equals_by_id() -> None:
    logits = rows_of(3)
    logits[0, 495:] = 50.0  # beyond the tokenizer: never listed, but part of the softmax
    logits[1] = 0.0
    logits[2, 4] = math.nan
    asked = [Gather(0, (3,), 4), Gather(1, (), 5), Gather(2, (1,), 2), Gather(0, (), 600)]
    found = gather_logprobs(logits, asked, 495)
    expected = torch.log_softmax(logits[0].double(), -1)
    likely = [int(i) for i in logits[0, :495].sort(descending=True).indices]
    assert [token for token, _ in found[0].top] == likely[:4]
    assert [value for _, value in found[0].top] == pytest.approx(
        [float(expected[i]) for i in likely[:4]], abs=1e-5
    )
    assert found[0].logprobs == pytest.approx([float(expected[3])], abs=1e-5)
    assert [token for token, _ in found[1].top] == [0, 1, 2, 3, 4]
    assert [value for _, value in found[1].top] == pytest.approx([-math.log(500)] * 5)
    assert [token for token, _ in found[2].top] == [0, 1]
    assert all(math.isnan(value) for _, value in found[2].top)
    assert [token for token, _ in found[3].top] == likely


def test_a_report_is_of_the_row_as_the_model_gave_it_whatever_is_drawn() -> None:
    logits = rows_of(2)
    bias = SamplingParams(temperature=0.0, logit_bias=((123, 100.0),))
    draws = [
        Draw(1, 0, 0, bias, report=Gather(1, (5, 123), 2)),
        Draw(0, 0, 0, RANDOM),
        Draw(0, 0, 0, RANDOM, tuple(range(500)), report=Gather(0, ())),
    ]
    tokens = draw_tokens(logits, draws, 500)
    assert tokens[0] == 123
    first, none, failed = report_logprobs(logits, draws, tokens, 500)
    expected = torch.log_softmax(logits[1].double(), -1)
    assert first is not None
    assert first.logprobs == pytest.approx([float(expected[i]) for i in (123, 5, 123)], abs=1e-5)
    assert first.top[0][0] == int(expected.argmax())
    assert none is failed is None


def test_reports_have_the_same_bits_in_any_batch(threads: int) -> None:
    logits = rows_of(40, 5003)
    draws = [Draw(row, row, 0, RANDOM, report=Gather(row, (7,), 20)) for row in range(40)]
    tokens = draw_tokens(logits, draws, 5000)
    together = report_logprobs(logits, draws, tokens, 5000)
    for one, token, report in zip(draws, tokens, together, strict=True):
        alone = Draw(0, one.seed, 0, RANDOM, report=Gather(0, (7,), 20))
        row = logits[one.row : one.row + 1].clone()
        assert report_logprobs(row, [alone], [token], 5000) == [report]
