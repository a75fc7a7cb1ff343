"""The engine's thread: events, aborts, deadlines, closing, forks."""

from __future__ import annotations

import gc
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import cast

import pytest

from ramet.runtime.config import EngineConfig
from ramet.runtime.engine import Engine
from ramet.runtime.protocol import (
    Accepted,
    Delta,
    EngineClosedError,
    ErrorCode,
    Event,
    Failed,
    Finished,
    InvalidRequestError,
    RoleBegin,
    SamplingParams,
    Text,
    TokenIds,
)
from ramet.runtime.step import StepPlan

from .scripted import ENCODER, Receiver, ScriptedError, ScriptedRunner, generate, reference, score

LONG = SamplingParams(max_new_tokens=None, ignore_eos=True)


class Gate:
    """Holds every step until it is opened."""

    def __init__(self) -> None:
        self.opened = threading.Event()
        self.reached = threading.Event()

    def __call__(self, plan: StepPlan) -> None:
        self.reached.set()
        assert self.opened.wait(20)


def start(runner: ScriptedRunner, **options: object) -> Engine:
    config = EngineConfig(**options)  # type: ignore[arg-type]
    return Engine(runner, ENCODER, config, model_info={"model": "scripted", "context_length": 500})


@pytest.fixture
def runner() -> ScriptedRunner:
    return ScriptedRunner(2000)


@pytest.fixture
def engine(runner: ScriptedRunner) -> Iterator[Engine]:
    engine = start(runner)
    yield engine
    engine.close()


@pytest.fixture
def receiver() -> Receiver:
    return Receiver()


def wait_until_idle(engine: Engine) -> None:
    end = time.monotonic() + 10
    while time.monotonic() < end:
        info = engine.info()
        if not info["running"] and not info["waiting"]:
            return
        time.sleep(0.001)
    raise AssertionError(engine.info())


def test_accepted_comes_first_and_one_end_last(engine: Engine, receiver: Receiver) -> None:
    request = generate("a", "hello", seed=5, stream=True)
    engine.submit(request, receiver)
    receiver.wait("a")
    first, *middle, _ = receiver.events["a"]
    assert isinstance(first, Accepted)
    assert bytes(first.ids) == b"hello"
    assert all(isinstance(event, Delta) for event in middle)
    finished = receiver.finished("a")
    assert list(finished.sample.ids) == reference(b"hello", request)
    assert "".join(e.text for e in middle if isinstance(e, Delta)) == finished.sample.text
    assert 0 <= finished.timings.queue <= finished.timings.first_token <= finished.timings.total


def test_no_text_comes_early_unless_streamed(engine: Engine, receiver: Receiver) -> None:
    engine.submit(generate("a", "hello", seed=5), receiver)
    receiver.wait("a")
    assert len(receiver.events["a"]) == 2


def test_ids_that_begin_the_prompt_are_counted_not_repeated(
    engine: Engine, receiver: Receiver
) -> None:
    request = generate("a", "")
    prompt = (TokenIds.of([104, 101]), Text("llo"))
    engine.submit(type(request)(id="a", prompt=prompt), receiver)
    receiver.wait("a")
    accepted = receiver.events["a"][0]
    assert isinstance(accepted, Accepted)
    assert (accepted.prefix_tokens, bytes(accepted.ids)) == (2, b"llo")


def test_a_bad_prompt_fails_by_event(engine: Engine, receiver: Receiver) -> None:
    request = generate("a", "x")
    engine.submit(type(request)(id="a", prompt=(RoleBegin("user"),)), receiver)
    engine.submit(generate("b", "x" * 500), receiver)
    assert receiver.failed("a").code == ErrorCode.INVALID_REQUEST
    assert receiver.failed("b").code == ErrorCode.CONTEXT_LENGTH


def test_an_unforeseen_encoding_error_is_the_requests_own(
    engine: Engine, receiver: Receiver
) -> None:
    engine.submit(generate("a", "not ascii: é"), receiver)
    assert "UnicodeEncodeError" in receiver.failed("a").message
    engine.submit(generate("b", "ascii"), receiver)
    receiver.wait("b")


def test_an_id_in_use_is_refused(runner: ScriptedRunner, receiver: Receiver) -> None:
    runner.fail = gate = Gate()
    engine = start(runner)
    second = Receiver()
    engine.submit(generate("a", "x"), receiver)
    engine.submit(generate("a", "x"), second)
    assert second.failed("a").code == ErrorCode.INVALID_REQUEST
    gate.opened.set()
    receiver.wait("a")
    engine.submit(generate("a", "x"), receiver)
    receiver.wait("a")
    engine.close()


def test_abort_ends_with_cancelled_and_frees(engine: Engine, receiver: Receiver) -> None:
    engine.submit(generate("a", "hello", sampling=LONG), receiver)
    engine.abort("a")
    engine.abort("a")
    engine.abort("unknown")
    receiver.wait("a")
    assert receiver.failed("a").code == ErrorCode.CANCELLED
    wait_until_idle(engine)
    info = engine.info()
    assert cast(int, info["free_slots"]) + cast(int, info["cached_slots"]) == 2000


