"""How runs and engines end, on a real tiny model: nothing hangs, nothing stays held."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import ramet
from ramet import ProgramState
from ramet.backends import local
from ramet.errors import (
    DeadlineError,
    EngineClosedError,
    GenerationError,
    RequestCancelledError,
)
from tests.models import write_model

ROOT = Path(__file__).parents[2]
NUM_SLOTS = 60_000  # the context, too: an endless answer takes far longer than any wait here
PROCESSES = ["thread", "worker"]

PROGRAMS = """
import json, os, signal, sys, threading, time, warnings
import ramet
from ramet.errors import EngineClosedError, GenerationError

@ramet.function
def quick(s):
    s += "Hello" + ramet.gen("x", max_tokens=3, ignore_eos=True)

@ramet.function
def endless(s):
    s += "Hello"
    group = s.fork(2)
    group += ramet.gen("x", max_tokens=10**6, ignore_eos=True)
    s += ramet.gen("x", max_tokens=10**6, ignore_eos=True)
    s["x"]

def held(engine):
    end = time.monotonic() + 5
    while time.monotonic() < end:
        info = engine.info()
        numbers = info["running"], info["waiting"]
        if numbers == (0, 0) and info["free_slots"] + info["cached_slots"] == info["num_slots"]:
            return "nothing"
    return str(info)

def wait_for_start(engine):
    while engine.info()["running"] < 3:
        time.sleep(0.01)

