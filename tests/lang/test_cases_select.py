"""Cases F05 to F18 of the list of open problems, as far as no model is needed.

`tests/end_to_end/test_cases_select.py` has those that a model must answer.
"""

import math
from typing import Any

import pytest

import ramet
from ramet import ProgramState
from ramet.choices import greedy_matrix
from ramet.errors import GenerationError, InvalidRequestError

METHODS = (
    ramet.token_length_normalized,
    ramet.greedy_token_selection,
    ramet.unconditional_likelihood_normalized,
)


@ramet.function
def pick(s: ProgramState, text: str, options: list[str], method: Any = None) -> None:
    s += text + ramet.select("x", options, choices_method=method)


def picked(answer: str, text: str, options: list[str], method: Any = None) -> ProgramState:
    return pick(text, options, method, backend=ramet.Fake({"x": answer}))


@pytest.mark.parametrize("method", METHODS)
def test_f06_each_method_follows_its_formula_on_what_is_reported(method: Any) -> None:
    options = ["Paris", "Antidisestablishmentarianism", "Pa"]
    info = picked(options[1], "Capital of France?", options, method).get_meta_info("x")
    rows = tuple(tuple(choice["logprobs"]) for choice in info["choices"])
    assert info["choices_method"] == method.__name__
    assert info["normalized_prompt_logprobs"] == [math.fsum(row) / len(row) for row in rows]
    reported = [[entry[0] for entry in entries] for entries in info["input_token_logprobs"]]
    assert reported == [
        list(row[: len(choice["ids"])]) for row, choice in zip(rows, info["choices"], strict=True)
    ]
    assert sum(choice["probability"] for choice in info["choices"]) == pytest.approx(1)
    has_matrix = method is ramet.greedy_token_selection
    assert ("greedy_logprob_matrix" in info) is has_matrix
    if has_matrix:
        assert info["greedy_logprob_matrix"] == [list(row) for row in greedy_matrix(rows)]
    has_alone = method is ramet.unconditional_likelihood_normalized
    assert ("normalized_unconditional_prompt_logprobs" in info) is has_alone
    if has_alone:
        gains = info["normalized_unconditional_prompt_logprobs"]
        assert gains.index(max(gains)) == 1


@pytest.mark.parametrize("text", ["Is it ", "id_", "n9", "end.", "é", ""])
def test_f07_the_listed_tokens_are_those_of_the_option(text: str) -> None:
    options = [" YES", " NO"]
    info = picked(" NO", text, options).get_meta_info("x")
    for choice, option in zip(info["choices"], options, strict=True):
        assert text + option == (text + " ") + choice["text"]
        assert len(choice["ids"]) == len(choice["logprobs"]) == len(choice["text"].encode())


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("winner", [" John", " John Doe", " John Doe Jr"])
def test_f09_each_of_options_that_begin_alike_can_win(winner: str, method: Any) -> None:
    options = [" John", " John Doe", " John Doe Jr"]
    state = picked(winner, "Name:", options, method)
    assert state["x"] == winner
    assert state.text() == "Name:" + winner


@pytest.mark.parametrize("name", ["Alice", "Bob"])
def test_f11_the_space_may_stand_on_either_side(name: str) -> None:
    before = picked(name, "Hello, ", ["Alice", "Bob"])
    inside = picked(f" {name}", "Hello,", [" Alice", " Bob"])
    assert before.text() == inside.text() == f"Hello, {name}"
    assert before["x"] == inside["x"].strip()


def test_f14_the_value_is_one_of_the_given_options_and_can_be_branched_on() -> None:
    @ramet.function
    def program(s: ProgramState) -> None:
        s += "Is it present?" + ramet.select("p", ["Yes", "No"])
        if s["p"] == "Yes":
            s += " ok"

    state = program(backend=ramet.Fake({"p": "Yes"}))
    assert state["p"] == "Yes"
    assert state.text() == "Is it present?Yes ok"


def test_f15_odd_lists_of_options() -> None:
    assert picked("", "a", ["", " indeed", " indeed so"])["x"] == ""
    assert picked("dup", "a", ["dup", "dup"])["x"] == "dup"
    assert picked("only", "a", ["only"])["x"] == "only"
    fake = ramet.Fake({"x": "a"})
    with pytest.raises(InvalidRequestError, match="choices is empty"):
        pick("a", [], backend=fake)
    assert fake.requests == []


@pytest.mark.parametrize("method", METHODS)
def test_f15_an_empty_option_has_a_score_under_every_method(method: Any) -> None:
    state = picked(" indeed", "a", ["", " indeed", " indeed so"], method)
    assert state["x"] == " indeed"
    assert math.isfinite(state.get_meta_info("x")["choices"][0]["logprobs"][0])


@pytest.mark.parametrize("winner", ["🐈", "🐕", "🐈‍⬛"])
def test_f18_a_joined_sequence_stays_whole(winner: str) -> None:
    state = picked(winner, "Pet: ", ["🐈", "🐕", "🐈‍⬛"])
    assert state["x"] == winner
    assert state.text() == f"Pet: {winner}"


def test_a_method_that_fails_is_the_selects_failure() -> None:
    def broken(logprobs: Any) -> int:
        raise RuntimeError("no idea")

    with pytest.raises(GenerationError, match="no idea"):
        picked("a", "t", ["a", "b"], broken)
