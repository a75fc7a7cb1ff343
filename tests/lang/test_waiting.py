"""Every wait has an end: deadlines, Ctrl-C, a closed backend."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

import ramet
from ramet import ProgramState
from ramet.errors import DeadlineError, EngineClosedError, GenerationError, RequestCancelledError


@ramet.function
def slow(s: ProgramState, read: bool = False) -> None:
    group = s.fork(2)
    group += ramet.gen("b")
    s += ramet.gen("x")
    if read:
        s["x"]


@ramet.function
def calls_slow(s: ProgramState) -> None:
    s += ramet.gen("y")
    slow()


@pytest.mark.parametrize("read", [True, False])
def test_time_limit_ends_the_run_and_its_requests(read: bool) -> None:
    fake = ramet.Fake(lambda p, n: "x", delay=30)
    start = time.monotonic()
    with pytest.raises(DeadlineError):
        slow(read, backend=fake, timeout=0.05)
    assert time.monotonic() - start < 5
    assert fake.num_running == 0


def test_time_limit_says_what_was_not_there() -> None:
    fake = ramet.Fake(lambda p, n: "x", delay=30)
    with pytest.raises(DeadlineError, match=r"^slow .*'x'"):
        slow(backend=fake, timeout=0.05)


def test_time_limit_is_a_timeout_error_and_holds_for_nested_programs() -> None:
    fake = ramet.Fake(lambda p, n: "x", delay=30)
    with pytest.raises(TimeoutError):
        calls_slow(backend=fake, timeout=0.05)
    assert fake.num_running == 0


def test_time_limit_of_zero_ends_at_once() -> None:
    with pytest.raises(DeadlineError):
        slow(backend=ramet.Fake(lambda p, n: "x"), timeout=0)


def test_requests_carry_what_is_left_of_the_time() -> None:
    fake = ramet.Fake(lambda p, n: "x")
    slow(backend=fake, timeout=100)
    assert all(r.timeout is not None and 90 < r.timeout <= 100 for r in fake.requests)


def test_batch_shares_one_time_limit() -> None:
    fake = ramet.Fake(lambda p, n: "x", delay=30)
    states = slow.run_batch([{}] * 3, backend=fake, timeout=0.05, num_threads=1)
    assert all(isinstance(state.error(), DeadlineError) for state in states)
    assert fake.num_running == 0


@pytest.mark.parametrize("program", [slow, calls_slow])
def test_ctrl_c_at_a_read_ends_every_request(program: ramet.Program) -> None:
    fake = ramet.Fake(lambda p, n: "x", delay=30)
    timer = threading.Timer(0.1, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        program(backend=fake)
    timer.join()
    assert fake.num_running == 0
    quick = ramet.Fake(lambda p, n: "x")
    slow(backend=quick)
    assert quick.num_running == 0


def test_ctrl_c_in_user_code_ends_every_request() -> None:
    @ramet.function
    def program(s: ProgramState) -> None:
        s += ramet.gen("x")
        signal.raise_signal(signal.SIGINT)

    fake = ramet.Fake(lambda p, n: "x", delay=30)
    with pytest.raises(KeyboardInterrupt):
        program(backend=fake)
    assert fake.num_running == 0


@pytest.mark.parametrize("num_threads", [1, 4])
def test_ctrl_c_ends_a_batch(num_threads: int) -> None:
    fake = ramet.Fake(lambda p, n: "x", delay=30)
    timer = threading.Timer(0.1, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        slow.run_batch([{}] * 8, backend=fake, num_threads=num_threads)
    timer.join()
    assert fake.num_running == 0
    assert not [t for t in threading.enumerate() if t.name.startswith("ramet-batch")]


def test_ctrl_c_leaves_a_script_at_once() -> None:
    script = """
import os, signal, threading, ramet
@ramet.function
def program(s):
    s += ramet.gen("x")
    s["x"]
threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
program(backend=ramet.Fake({"x": "-"}, delay=60))
"""
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=20, check=False
    )
    assert "KeyboardInterrupt" in result.stderr
    assert result.returncode != 0


def test_closing_the_backend_ends_every_wait() -> None:
    fake = ramet.Fake(lambda p, n: "x", delay=30)
    threading.Timer(0.05, fake.close).start()
    with pytest.raises(GenerationError) as caught:
        slow(backend=fake)
    assert isinstance(caught.value.__cause__, EngineClosedError)


def test_abort_by_another_hand_is_a_cancelled_error() -> None:
    fake = ramet.Fake(lambda p, n: "x", delay=30)

    def abort_all() -> None:
        for request in fake.requests:
            fake.abort(request.id)

    threading.Timer(0.05, abort_all).start()
    with pytest.raises(RequestCancelledError):
        slow(backend=fake)


def test_cancel_ends_a_streamed_run() -> None:
    fake = ramet.Fake(lambda p, n: "x", delay=30)
    state = calls_slow.run(backend=fake, stream=True)
    while fake.num_running < 4:
        time.sleep(0.001)
    state.cancel()
    assert fake.num_running == 0
    with pytest.raises(RequestCancelledError, match="calls_slow was cancelled"):
        state["y"]
    assert isinstance(state.error(), RequestCancelledError)


def test_cancel_in_the_body_ends_the_run() -> None:
    @ramet.function
    def program(s: ProgramState) -> None:
        s += ramet.gen("x")
        s.cancel()

    fake = ramet.Fake(lambda p, n: "x", delay=30)
    with pytest.raises(RequestCancelledError):
        program(backend=fake)
    assert fake.num_running == 0


def test_script_with_a_stream_left_alone_ends() -> None:
    script = """
import ramet
@ramet.function
def program(s):
    s += ramet.gen("x")
program.run(backend=ramet.Fake({"x": "-"}, delay=60), stream=True)
"""
    subprocess.run([sys.executable, "-c", script], timeout=20, check=True)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_programs_run_in_a_forked_process() -> None:
    script = """
import os, sys, warnings
warnings.simplefilter("ignore")
import ramet
@ramet.function
def program(s):
    s += ramet.gen("x")
fake = ramet.Fake({"x": "-"})
program(backend=fake)
pid = os.fork()
if pid == 0:
    for backend in (ramet.Fake({"x": "-"}), fake):
        if program(backend=backend, timeout=5, on_error="return")["x"] != "-":
            os._exit(1)
    os._exit(0)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
    subprocess.run([sys.executable, "-c", script], timeout=20, check=True)
