"""What programs are told about their tokens, on a tiny random model: nothing is counted twice,
nothing is shared across namespaces, and a crowded pool serves everybody."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import ramet
from tests.models import write_model

WORDS = ("trunk", "branch", "leaves", "fox", "dog", "tree", "capital", "Paris", "France", "lazy")
NO_SPECIALS = {0: -100.0, 1: -100.0, 2: -100.0}  # they have no text in a variable


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture
def small(folder: Path) -> Iterator[ramet.Engine]:
    """An engine whose pool holds three of the prompts below at most."""
    with ramet.Engine(folder, process="thread", max_total_tokens=900) as engine:
        yield engine


@ramet.function
def go_on(s: Any, text: str) -> None:
    s += text + ramet.gen("more", max_tokens=3, ignore_eos=True)


def prefix(number: int) -> str:
    """Return a text of about 250 tokens that no other number's begins like."""
    return f"{number}) " + " ".join(WORDS[(number + 3 * i) % len(WORDS)] for i in range(80))


def test_interleaved_prefixes_are_still_shared_in_a_small_pool(small: ramet.Engine) -> None:  # F45
    rows = [{"text": f"{prefix(p)} and {q}"} for q in range(10) for p in range(5)]
    ordered = sorted(rows, key=lambda row: row["text"])
    states = go_on.run_batch(rows, backend=small, num_threads=16, temperature=0)
    usage = sum((state.usage for state in states[1:]), states[0].usage)
    assert usage.prompt_tokens > 4 * 900
    assert usage.cached_tokens >= 0.6 * usage.prompt_tokens
    straight = go_on.run_batch(ordered, backend=small, num_threads=1, temperature=0)
    expected = {row["text"]: state["more"] for row, state in zip(ordered, straight, strict=True)}
    assert [state["more"] for state in states] == [expected[row["text"]] for row in rows]


def test_every_usage_adds_up_and_leaves_a_position_to_compute(small: ramet.Engine) -> None:  # C25
    rows = [{"text": f"{prefix(i % 4)} {i}"} for i in range(60)]
    states = go_on.run_batch(rows, backend=small, temperature=0)
    for state in states:
        info = state.get_meta_info("more")
        assert 0 <= info["cached_tokens"] <= info["prompt_tokens"]
        assert info["cached_tokens"] - info["recomputed_tokens"] <= info["prompt_tokens"] - 1
        assert info["cached_tokens"] + info["computed_tokens"] == info["prompt_tokens"]


def test_many_different_prompts_pass_through_a_small_pool(small: ramet.Engine) -> None:  # C20
    rows = [{"text": f"{i:03} {prefix(i)}"} for i in range(60)]
    states = go_on.run_batch(rows, backend=small, temperature=0)
    assert all(state["more"] for state in states)
    assert small.flush_cache()


def test_a_long_answer_is_the_same_while_others_evict(small: ramet.Engine) -> None:  # C22
    @ramet.function
    def long(s: Any) -> None:
        s += prefix(0) + ramet.gen("x", max_tokens=60, ignore_eos=True)

    alone = long.run(backend=small, temperature=0)["x"]
    small.flush_cache()
    running = long.start(backend=small, temperature=0)
    go_on.run_batch([{"text": prefix(i)} for i in range(1, 21)], backend=small, temperature=0)
    assert running["x"] == alone


def test_each_turn_of_a_chat_reuses_all_of_the_turns_before(small: ramet.Engine) -> None:  # C29
    @ramet.function
    def chat(s: Any) -> list[dict[str, Any]]:
        infos = []
        for number in range(3):
            s += ramet.user(f"Question {number} about a tree?")
            s += ramet.assistant(ramet.gen("reply", max_tokens=6, ignore_eos=True))
            infos.append(s.get_meta_info("reply"))
        return infos

    infos = chat.run(backend=small, temperature=0).ret_value
    for before, after in itertools.pairwise(infos):
        assert after["cached_tokens"] == before["prompt_tokens"] + before["completion_tokens"] - 1


def test_namespaces_share_nothing(small: ramet.Engine) -> None:  # C24
    first, again, other = (
        go_on.run(prefix(1), backend=small, temperature=0, cache_salt=salt)
        for salt in ("a", "a", "b")
    )
    assert first.usage.cached_tokens == 0
    assert again.usage.cached_tokens > 0
    assert other.usage.cached_tokens == 0
    assert first["more"] == again["more"] == other["more"]


def test_a_prompt_at_the_end_of_the_context_gives_what_fits(folder: Path) -> None:  # C40, C17
    with ramet.Engine(folder, process="thread", max_total_tokens=400, context_length=300) as engine:
        state = go_on.run("tree " * 20, backend=engine, temperature=0)
        length = state.usage.prompt_tokens

        @ramet.function
        def endless(s: Any) -> None:
            s += "tree " * 20 + ramet.gen("x", max_tokens=1000, ignore_eos=True)

        info = endless.run(backend=engine, temperature=0).get_meta_info("x")
        assert info["finish_reason"]["type"] == "length"
        assert info["completion_tokens"] >= 300 - length
        assert go_on.run("tree", backend=engine)["more"]


def test_every_branch_begins_with_the_whole_parent(small: ramet.Engine) -> None:  # F46
    @ramet.function
    def program(s: Any, size: int) -> None:
        s += "Start " + ramet.gen("p", max_tokens=16, ignore_eos=True)
        forks = s.fork(size)
        for fork in forks:
            fork += " -> " + ramet.gen("c", max_tokens=2, ignore_eos=True)
        s["texts"] = [fork.text() for fork in forks]
        forks.join()

    for size in (1, 8, 8, 8):
        state = program.run(size, backend=small, logit_bias=NO_SPECIALS)
        start = f"Start {state['p']} -> "
        assert [text.startswith(start) for text in state["texts"]] == [True] * size
        assert [text.removeprefix(start) for text in state["texts"]] == state["c"]


def test_values_come_in_program_order(small: ramet.Engine) -> None:  # F41
    @ramet.function
    def program(s: Any) -> None:
        s += "A" + ramet.gen("x", max_tokens=2, ignore_eos=True)
        s += "B" + ramet.gen("y", max_tokens=2, ignore_eos=True)
        s += ramet.select("z", ["1", "2"]) + "C"

    state = program.run(backend=small, logit_bias=NO_SPECIALS)
    assert state.text() == f"A{state['x']}B{state['y']}{state['z']}C"