def test_an_abort_while_the_prompt_is_encoded_is_kept(
    runner: ScriptedRunner, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = start(runner)
    encode = type(ENCODER).encode

    def aborting(self: object, prompt: object) -> object:
        engine.abort("a")
        return encode(ENCODER, prompt)  # type: ignore[arg-type]

    monkeypatch.setattr(type(ENCODER), "encode", aborting)
    engine.submit(generate("a", "hello", sampling=LONG), receiver)
    receiver.wait("a")
    assert receiver.failed("a").code == ErrorCode.CANCELLED
    engine.close()


@pytest.mark.parametrize("timeout", [0.0, 0.05])
def test_a_deadline_ends_the_request(engine: Engine, receiver: Receiver, timeout: float) -> None:
    engine.submit(generate("a", "hello", sampling=LONG, timeout=timeout), receiver)
    engine.submit(score("s", "hello", "a", "b", timeout=0.0), receiver)
    receiver.wait("a", "s")
    end = receiver.events["a"][-1]
    assert timeout or getattr(end, "code", None) == ErrorCode.DEADLINE
    assert receiver.failed("s").code == ErrorCode.DEADLINE


def test_a_receiver_that_raises_ends_its_own_request(
    engine: Engine, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    def raising(event: Event) -> None:
        if isinstance(event, Delta):
            raise ValueError("no thanks")

    with caplog.at_level(logging.ERROR, "ramet.engine"):
        engine.submit(generate("bad", "hello", sampling=LONG, stream=True), raising)
        engine.submit(generate("good", "hello"), receiver)
        receiver.wait("good")
        wait_until_idle(engine)
    engine.submit(generate("bad", "hello"), receiver)  # the id is free again
    receiver.wait("bad")
    assert [r.message for r in caplog.records if "bad" in r.message] == [
        "the receiver of request bad raised on Delta: the request is given up"
    ]


def test_a_receiver_may_submit(engine: Engine, receiver: Receiver) -> None:
    def chained(event: Event) -> None:
        receiver(event)
        if receiver.ended("first"):
            engine.submit(generate("second", "again"), receiver)

    engine.submit(generate("first", "hello"), chained)
    receiver.wait("first", "second")


def test_close_ends_every_waiter_within_two_seconds(
    runner: ScriptedRunner, receiver: Receiver
) -> None:
    runner.fail = gate = Gate()
    engine = start(runner)
    for name in ("a", "b"):
        engine.submit(generate(name, "hello", sampling=LONG), receiver)
    assert gate.reached.wait(10)
    started = time.monotonic()
    engine.close()
    engine.close()
    assert time.monotonic() - started < 3
    for name in ("a", "b"):
        assert receiver.failed(name).code == ErrorCode.ENGINE_CLOSED
    gate.opened.set()
    engine.submit(generate("late", "hello"), receiver)
    assert receiver.failed("late").code == ErrorCode.ENGINE_CLOSED
    assert not engine.flush_cache()
    assert engine.info()["is_closed"] is True


def test_a_receiver_may_close(engine: Engine, receiver: Receiver) -> None:
    def closing(event: Event) -> None:
        receiver(event)
        if receiver.ended("a"):
            engine.close()

    engine.submit(generate("a", "hello"), closing)
    receiver.wait("a")


def test_an_engine_that_is_dropped_stops(runner: ScriptedRunner) -> None:
    before = threading.active_count()
    engine = start(runner)
    assert threading.active_count() == before + 1
    del engine
    gc.collect()
    assert threading.active_count() == before


def test_a_lost_device_closes_the_engine(runner: ScriptedRunner, receiver: Receiver) -> None:
    def lost(plan: StepPlan) -> None:
        raise EngineClosedError("the device is lost")

    runner.fail = lost
    engine = start(runner)
    engine.submit(generate("a", "hello"), receiver)
    receiver.wait("a")
    assert receiver.failed("a").code == ErrorCode.ENGINE_CLOSED
    assert "the device is lost" in receiver.failed("a").message
    engine.close()


def test_a_failed_step_is_logged_and_the_engine_goes_on(
    runner: ScriptedRunner, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(plan: StepPlan) -> None:
        if ord("!") in plan.input_ids:
            raise ScriptedError("broken")

    runner.fail = fail
    engine = start(runner)
    with caplog.at_level(logging.ERROR, "ramet.engine"):
        engine.submit(generate("bad", "hello!"), receiver)
        engine.submit(generate("good", "hello"), receiver)
        receiver.wait("bad", "good")
    assert receiver.failed("bad").code == ErrorCode.INTERNAL
    receiver.finished("good")
    engine.close()


def test_requests_submitted_together_share_their_first_step(
    engine: Engine, runner: ScriptedRunner, receiver: Receiver
) -> None:
    for index in range(8):
        engine.submit(generate(f"r{index}", "the same prompt", seed=index), receiver)
    receiver.wait(*[f"r{index}" for index in range(8)])
    usage = [receiver.finished(f"r{index}").usage for index in range(8)]
    assert sum(u.computed_tokens for u in usage) == 15
    assert sum(u.recomputed_tokens for u in usage) == 0


def test_many_threads_may_submit_at_once(engine: Engine, receiver: Receiver) -> None:
    def work(worker: int) -> None:
        for index in range(10):
            engine.submit(generate(f"{worker}-{index}", f"prompt {worker}", seed=index), receiver)

    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    names = [f"{worker}-{index}" for worker in range(8) for index in range(10)]
    receiver.wait(*names)
    for name in names:
        worker, index = name.split("-")
        request = generate(name, f"prompt {worker}", seed=int(index))
        assert list(receiver.finished(name).sample.ids) == reference(
            f"prompt {worker}".encode(), request
        )


def test_flush_forgets_and_is_refused_while_something_runs(
    runner: ScriptedRunner, receiver: Receiver
) -> None:
    engine = start(runner)
    engine.submit(generate("a", "hello"), receiver)
    receiver.wait("a")
    wait_until_idle(engine)
    assert engine.info()["cached_slots"]
    assert engine.flush_cache()
    assert engine.info()["cached_slots"] == 0
    runner.fail = gate = Gate()
    engine.submit(generate("b", "hello"), receiver)
    assert gate.reached.wait(10)
    assert not engine.flush_cache()
    gate.opened.set()
    receiver.wait("b")
    engine.close()


def test_info_is_json_safe_and_counts(engine: Engine, receiver: Receiver) -> None:
    for name in ("a", "b"):
        engine.submit(generate(name, "hello", sampling=SamplingParams(max_new_tokens=1)), receiver)
        receiver.wait(name)
    info = engine.info()
    assert (info["model"], info["context_length"], info["num_slots"]) == ("scripted", 500, 2000)
    assert (info["prompt_tokens"], info["computed_tokens"]) == (10, 5)
    assert (info["cached_tokens"], info["recomputed_tokens"]) == (5, 1)
    assert info["process"] == "thread"
    assert info["pid"] == os.getpid()
    assert cast(float, info["busy_seconds"]) >= cast(float, info["step_seconds"]) > 0


def test_a_context_longer_than_the_models_is_refused(runner: ScriptedRunner) -> None:
    with pytest.raises(InvalidRequestError, match="501 is more than the model's own 500"):
        start(runner, context_length=501)


def test_render_gives_the_prompt_text(engine: Engine) -> None:
    assert engine.render((Text("one "), Text("two"))) == "one two"


SCRIPT = """
import os, sys, time
from tests.runtime.test_engine import *
receiver = Receiver()
engine = start(ScriptedRunner(2000))
engine.submit(generate("a", "hello"), receiver)
receiver.wait("a")
{what}
"""


def run_script(what: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", SCRIPT.format(what=what)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=os.path.dirname(os.path.dirname(os.path.dirname(__file__))),
    )


def test_interpreter_exit_stops_a_running_engine() -> None:
    done = run_script("engine.submit(generate('b', 'x', sampling=LONG), receiver)\nprint('end')")
    assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_after_a_fork_the_child_is_refused() -> None:
    done = run_script(
        "child = os.fork()\n"
        "engine.submit(generate('b', 'x'), receiver)\n"
        "if child:\n"
        "    assert os.waitpid(child, 0)[1] == 0\n"
        "    receiver.wait('b')\n"
        "    receiver.finished('b')\n"
        "else:\n"
        "    assert 'os.fork' in receiver.failed('b').message\n"
        "    engine.abort('b'); engine.close()\n"
        "    for use in (engine.info, engine.flush_cache):\n"
        "        try:\n"
        "            use()\n"
        "        except EngineClosedError:\n"
        "            continue\n"
        "        os._exit(1)\n"
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_flush_inside_a_receiver_is_refused_and_does_not_wait(
    engine: Engine, receiver: Receiver
) -> None:
    answers: list[bool] = []

    def on_event(event: Event) -> None:
        if isinstance(event, Finished):
            answers.append(engine.flush_cache())
        receiver(event)

    engine.submit(generate("a", "hello"), on_event)
    receiver.wait("a")
    assert answers == [False]


def test_nothing_follows_the_last_event_where_a_step_outlasts_close(
    runner: ScriptedRunner, receiver: Receiver
) -> None:
    engine = start(runner)
    gate = Gate()

    def on_event(event: Event) -> None:
        receiver(event)
        if isinstance(event, Delta):
            runner.fail = gate

    engine.submit(generate("a", "hello", stream=True, sampling=LONG), on_event)
    assert gate.reached.wait(10)
    engine.close()
    gate.opened.set()
    engine._loop._thread.join(10)
    assert isinstance(receiver.events["a"][-1], Failed)
