"""A full queue, calls to an engine that is stuck, refusals with their numbers."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from ramet.runtime import engine_loop, worker_client
from ramet.runtime.config import EngineConfig
from ramet.runtime.engine import Engine
from ramet.runtime.protocol import DeadlineError, ErrorCode, SamplingParams
from ramet.runtime.step import StepPlan
from ramet.runtime.worker_client import WorkerEngine

from .scripted import ENCODER, Receiver, ScriptedRunner, generate

ROOT = Path(__file__).parents[2]
PROGRAM = "from tests.runtime.scripted_worker import main; main()"
LONG = SamplingParams(max_new_tokens=None, ignore_eos=True)


class Gate:
    """Holds every step until it is opened."""

    def __init__(self) -> None:
        self.opened = threading.Event()
        self.reached = threading.Event()

    def __call__(self, plan: StepPlan) -> None:
        self.reached.set()
        assert self.opened.wait(20)


def start(**options: object) -> tuple[Engine, Gate]:
    runner = ScriptedRunner(2000)
    gate = Gate()
    runner.fail = gate
    config = EngineConfig(**options)  # type: ignore[arg-type]
    info: dict[str, object] = {"model": "scripted", "context_length": 500}
    return Engine(runner, ENCODER, config, model_info=info), gate


def test_a_full_queue_refuses_with_its_size_and_recovers() -> None:
    engine, gate = start(max_running_requests=1, max_queued_requests=3)
    receiver = Receiver()
    engine.submit(generate("running", "x"), receiver)
    assert gate.reached.wait(20)
    for index in range(4):
        engine.submit(generate(f"r{index}", "x" * (index + 2)), receiver)
    failed = receiver.failed("r3")
    assert failed.code == ErrorCode.OVERLOADED
    assert failed.message == (
        "the queue holds 3 requests: send it again later or raise max_queued_requests"
    )
    info = engine.info()
    assert (info["queued_requests"], info["max_queued_requests"]) == (3, 3)
    gate.opened.set()
    receiver.wait("running", "r0", "r1", "r2")
    engine.submit(generate("r3", "x"), receiver)  # the refused id is free
    receiver.wait("r3")
    receiver.finished("r3")
    engine.close()


def test_samples_of_one_request_are_one_in_the_queue() -> None:
    engine, gate = start(max_running_requests=1, max_queued_requests=2)
    receiver = Receiver()
    engine.submit(generate("running", "x"), receiver)
    assert gate.reached.wait(20)
    for name in ("a", "b"):
        engine.submit(generate(name, f"{name}y", sampling=SamplingParams(n=5)), receiver)
    gate.opened.set()
    receiver.wait("running", "a", "b")
    assert [len(receiver.finished(name).samples) for name in ("a", "b")] == [5, 5]
    engine.close()


def test_a_prompt_that_is_too_long_fails_with_both_numbers() -> None:
    engine, gate = start()
    gate.opened.set()
    receiver = Receiver()
    engine.submit(generate("long", "x" * 600), receiver)
    failed = receiver.failed("long")
    assert (failed.code, failed.num_tokens, failed.limit) == (ErrorCode.CONTEXT_LENGTH, 600, 500)
    engine.close()


def test_a_flush_behind_a_stuck_step_ends_by_its_time_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engine_loop, "CALL_SECONDS", 0.2)
    engine, gate = start()
    receiver = Receiver()
    engine.submit(generate("a", "x", sampling=LONG), receiver)
    assert gate.reached.wait(20)
    with pytest.raises(DeadlineError, match=r"did not answer within 0\.2 s"):
        engine._loop.call(lambda: None)
    gate.opened.set()
    engine.close()


@pytest.mark.skipif(sys.platform == "win32", reason="a process is stopped by a signal")
def test_calls_to_a_stuck_worker_end_by_their_time_limit() -> None:
    program = f"import sys; sys.path.insert(0, {str(ROOT)!r}); {PROGRAM}"
    engine = WorkerEngine(EngineConfig(), arguments=("-P", "-c", program))
    pid = int(str(engine.info()["pid"]))
    os.kill(pid, signal.SIGSTOP)
    try:
        begin = time.monotonic()
        with pytest.raises(DeadlineError, match="did not answer info within"):
            engine._link.call("info", 0.3)
        assert time.monotonic() - begin < 10
        assert worker_client.CALL_SECONDS < 120
    finally:
        os.kill(pid, signal.SIGCONT)
        engine.close()
