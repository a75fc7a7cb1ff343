"""Draws are pure functions of row, mask, parameters, seed and position, and follow the softmax."""

import math
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ramet.runtime.protocol import SamplingParams
from ramet.runtime.sampler import NOT_FINITE, draw_tokens, gather_logprobs
from ramet.runtime.step import Draw, Gather

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


def kept(row: torch.Tensor, params: SamplingParams, tries: int = 400) -> set[int]:
    return {draw(row, params, seed) for seed in range(tries)}


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
    counts = Counter(draw(row, RANDOM, position=position) for position in range(3200))
    assert max(counts.values()) < 200 * 1.35
    assert min(counts.values()) > 200 * 0.65


def test_logprobs_are_of_the_whole_row_and_nan_stays() -> None:
    logits = rows_of(4)
    logits[2, 0] = math.nan
    asked = [Gather(3, (1, 499, 1)), Gather(0, ()), Gather(2, (5,))]
    found = [row.logprobs for row in gather_logprobs(logits, asked)]
    expected = torch.log_softmax(logits[3].double(), -1)
    assert found[0] == pytest.approx([float(expected[i]) for i in (1, 499, 1)], abs=1e-5)
    assert found[1] == []
    assert math.isnan(found[2][0])
