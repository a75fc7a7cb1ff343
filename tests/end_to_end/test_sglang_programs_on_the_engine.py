"""Programs as SGLang's users write them, on a tiny random model: with the cache as without it,
in company as alone, streamed as whole."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import ramet as sgl
from tests.lang.test_sglang_programs import (
    expert_answer,
    few_shot_qa,
    parallel_decoding,
    react,
    tip_suggestion,
    tool_use,
    tree_search,
    two_turns,
)
from tests.models import write_model

PROGRAMS: dict[str, tuple[sgl.Program, tuple[Any, ...]]] = {
    "few_shot_qa": (few_shot_qa, ("What is 4 + 4?",)),
    "two_turns": (two_turns, ("Where is it?", "And how?")),
    "expert_answer": (expert_answer, ("Why is the tree dry?",)),
    "tip_suggestion": (tip_suggestion, ()),
    "tool_use": (tool_use, ("What is 2 + 2?",)),
    "react": (react, ("Where is Paris?",)),
    "tree_search": (tree_search, ("How many leaves?", 2)),
    "parallel_decoding": (parallel_decoding, ("trees",)),
}
OPTIONS: dict[str, Any] = {"seed": 5, "temperature": 0.9, "max_tokens": 12}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "tiny"
    return write_model(folder, max_position_embeddings=4096)


@pytest.fixture(scope="module")
def engine(folder: Path) -> Iterator[sgl.Engine]:
    with sgl.Engine(folder, process="thread", max_total_tokens=8000) as engine:
        yield engine


@pytest.fixture(scope="module")
def uncached(folder: Path) -> Iterator[sgl.Engine]:
    with sgl.Engine(
        folder, process="thread", max_total_tokens=8000, enable_radix_cache=False
    ) as engine:
        yield engine


@pytest.mark.parametrize(("program", "arguments"), PROGRAMS.values(), ids=list(PROGRAMS))
def test_program_gives_one_text_however_it_runs(
    engine: sgl.Engine, uncached: sgl.Engine, program: sgl.Program, arguments: tuple[Any, ...]
) -> None:
    engine.flush_cache()
    cold = program.run(*arguments, backend=engine, **OPTIONS).text()
    assert program.run(*arguments, backend=engine, **OPTIONS).text() == cold
    assert program.run(*arguments, backend=uncached, **OPTIONS).text() == cold
    streamed = program.run(*arguments, backend=engine, stream=True, **OPTIONS)
    assert streamed.text() == cold


def test_all_programs_at_once_give_what_each_gives_alone(engine: sgl.Engine) -> None:
    alone = [p.run(*given, backend=engine, **OPTIONS).text() for p, given in PROGRAMS.values()]
    engine.flush_cache()
    running = [p.start(*given, backend=engine, **OPTIONS) for p, given in PROGRAMS.values()]
    assert [state.text() for state in running] == alone


@sgl.function
def go_on(s: Any, text: str) -> None:
    s += text + sgl.gen("more", max_tokens=16, ignore_eos=True)


def test_two_hundred_prompts_read_the_same_with_and_without_the_cache(
    engine: sgl.Engine, uncached: sgl.Engine
) -> None:  # C01
    prefixes = [f"{number}) The tree has a trunk. " for number in range(5)]
    rows = [{"text": f"{prefixes[i % 5]}Branch {i // 10}"} for i in range(200)]

    def texts(backend: sgl.Engine, threads: int) -> list[str]:
        states = go_on.run_batch(rows, backend=backend, num_threads=threads, temperature=0)
        return [state["more"] for state in states]

    expected = texts(uncached, 64)
    engine.flush_cache()
    assert texts(engine, 64) == expected
    assert texts(engine, 1) == expected
