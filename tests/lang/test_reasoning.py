"""Reasoning apart from the answer: the same two parts however the text comes."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ramet
from ramet.errors import GenerationError, InvalidRequestError
from ramet.expressions.reasoning import REASONING_FORMATS, ReasoningSplitter, split_reasoning


@pytest.mark.parametrize(
    ("model_type", "text", "reasoning", "answer"),
    [
        ("qwen3", "<think>\na b\n</think>\n\nyes\n", "a b", "yes"),
        ("qwen3", "  plain text ", "", "  plain text "),
        ("qwen3", "<think>never ended", "never ended", ""),
        ("qwen3", "a <think> inside", "", "a <think> inside"),
        ("deepseek-r1", "a b</think>yes", "a b", "yes"),
        ("deepseek-r1", "<think>a</think>yes", "a", "yes"),
        ("deepseek-r1", "never ended", "never ended", ""),
        ("kimi", "◁think▷a◁/think▷yes", "a", "yes"),
        ("kimi", "<think>a</think>yes", "", "<think>a</think>yes"),
        ("qwen3", "<think></think>", "", ""),
        ("qwen3", "<think>a</thin k>b</think>c", "a</thin k>b", "c"),
        ("qwen3", "<thi", "", "<thi"),
    ],
)
def test_split(model_type: str, text: str, reasoning: str, answer: str) -> None:
    assert split_reasoning(text, model_type) == (reasoning, answer)


pieces = st.lists(
    st.sampled_from(["<think>", "</think>", "<", "/", "think", ">", " ", "\n", "a", "b c", "◁"]),
    max_size=12,
)


@settings(max_examples=150, deadline=None)
@given(pieces, st.integers(1, 5), st.sampled_from(sorted(REASONING_FORMATS)))
def test_pieces_give_what_the_whole_gives(parts: list[str], size: int, model_type: str) -> None:
    text = "".join(parts)
    splitter = ReasoningSplitter(REASONING_FORMATS[model_type])
    fed = [splitter.feed(text[i : i + size]) for i in range(0, len(text), size)]
    fed.append(splitter.finish())
    together = "".join(r for r, _ in fed), "".join(a for _, a in fed)
    assert together == split_reasoning(text, model_type)


@ramet.function
def think(s: ramet.ProgramState) -> None:
    s += ramet.user("Why?")
    s += ramet.assistant(ramet.separate_reasoning(ramet.gen("a"), model_type="qwen3"))


def test_streamed_pieces_have_no_reasoning_in_the_answer() -> None:
    backend = ramet.Fake({"a": "<think>first this, then that</think>So it is."}, stream_chunks=20)
    state = think.stream(backend=backend)
    answer = list(state.text_iter("a"))
    assert len(answer) > 1
    assert "".join(answer) == state["a"] == "So it is."
    assert "".join(state.text_iter("a_reasoning_content")) == "first this, then that"
    assert "first this" not in state.text()


def test_failure_stands_for_the_reasoning_too() -> None:
    state = think(backend=ramet.Fake({"a": RuntimeError("no")}), on_error="return")
    with pytest.raises(GenerationError, match="no"):
        state["a_reasoning_content"]


def test_branches_join_both_variables() -> None:
    @ramet.function
    def program(s: ramet.ProgramState) -> None:
        forks = s.fork(2)
        forks += lambda i: f"{i}:" + ramet.separate_reasoning(ramet.gen("a"), "qwen3")
        forks.join()

    fake = ramet.Fake(lambda prompt, name: f"<think>r{prompt}</think>{prompt}")
    state = program(backend=fake)
    assert state["a"] == ["0:", "1:"]
    assert state["a_reasoning_content"] == ["r0:", "r1:"]


def test_unknown_model_type_names_the_known_ones() -> None:
    with pytest.raises(InvalidRequestError, match=r"did you mean 'qwen3'.*deepseek-r1"):
        ramet.separate_reasoning(ramet.gen("a"), model_type="qwen33")


def test_expression_without_a_gen_is_refused() -> None:
    with pytest.raises(TypeError, match="needs a gen"):
        ramet.separate_reasoning("text", model_type="qwen3")
