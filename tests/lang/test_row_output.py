"""output="rows.jsonl": finished rows in a file, and reruns that skip them."""

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import pytest

import ramet
from ramet import ProgramState
from ramet.errors import InvalidRequestError, UndefinedVariableError


@ramet.function
def program(s: ProgramState, i: int) -> None:
    s += f"{i}:" + ramet.gen("x")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "rows.jsonl"


def fake_of(failing: str = "none") -> ramet.Fake:
    return ramet.Fake(lambda p, n: RuntimeError("boom") if failing in p else f"<{p}>")


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_each_row_is_a_line(path: Path) -> None:
    program.run_batch([(i,) for i in range(20)], backend=fake_of(), output=path, seed=3)
    found = sorted(lines(path), key=lambda line: line["index"])
    assert [line["index"] for line in found] == list(range(20))
    assert found[4]["arguments"] == {"i": 4}
    assert found[4]["variables"] == {"x": "<4:>"}
    assert found[4]["text"] == "4:<4:>"
    assert found[4]["error"] is None
    assert found[4]["seed"] == 3
    assert found[4]["usage"]["prompt_tokens"] == 2


def test_rerun_runs_only_what_is_missing_or_failed(path: Path) -> None:
    rows = [(i,) for i in range(6)]
    first = program.run_batch(rows, backend=fake_of("3:"), output=path)
    assert first[3].error() is not None
    again = fake_of()
    states = program.run_batch([*rows, (6,)], backend=again, output=str(path))
    assert len(again.requests) == 2
    assert [state["x"] for state in states] == [f"<{i}:>" for i in range(7)]
    assert [state.text() for state in states] == [f"{i}:<{i}:>" for i in range(7)]
    assert all(state.error() is None for state in states)
    assert states[0].usage == first[0].usage
    assert states[0].seed == first[0].seed
    third = fake_of()
    program.run_batch([*rows, (6,)], backend=third, output=path)
    assert not third.requests


def test_other_options_arguments_and_sources_run_again(path: Path) -> None:
    @ramet.function
    def other(s: ProgramState, i: int) -> None:
        s += f"{i}:!" + ramet.gen("x")

    fake = fake_of()
    program.run_batch([(1,)], backend=fake, output=path)
    program.run_batch([(1,)], backend=fake, output=path, temperature=0)
    program.run_batch([(1,)], backend=fake, output=path, seed=4)
    program.run_batch([(2,)], backend=fake, output=path)
    other.run_batch([(1,)], backend=fake, output=path)
    assert len(fake.requests) == 5
    program.run_batch([(1,)], backend=fake, output=path, priority=9, timeout=100)
    assert len(fake.requests) == 5


def test_equal_rows_each_have_a_line(path: Path) -> None:
    fake = fake_of()
    program.run_batch([(1,), (1,)], backend=fake, output=path)
    program.run_batch([(1,), (1,), (1,)], backend=fake, output=path)
    assert len(fake.requests) == len(lines(path)) == 3


def test_half_a_line_is_cut_off(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    program.run_batch([(1,), (2,)], backend=fake_of(), output=path, num_threads=1)
    data = path.read_bytes()
    path.write_bytes(data[:-9])
    fake = fake_of()
    with caplog.at_level(logging.WARNING, "ramet"):
        program.run_batch([(1,), (2,)], backend=fake, output=path)
    assert len(fake.requests) == 1
    assert "not complete" in caplog.text
    assert len(lines(path)) == 2


def test_line_that_is_no_row_is_refused(path: Path) -> None:
    path.write_text('{"other": "file"}\n')
    with pytest.raises(InvalidRequestError, match="line 1"):
        program.run_batch([(1,)], backend=fake_of(), output=path)
    assert path.read_text() == '{"other": "file"}\n'


@pytest.mark.parametrize("value", [{1, 2}, object(), b"bytes", {3: "key"}])
def test_argument_that_json_cannot_hold_is_refused_before_anything_runs(
    path: Path, value: Any
) -> None:
    fake = fake_of()
    with pytest.raises(TypeError, match="argument 'i'"):
        program.run_batch([(1,), (value,)], backend=fake, output=path)
    assert not fake.requests


def test_two_batches_cannot_write_to_one_file(path: Path) -> None:
    @ramet.function
    def inside(s: ProgramState, i: int) -> None:
        program.run_batch([(1,)], output=path)

    states = inside.run_batch([(1,)], backend=fake_of(), output=path)
    assert isinstance(states[0].error(), InvalidRequestError)
    assert "another batch" in str(states[0].error())


def test_variable_that_json_cannot_hold_says_so_when_it_is_read(path: Path) -> None:
    @ramet.function
    def sets(s: ProgramState) -> None:
        s["kept"] = [1, "two"]
        s["lost"] = {1, 2}

    sets.run_batch([{}], backend=fake_of(), output=path)
    state = sets.run_batch([{}], backend=fake_of(), output=path)[0]
    assert state["kept"] == [1, "two"]
    with pytest.raises(UndefinedVariableError, match="JSON"):
        state["lost"]


def test_output_of_as_completed_and_arun_batch(path: Path) -> None:
    fake = fake_of()
    list(program.as_completed([(1,), (2,)], backend=fake, output=path))
    states = asyncio.run(program.arun_batch([(1,), (2,), (3,)], backend=fake, output=path))
    assert [state["x"] for state in states] == ["<1:>", "<2:>", "<3:>"]
    assert len(fake.requests) == len(lines(path)) == 3


def test_row_that_does_not_fit_is_its_own_error(path: Path) -> None:
    states = program.run_batch([(1,), {"j": 1}], backend=fake_of(), output=path)
    assert isinstance(states[1].error(), TypeError)
    assert len(lines(path)) == 1
