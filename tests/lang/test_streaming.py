"""Reading text as it comes."""

import contextvars
import threading
import time

import pytest

import ramet
from ramet import ProgramState
from ramet.errors import GenerationError, RequestCancelledError, UndefinedVariableError
from ramet.runtime.protocol import GenerateRequest


@ramet.function
def program(s: ProgramState) -> str:
    s += ramet.user("question")
    s += ramet.assistant("A: " + ramet.gen("x"))
    s += ramet.user("more") + ramet.assistant(ramet.gen("y"))
    return "done"


@pytest.fixture
def fake() -> ramet.Fake:
    return ramet.Fake({"x": "abcdefgh", "y": "second"}, delay=0.05, stream_chunks=4)


def test_stream_returns_before_the_text_is_there(fake: ramet.Fake) -> None:
    @ramet.function
    def gated(s: ProgramState, gate: threading.Event) -> bool:
        return gate.wait(5)

    gate = threading.Event()
    state = gated.run(gate, stream=True, backend=fake)
    gate.set()
    assert state.ret_value is True


def test_variable_comes_in_pieces(fake: ramet.Fake) -> None:
    state = program.stream(backend=fake)
    assert list(state.text_iter("x")) == ["ab", "cd", "ef", "gh"]
    assert list(state.text_iter("x")) == ["ab", "cd", "ef", "gh"]


def test_variable_that_is_not_appended_yet_is_waited_for(fake: ramet.Fake) -> None:
    @ramet.function
    def gated(s: ProgramState, gate: threading.Event) -> None:
        gate.wait(5)
        s += ramet.gen("y")

    gate = threading.Event()
    state = gated.run(gate, stream=True, backend=fake)
    assert "y" not in state
    threading.Timer(0.05, gate.set).start()
    assert state["y"] == "second"


def test_all_pieces_are_the_text(fake: ramet.Fake) -> None:
    state = program.run(stream=True, backend=fake)
    pieces = list(state.text_iter())
    assert "".join(pieces) == state.text()
    assert {"A: ", "ab", "cd"} < set(pieces)


def test_pieces_come_as_they_are_made() -> None:
    fake = ramet.Fake({"x": "abcd", "y": "-"}, delay=0.4)
    times = []
    for _ in program.run(stream=True, backend=fake).text_iter("x"):
        times.append(time.monotonic())
    assert times[-1] - times[0] > 0.15


def test_without_streaming_a_gen_comes_in_one_piece(fake: ramet.Fake) -> None:
    state = program.run(backend=fake)
    assert list(state.text_iter("x")) == ["abcdefgh"]
    assert "".join(state.text_iter()) == state.text()
    assert not any(r.stream for r in fake.requests if isinstance(r, GenerateRequest))


def test_text_iter_inside_the_body_ends(fake: ramet.Fake) -> None:
    @ramet.function
    def inside(s: ProgramState) -> list[str]:
        s += "a" + ramet.gen("x")
        return list(s.text_iter())

    assert inside(backend=fake).ret_value == ["a", "abcdefgh"]
    assert inside.run(backend=fake, stream=True).ret_value == ["a", "ab", "cd", "ef", "gh"]


def test_failure_ends_the_iteration_with_the_error() -> None:
    fake = ramet.Fake({"x": "abcdefgh", "y": RuntimeError("boom")})
    state = program.run(stream=True, backend=fake)
    pieces: list[str] = []
    with pytest.raises(GenerationError, match="boom"):
        pieces.extend(state.text_iter())
    with pytest.raises(GenerationError, match="boom"):
        list(state.text_iter("y"))
    assert isinstance(state.error(), GenerationError)


def test_error_of_the_body_reaches_the_reader() -> None:
    @ramet.function
    def broken(s: ProgramState) -> None:
        s += "text"
        raise ValueError("mine")

    state = broken.run(stream=True, backend=ramet.Fake())
    for _ in range(2):  # the second time the body has certainly ended
        with pytest.raises(ValueError, match="mine"):
            list(state.text_iter())
    with pytest.raises(ValueError, match="mine"):
        state["x"]
    with pytest.raises(ValueError, match="mine"):
        state.ret_value  # noqa: B018 reading it raises


def test_unknown_variable_of_a_finished_stream_is_an_error(fake: ramet.Fake) -> None:
    state = program.run(stream=True, backend=fake)
    with pytest.raises(UndefinedVariableError):
        state.text_iter("z")


