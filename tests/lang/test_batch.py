"""run_batch."""

import contextvars
import threading
from typing import Any

import pytest

import ramet
from ramet import ProgramState
from ramet.errors import GenerationError, InvalidRequestError


@ramet.function
def echo(s: ProgramState, text: str) -> str:
    s += text + ramet.gen("x")
    return text


@pytest.fixture
def fake() -> ramet.Fake:
    return ramet.Fake(lambda prompt, name: prompt + "!")


def batch_threads() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name.startswith("ramet-batch")]


def test_results_are_in_the_order_of_the_rows(fake: ramet.Fake) -> None:
    rows = [{"text": str(i)} for i in range(50)]
    states = echo.run_batch(rows, backend=fake)
    assert [state["x"] for state in states] == [f"{i}!" for i in range(50)]


def test_rows_may_be_tuples_and_any_iterable(fake: ramet.Fake) -> None:
    states = echo.run_batch(((str(i),) for i in range(3)), backend=fake)
    assert [state.ret_value for state in states] == ["0", "1", "2"]


def test_no_rows_give_no_states() -> None:
    assert echo.run_batch([], backend=ramet.Fake()) == []


def test_rows_are_never_changed(fake: ramet.Fake) -> None:
    rows = [{}, {"text": "b"}]
    echo.bind(text="a").run_batch(rows, backend=fake)
    assert rows == [{}, {"text": "b"}]


