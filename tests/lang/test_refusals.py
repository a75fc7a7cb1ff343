"""Values of a wrong kind are refused where they are given, by a message that says what to give."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from typing import Any

import pytest

import ramet
from ramet.errors import GenerationError, InvalidRequestError


@ramet.function
def ask(s: ramet.ProgramState, question: str = "Why?") -> None:
    s += question + ramet.gen("answer")


def _fake() -> ramet.Fake:
    return ramet.Fake({"answer": "So."})


def _loose(value: object) -> Any:
    return value


@pytest.mark.parametrize("text", [None, 5, b"<|im_end|>", ["a"]])
def test_special_takes_a_string_only(text: object) -> None:
    with pytest.raises(TypeError, match="special takes a string, not "):
        ramet.special(_loose(text))


@pytest.mark.parametrize("choices", [5, None, "yes"])
def test_choices_are_a_list(choices: object) -> None:
    with pytest.raises(InvalidRequestError, match="choices must be a list of strings, not "):
        ramet.select("x", _loose(choices))


@pytest.mark.parametrize("function", [ramet.messages, lambda items: ramet.trim(items, 5)])
@pytest.mark.parametrize("items", [None, "text", b"text", {}, 5])
def test_a_conversation_is_a_list(function: Callable[[Any], object], items: object) -> None:
    with pytest.raises(TypeError, match="takes a list of dicts, not "):
        function(items)


def test_a_message_of_an_unknown_role_is_told_the_roles() -> None:
    with pytest.raises(InvalidRequestError, match="unknown role 'robot': there are system, user"):
        ramet.messages([{"role": "robot", "content": "x"}])
    with pytest.raises(InvalidRequestError, match="message 0 has no role: there are system, user"):
        ramet.messages([{"content": "x"}])


def test_an_unknown_argument_is_told_what_the_program_takes() -> None:
    with pytest.raises(TypeError, match=r"unknown argument of ask\(question.*\) 'zzz'$"):
        ask(zzz=1)


def test_appending_a_coroutine_says_to_await_it() -> None:
    @ramet.function
    async def program(s: ramet.AsyncProgramState) -> None:
        s += ramet.gen("answer")
        coroutine: Any = s.get("answer")
        try:
            s += coroutine
        finally:
            coroutine.close()

    with pytest.raises(TypeError, match="awaited first"):
        program(backend=_fake())


def test_appending_another_programs_state_says_to_append_its_text() -> None:
    @ramet.function
    def program(s: ramet.ProgramState) -> None:
        s += _loose(ask())

    with pytest.raises(TypeError, match=r"its text\(\) or one of its variables"):
        program(backend=_fake())


def test_map_refuses_what_is_no_function() -> None:
    @ramet.function
    def program(s: ramet.ProgramState) -> None:
        s.fork(2).map(_loose(5))

    with pytest.raises(TypeError, match="map takes a function of a branch and its index, not 5"):
        program(backend=_fake())


def test_map_of_an_async_program_refuses_what_is_no_function() -> None:
    @ramet.function
    async def program(s: ramet.AsyncProgramState) -> None:
        await s.fork(2).map(_loose(5))

    with pytest.raises(TypeError, match="map takes a function of a branch and its index, not 5"):
        program(backend=_fake())


def test_map_refuses_an_async_function_in_a_program_that_is_none() -> None:
    async def work(branch: object, index: int) -> int:
        return index

    @ramet.function
    def program(s: ramet.ProgramState) -> None:
        s.fork(2).map(work)

    with pytest.raises(TypeError, match="work is an async def, and this program is none"):
        program(backend=_fake())
    gc.collect()  # a coroutine that nobody awaited would warn


@pytest.mark.parametrize("name", ["progress_bar", "generator_style"])
def test_switches_of_a_batch_are_true_or_false(name: str) -> None:
    options: dict[str, Any] = {name: "yes", "backend": _fake()}
    with pytest.raises(InvalidRequestError, match=f"{name} must be a bool, not 'yes'"):
        ask.run_batch([()], **options)


def test_stream_is_true_or_false() -> None:
    with pytest.raises(InvalidRequestError, match="stream must be a bool, not 'yes'"):
        ask(stream="yes", backend=_fake())


def test_a_path_that_is_none_is_named() -> None:
    with pytest.raises(TypeError, match="output must be a path, not 5"):
        ask.run_batch([()], output=5, backend=_fake())
    with pytest.raises(TypeError, match="path must be a path, not 5"):
        ramet.Cached(_fake(), _loose(5))


def test_engine_names_a_model_that_is_no_path() -> None:
    pytest.importorskip("torch")
    with pytest.raises(TypeError, match="model must be a path, not 5"):
        ramet.Engine(_loose(5))


@pytest.mark.parametrize("name", ["delay", "stream_chunks", "context_length"])
def test_fake_names_an_argument_of_a_wrong_kind(name: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"{name} must be a"):
        ramet.Fake({}, **_loose({name: "x"}))


def test_fake_says_that_a_stop_regex_is_none() -> None:
    @ramet.function
    def program(s: ramet.ProgramState) -> None:
        s += ramet.gen("answer", stop_regex="(")

    with pytest.raises(GenerationError, match="stop_regex '\\(' is not a regular") as caught:
        program(backend=_fake())
    assert isinstance(caught.value.__cause__, InvalidRequestError)


@pytest.mark.parametrize("timeout", ["x", -1, float("nan")])
def test_wait_takes_a_number_of_seconds(timeout: object) -> None:
    state = ask.start(backend=_fake())
    with pytest.raises(InvalidRequestError, match="timeout must be"):
        state.wait(_loose(timeout))
    assert state.wait(10)


def test_a_row_with_nan_is_told_apart_from_other_numbers(tmp_path: Any) -> None:
    with pytest.raises(TypeError, match="'question' is nan, which JSON cannot hold"):
        ask.run_batch([(float("nan"),)], output=tmp_path / "rows.jsonl", backend=_fake())


def test_a_stored_row_gives_its_text_in_pieces_too(tmp_path: Any) -> None:
    for _ in range(2):
        (state,) = ask.run_batch([()], output=tmp_path / "rows.jsonl", backend=_fake())
    assert list(state.text_iter()) == [state.text()] == ["Why?So."]
    assert list(state.text_iter("answer")) == ["So."]

    async def pieces(name: str | None) -> list[str]:
        return [text async for text in state.text_async_iter(name)]

    assert asyncio.run(pieces(None)) == ["Why?So."]
    assert asyncio.run(pieces("answer")) == ["So."]


@pytest.mark.parametrize("run", ["with_options", "preview", "trace", "start"])
def test_options_are_checked_where_they_are_given(run: str) -> None:
    method = getattr(ask, run)
    with pytest.raises(InvalidRequestError, match="timeout must be a number, not 'x'"):
        method(timeout="x")
    with pytest.raises(TypeError, match="'gpt' is not a backend"):
        method(backend="gpt")
