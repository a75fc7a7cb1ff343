"""The engine in a child process: the same answers, and an end to every wait."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ramet.runtime.config import EngineConfig
from ramet.runtime.engine import Engine
from ramet.runtime.framing import FrameWriter, pack_frame, read_frame
from ramet.runtime.protocol import (
    Accepted,
    EngineClosedError,
    EngineError,
    ErrorCode,
    Event,
    Finished,
    GenerateRequest,
    ModelNotFoundError,
    Request,
    SamplingParams,
    Text,
)
from ramet.runtime.worker import usable_cores
from ramet.runtime.worker_client import WorkerEngine

from .scripted import ENCODER, Receiver, ScriptedRunner, generate, score

ROOT = Path(__file__).parents[2]
PROGRAM = "from tests.runtime.scripted_worker import main; main()"
LONG = SamplingParams(max_new_tokens=None, ignore_eos=True)


def start(model: str | None = None) -> WorkerEngine:
    program = f"import sys; sys.path.insert(0, {str(ROOT)!r}); {PROGRAM}"
    return WorkerEngine(EngineConfig(model=model), arguments=("-P", "-c", program))


@pytest.fixture(scope="module")
def engine() -> Iterator[WorkerEngine]:
    engine = start()
    yield engine
    engine.close()


@pytest.fixture
def receiver() -> Receiver:
    return Receiver()


def worker_pid(engine: WorkerEngine) -> int:
    return int(str(engine.info()["pid"]))


def wait_for_exit(pid: int, seconds: float = 5) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        status = Path(f"/proc/{pid}/stat")
        if not status.exists() or status.read_text().rsplit(")", 1)[1].split()[0] == "Z":
            return
        time.sleep(0.01)
    raise AssertionError(f"process {pid} is still there")


def test_a_worker_answers_as_an_engine_in_a_thread_does(
    engine: WorkerEngine, receiver: Receiver
) -> None:
    info: dict[str, object] = {"model": "scripted", "context_length": 500}
    thread = Engine(ScriptedRunner(2000), ENCODER, EngineConfig(), model_info=info)
    other = Receiver()
    requests: list[Request] = [
        *[generate(f"r{i}", f"prompt {i % 3}", seed=i, stream=True) for i in range(12)],
        score("s", "pick ", "one", "two", "one more"),
        generate("bad", "x" * 500),
    ]
    for request in requests:
        engine.submit(request, receiver)
        thread.submit(request, other)
    for receives in (receiver, other):
        receives.wait(*[request.id for request in requests])
    thread.close()
    for i in range(12):
        mine, theirs = receiver.finished(f"r{i}"), other.finished(f"r{i}")
        assert (mine.sample.ids, mine.sample.text, mine.sample.reason) == (
            theirs.sample.ids,
            theirs.sample.text,
            theirs.sample.reason,
        )
        assert isinstance(receiver.events[f"r{i}"][0], Accepted)
    assert receiver.scored("s").options == other.scored("s").options
    assert receiver.failed("bad") == other.failed("bad")


def test_calls_go_to_the_worker(engine: WorkerEngine, receiver: Receiver) -> None:
    assert engine.render((Text("one "), Text("two"))) == "one two"
    info = engine.info()
    assert info["process"] == "worker"
    assert info["pid"] != os.getpid()
    engine.submit(generate("calls", "hello"), receiver)
    receiver.wait("calls")
    assert engine.flush_cache()
    assert engine.info()["cached_slots"] == 0


def test_abort_reaches_the_worker(engine: WorkerEngine, receiver: Receiver) -> None:
    engine.submit(generate("abort", "hello", sampling=LONG), receiver)
    engine.abort("abort")
    engine.abort("abort")
    receiver.wait("abort")
    assert receiver.failed("abort").code == ErrorCode.CANCELLED


def test_an_id_in_use_is_refused(engine: WorkerEngine, receiver: Receiver) -> None:
    second = Receiver()
    engine.submit(generate("twice", "hello", sampling=LONG), receiver)
    engine.submit(generate("twice", "hello"), second)
    assert second.failed("twice").code == ErrorCode.INVALID_REQUEST
    engine.abort("twice")
    receiver.wait("twice")


def test_a_receiver_that_raises_ends_its_own_request(
    engine: WorkerEngine, receiver: Receiver
) -> None:
    def raising(event: Event) -> None:
        raise ValueError("no thanks")

    engine.submit(generate("raises", "hello", sampling=LONG, stream=True), raising)
    engine.submit(generate("after", "hello"), receiver)
    receiver.wait("after")


def test_what_the_worker_prints_goes_to_stderr(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ModelNotFoundError):
        start("missing")
    captured = capfd.readouterr()
    assert captured.out == ""


def test_the_workers_log_has_the_parents_level(capfd: pytest.CaptureFixture[str]) -> None:
    logger = logging.getLogger("ramet")
    before = logger.level
    logger.setLevel(logging.DEBUG)
    try:
        engine, receiver = start(), Receiver()
        engine.submit(generate("a", "hello"), receiver)
        receiver.wait("a")
        engine.close()
    finally:
        logger.setLevel(before)
    assert "DEBUG ramet.engine: prefill: 1 sequences with 5 new tokens" in capfd.readouterr().err


def test_errors_at_the_start_keep_their_types() -> None:
    with pytest.raises(ModelNotFoundError, match="no model 'missing'"):
        start("missing")
    with pytest.raises(EngineError, match="KeyError: 'vocab'"):
        start("broken")
    with pytest.raises(EngineError, match=r"did not start: exit code 3.*giving up"):
        start("dies at start")


def test_ctrl_c_while_it_starts_leaves_no_worker() -> None:
    before = set(children())
    timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        start("hangs at start")
    timer.join()
    assert set(children()) <= before


def children() -> list[int]:
    text = Path(f"/proc/self/task/{os.getpid()}/children").read_text()
    return [int(pid) for pid in text.split()]


def test_the_workers_death_ends_every_wait(receiver: Receiver) -> None:
    engine = start("dies")
    for name in ("a", "b"):
        engine.submit(generate(name, "hello"), receiver)
    receiver.wait("a", "b")
    failed = receiver.failed("a")
    assert failed.code == ErrorCode.ENGINE_CLOSED
    assert "exit code 7" in failed.message
    assert "out of everything" in failed.message
    engine.submit(generate("late", "hello"), receiver)
    assert receiver.failed("late").code == ErrorCode.ENGINE_CLOSED
    with pytest.raises(EngineClosedError, match="exit code 7"):
        engine.render((Text("x"),))
    assert engine.info()["is_closed"] is True
    assert not engine.flush_cache()
    engine.close()


def test_a_killed_worker_says_so(receiver: Receiver) -> None:
    engine = start("slow")
    engine.submit(generate("a", "hello", sampling=LONG), receiver)
    os.kill(worker_pid(engine), signal.SIGKILL)
    receiver.wait("a")
    assert "SIGKILL" in receiver.failed("a").message
    engine.close()


def test_close_ends_the_worker_and_every_wait(receiver: Receiver) -> None:
    engine = start("slow")
    pid = worker_pid(engine)
    engine.submit(generate("a", "hello", sampling=LONG), receiver)
    started = time.monotonic()
    engine.close()
    engine.close()
    assert time.monotonic() - started < 2
    assert receiver.failed("a").code == ErrorCode.ENGINE_CLOSED
    wait_for_exit(pid)
    with pytest.raises(EngineClosedError):
        engine.render((Text("x"),))


SCRIPT = """
import os, signal, sys, time
from tests.runtime.test_worker import LONG, Receiver, generate, start, worker_pid
receiver = Receiver()
engine = start("slow")
print(worker_pid(engine), flush=True)
engine.submit(generate("a", "hello", sampling=LONG), receiver)
{what}
"""


def run_script(what: str) -> tuple[int, subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT.format(what=what)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        start_new_session=True,
    )
    assert process.stdout is not None
    return int(process.stdout.readline()), process


def end(process: subprocess.Popen[str]) -> str:
    _, errors = process.communicate(timeout=10)
    return errors


def test_the_worker_ends_with_its_parent() -> None:
    for what in ("pass", "os.kill(os.getpid(), signal.SIGKILL)"):
        pid, process = run_script(what)
        wait_for_exit(pid, 10)
        end(process)
        assert process.returncode == (0 if what == "pass" else -signal.SIGKILL)


def test_ctrl_c_does_not_reach_the_worker() -> None:
    what = (
        "try:\n    time.sleep(20)\n"
        "except KeyboardInterrupt:\n    pass\n"
        "engine.submit(generate('b', 'hello'), receiver)\n"
        "receiver.wait('b')\n"
        "print(receiver.finished('b').sample.text, flush=True)\n"
    )
    _, process = run_script(what)
    time.sleep(0.2)
    os.killpg(process.pid, signal.SIGINT)
    end(process)
    assert process.returncode == 0


def test_after_a_fork_the_child_is_refused_and_holds_no_pipe() -> None:
    what = (
        "child = os.fork()\n"
        "if not child:\n"
        "    engine.submit(generate('c', 'x'), receiver)\n"
        "    assert 'os.fork' in receiver.failed('c').message\n"
        "    engine.abort('a'); engine.close()\n"
        "    time.sleep(20)\n"
        "print(child, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    pid, process = run_script(what)
    assert process.stdout is not None
    child = int(process.stdout.readline())
    wait_for_exit(pid, 10)
    os.kill(child, signal.SIGKILL)
    end(process)


def test_a_writer_does_not_wait_for_its_reader() -> None:
    reading, writing = os.pipe()
    writer = FrameWriter(writing)
    messages = [{"number": number, "text": "x" * 10_000} for number in range(100)]
    started = time.monotonic()
    for message in messages:
        writer.send(message)
    assert time.monotonic() - started < 1
    with os.fdopen(reading, "rb") as stream:
        assert [read_frame(stream) for _ in messages] == messages
        writer.close()
        writer.close()
        assert read_frame(stream) is None


def test_a_writer_works_with_file_numbers_beyond_a_thousand() -> None:
    resource = pytest.importorskip("resource")
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limits[1] != resource.RLIM_INFINITY and limits[1] < 2000:
        pytest.skip("this process may not open so many files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(limits[0], 2000), limits[1]))
    opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    reading, writing = os.pipe()
    try:
        writer = FrameWriter(writing)
        writer.send({"text": "x" * 1_000_000})  # more than a pipe holds
        with os.fdopen(reading, "rb") as stream:
            assert read_frame(stream) == {"text": "x" * 1_000_000}
        writer.close()
    finally:
        for number in opened:
            os.close(number)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_frames_for_nobody_are_dropped() -> None:
    reading, writing = os.pipe()
    writer = FrameWriter(writing)
    os.close(reading)
    writer.send({"text": "x" * 100_000})
    writer.send({})
    writer.close()
    writer.send({})


def test_what_is_no_frame_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    path.write_bytes(b"Hello, this is a print\n")
    with path.open("rb") as stream, pytest.raises(ValueError, match="something else wrote"):
        read_frame(stream)
    path.write_bytes(pack_frame({})[:4] + b"[]")
    with path.open("rb") as stream, pytest.raises(ValueError, match="JSON object"):
        read_frame(stream)
    path.write_bytes(pack_frame({"a": 1})[:-2])
    with path.open("rb") as stream:
        assert read_frame(stream) is None


def test_a_containers_quota_bounds_the_cores(tmp_path: Path) -> None:
    all_cores = usable_cores(tmp_path)
    (tmp_path / "cpu.max").write_text("100000 100000\n")
    assert usable_cores(tmp_path) == 1
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert usable_cores(tmp_path) == all_cores


def test_a_request_that_json_cannot_hold_fails_by_an_event(engine: WorkerEngine) -> None:
    receiver = Receiver()
    request = GenerateRequest(id="bytes", prompt=(Text(b"bytes"),))  # type: ignore[arg-type]
    engine.submit(request, receiver)
    receiver.wait("bytes")
    assert receiver.failed("bytes").code == ErrorCode.INVALID_REQUEST


def test_a_call_inside_a_receiver_is_refused_and_does_not_wait(engine: WorkerEngine) -> None:
    receiver = Receiver()
    refusals: list[str] = []

    def on_event(event: Event) -> None:
        if isinstance(event, Finished):
            with pytest.raises(RuntimeError, match="inside on_event") as caught:
                engine.info()
            refusals.append(str(caught.value))
        receiver(event)

    engine.submit(generate("inside", "hello"), on_event)
    receiver.wait("inside")
    assert len(refusals) == 1


def test_an_answer_that_cannot_be_read_ends_every_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = start()

    def unreadable(body: object) -> Event:
        raise KeyError("type")

    monkeypatch.setattr("ramet.runtime.worker_client.from_json", unreadable)
    receiver = Receiver()
    engine.submit(generate("a", "hello"), receiver)
    receiver.wait("a")
    assert receiver.failed("a").code == ErrorCode.ENGINE_CLOSED
    assert "could not be read" in receiver.failed("a").message
    engine.submit(generate("b", "hello"), receiver)
    receiver.wait("b")
    assert receiver.failed("b").code == ErrorCode.ENGINE_CLOSED
    engine.close()