engine = ramet.Engine(sys.argv[1], process=sys.argv[2])
"""


@ramet.function
def quick(s: ProgramState, text: str = "Hello") -> None:
    s += text + ramet.gen("x", max_tokens=3, ignore_eos=True)


@ramet.function
def endless(s: ProgramState) -> None:
    s += "Hello"
    group = s.fork(2)
    group += ramet.gen("x", max_tokens=10**6, ignore_eos=True)
    s += ramet.gen("x", max_tokens=10**6, ignore_eos=True)


@ramet.function
def talk(s: ProgramState) -> None:
    s += ramet.user("Who?") + ramet.assistant(ramet.gen("answer", max_tokens=3))
    s += ramet.user("Sure?") + ramet.assistant(ramet.select("sure", ["yes", "no"]))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "tiny"
    return write_model(folder, max_position_embeddings=NUM_SLOTS)


@pytest.fixture(scope="module", params=PROCESSES)
def engine(request: pytest.FixtureRequest, folder: Path) -> Iterator[ramet.Engine]:
    with start(folder, request.param) as engine:
        yield engine


def start(folder: Path, process: str) -> ramet.Engine:
    return ramet.Engine(folder, process=process, max_total_tokens=NUM_SLOTS)


def check_nothing_is_held(engine: ramet.Engine) -> None:
    def is_free() -> bool:
        info: dict[str, Any] = engine.info()
        held = info["num_slots"] - info["free_slots"] - info["cached_slots"]
        return (info["running"], info["waiting"], held) == (0, 0, 0)

    wait_until(is_free)
    assert quick(backend=engine)["x"]


def wait_until(is_so: Callable[[], bool], seconds: float = 10) -> None:
    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.005)


def wait_for_start(engine: ramet.Engine) -> None:
    wait_until(lambda: engine.info()["running"] == 3)


def is_running(pid: int) -> bool:
    status = Path(f"/proc/{pid}/stat")
    try:
        return status.read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def script(
    folder: Path, process: str, body: str, *, returncode: int = 0
) -> tuple[dict[str, Any], float]:
    """Run `body` after `PROGRAMS`; return the JSON it prints, and how long it then took to end."""
    command = [sys.executable, "-c", PROGRAMS + body, str(folder), process]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        line = child.stdout.readline()
        printed = time.monotonic()
        try:
            rest, error = child.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            child.kill()
            raise
    seconds = time.monotonic() - printed
    assert (rest, error) == ("", "")
    assert child.returncode == returncode
    answer: dict[str, Any] = json.loads(line)
    return answer, seconds


# -- one run ---------------------------------------------------------------------------------------


def test_time_limit_frees_everything(engine: ramet.Engine) -> None:
    started = time.monotonic()
    with pytest.raises(DeadlineError):
        endless(backend=engine, timeout=0.3)
    assert time.monotonic() - started < 5
    check_nothing_is_held(engine)


def test_cancel_frees_everything(engine: ramet.Engine) -> None:
    state = endless.run(backend=engine, stream=True)
    wait_for_start(engine)
    state.cancel()
    with pytest.raises(RequestCancelledError):
        state["x"]
    check_nothing_is_held(engine)


def test_a_stream_that_is_left_alone_frees_everything_when_cancelled(engine: ramet.Engine) -> None:
    state = endless.run(backend=engine, stream=True)
    pieces = state.text_iter("x")
    assert next(pieces)
    state.cancel()
    with pytest.raises(RequestCancelledError):
        list(pieces)
    check_nothing_is_held(engine)


def test_time_limit_of_a_batch_frees_everything(engine: ramet.Engine) -> None:
    states = endless.run_batch([{}] * 4, backend=engine, timeout=0.3)
    assert all(isinstance(state.error(), DeadlineError) for state in states)
    check_nothing_is_held(engine)


def test_two_threads_run_programs_at_once(engine: ramet.Engine) -> None:
    alone = [quick(f"Text {i}", backend=engine, temperature=0)["x"] for i in range(4)]
    answers: dict[tuple[int, int], str] = {}

    def work(number: int) -> None:
        for i in range(4):
            state = quick(f"Text {i}", backend=engine, temperature=0)
            answers[number, i] = state["x"]

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert answers == {(n, i): alone[i] for n in range(2) for i in range(4)}


def test_run_works_inside_a_running_event_loop(engine: ramet.Engine) -> None:
    async def cell() -> str:
        state = quick(backend=engine)
        streamed = quick.run(backend=engine, stream=True)
        return "".join(streamed.text_iter()) and str(state["x"])

    assert asyncio.run(cell())
    check_nothing_is_held(engine)


def test_programs_from_many_tasks_of_one_loop(engine: ramet.Engine) -> None:
    async def cell() -> list[ProgramState]:
        calls = (asyncio.to_thread(quick, f"Text {i}", backend=engine) for i in range(4))
        return await asyncio.gather(*calls)

    assert all(state["x"] for state in asyncio.run(cell()))


# -- the end of an engine --------------------------------------------------------------------------


@pytest.mark.parametrize("process", PROCESSES)
def test_finished_states_can_be_read_after_the_engine_has_closed(
    folder: Path, process: str
) -> None:
    with start(folder, process) as engine:
        state = talk(backend=engine)
        text, info = state.text(), state.get_meta_info("sure")
        transcript, messages = str(state), state.messages()
    assert state["answer"] == messages[1]["content"]
    assert state.text() == text
    assert state.get_meta_info("sure") == info
    assert (str(state), state.messages()) == (transcript, messages)
    assert state.usage.prompt_tokens > 0
    with pytest.raises(GenerationError, match="closed: start another") as caught:
        talk(backend=engine)
    assert isinstance(caught.value.__cause__, EngineClosedError)


@pytest.mark.parametrize("process", PROCESSES)
def test_closing_the_engine_ends_every_wait(folder: Path, process: str) -> None:
    engine = start(folder, process)
    states = [endless.run(backend=engine, stream=True)]
    wait_for_start(engine)
    engine.close()
    error = states[0].error()
    assert isinstance(error, GenerationError)
    assert isinstance(error.__cause__, EngineClosedError)
    engine.close()  # again


def test_a_dropped_engine_ends_its_worker(folder: Path) -> None:
    engine = start(folder, "worker")
    pid = int(str(engine.info()["pid"]))
    assert is_running(pid)
    del engine
    wait_until(lambda: not is_running(pid), 5)


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs signals")
def test_killing_the_worker_ends_every_wait_and_a_new_one_works(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(local, "_default", start(folder, "worker"))
    engine = local.default_engine()
    states = [endless.run(stream=True) for _ in range(2)]
    wait_until(lambda: engine.info()["running"] == 6)
    killed = time.monotonic()
    os.kill(int(str(engine.info()["pid"])), signal.SIGKILL)
    for state in states:
        error = state.error()
        assert isinstance(error, GenerationError)
        assert isinstance(error.__cause__, EngineClosedError)
        assert "SIGKILL" in str(error)
    assert time.monotonic() - killed < 5
    with pytest.raises(GenerationError, match="SIGKILL"):
        quick(backend=engine)
    assert engine.info()["is_closed"] is True
    with start(folder, "thread") as another:
        monkeypatch.setattr(local, "Engine", lambda: another)
        assert quick()["x"]  # the default engine is started again
        assert "using the default model" in capsys.readouterr().err
    monkeypatch.undo()


# -- the end of a process --------------------------------------------------------------------------


@pytest.mark.skipif(os.name == "nt", reason="signals are sent in another way")
@pytest.mark.parametrize("process", PROCESSES)
def test_ctrl_c_leaves_the_process_usable(folder: Path, process: str) -> None:
    body = """
