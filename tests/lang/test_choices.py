"""How select picks."""

import math
from typing import Any

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ramet
from ramet.choices import (
    Rows,
    decide,
    greedy_matrix,
    greedy_token_selection,
    needs_unconditional,
    normalized_gains,
    scored_rows,
    token_length_normalized,
    unconditional_likelihood_normalized,
    with_unconditional,
)
from ramet.runtime.protocol import OptionScore, TokenIds


def option(ids: list[int], logprobs: list[float]) -> OptionScore:
    return OptionScore(ids=TokenIds.of(ids), logprobs=tuple(logprobs), text="")


rows = st.lists(
    st.lists(st.floats(-20, 0), min_size=1, max_size=4).map(tuple), min_size=1, max_size=5
).map(tuple)


@given(rows)
def test_mean_decides(rows: tuple[tuple[float, ...], ...]) -> None:
    means = [math.fsum(row) / len(row) for row in rows]
    assert token_length_normalized(rows) == means.index(max(means))


@given(rows)
def test_greedy_keeps_the_highest_first_token(rows: tuple[tuple[float, ...], ...]) -> None:
    winner = greedy_token_selection(rows)
    assert rows[winner][0] == max(row[0] for row in rows)


def test_greedy_goes_on_to_the_token_that_differs() -> None:
    assert greedy_token_selection(((-1.0, -3.0), (-1.0, -2.0), (-5.0, 0.0))) == 1


def test_ties_go_to_the_lowest_index() -> None:
    tied = ((-1.0,), (-1.0, -1.0), (-1.0,))
    assert token_length_normalized(tied) == 0
    assert greedy_token_selection(tied) == 0


def test_probability_one_counts() -> None:
    assert token_length_normalized(((0.0, -4.0), (-2.5,))) == 0
    assert token_length_normalized(((0.0,), (0.0, 0.0))) == 0


@given(rows)
def test_probabilities_are_the_softmax_of_sums(rows: tuple[tuple[float, ...], ...]) -> None:
    options = [option([i, *[1] * (len(row) - 1)], list(row)) for i, row in enumerate(rows)]
    decision = decide(token_length_normalized, options)
    assert math.fsum(decision.probabilities) == pytest.approx(1)
    weights = [math.exp(math.fsum(row)) for row in rows]
    assert decision.probabilities == pytest.approx([w / math.fsum(weights) for w in weights])


def test_option_that_all_others_begin_with_has_what_they_leave() -> None:
    doe = math.log(0.25)
    scored = scored_rows([option([], []), option([7], [doe]), option([7, 8], [doe, -0.1])])
    assert scored[0] == pytest.approx((math.log(0.75),))


def test_shorter_option_does_not_win_because_it_is_shorter() -> None:
    likely, unlikely = math.log(0.9), math.log(0.1)
    short, long = option([], []), option([7], [likely])
    assert decide(token_length_normalized, [short, long]).index == 1
    assert decide(token_length_normalized, [short, option([7], [unlikely])]).index == 0


def test_impossible_tokens_stay_finite() -> None:
    decision = decide(token_length_normalized, [option([1], [-math.inf]), option([2], [-1.0])])
    assert decision.index == 1
    assert all(math.isfinite(value) for row in decision.logprobs for value in row)


def test_one_option_is_certain() -> None:
    assert decide(greedy_token_selection, [option([], [])]).probabilities == (1.0,)


def test_method_that_names_no_option_is_an_error(ramet_fake: object) -> None:
    with pytest.raises(ValueError, match="not the index"):
        decide(lambda rows: 5, [option([1], [-1.0])])


def test_index_may_be_an_integer_of_another_library() -> None:
    rows = [option([1], [-1.0]), option([2], [-2.0])]
    index = numpy.int64(1)
    assert decide(lambda rows: index, rows).index == 1


def test_own_method_gets_all_rows() -> None:
    @ramet.function
    def last(s: ramet.ProgramState) -> None:
        s += ramet.select("x", ["a", "b", "c"], choices_method=lambda rows: len(rows) - 1)

    assert last(backend=ramet.Fake({"x": "a"}))["x"] == "c"


@given(rows)
def test_the_greedy_matrix_is_padded_with_each_rows_mean(rows: Rows) -> None:
    matrix = greedy_matrix(rows)
    width = max(map(len, rows))
    for row, padded in zip(rows, matrix, strict=True):
        assert padded[: len(row)] == row
        assert padded[len(row) :] == (math.fsum(row) / len(row),) * (width - len(row))


@given(rows)
def test_unconditional_takes_the_highest_mean_gain(rows: Rows) -> None:
    alone = tuple(tuple(-3.0 * i for i in range(len(row))) for row in rows)
    gains = [
        math.fsum(a - b for a, b in zip(row, other, strict=True)) / len(row)
        for row, other in zip(rows, alone, strict=True)
    ]
    assert normalized_gains(rows, alone) == pytest.approx(gains)
    assert unconditional_likelihood_normalized(rows, alone) == gains.index(max(gains))


def test_a_method_of_ones_own_can_take_both() -> None:
    seen: list[Rows] = []

    @with_unconditional
    def method(logprobs: Rows, unconditional: Rows) -> int:
        seen.extend([logprobs, unconditional])
        return 1

    @ramet.function
    def program(s: ramet.ProgramState) -> None:
        s += "a" + ramet.select("x", ["b", "cd"], choices_method=method)

    assert program(backend=ramet.Fake({"x": "b"}))["x"] == "cd"
    assert seen == [((-0.005,), (-10.0, -10.0)), ((0.0,), (0.0, -5.0))]


def test_only_methods_that_say_so_get_unconditional_scores() -> None:
    @ramet.function
    def program(s: ramet.ProgramState, method: Any) -> None:
        s += "a" + ramet.select("x", ["b", "c"], choices_method=method)

    for method in (token_length_normalized, unconditional_likelihood_normalized):
        fake = ramet.Fake({"x": "c"})
        state = program(method, backend=fake)
        assert state["x"] == "c"
        assert [getattr(r, "unconditional", None) for r in fake.requests] == [
            needs_unconditional(method)
        ]
        assert ("unconditional_token_logprobs" in state.get_meta_info("x")) is (
            needs_unconditional(method)
        )


def test_a_backend_without_unconditional_scores_is_a_clear_error() -> None:
    with pytest.raises(ValueError, match="without a prompt"):
        decide(unconditional_likelihood_normalized, [option([1], [-1.0])])
