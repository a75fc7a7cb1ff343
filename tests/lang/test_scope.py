"""`var_scope`: a stretch of text as a variable."""

from __future__ import annotations

import pytest

import ramet
from ramet.errors import GenerationError, UndefinedVariableError


def test_scope_has_literal_and_generated_text() -> None:
    @ramet.function
    def program(s: ramet.ProgramState) -> str:
        s += "before "
        with s.var_scope("part"):
            s += "a" + ramet.gen("x") + "b"
        s += " after"
        return str(s["part"])

    state = program(backend=ramet.Fake({"x": "-"}))
    assert state.ret_value == "a-b"
    assert state.text() == "before a-b after"
    assert "".join(state.text_iter("part")) == "a-b"


def test_scope_inside_a_role_and_around_one() -> None:
    @ramet.function
    def program(s: ramet.ProgramState) -> None:
        with s.var_scope("all"):
            with s.user(), s.var_scope("inner"):
                s += "Hello"
            s += ramet.assistant(ramet.gen("x"))

    state = program(backend=ramet.Fake({"x": "Hi"}))
    assert state["inner"] == "Hello"
    assert state["all"] == state.text()


def test_scope_in_a_branch_is_joined() -> None:
    @ramet.function
    def program(s: ramet.ProgramState) -> None:
        forks = s.fork(2)
        for index, fork in enumerate(forks):
            with fork.var_scope("part"):
                fork += f"{index}" + ramet.gen("x")
        forks.join()

    assert program(backend=ramet.Fake({"x": "!"}))["part"] == ["0!", "1!"]


def test_empty_scope_is_empty_text() -> None:
    @ramet.function
    def program(s: ramet.ProgramState) -> None:
        with s.var_scope("nothing"):
            pass

    assert program(backend=ramet.Fake())["nothing"] == ""


def test_failed_gen_stands_for_the_scope() -> None:
    @ramet.function
    def program(s: ramet.ProgramState) -> None:
        with s.var_scope("part"):
            s += ramet.gen("x")

    state = program(backend=ramet.Fake({"x": RuntimeError("no")}), on_error="return")
    with pytest.raises(GenerationError, match="no"):
        state["part"]


def test_block_that_raises_binds_nothing() -> None:
    @ramet.function
    def program(s: ramet.ProgramState) -> bool:
        try:
            with s.var_scope("part"):
                s += "text"
                raise ValueError("stop")
        except ValueError:
            return "part" in s

    state = program(backend=ramet.Fake())
    assert state.ret_value is False
    with pytest.raises(UndefinedVariableError):
        state["part"]


@pytest.mark.parametrize("name", ["", 3, None])
def test_name_must_be_a_non_empty_string(name: object) -> None:
    @ramet.function
    def program(s: ramet.ProgramState) -> None:
        with s.var_scope(name):  # type: ignore[arg-type]
            pass

    with pytest.raises(TypeError, match="name"):
        program(backend=ramet.Fake())