import asyncio

@ramet.function
def mapped(s):
    def one(branch, index):
        branch += ramet.gen("x", max_tokens=10**6, ignore_eos=True)
        branch["x"]
    s += "Hello"
    s.fork(3).map(one)

@ramet.function
async def awaited(s):
    s += "Hello"
    group = s.fork(3)
    group += ramet.gen("x", max_tokens=10**6, ignore_eos=True)
    await group.join()

def interrupt():
    wait_for_start(engine)
    os.kill(os.getpid(), signal.SIGINT)

calls = [
    lambda: endless(backend=engine),
    lambda: endless.run_batch([{}] * 3, backend=engine),
    lambda: endless.start(backend=engine)["never"],
    lambda: asyncio.run(endless.arun(backend=engine)),
    lambda: list(endless.as_completed([{}] * 3, backend=engine)),
    lambda: mapped(backend=engine),
    lambda: awaited(backend=engine),
]
answer = []
for call in calls:
    threading.Thread(target=interrupt).start()
    try:
        call()
    except KeyboardInterrupt:
        answer.append(["interrupted", held(engine), bool(quick(backend=engine)["x"])])
print(json.dumps(answer), flush=True)
"""
    answer: Any
    answer, _ = script(folder, process, body)
    assert answer == [["interrupted", "nothing", True]] * 7


@pytest.mark.parametrize("process", PROCESSES)
def test_exit_with_requests_in_flight_takes_less_than_two_seconds(
    folder: Path, process: str
) -> None:
    body = """
state = endless.run(backend=engine, stream=True)
wait_for_start(engine)
print(json.dumps({"pid": engine.info()["pid"]}), flush=True)
"""
    answer, seconds = script(folder, process, body)
    assert seconds < 2
    wait_until(lambda: not is_running(answer["pid"]), 2)


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs signals")
def test_a_worker_does_not_outlive_a_process_that_is_killed(folder: Path) -> None:
    body = """
state = endless.run(backend=engine, stream=True)
wait_for_start(engine)
print(json.dumps({"pid": engine.info()["pid"]}), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    answer, _ = script(folder, "worker", body, returncode=-signal.SIGKILL)
    wait_until(lambda: not is_running(answer["pid"]), 5)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
@pytest.mark.parametrize("process", PROCESSES)
def test_a_forked_child_is_refused_and_its_parent_goes_on(folder: Path, process: str) -> None:
    body = """
warnings.simplefilter("ignore")  # the child uses no lock that another thread may hold
state = quick(backend=engine)
pid = os.fork()
if pid == 0:
    problems = []
    try:
        quick(backend=engine, timeout=5)
        problems.append("it ran")
    except GenerationError as error:
        if not isinstance(error.__cause__, EngineClosedError) or "os.fork" not in str(error):
            problems.append(repr(error))
    for call in (engine.info, engine.flush_cache):
        try:
            call()
            problems.append("no error")
        except EngineClosedError:
            pass
    if not state["x"]:
        problems.append("no value")
    engine.close()  # not the child's to close
    sys.stderr.write("".join(problems))
    sys.stderr.flush()
    os._exit(len(problems))
code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
answer = {"code": code, "held": held(engine), "quick": bool(quick(backend=engine)["x"])}
print(json.dumps(answer), flush=True)
"""
    answer, _ = script(folder, process, body)
    assert answer == {"code": 0, "held": "nothing", "quick": True}
