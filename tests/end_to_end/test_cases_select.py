"""Cases F05 to F18 of the list of open problems, on a tiny model and against transformers.

Scores are compared with log-probabilities that transformers computes for prompt and option encoded
as one string.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ramet
from ramet import ProgramState
from tests.models import tiny_tokenizer, write_model

CLOSE = 2e-4  # between two implementations in float32
METHODS = (
    ramet.token_length_normalized,
    ramet.greedy_token_selection,
    ramet.unconditional_likelihood_normalized,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def engine(folder: Path) -> Iterator[ramet.Engine]:
    with ramet.Engine(folder, process="thread", dtype="float32", max_total_tokens=4000) as engine:
        yield engine


@pytest.fixture(scope="module")
def model(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


@ramet.function
def pick(s: ProgramState, text: str, options: list[str], method: Any = None) -> None:
    s += text + ramet.select("x", options, choices_method=method)


@ramet.function
def chat_pick(s: ProgramState, text: str, options: list[str], method: Any = None) -> None:
    s += ramet.user(text)
    s += ramet.assistant(ramet.select("x", options, choices_method=method))


def encode(text: str) -> list[int]:
    return [int(i) for i in tiny_tokenizer().encode(text).ids]


def logprobs_of(model: Any, ids: list[int]) -> list[float]:
    """Return how likely each id is after those before it; 0 for the first."""
    with torch.inference_mode():
        table = torch.log_softmax(model(torch.tensor([ids])).logits[0].float(), dim=-1)
    return [0.0, *(float(table[i, token]) for i, token in enumerate(ids[1:]))]


def assert_scores_are_right(
    model: Any, state: ProgramState, prompt: str, options: list[str]
) -> None:
    """Compare what is reported with prompt and option as one string."""
    info = state.get_meta_info("x")
    rows = [encode(prompt + option) for option in options]
    start = next(
        (i for i, column in enumerate(zip(*rows, strict=False)) if len(set(column)) > 1),
        min(map(len, rows)),
    )
    for choice, row in zip(info["choices"], rows, strict=True):
        assert choice["ids"] == row[start:]
        expected = logprobs_of(model, row)[start:]
        assert choice["logprobs"] == pytest.approx(expected, abs=CLOSE)
        assert (prompt + options[info["choices"].index(choice)]).endswith(choice["text"])
    sums = [math.fsum(choice["logprobs"]) for choice in info["choices"]]
    total = math.log(math.fsum(math.exp(value) for value in sums))
    for choice, value in zip(info["choices"], sums, strict=True):
        assert math.log(choice["probability"]) == pytest.approx(value - total, abs=CLOSE)


PROMPT_IN_CHAT = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize("method", METHODS)
def test_f05_scores_are_those_of_prompt_and_option_as_one_string(
    engine: ramet.Engine, model: Any, method: Any
) -> None:
    options = ["Hello", "Goodbye", "#%]q~"]
    state = chat_pick("Hi!", options, method, backend=engine)
    assert_scores_are_right(model, state, PROMPT_IN_CHAT.format("Hi!"), options)


def test_f05_two_spellings_of_the_same_text_rank_alike(engine: ramet.Engine) -> None:
    before = pick("Hi! ", ["Hello", "Goodbye", "#%]q~"], backend=engine)
    inside = pick("Hi!", [" Hello", " Goodbye", " #%]q~"], backend=engine)
    assert before.text() == inside.text()
    scores = [state.get_meta_info("x")["choices"] for state in (before, inside)]
    assert [choice["logprobs"] for choice in scores[0]] == [c["logprobs"] for c in scores[1]]


def test_f06_all_methods_follow_their_formula(engine: ramet.Engine, model: Any) -> None:
    options = ["Paris", "Antidisestablishmentarianism"]
    means: list[float] = []
    for method in METHODS:
        info = chat_pick("Capital of France?", options, method, backend=engine).get_meta_info("x")
        rows = [choice["logprobs"] for choice in info["choices"]]
        means = [math.fsum(row) / len(row) for row in rows]
        assert info["normalized_prompt_logprobs"] == pytest.approx(means)
        if "unconditional_token_logprobs" not in info:
            continue
        alone = [logprobs_of(model, choice["ids"]) for choice in info["choices"]]
        got = [[entry[0] for entry in row] for row in info["unconditional_token_logprobs"]]
        for mine, theirs in zip(got, alone, strict=True):
            assert mine == pytest.approx(theirs, abs=CLOSE)
        gains = [
            math.fsum(a - b for a, b in zip(row, other, strict=True)) / len(row)
            for row, other in zip(rows, got, strict=True)
        ]
        assert info["normalized_unconditional_prompt_logprobs"] == pytest.approx(gains)
    assert means


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.text("The capital of_9 . é🙂", max_size=20), st.sampled_from(["", " ", "_", "7"]))
def test_f07_listed_tokens_are_those_of_the_option(
    engine: ramet.Engine, model: Any, text: str, end: str
) -> None:
    prompt = f"Q{text}{end}"
    options = [" YES", " NO"]
    assert_scores_are_right(model, pick(prompt, options, backend=engine), prompt, options)


def test_f09_the_shortest_does_not_win_for_being_short(engine: ramet.Engine, model: Any) -> None:
    options = [" John", " John Doe", " John Doe Jr"]

    def last(logprobs: Any) -> int:
        return len(logprobs) - 1

    state = pick("Name:", options, last, backend=engine)
    assert state["x"] == options[2]
    assert state.text() == "Name: John Doe Jr"


def test_f11_the_space_may_stand_on_either_side(engine: ramet.Engine) -> None:
    before = pick("Hello, ", ["Alice", "Bob"], backend=engine)
    inside = pick("Hello,", [" Alice", " Bob"], backend=engine)
    assert before.text() == inside.text()
    assert before["x"] == inside["x"].strip()


def test_f14_the_value_is_one_of_the_options(engine: ramet.Engine) -> None:
    assert pick("Is it present?", ["Yes", "No"], backend=engine)["x"] in ("Yes", "No")


def test_f15_odd_lists_of_options(engine: ramet.Engine) -> None:
    assert pick("a", ["dup", "dup"], backend=engine)["x"] == "dup"
    assert pick("a", ["only"], backend=engine)["x"] == "only"
    with pytest.raises(ramet.errors.GenerationError, match="option 0 is empty"):
        pick("a", ["", " indeed", " indeed so"], backend=engine)


def test_f18_a_joined_sequence_is_an_option_like_others(engine: ramet.Engine, model: Any) -> None:
    options = ["🐈", "🐕", "🐈‍⬛"]
    state = pick("Pet: ", options, backend=engine)
    assert state["x"] in options
    assert state.text() == "Pet: " + state["x"]
