"""start(): a program that runs by itself."""

import contextvars
import logging
import os
import signal
import threading
import time

import pytest

import ramet
from ramet import ProgramState
from ramet.errors import DeadlineError, GenerationError, RequestCancelledError


@ramet.function
def gated(s: ProgramState, gate: threading.Event) -> str:
    s += "a" + ramet.gen("x")
    assert gate.wait(10)
    s += ramet.gen("y")
    return "returned"


@ramet.function
def waits(s: ProgramState) -> None:
    s += ramet.gen("x")
    s["x"]


@pytest.fixture
def fake() -> ramet.Fake:
    return ramet.Fake(lambda prompt, name: name)


def test_start_returns_at_once_and_wait_says_when_it_has_ended(fake: ramet.Fake) -> None:
    gate = threading.Event()
    state = gated.start(gate, backend=fake)
    assert state["x"] == "x"
    assert (state.done, state.wait(timeout=0.01)) == (False, False)
    gate.set()
    assert state.wait() is True
    assert (state.done, state["y"], state.ret_value, state.error()) == (True, "y", "returned", None)


def test_start_runs_in_a_copy_of_the_callers_context(fake: ramet.Fake) -> None:
    variable = contextvars.ContextVar("variable", default="unset")

    @ramet.function
    def program(s: ProgramState) -> str:
        return variable.get()

    variable.set("caller")
    assert program.start(backend=fake).ret_value == "caller"


def test_state_of_a_run_that_was_waited_for_is_done(fake: ramet.Fake) -> None:
    state = waits(backend=fake)
    assert state.done
    assert state.wait(timeout=0)


def test_cancel_ends_the_body_and_its_requests() -> None:
    fake = ramet.Fake(lambda p, n: "x", delay=30)
    state = waits.start(backend=fake)
    state.cancel()
    assert state.wait(timeout=5)
    assert fake.num_running == 0
    assert isinstance(state.error(), RequestCancelledError)


def test_time_limit_ends_a_started_run() -> None:
    fake = ramet.Fake(lambda p, n: "x", delay=30)
    state = waits.start(backend=fake, timeout=0.05)
    assert state.wait(timeout=5)
    assert isinstance(state.error(), DeadlineError)
    assert fake.num_running == 0


def test_wait_ends_soon_after_the_time_limit_of_a_body_that_does_not_notice() -> None:
    gate = threading.Event()
    state = gated.start(gate, backend=ramet.Fake(lambda p, n: "x", delay=30), timeout=0.05)
    start = time.monotonic()
    assert state.wait() is False
    assert time.monotonic() - start < 5
    gate.set()
    assert state.wait(timeout=5)


def test_failure_is_logged_and_raised_at_reads(caplog: pytest.LogCaptureFixture) -> None:
    fake = ramet.Fake({"x": RuntimeError("boom")})
    with caplog.at_level(logging.WARNING, "ramet"):
        state = waits.start(backend=fake)
        assert state.wait(timeout=5)
        assert isinstance(state.error(), GenerationError)
        end = time.monotonic() + 5
        while not caplog.records and time.monotonic() < end:
            time.sleep(0.001)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "boom" in caplog.text
    with pytest.raises(GenerationError):
        state["x"]


def test_ctrl_c_while_waiting_for_a_started_run_leaves_it_running(fake: ramet.Fake) -> None:
    gate = threading.Event()
    state = gated.start(gate, backend=fake)
    timer = threading.Timer(0.1, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        state.wait()
    timer.join()
    gate.set()
    assert state["y"] == "y"


def test_abort_that_raises_does_not_stop_the_others_from_being_cancelled(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Stubborn(ramet.Fake):
        def abort(self, request_id: str) -> None:
            if request_id == self.requests[0].id:
                raise OSError("no connection")
            super().abort(request_id)

    @ramet.function
    def program(s: ProgramState) -> None:
        group = s.fork(3)
        group += ramet.gen("x")
        group.join()

    fake = Stubborn(lambda p, n: "x", delay=0.5)
    state = program.start(backend=fake)
    while len(fake.requests) < 3:
        time.sleep(0.001)
    state.cancel()
    assert state.wait(timeout=5)
    assert fake.num_running <= 1
    assert "no connection" in caplog.text


@pytest.mark.parametrize("ways", ["start", "stream"])
def test_what_returns_at_once_cannot_promise_to_raise(ways: str) -> None:
    @ramet.function
    def ask(s: ramet.ProgramState) -> None:
        s += ramet.gen("x")

    with pytest.raises(TypeError, match="cannot raise what comes later"):
        getattr(ask, ways)(backend=ramet.Fake({"x": "y"}), on_error="raise")
