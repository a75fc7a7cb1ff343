"""forks.map: a function for each branch, at the same time."""

import contextvars
import os
import signal
import threading
import time

import pytest

import ramet
from ramet import ProgramState
from ramet.errors import GenerationError, InvalidRequestError


def double(branch: ProgramState, index: int) -> str:
    branch += f"{index}" + ramet.gen("a")
    branch += str(branch["a"]) + ramet.gen("b")
    return str(branch["b"])


@ramet.function
def program(s: ProgramState, count: int, num_threads: int | None = None) -> list[str]:
    s += "t"
    return s.fork(count).map(double, num_threads=num_threads)


def test_results_are_in_the_order_of_the_branches() -> None:
    fake = ramet.Fake(lambda prompt, name: name)
    assert program(5, backend=fake).ret_value == ["b"] * 5


def test_branches_run_at_the_same_time() -> None:
    fake = ramet.Fake(lambda prompt, name: name, delay=0.2)
    start = time.monotonic()
    program(8, backend=fake)
    assert time.monotonic() - start < 1.2


@pytest.mark.parametrize("num_threads", [1, 3])
def test_threads_are_bounded(num_threads: int) -> None:
    names = set()

    @ramet.function
    def program(s: ProgramState) -> None:
        def note(branch: ProgramState, index: int) -> None:
            names.add(threading.current_thread().name)

        s.fork(50).map(note, num_threads=num_threads)

    program(backend=ramet.Fake())
    assert len(names) <= num_threads
    assert not [t for t in threading.enumerate() if t.name.startswith("ramet-map")]


def test_first_failure_is_raised_when_all_have_ended() -> None:
    ended = []

    @ramet.function
    def program(s: ProgramState) -> None:
        def one(branch: ProgramState, index: int) -> None:
            if index in (1, 2):
                raise ValueError(f"branch {index}")
            time.sleep(0.05)
            ended.append(index)

        s.fork(4).map(one)

    with pytest.raises(ValueError, match="branch 1") as caught:
        program(backend=ramet.Fake())
    assert sorted(ended) == [0, 3]
    assert "in branch 1 of the fork" in caught.value.__notes__


def test_failed_gen_of_a_branch_is_raised() -> None:
    fake = ramet.Fake({"a": "-", "b": RuntimeError("boom")})
    with pytest.raises(GenerationError, match="boom"):
        program(3, backend=fake)


def test_context_and_calling_run_are_kept() -> None:
    variable = contextvars.ContextVar("variable", default="unset")

    @ramet.function
    def inner(s: ProgramState) -> None:
        s += ramet.gen("x")

    @ramet.function
    def outer(s: ProgramState) -> list[str]:
        variable.set("caller")

        def one(branch: ProgramState, index: int) -> str:
            return f"{variable.get()} {inner()['x']}"

        return s.fork(2).map(one)

    assert outer(backend=ramet.Fake({"x": "-"})).ret_value == ["caller -"] * 2


def test_map_inside_map() -> None:
    @ramet.function
    def outer(s: ProgramState) -> list[list[str]]:
        return s.fork(6).map(lambda branch, index: branch.fork(6).map(double))

    fake = ramet.Fake(lambda prompt, name: name)
    assert outer(backend=fake, timeout=30).ret_value == [["b"] * 6] * 6


@pytest.mark.parametrize("num_threads", [0, True, "many"])
def test_number_of_threads_is_checked(num_threads: int) -> None:
    with pytest.raises(InvalidRequestError, match="num_threads"):
        program(2, num_threads, backend=ramet.Fake())


def test_ctrl_c_ends_every_branch() -> None:
    fake = ramet.Fake(lambda p, n: "x", delay=30)
    timer = threading.Timer(0.1, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        program(8, backend=fake)
    timer.join()
    assert fake.num_running == 0
    assert not [t for t in threading.enumerate() if t.name.startswith("ramet-map")]


def test_preview_shows_every_branch() -> None:
    text = program.preview(2)
    assert text.count("{a}") == 2
