"""Which line of a program is at work."""

import sys
from typing import Any

import pytest

import ramet
from ramet import ProgramState
from ramet.errors import GenerationError


def test_line_is_the_programs_even_through_helpers_of_other_files() -> None:
    helpers: dict[str, Any] = {"ramet": ramet}
    code = "\n\n\ndef ask(s):\n    s += ramet.gen('x')\n"
    exec(compile(code, "other_file.py", "exec"), helpers)

    @ramet.function
    def program(s: ProgramState) -> None:
        helpers["ask"](s)

    with pytest.raises(GenerationError) as caught:
        program(backend=ramet.Fake())
    assert caught.value.line == program.func.__code__.co_firstlineno + 2


def test_line_is_the_innermost_of_the_programs_file() -> None:
    def ask(s: ProgramState) -> None:
        s += ramet.gen("x")

    @ramet.function
    def program(s: ProgramState) -> None:
        ask(s)

    with pytest.raises(GenerationError) as caught:
        program(backend=ramet.Fake())
    assert caught.value.line == ask.__code__.co_firstlineno + 1


def test_line_of_what_is_appended_after_the_run_is_the_callers() -> None:
    @ramet.function
    def program(s: ProgramState) -> None:
        s += "text"

    state = program(backend=ramet.Fake())
    line = sys._getframe().f_lineno + 1
    state += ramet.gen("x")
    error = state.error()
    assert isinstance(error, GenerationError)
    assert error.line == line
