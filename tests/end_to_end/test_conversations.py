"""Conversations on a tiny model with a real tokenizer and template."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ramet
from ramet import ProgramState
from ramet.errors import ContextLengthError, GenerationError
from tests.models import write_model

texts = st.text("The capital of é🙂\n<|im_end|>", max_size=15)
turns = st.lists(
    st.builds(
        lambda role, content: {"role": role, "content": content},
        st.sampled_from(["system", "user", "assistant", "tool"]),
        texts,
    ),
    min_size=1,
    max_size=5,
)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ramet.Engine]:
    folder: Path = write_model(tmp_path_factory.mktemp("models") / "tiny")
    with ramet.Engine(folder, process="thread", max_total_tokens=4000) as engine:
        yield engine


@ramet.function
def replay(s: ProgramState, history: list[dict[str, Any]]) -> int:
    s += ramet.messages(history)
    counted = s.num_tokens
    s += ramet.gen("end", max_tokens=0)
    return counted


def ids_of(state: ProgramState) -> list[int]:
    assert state._stream.tokens is not None
    return list(state._stream.tokens.ids())


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(turns)
def test_messages_replayed_have_the_same_ids_and_are_counted_exactly(
    engine: ramet.Engine, history: list[dict[str, Any]]
) -> None:
    first = replay(history, backend=engine)
    second = replay(first.messages(), backend=engine)
    assert ids_of(second) == ids_of(first)
    assert first.ret_value == len(ids_of(first)) == first.num_tokens


def test_a_prompt_that_is_too_long_says_both_numbers(engine: ramet.Engine) -> None:
    limit = engine.info()["context_length"]
    assert isinstance(limit, int)
    history = [{"role": "user", "content": "9 é" * limit}]
    with pytest.raises(GenerationError) as caught:
        replay(history, backend=engine)
    cause = caught.value.__cause__
    assert isinstance(cause, ContextLengthError)
    assert cause.limit is not None
    assert cause.num_tokens is not None
    assert cause.num_tokens > limit
    assert str(cause.num_tokens) in str(caught.value)
    assert str(cause.limit) in str(caught.value)


def test_trimmed_messages_fit_in_the_models_tokens(engine: ramet.Engine) -> None:
    history = [{"role": "user", "content": f"The capital of {i}?" * 3} for i in range(9)]
    kept = ramet.trim(history, 100, backend=engine)
    assert kept == history[-len(kept) :]
    assert kept.dropped
    assert replay(kept, backend=engine).ret_value <= 100
