"""Cases of the engine that others met with prefix caches, by their number.

C09 and C40 name a constraint and C12, C14 and C21 a connection: here the rest of them, with a
request that is aborted where a connection is dropped.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ramet.runtime.config import EngineConfig
from ramet.runtime.engine import Engine
from ramet.runtime.protocol import (
    Delta,
    ErrorCode,
    GenerateRequest,
    LogprobParams,
    SamplingParams,
    Text,
    TokenIds,
)
from tests.models import write_model

from .scripted import ENCODER, Harness, Receiver, ScriptedRunner, generate, reference

LONG = SamplingParams(max_new_tokens=None, ignore_eos=True)


def greedy(max_new_tokens: int, **options: object) -> SamplingParams:
    return SamplingParams(max_new_tokens=max_new_tokens, temperature=0.0, **options)  # type: ignore[arg-type]


def start(num_slots: int = 4000, context: int = 3000, **options: object) -> Engine:
    config = EngineConfig(**options)  # type: ignore[arg-type]
    info: dict[str, object] = {"model": "scripted", "context_length": context}
    return Engine(ScriptedRunner(num_slots), ENCODER, config, model_info=info)


@pytest.fixture
def receiver() -> Receiver:
    return Receiver()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture
def model(folder: Path) -> Iterator[Engine]:
    engine = Engine.from_config(
        EngineConfig(model=str(folder), dtype="float32", max_total_tokens=6000)
    )
    yield engine
    engine.close()


def wait_until_idle(engine: Engine) -> dict[str, object]:
    end = time.monotonic() + 10
    while time.monotonic() < end:
        info = engine.info()
        if not info["running"] and not info["waiting"]:
            return info
        time.sleep(0.001)
    raise AssertionError("not idle")


def _wait(gate: threading.Event) -> None:
    assert gate.wait(20)


def prompts(count: int) -> list[str]:
    chooser = random.Random(5)
    heads = ["The trunk has branches. " * 4, "What is the capital of France? " * 2, ""]
    return [chooser.choice(heads) + f"Number {chooser.randrange(60)}" for _ in range(count)]


def test_c01_texts_do_not_depend_on_the_cache(folder: Path) -> None:
    texts = []
    for cache in (False, True):
        options = EngineConfig(
            model=str(folder), dtype="float32", max_total_tokens=6000, enable_radix_cache=cache
        )
        engine = Engine.from_config(options)
        for _ in range(1 + cache):
            receiver = Receiver()
            for index, prompt in enumerate(prompts(40)):
                engine.submit(
                    GenerateRequest(id=f"r{index}", prompt=(Text(prompt),), sampling=greedy(16)),
                    receiver,
                )
                receiver.wait(f"r{index}")
            texts.append([receiver.finished(f"r{index}").sample for index in range(40)])
        engine.close()
    assert texts[0] == texts[1] == texts[2]


def test_c08_prompt_logprobs_from_any_start_are_slices(model: Engine, receiver: Receiver) -> None:
    ids = TokenIds.of(range(40, 70))
    for begin in (0, 1, 7, 29, 30):
        request = GenerateRequest(
            id=f"from{begin}",
            prompt=(ids,),
            sampling=greedy(2),
            logprobs=LogprobParams(start=begin, top=2, token_ids=(3, 5)),
        )
        model.submit(request, receiver)
        receiver.wait(request.id)
    whole = receiver.finished("from0").prompt_logprobs
    assert [one.id for one in whole] == list(ids)
    assert whole[0].logprob is None
    for begin in (1, 7, 29, 30):
        assert receiver.finished(f"from{begin}").prompt_logprobs == whole[begin:]


def test_c09_everything_is_free_or_evictable_when_idle(receiver: Receiver) -> None:
    engine = start(chunked_prefill_size=64, max_total_tokens=4000)
    chooser = random.Random(9)
    names = []
    for index in range(300):
        head = chooser.choice(["a", "b", "c"]) * chooser.randrange(1, 150)
        n = 3 if chooser.random() < 0.05 else 1
        sampling = SamplingParams(max_new_tokens=chooser.randrange(1, 20), n=n)
        name = f"r{index}"
        names.append(name)
        engine.submit(generate(name, f"{head}{index}", sampling=sampling, seed=index), receiver)
        if chooser.random() < 0.1:
            engine.abort(name)
    receiver.wait(*names, timeout=60)
    info = wait_until_idle(engine)
    assert int(str(info["free_slots"])) + int(str(info["cached_slots"])) == 4000
    assert engine.flush_cache()
    assert engine.info()["free_slots"] == 4000
    engine.close()


def test_c12_dropped_requests_make_room_at_once(receiver: Receiver) -> None:
    engine = start(max_running_requests=2)
    for name in ("one", "two"):
        engine.submit(generate(name, name, sampling=LONG, stream=True), receiver)
        engine.abort(name)
    engine.submit(generate("next", "hello", sampling=greedy(4)), receiver)
    receiver.wait("next", timeout=5)
    for name in ("late", "later"):
        engine.submit(generate(name, name, sampling=LONG, timeout=0.05), receiver)
    engine.submit(generate("after", "hello", sampling=greedy(4)), receiver)
    receiver.wait("late", "later", "after", timeout=5)
    engine.close()


def test_c14_a_dropped_turn_leaves_no_trace(receiver: Receiver) -> None:
    engine = start()
    engine.submit(generate("turn0", "hello", sampling=greedy(8), seed=1), receiver)
    receiver.wait("turn0")
    text = "hello" + receiver.finished("turn0").sample.text
    engine.submit(generate("turn1", text + " one", sampling=LONG, stream=True), receiver)
    end = time.monotonic() + 5
    while not any(isinstance(e, Delta) for e in receiver.events["turn1"]):
        assert time.monotonic() < end
        time.sleep(0.001)
    engine.abort("turn1")
    request = generate("turn2", text + " two", sampling=greedy(8), seed=2)
    engine.submit(request, receiver)
    receiver.wait("turn1", "turn2")
    assert list(receiver.finished("turn2").sample.ids) == reference(
        (text + " two").encode(), request
    )
    engine.close()


def test_c15_a_prompt_that_was_dropped_half_way_is_right_the_next_time() -> None:
    harness = Harness(num_slots=4000, budget=64)
    prompt = "0123456789" * 150
    harness.submit(generate("dropped", prompt))
    for _ in range(7):
        harness.step()
    harness.scheduler.end(harness.scheduler.jobs["dropped"], ErrorCode.CANCELLED, "dropped")
    harness.check_nothing_held()
    request = generate("again", prompt, sampling=greedy(4))
    harness.submit(request)
    harness.run()
    finished = harness.receiver.finished("again")
    assert list(finished.sample.ids) == reference(prompt.encode(), request)
    assert finished.usage.cached_tokens >= 6 * 64


def test_c17_a_generation_that_fills_the_pool_ends_by_length(receiver: Receiver) -> None:
    engine = start(num_slots=512)
    engine.submit(generate("big", "x" * 400, sampling=greedy(400, ignore_eos=True)), receiver)
    receiver.wait("big")
    sample = receiver.finished("big").sample
    assert (sample.reason.kind, len(sample.ids)) == ("length", 112)
    engine.submit(generate("next", "hello", sampling=greedy(4)), receiver)
    receiver.wait("next")
    receiver.finished("next")
    engine.close()


def test_c19_after_a_full_pool_single_requests_take_no_more_steps_than_before() -> None:
    def steps(harness: Harness, name: str) -> int:
        before = harness.runner.num_plans
        harness.submit(generate(name, f"{name} hello", sampling=greedy(20, ignore_eos=True)))
        harness.run()
        return harness.runner.num_plans - before

    harness = Harness(num_slots=200)
    alone = steps(harness, "before")
    for index in range(20):
        params = greedy(80, ignore_eos=True)
        harness.submit(generate(f"r{index}", f"{index}" * 20, sampling=params))
    harness.run()
    assert [steps(harness, f"after{index}") for index in range(5)] == [alone] * 5


def test_c20_five_hundred_prompts_pass_through_a_small_pool(receiver: Receiver) -> None:
    engine = start(num_slots=2000)
    names = [f"r{index}" for index in range(500)]
    for name in names:
        engine.submit(generate(name, name * 20, sampling=greedy(4)), receiver)
    receiver.wait(*names, timeout=60)
    for name in names:
        receiver.finished(name)
    info = wait_until_idle(engine)
    assert int(str(info["free_slots"])) + int(str(info["cached_slots"])) == 2000
    engine.close()


def test_c21_flushing_while_busy_is_refused_and_empties_when_idle(receiver: Receiver) -> None:
    runner = ScriptedRunner(4000)
    gate = threading.Event()
    runner.fail = lambda plan: _wait(gate)
    info: dict[str, object] = {"model": "scripted", "context_length": 3000}
    engine = Engine(runner, ENCODER, EngineConfig(), model_info=info)
    for name in ("a", "b", "c"):
        engine.submit(generate(name, "known prompt", sampling=greedy(6), stream=True), receiver)
    assert not engine.flush_cache()
    engine.abort("a")
    assert not engine.flush_cache()
    gate.set()
    receiver.wait("a", "b", "c")
    wait_until_idle(engine)
    assert engine.flush_cache()
    engine.submit(generate("again", "known prompt", sampling=greedy(1)), receiver)
    receiver.wait("again")
    assert receiver.finished("again").usage.cached_tokens == 0
    engine.close()


def test_c22_evictions_do_not_change_a_generation_under_way() -> None:
    prompt = "p" * 300
    request = generate("long", prompt, sampling=greedy(150, ignore_eos=True))
    harness = Harness(num_slots=600)
    harness.submit(generate("warm", prompt, sampling=greedy(0)))
    harness.run()
    harness.submit(request)
    for index in range(50):
        harness.submit(generate(f"other{index}", f"{index:02}" * 30, sampling=greedy(3)))
        harness.step()
        harness.step()
    harness.run()
    assert harness.memory.tree.evicted_tokens > 0
    found = list(harness.receiver.finished("long").sample.ids)
    assert found == reference(prompt.encode(), request)


def test_c25_cached_tokens_stay_below_the_prompt_apart_from_recomputation() -> None:
    harness = Harness(num_slots=150, max_running=4)
    for index in range(100):
        prompt = prompts(100)[index][:60]
        harness.submit(generate(f"r{index}", prompt, sampling=greedy(30, ignore_eos=True)))
    harness.run()
    for index in range(100):
        usage = harness.receiver.finished(f"r{index}").usage
        is_shared_row = usage.cached_tokens == usage.prompt_tokens and not usage.recomputed_tokens
        assert usage.cached_tokens >= usage.recomputed_tokens
        assert is_shared_row or usage.cached_tokens - usage.recomputed_tokens < usage.prompt_tokens


def test_c26_samples_count_their_prompt_once(model: Engine, receiver: Receiver) -> None:
    prompt = (Text("The weather today is sunny and"),)
    sampling = SamplingParams(temperature=0.8, max_new_tokens=4, n=4)
    model.submit(GenerateRequest(id="r", prompt=prompt, sampling=sampling, seed=3), receiver)
    receiver.wait("r")
    finished = receiver.finished("r")
    assert len(finished.samples) == 4
    assert finished.usage.prompt_tokens == model.count_tokens(prompt)
    assert finished.usage.cached_tokens == 0
    model.submit(GenerateRequest(id="again", prompt=prompt, sampling=sampling, seed=3), receiver)
    receiver.wait("again")
    assert receiver.finished("again").samples == finished.samples
    assert receiver.finished("again").usage.cached_tokens == finished.usage.prompt_tokens


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("count", [0, 1])
def test_c39_one_token_or_none(receiver: Receiver, stream: bool, count: int) -> None:
    engine = start()
    params = greedy(count, ignore_eos=True)
    engine.submit(generate("r", "x", sampling=params, stream=stream), receiver)
    receiver.wait("r")
    finished = receiver.finished("r")
    assert (finished.sample.reason.kind, len(finished.sample.ids)) == ("length", count)
    assert finished.usage.generated_tokens == count
    engine.close()


def test_c40_the_answer_is_clamped_to_the_context_and_the_prompt_never_cut(
    receiver: Receiver,
) -> None:
    engine = start(context=256)
    engine.submit(generate("fits", "x" * 240, sampling=greedy(200, ignore_eos=True)), receiver)
    engine.submit(generate("long", "x" * 300, sampling=greedy(1)), receiver)
    receiver.wait("fits", "long")
    sample = receiver.finished("fits").sample
    assert (sample.reason.kind, len(sample.ids)) == ("length", 16)
    assert receiver.finished("fits").usage.prompt_tokens == 240
    failed = receiver.failed("long")
    assert (failed.num_tokens, failed.limit) == (300, 256)
    engine.close()


def test_c41_each_token_is_streamed_once_with_its_logprob(receiver: Receiver) -> None:
    engine = start()
    params = greedy(400, ignore_eos=True)
    logprobs = LogprobParams(top=4)
    engine.submit(generate("r", "x", sampling=params, stream=True, logprobs=logprobs), receiver)
    receiver.wait("r")
    deltas = [event for event in receiver.events["r"] if isinstance(event, Delta)]
    sample = receiver.finished("r").sample
    assert [token for delta in deltas for token in delta.ids] == list(sample.ids)
    assert tuple(one for delta in deltas for one in delta.logprobs) == sample.logprobs
    assert max(len(delta.logprobs) for delta in deltas) < 10, "chunks do not grow"
    engine.close()
