"""Async programs, and programs that are awaited."""

import asyncio
import contextvars
import os
import signal
import threading
import time
from typing import Any

import pytest

import ramet
from ramet import AsyncProgramState, ProgramState
from ramet.errors import (
    DeadlineError,
    GenerationError,
    ProgramError,
    RequestCancelledError,
    UndefinedVariableError,
)


@ramet.function
async def ask(s: AsyncProgramState, question: str = "q") -> str:
    s += ramet.user(question)
    s += ramet.assistant(ramet.gen("x"))
    return str(await s.get("x"))


@ramet.function
def plain(s: ProgramState, question: str = "q") -> str:
    s += question + ramet.gen("x")
    return str(s["x"])


@ramet.function
async def sleeps(s: AsyncProgramState) -> None:
    s += ramet.gen("x")
    await asyncio.sleep(30)


def fake_of(delay: float = 0.0) -> ramet.Fake:
    return ramet.Fake(lambda prompt, name: f"{name}!", delay=delay)


def test_async_program_runs_without_a_loop() -> None:
    state = ask("hello", backend=fake_of())
    assert isinstance(state, ProgramState)
    assert (state.ret_value, state["x"]) == ("x!", "x!")
    assert state.messages()[0] == {"role": "user", "content": "hello"}


def test_async_program_runs_inside_a_running_loop() -> None:
    variable = contextvars.ContextVar("variable", default="unset")

    @ramet.function
    async def program(s: AsyncProgramState) -> tuple[str, str]:
        s += ramet.gen("x")
        return variable.get(), await s.get("x")

    async def notebook() -> Any:
        variable.set("caller")
        return program(backend=fake_of()).ret_value

    assert asyncio.run(notebook()) == ("caller", "x!")


def test_sync_program_runs_inside_a_running_loop() -> None:
    async def notebook() -> Any:
        return plain(backend=fake_of()).ret_value

    assert asyncio.run(notebook()) == "x!"


@pytest.mark.parametrize("program", [ask, plain])
def test_arun_gives_the_state(program: ramet.Program) -> None:
    state = asyncio.run(program.arun("hello", backend=fake_of()))
    assert state["x"] == "x!"
    assert "hello" in state.text()


def test_async_body_runs_on_the_callers_loop_and_another_in_a_thread() -> None:
    where: list[Any] = []

    @ramet.function
    async def on_loop(s: AsyncProgramState) -> None:
        where.append((asyncio.get_running_loop(), threading.current_thread()))

    @ramet.function
    def in_thread(s: ProgramState) -> None:
        where.append(threading.current_thread())

    async def main() -> tuple[Any, Any]:
        await on_loop.arun(backend=fake_of())
        await in_thread.arun(backend=fake_of())
        return asyncio.get_running_loop(), threading.current_thread()

    caller = asyncio.run(main())
    assert where[0] == caller
    assert where[1] != caller[1]


def test_reading_what_is_not_there_yet_names_the_await() -> None:
    @ramet.function
    async def program(s: AsyncProgramState) -> Any:
        s += ramet.gen("x")
        with pytest.raises(ProgramError, match=r"await s.get\('x'\)"):
            s["x"]
        await s.sync()
        return s["x"]

    assert program(backend=fake_of(0.05)).ret_value == "x!"


def test_everything_that_waits_can_be_awaited() -> None:
    @ramet.function
    async def program(s: AsyncProgramState) -> list[Any]:
        with s.user():
            s += "question"
        s.append(ramet.assistant(ramet.gen("x")))
        s["set"] = 3
        found = [await s.get("set"), await s.text(), await s.messages(), (await s.usage())]
        assert "x" in s
        assert (await s.get_meta_info("x"))["finish_reason"]["type"] == "stop"
        assert await s.error() is None
        with pytest.raises(UndefinedVariableError):
            await s.get("never")
        async with s.copy() as branch:
            branch += ramet.gen("y")
        return [*found, s["y"], s.variables]

    found = program(backend=fake_of()).ret_value
    assert found[0] == 3
    assert found[1].count("x!") == 1
    assert found[2][1] == {"role": "assistant", "content": "x!"}
    assert found[3].generated_tokens == 2
    assert found[4:] == [["y!"], ("x", "set", "y")]


