"""Programs on a tiny random model: forked = straight, batched = alone, cached = not, in bits.

What is compared are the token ids of states and the log-probabilities of selects, so a single
bit of difference in a log-probability fails.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ramet
from tests.models import write_model

TRUNK = "The quick brown fox jumps over the lazy dog, and the tree has branches. " * 3
QUESTIONS = ("Who jumps?", "Who is lazy?", "What has the tree?", "Who jumps?")
OPTIONS = ["yes", "no", "perhaps", "not at all"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def engine(request: pytest.FixtureRequest, folder: Path) -> Iterator[ramet.Engine]:
    with ramet.Engine(
        folder, process="thread", dtype=request.param, max_total_tokens=4000
    ) as engine:
        yield engine


@pytest.fixture(scope="module")
def uncached(engine: ramet.Engine, folder: Path) -> Iterator[ramet.Engine]:
    with ramet.Engine(
        folder,
        process="thread",
        dtype=str(engine.info()["dtype"]),
        max_total_tokens=4000,
        enable_radix_cache=False,
    ) as engine_without:
        yield engine_without


@ramet.function
def forked(s: Any, options: list[str]) -> None:
    s += ramet.system(TRUNK)
    branches = s.fork(len(QUESTIONS))
    for branch, question in zip(branches, QUESTIONS, strict=True):
        branch += ramet.user(question)
        branch += ramet.assistant(ramet.gen("answer", max_tokens=9))
        branch += ramet.user("Sure? ")
        branch += ramet.assistant("I say " + ramet.select("sure", options))
    branches.join()
    s += ramet.user("Done?") + ramet.assistant(ramet.gen("end", max_tokens=4))


@ramet.function
def straight(s: Any, question: str, options: list[str]) -> None:
    s += ramet.system(TRUNK) + ramet.user(question)
    s += ramet.assistant(ramet.gen("answer", max_tokens=9))
    s += ramet.user("Sure? ") + ramet.assistant("I say " + ramet.select("sure", options))


def scores(state: Any, name: str) -> Any:
    return [choice["logprobs"] for choice in state.get_meta_info(name)["choices"]]


def test_forked_is_straight(engine: ramet.Engine) -> None:
    engine.flush_cache()
    together = forked.run(OPTIONS, backend=engine, temperature=0)
    for index, question in enumerate(QUESTIONS):
        engine.flush_cache()
        alone = straight.run(question, OPTIONS, backend=engine, temperature=0)
        assert together["answer"][index] == alone["answer"]
        assert together["sure"][index] == alone["sure"]


@ramet.function
def one(s: Any, question: str, options: list[str]) -> None:
    s += ramet.system(TRUNK) + ramet.user(question)
    s += ramet.assistant(ramet.gen("answer", max_tokens=9) + " so " + ramet.select("b", options))


def ids_of(s: Any) -> bytes:
    s.sync()
    return s._stream.tokens.ids().packed  # type: ignore[no-any-return]


def run_rows(backend: ramet.Engine, threads: int, seed: int, temperature: float) -> Any:
    rows = [{"question": q, "options": OPTIONS} for q in QUESTIONS]
    states = one.run_batch(
        rows,
        backend=backend,
        num_threads=threads,
        seed=seed,
        temperature=temperature,
        on_error="raise",
    )
    return [(ids_of(s), s["answer"], s["b"], scores(s, "b")) for s in states]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_batched_is_alone_and_cached_is_not_in_bits(
    engine: ramet.Engine, uncached: ramet.Engine, temperature: float
) -> None:
    engine.flush_cache()
    cold = run_rows(engine, 8, 5, temperature)
    assert run_rows(engine, 1, 5, temperature) == cold  # everything is in the cache now
    assert run_rows(uncached, 1, 5, temperature) == cold
    assert run_rows(uncached, 8, 5, temperature) == cold


def test_equal_prompts_with_other_seeds_differ(engine: ramet.Engine) -> None:
    first, *_, last = run_rows(engine, 8, 5, 1.0)
    assert QUESTIONS[0] == QUESTIONS[-1]
    assert first[1] != last[1]  # rows have seeds of their own


@ramet.function
def pieces(s: Any, parts: list[str], fork_at: int) -> Any:
    s += ramet.gen("before", max_tokens=2)
    for part in parts[:fork_at]:
        s += part
    branch = s.fork(1)[0]
    for part in parts[fork_at:]:
        branch += part
    branch += ramet.gen("after", max_tokens=2)
    return ids_of(branch)


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    text=st.text(alphabet="abc de,.\n1é🌍", min_size=1, max_size=24),
    cuts=st.lists(st.integers(0, 24), max_size=4),
    fork_at=st.integers(0, 5),
)
def test_any_way_of_cutting_literals_gives_the_same_ids(
    engine: ramet.Engine, text: str, cuts: list[int], fork_at: int
) -> None:
    ends = sorted({min(cut, len(text)) for cut in cuts} | {0, len(text)})
    parts = [text[a:b] for a, b in itertools.pairwise(ends)]
    whole = run_pieces(engine, [text], 0)
    assert run_pieces(engine, parts, fork_at) == whole


def run_pieces(engine: ramet.Engine, parts: list[str], fork_at: int) -> Any:
    @ramet.function
    def program(s: Any) -> Any:
        s += "The tree"
        return pieces.func(s, parts, fork_at)

    return program.run(backend=engine, temperature=0).ret_value


def test_the_state_reuses_all_but_the_last_sampled_token(engine: ramet.Engine) -> None:
    engine.flush_cache()

    @ramet.function
    def program(s: Any) -> None:
        s += TRUNK + ramet.gen("a", max_tokens=8, ignore_eos=True)
        s += " and " + ramet.gen("b", max_tokens=8)

    state = program.run(backend=engine, temperature=0)
    first, second = state.get_meta_info("a"), state.get_meta_info("b")
    assert first["completion_tokens"] == 8
    assert second["cached_tokens"] == first["prompt_tokens"] + 8 - 1


@pytest.mark.parametrize("size", [2, 8, 32])
def test_a_fork_computes_its_trunk_once(engine: ramet.Engine, size: int) -> None:
    engine.flush_cache()

    @ramet.function
    def program(s: Any) -> None:
        s += TRUNK
        group = s.fork(size)
        group += ramet.gen("x", max_tokens=3, ignore_eos=True)
        group.join()

    state = program.run(backend=engine, temperature=1.0, seed=1)
    usage = state.usage
    length = usage.prompt_tokens // size
    assert usage.computed_tokens == length
    assert usage.recomputed_tokens == 0
    assert usage.cached_tokens == (size - 1) * length