@pytest.mark.parametrize("num_threads", [1, 4])
@pytest.mark.parametrize("progress_bar", [True, False])
def test_failed_rows_carry_their_own_error_and_the_others_finish(  # F38
    num_threads: int, progress_bar: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    @ramet.function
    def program(s: ProgramState, row: int) -> None:
        if row == 6:
            dict[str, int]()["missing"]
        s += f"{row}" + ramet.gen("a")
        if row == 3:
            raise ValueError("row 3")
        s += ramet.gen("b")

    fake = ramet.Fake(lambda prompt, name: prompt, delay=0.01)
    states = program.run_batch(
        [{"row": i} for i in range(8)],
        backend=fake,
        num_threads=num_threads,
        progress_bar=progress_bar,
    )
    errors = [type(state.error()) for state in states]
    none = type(None)
    assert errors == [none, none, none, ValueError, none, none, KeyError, none]
    assert [s["b"] for i, s in enumerate(states) if i not in (3, 6)] == [
        "00",
        "11",
        "22",
        "44",
        "55",
        "77",
    ]
    with pytest.raises(ValueError, match="row 3"):
        states[3]["b"]
    with pytest.raises(KeyError, match="missing"):
        states[6]["a"]
    assert not batch_threads()
    assert fake.num_running == 0
    assert ("8/8" in capfd.readouterr().err) is progress_bar


def test_on_error_raise_finishes_all_rows_first() -> None:
    fake = ramet.Fake(lambda p, n: RuntimeError("odd") if int(p) % 2 else p)
    with pytest.raises(ExceptionGroup, match="2 of 4 rows failed") as caught:
        echo.run_batch([(str(i),) for i in range(4)], backend=fake, on_error="raise")
    assert len(fake.requests) == 4
    assert all(isinstance(error, GenerationError) for error in caught.value.exceptions)
    assert caught.value.exceptions[0].__notes__ == ["in row 1 of the batch"]


def test_failure_that_the_program_handles_does_not_fail_its_row() -> None:
    @ramet.function
    def program(s: ProgramState) -> str:
        group = s.fork(2)
        group += ramet.gen("x")
        group.join(on_error="none")
        s += ramet.gen("y")
        try:
            return str(s["y"])
        except GenerationError:
            return "none"

    fake = ramet.Fake({"x": RuntimeError("boom"), "y": RuntimeError("boom")})
    states = program.run_batch([{}, {}], backend=fake, on_error="raise")
    assert [(state["x"], state.ret_value) for state in states] == [([None, None], "none")] * 2


@pytest.mark.parametrize(
    "row", [{"txt": "a"}, {}, {1: "a"}, ("a", "b"), "text", 3, {"text": "a", "seed": 1}]
)
def test_row_that_does_not_fit_is_that_rows_error(row: Any, fake: ramet.Fake) -> None:
    states = echo.run_batch([{"text": "a"}, row], backend=fake)
    assert states[0]["x"] == "a!"
    assert isinstance(states[1].error(), TypeError)


@pytest.mark.parametrize(
    "options", [{"temprature": 0}, {"num_thread": 3}, {"stream": True}, {"on_error": "x"}]
)
def test_bad_option_is_refused_at_once(options: dict[str, Any]) -> None:
    with pytest.raises((TypeError, InvalidRequestError)):
        echo.run_batch([{"text": "a"}], backend=ramet.Fake(), **options)


@pytest.mark.parametrize("num_threads", [0, -1, True, 1.5, "many"])
def test_number_of_threads_is_checked(num_threads: Any) -> None:
    with pytest.raises(InvalidRequestError, match="num_threads"):
        echo.run_batch([("a",)], backend=ramet.Fake(), num_threads=num_threads)


@pytest.mark.parametrize("rows", [{"text": "a"}, "rows", 3])
def test_rows_must_be_a_list(rows: Any) -> None:
    with pytest.raises(TypeError, match="rows must be a list"):
        echo.run_batch(rows, backend=ramet.Fake())


def test_threads_are_bounded_for_any_number_of_rows() -> None:
    most = []

    @ramet.function
    def program(s: ProgramState, i: int) -> None:
        group = s.fork(2)
        group += ramet.gen("x")
        most.append(threading.active_count())

    before = threading.active_count()
    states = program.run_batch([(i,) for i in range(2000)], backend=ramet.Fake({"x": "-"}))
    assert len(states) == 2000
    assert max(most) <= before + 64 + 2  # the batch's, the dispatcher, the fake's own
    assert not batch_threads()


def test_given_number_of_threads_is_kept() -> None:
    names = set()

    @ramet.function
    def program(s: ProgramState, i: int) -> None:
        s += ramet.gen("x")
        s["x"]
        names.add(threading.current_thread().name)

    program.run_batch([(i,) for i in range(30)], backend=ramet.Fake({"x": "-"}), num_threads=3)
    assert names <= {"ramet-batch-0", "ramet-batch-1", "ramet-batch-2"}


def test_one_thread_runs_in_order_in_the_callers() -> None:
    seen = []

    @ramet.function
    def program(s: ProgramState, i: int) -> None:
        seen.append((i, threading.current_thread()))

    program.run_batch([(i,) for i in range(5)], backend=ramet.Fake(), num_threads=1)
    assert seen == [(i, threading.current_thread()) for i in range(5)]


def test_rows_see_the_callers_context_and_not_each_others() -> None:
    variable = contextvars.ContextVar("variable", default="unset")

    @ramet.function
    def program(s: ProgramState, i: int) -> str:
        seen = variable.get()
        variable.set(f"row {i}")
        return seen

    variable.set("caller")
    for num_threads in (1, 2):
        states = program.run_batch(
            [(i,) for i in range(6)], backend=ramet.Fake(), num_threads=num_threads
        )
        assert {state.ret_value for state in states} == {"caller"}


def test_batches_inside_a_batch_end_and_stay_bounded(fake: ramet.Fake) -> None:
    most = []

    @ramet.function
    def outer(s: ProgramState, i: int) -> list[str]:
        states = echo.run_batch([(f"{i}{j}",) for j in range(20)])
        most.append(threading.active_count())
        return [str(state["x"]) for state in states]

    before = threading.active_count()
    states = outer.run_batch([(i,) for i in range(20)], backend=fake, timeout=30)
    assert states[3].ret_value == [f"3{j}!" for j in range(20)]
    assert max(most) <= before + 20 + 20 * 3 + 2


def test_nested_program_runs_in_its_callers_worker(fake: ramet.Fake) -> None:
    @ramet.function
    def outer(s: ProgramState, i: int) -> bool:
        inside = []

        @ramet.function
        def inner(t: ProgramState) -> None:
            inside.append(threading.current_thread())

        inner()
        return inside == [threading.current_thread()]

    states = outer.run_batch([(i,) for i in range(8)], backend=fake, num_threads=2)
    assert all(state.ret_value for state in states)


def test_exit_in_a_row_leaves_the_batch(fake: ramet.Fake) -> None:
    @ramet.function
    def program(s: ProgramState, i: int) -> None:
        if i == 2:
            raise SystemExit(3)
        s += ramet.gen("x")

    with pytest.raises(SystemExit):
        program.run_batch([(i,) for i in range(6)], backend=fake, num_threads=2)
    assert not batch_threads()