def test_waiting_for_a_variable_does_not_spin_a_core() -> None:
    fake = ramet.Fake({"x": "-", "y": "-"}, delay=0.3)
    state = program.run(stream=True, backend=fake)
    before = time.process_time()
    list(state.text_iter("y"))
    assert time.process_time() - before < 0.2


def test_time_limit_ends_the_iteration() -> None:
    fake = ramet.Fake({"x": "-", "y": "-"}, delay=30)
    state = program.run(stream=True, backend=fake, timeout=0.05)
    with pytest.raises(TimeoutError):
        list(state.text_iter())


def test_body_sees_the_callers_context(fake: ramet.Fake) -> None:
    variable = contextvars.ContextVar("variable", default="unset")

    @ramet.function
    def reads(s: ProgramState) -> str:
        return variable.get()

    variable.set("caller")
    assert reads.run(stream=True, backend=fake).ret_value == "caller"


def test_select_and_set_variables_come_as_one_piece() -> None:
    @ramet.function
    def other(s: ProgramState) -> None:
        s += ramet.select("x", ["a", "b"])
        s["y"] = "set"

    state = other.run(stream=True, backend=ramet.Fake({"x": "b"}))
    assert list(state.text_iter("x")) == ["b"]
    assert list(state.text_iter("y")) == ["set"]


def test_branch_streams_its_whole_text(fake: ramet.Fake) -> None:
    @ramet.function
    def forks(s: ProgramState) -> str:
        s += "a" + ramet.gen("x")
        branch = s.fork(1)[0]
        branch += "b" + ramet.gen("y")
        return "".join(branch.text_iter())

    assert forks(backend=fake).ret_value == "aabcdefghbsecond"


def test_two_readers_see_the_same(fake: ramet.Fake) -> None:
    state = program.run(stream=True, backend=fake)
    results: list[str] = []
    threads = [
        threading.Thread(target=lambda: results.append("".join(state.text_iter())))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [state.text()] * 3


def test_program_streamed_inside_a_body_ends_before_the_body_does(fake: ramet.Fake) -> None:
    @ramet.function
    def outer(s: ProgramState) -> ProgramState:
        return program.run(stream=True)

    outer(backend=fake)
    assert fake.num_running == 0
    assert len(fake.requests) == 2


def test_state_can_be_continued_after_its_run(fake: ramet.Fake) -> None:
    state = program(backend=fake)
    state += ramet.user("again") + ramet.assistant(ramet.gen("x"))
    assert state["x"] == "abcdefgh"
    assert len(state.messages()) == 6


def test_error_of_a_body_that_has_ended_still_ends_the_iteration() -> None:
    @ramet.function
    def broken(s: ProgramState) -> None:
        s += "text"
        raise ValueError("mine")

    state = broken.run(stream=True, backend=ramet.Fake())
    assert isinstance(state.error(), ValueError)
    with pytest.raises(ValueError, match="mine"):
        list(state.text_iter())


def test_program_that_is_called_may_read_the_streamed_state_of_its_caller() -> None:
    @ramet.function
    def reads(t: ProgramState, other: ProgramState) -> str:
        return other.text()

    @ramet.function
    def outer(s: ProgramState) -> object:
        s += "a" + ramet.gen("x")
        return reads(s).ret_value

    state = outer.run(backend=ramet.Fake({"x": "-"}), stream=True, timeout=5)
    assert state.ret_value == "a-"


def test_variable_without_text_says_so() -> None:
    @ramet.function
    def other(s: ProgramState) -> None:
        s["y"] = [1, 2]

    with pytest.raises(TypeError, match="'y' is list"):
        list(other(backend=ramet.Fake()).text_iter("y"))


def test_exception_of_a_body_keeps_its_place_while_a_program_it_called_is_ended() -> None:
    @ramet.function
    def inner(s: ProgramState) -> None:
        s += ramet.gen("x")

    called: list[ProgramState] = []

    @ramet.function
    def outer(s: ProgramState) -> None:
        called.append(inner.run(stream=True))
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine") as caught:
        outer(backend=ramet.Fake({"x": "-"}, delay=30))
    ended = called[0].error()
    assert isinstance(ended, RequestCancelledError)
    assert "inner was ended because outer" in str(ended)
    assert caught.traceback[-1].frame.code.name == "outer"
    assert any("in the program outer" in note for note in caught.value.__notes__)