def test_forks_of_an_async_program() -> None:
    @ramet.function
    async def program(s: AsyncProgramState) -> Any:
        s += "trunk"
        forks = s.fork(3)
        forks += [str(i) for i in range(3)]
        forks[0] += ramet.gen("x")
        forks[1:] += ramet.gen("x")
        await forks.join()
        assert len(forks) == 3
        return s["x"]

    fake = ramet.Fake(lambda prompt, name: prompt)
    assert program(backend=fake).ret_value == ["trunk0", "trunk1", "trunk2"]


def test_failed_gen_raises_at_the_await_and_can_be_handled() -> None:
    @ramet.function
    async def program(s: AsyncProgramState) -> str:
        s += ramet.gen("x")
        try:
            return str(await s.get("x"))
        except GenerationError:
            return "handled"

    fake = ramet.Fake({"x": RuntimeError("boom")})
    assert program(backend=fake).ret_value == "handled"
    with pytest.raises(GenerationError, match="boom"):
        asyncio.run(ask.arun(backend=fake))
    state = asyncio.run(ask.arun(backend=fake, on_error="return"))
    assert isinstance(state.error(), GenerationError)


def test_error_of_an_async_body_leaves_as_itself_with_the_line() -> None:
    @ramet.function
    async def program(s: AsyncProgramState) -> None:
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine") as caught:
        program(backend=fake_of())
    with pytest.raises(ValueError, match="mine") as awaited:
        asyncio.run(program.arun(backend=fake_of()))
    for error in (caught.value, awaited.value):
        assert "in the program program" in error.__notes__[0]


@pytest.mark.parametrize("program", [ask, plain, sleeps])
def test_cancelling_the_awaiting_task_ends_the_run(program: ramet.Program) -> None:
    fake = fake_of(30)

    async def main() -> None:
        task = asyncio.create_task(program.arun(backend=fake))
        while not fake.num_running:
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert fake.num_running == 0

    asyncio.run(main())


@pytest.mark.parametrize("program", [ask, plain, sleeps])
@pytest.mark.parametrize("is_awaited", [True, False])
def test_time_limit_ends_an_async_run(program: ramet.Program, is_awaited: bool) -> None:
    fake = fake_of(30)
    start = time.monotonic()

    def run() -> None:
        if is_awaited:
            asyncio.run(program.arun(backend=fake, timeout=0.05))
        else:
            program(backend=fake, timeout=0.05)

    with pytest.raises(DeadlineError):
        run()
    assert time.monotonic() - start < 5
    assert fake.num_running == 0


def test_cancelling_a_started_async_run_interrupts_its_body() -> None:
    fake = fake_of(30)
    state = sleeps.start(backend=fake)
    while not fake.num_running:
        time.sleep(0.001)
    state.cancel()
    assert state.wait(timeout=5)
    assert isinstance(state.error(), RequestCancelledError)
    assert fake.num_running == 0


def interrupt_soon() -> threading.Timer:
    timer = threading.Timer(0.15, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    return timer


@pytest.mark.parametrize("program", [ask, plain])
@pytest.mark.parametrize("way", ["arun", "arun_batch", "run"])
def test_ctrl_c_ends_an_async_run(program: ramet.Program, way: str) -> None:
    fake = fake_of(30)

    def run() -> None:
        if way == "arun":
            asyncio.run(program.arun(backend=fake))
        elif way == "arun_batch":
            asyncio.run(program.arun_batch([{}] * 3, backend=fake))
        else:
            program(backend=fake)

    timer = interrupt_soon()
    with pytest.raises(KeyboardInterrupt):
        run()
    timer.join()
    assert fake.num_running == 0
    assert program(backend=fake_of())["x"] == "x!"


@pytest.mark.parametrize("program", [ask, plain])
def test_ctrl_c_in_a_run_inside_a_running_loop(program: ramet.Program) -> None:
    fake = fake_of(30)

    async def blocked() -> None:
        program(backend=fake)

    def interrupt_twice() -> None:
        os.kill(os.getpid(), signal.SIGINT)  # asyncio.run takes it for its task
        time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGINT)

    timer = threading.Timer(0.15, interrupt_twice)
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(blocked())
    timer.join()
    assert fake.num_running == 0


def test_many_runs_at_once_on_one_thread() -> None:
    most: list[int] = []

    @ramet.function
    async def program(s: AsyncProgramState, i: int) -> str:
        s += f"{i}" + ramet.gen("x")
        text = await s.get("x")
        most.append(threading.active_count())
        return str(text)

    before = threading.active_count()
    fake = ramet.Fake(lambda prompt, name: prompt)
    states = asyncio.run(program.arun_batch([(i,) for i in range(300)], backend=fake))
    assert [state.ret_value for state in states] == [str(i) for i in range(300)]
    assert max(most) <= before + 2


