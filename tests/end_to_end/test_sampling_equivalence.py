"""Programs with every kind of sampling on a tiny random model: cached = not, crowded = alone,
n samples = single ones. Ids, texts and log-probabilities are compared in bits."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import ramet
from ramet.runtime.protocol import sample_seed
from tests.models import write_model

TRUNK = "The tree has a trunk, and the trunk has branches; each branch has leaves. " * 2
OPTIONS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "drawn": {"temperature": 1.0, "top_p": 0.9, "top_k": 40, "min_p": 0.01},
    "penalties": {
        "temperature": 0.8,
        "frequency_penalty": 0.7,
        "presence_penalty": 0.4,
        "repetition_penalty": 1.3,
    },
    "bias": {"temperature": 1.0, "logit_bias": {40: 5.0, 41: -100.0}, "min_tokens": 4},
    "logprobs": {
        "temperature": 1.0,
        "return_logprob": True,
        "logprob_start_len": 0,
        "top_logprobs_num": 3,
        "token_ids_logprob": [5, 7],
    },
}
TIMES = ("id", "queue_time", "first_token_latency", "e2e_latency")
COUNTS = ("cached_tokens", "computed_tokens", "recomputed_tokens")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def engine(folder: Path) -> Iterator[ramet.Engine]:
    with ramet.Engine(folder, process="thread", max_total_tokens=8000) as engine:
        yield engine


@pytest.fixture(scope="module")
def uncached(folder: Path) -> Iterator[ramet.Engine]:
    with ramet.Engine(
        folder, process="thread", max_total_tokens=8000, enable_radix_cache=False
    ) as engine:
        yield engine


@ramet.function
def program(s: Any, topic: str) -> None:
    s += ramet.system(TRUNK) + ramet.user(f"Say something about {topic}.")
    s += ramet.assistant(ramet.gen("first", max_tokens=8))
    forks = s.fork(2)
    forks += ramet.gen("second", max_tokens=6)
    forks.join()
    s += ramet.user("Again!") + ramet.assistant(ramet.gen("third", max_tokens=6))


TOPICS = ("leaves", "leaves", "a fox", "the lazy dog")


def answers(engine: ramet.Engine, threads: int, options: dict[str, Any]) -> list[Any]:
    """Return values and meta infos of a batch, but for what depends on cache and clock."""
    rows = [{"topic": topic} for topic in TOPICS]
    states = program.run_batch(
        rows, backend=engine, num_threads=threads, seed=11, on_error="raise", **options
    )
    kept = []
    for state in states:
        values = {name: state[name] for name in ("first", "second", "third")}
        infos = [state.get_meta_info(name) for name in ("first", "third")]
        for info in infos:
            for name in (*TIMES, *COUNTS):
                info.pop(name)
        kept.append((values, infos))
    return kept


@pytest.mark.parametrize("options", OPTIONS.values(), ids=list(OPTIONS))
def test_cached_is_uncached_and_batched_is_alone(
    engine: ramet.Engine, uncached: ramet.Engine, options: dict[str, Any]
) -> None:
    engine.flush_cache()
    cold = answers(engine, 8, options)
    assert answers(engine, 1, options) == cold
    assert answers(uncached, 8, options) == cold
    assert answers(uncached, 1, options) == cold


def test_penalties_and_bias_change_what_is_drawn(engine: ramet.Engine) -> None:
    plain = answers(engine, 4, OPTIONS["drawn"])
    assert answers(engine, 4, OPTIONS["penalties"]) != plain
    assert answers(engine, 4, OPTIONS["bias"]) != plain


@pytest.mark.parametrize("options", OPTIONS.values(), ids=list(OPTIONS))
def test_rows_that_were_put_back_give_what_they_give_undisturbed(
    engine: ramet.Engine, folder: Path, options: dict[str, Any]
) -> None:
    undisturbed = answers(engine, 1, options)
    with ramet.Engine(folder, process="thread", max_total_tokens=220) as small:
        assert answers(small, 8, options) == undisturbed


@ramet.function
def samples(s: Any, count: int, seed: int) -> None:
    s += TRUNK + ramet.gen("x", max_tokens=8, n=count, seed=seed, ignore_eos=True)


def test_n_samples_are_what_single_calls_with_their_seeds_give(engine: ramet.Engine) -> None:
    # a gen takes seeds below 2**63 only; those of samples may be above
    seed = next(s for s in itertools.count() if all(sample_seed(s, i) < 2**63 for i in range(4)))
    together = samples.run(4, seed, backend=engine)["x"]
    alone = [samples.run(1, sample_seed(seed, i), backend=engine)["x"] for i in range(4)]
    assert together == alone
    assert len(set(together)) > 1


def test_n_samples_count_their_prompt_once(engine: ramet.Engine) -> None:  # C26
    engine.flush_cache()
    one = samples.run(1, 5, backend=engine).usage
    engine.flush_cache()
    four = samples.run(4, 5, backend=engine).usage
    assert four.prompt_tokens == one.prompt_tokens
    assert four.cached_tokens == 0
    assert four.computed_tokens == one.prompt_tokens
    assert four.generated_tokens == 32


def test_a_state_goes_on_with_the_first_sample(engine: ramet.Engine) -> None:
    @ramet.function
    def several(s: Any) -> None:
        s += "A tree " + ramet.gen("x", max_tokens=5, n=3, seed=2, ignore_eos=True) + " end"

    state = several.run(backend=engine, logit_bias={0: -100.0, 1: -100.0, 2: -100.0})
    assert state.text() == f"A tree {state['x'][0]} end"


def test_prompt_logprobs_from_any_position_are_a_slice_of_all(engine: ramet.Engine) -> None:  # C08
    def entries(start: int) -> list[Any]:
        @ramet.function
        def program(s: Any) -> None:
            s += TRUNK
            s += ramet.gen("x", max_tokens=1, return_logprob=True, logprob_start_len=start)

        info = program.run(backend=engine, temperature=0).get_meta_info("x")
        return list(info["input_token_logprobs"])

    everything = entries(0)
    length = len(everything)
    assert length > 30
    assert everything[0][0] is None  # nothing is before the first token
    for start in (1, 7, 29, 30, length - 1):
        found = entries(start)
        assert [entry[1] for entry in found] == [entry[1] for entry in everything[start:]]
        assert [entry[0] for entry in found[1:]] == [entry[0] for entry in everything[start + 1 :]]
        assert found[0][0] in (None, everything[start][0])


@pytest.mark.parametrize("limit", [0, 1])
def test_the_smallest_limits_give_no_text_and_one_token(  # C39
    engine: ramet.Engine, limit: int
) -> None:
    @ramet.function
    def program(s: Any) -> None:
        s += "x" + ramet.gen("y", max_tokens=limit, ignore_eos=True)

    for stream in (False, True):
        state = program.run(backend=engine, stream=stream, logit_bias={1: -100.0, 2: -100.0})
        info = state.get_meta_info("y")
        assert info["completion_tokens"] == limit
        assert info["finish_reason"] == {"type": "length", "matched": None}
        assert limit or state["y"] == ""


def test_end_marker_as_a_stop_string_is_in_no_variable_and_once_in_the_prompt(  # F29
    engine: ramet.Engine,
) -> None:
    @ramet.function
    def program(s: Any) -> None:
        s += ramet.system("x") + ramet.user("y")
        s += ramet.assistant(ramet.gen("a", stop="<|im_end|>", max_tokens=64))
        s += ramet.user("z")

    state = program.run(backend=engine, seed=3, logit_bias={2: 8.0})
    assert state.get_meta_info("a")["finish_reason"]["type"] == "stop"
    assert "<|im_end|>" not in state["a"]
    assert state.text().count("<|im_end|>") == 4