@pytest.mark.parametrize("program", [ask, plain])
def test_arun_batch_keeps_to_max_live(program: ramet.Program) -> None:
    fake = fake_of(0.01)
    most = 0

    async def main() -> list[ProgramState]:
        nonlocal most
        batch = asyncio.create_task(program.arun_batch([{}] * 20, backend=fake, max_live=3))
        while not batch.done():
            most = max(most, fake.num_running)
            await asyncio.sleep(0.001)
        return await batch

    assert [state["x"] for state in asyncio.run(main())] == ["x!"] * 20
    assert 1 <= most <= 3


def test_cancelling_arun_batch_ends_all_rows() -> None:
    fake = fake_of(30)

    async def main() -> None:
        task = asyncio.create_task(ask.arun_batch([{}] * 20, backend=fake, max_live=8))
        while fake.num_running < 8:
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert fake.num_running == 0


def test_arun_batch_puts_failures_in_their_places() -> None:
    fake = ramet.Fake(lambda p, n: RuntimeError("odd") if "1" in p else "x")
    states = asyncio.run(ask.arun_batch([("0",), ("1",), (1, 2)], backend=fake))
    assert [type(s.error()) for s in states] == [type(None), GenerationError, TypeError]
    with pytest.raises(ExceptionGroup, match="1 of 2"):
        asyncio.run(ask.arun_batch([("0",), ("1",)], backend=fake, on_error="raise"))


def test_run_batch_takes_async_programs() -> None:
    states = ask.run_batch([("a",), ("b",)], backend=fake_of())
    assert [state["x"] for state in states] == ["x!", "x!"]


def test_forks_map_in_an_async_program() -> None:
    @ramet.function
    async def program(s: AsyncProgramState) -> Any:
        async def one(branch: AsyncProgramState, index: int) -> str:
            branch += f"{index}" + ramet.gen("x")
            return str(await branch.get("x"))

        return await s.fork(4).map(one), await s.fork(2).map(lambda branch, index: index)

    fake = ramet.Fake(lambda prompt, name: prompt, delay=0.2)
    start = time.monotonic()
    assert program(backend=fake).ret_value == (["0", "1", "2", "3"], [0, 1])
    assert time.monotonic() - start < 0.6


def test_text_comes_in_pieces_for_async_for() -> None:
    @ramet.function
    def program(s: ProgramState) -> None:
        s += "text " + ramet.gen("x")

    async def main() -> tuple[list[str], list[str], list[Any]]:
        fake = ramet.Fake({"x": "abcd"}, stream_chunks=2, delay=0.02)
        state = program.start(backend=fake)
        whole = [piece async for piece in state.text_async_iter()]
        own = [piece async for piece in state.text_async_iter("x")]
        return whole, own, [pair async for pair in state.text_async_iter("x", True)]

    whole, own, pairs = asyncio.run(main())
    assert whole == ["text ", "ab", "cd"]
    assert own == ["ab", "cd"]
    assert [text for text, _ in pairs] == ["ab", "cd", ""]
    assert pairs[-1][1]["finish_reason"]["type"] == "stop"


def test_incremental_logprobs_are_all_of_them() -> None:
    @ramet.function
    def program(s: ProgramState) -> None:
        s += ramet.gen("x", return_logprob=True)

    async def main() -> tuple[list[Any], list[Any]]:
        fake = ramet.Fake({"x": "abcd"}, stream_chunks=3)
        state = program.start(backend=fake)
        parts = [meta async for _, meta in state.text_async_iter("x", return_meta_data=True)]
        ids = [row[1] for meta in parts for row in meta.get("output_token_logprobs", ())]
        return ids, state.get_meta_info("x")["output_token_logprobs"]

    ids, whole = asyncio.run(main())
    assert ids == [row[1] for row in whole] == list(b"abcd")


def test_async_programs_are_no_generators() -> None:
    async def generator(s: AsyncProgramState) -> Any:
        yield

    with pytest.raises(TypeError, match="yield"):
        ramet.function(generator)


def test_preview_of_an_async_program() -> None:
    assert ask.preview("why").endswith("{x}")


def test_nested_programs_are_awaited() -> None:
    @ramet.function
    async def outer(s: AsyncProgramState) -> str:
        inner = await ask.arun("inner")
        return str(inner["x"])

    fake = fake_of()
    assert outer(backend=fake, priority=3).ret_value == "x!"
    assert fake.requests[0].priority == 3
