"""as_completed, generator_style, max_live: rows that are taken as they are needed."""

import asyncio
import itertools
import os
import signal
import threading
import time
from collections.abc import Iterator

import pytest

import ramet
from ramet import ProgramState
from ramet.errors import InvalidRequestError


@ramet.function
def program(s: ProgramState, i: int) -> int:
    s += f"{i}" + ramet.gen("x")
    s["x"]
    return i


@ramet.function
def slow_first(s: ProgramState, i: int) -> int:
    if i == 0:
        time.sleep(0.3)
    return i


@pytest.fixture
def fake() -> ramet.Fake:
    return ramet.Fake(lambda prompt, name: prompt)


def batch_threads() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name.startswith("ramet-batch")]


def endless() -> Iterator[tuple[int]]:
    return ((i,) for i in itertools.count())


def test_rows_come_as_they_finish(fake: ramet.Fake) -> None:
    order = [i for i, _ in slow_first.as_completed([(i,) for i in range(5)], backend=fake)]
    assert sorted(order) == list(range(5))
    assert order[-1] == 0


@pytest.mark.parametrize("num_threads", [1, 4])
def test_index_belongs_to_the_state(fake: ramet.Fake, num_threads: int) -> None:
    rows = ((i,) for i in range(30))
    for index, state in program.as_completed(rows, backend=fake, num_threads=num_threads):
        assert state["x"] == str(index) == str(state.ret_value)
    assert not batch_threads()


@pytest.mark.parametrize("num_threads", [1, 4])
def test_rows_without_end(fake: ramet.Fake, num_threads: int) -> None:
    seen = []
    for index, _ in program.as_completed(endless(), backend=fake, num_threads=num_threads):
        seen.append(index)
        if len(seen) == 50:
            break
    del index
    assert len(set(seen)) == 50
    end = time.monotonic() + 5
    while batch_threads() and time.monotonic() < end:
        time.sleep(0.01)
    assert not batch_threads()


def test_generator_style_keeps_the_order_without_end(fake: ramet.Fake) -> None:
    states = program.run_batch(endless(), backend=fake, num_threads=4, generator_style=True)
    assert [state.ret_value for state in itertools.islice(states, 40)] == list(range(40))
    states.close()
    assert not batch_threads()


def test_slow_row_does_not_stop_the_others(fake: ramet.Fake) -> None:
    done: list[int] = []

    @ramet.function
    def watched(s: ProgramState, i: int) -> int:
        if i == 0:
            end = time.monotonic() + 5
            while len(done) < 7 and time.monotonic() < end:
                time.sleep(0.001)
        done.append(i)
        return i

    rows = [(i,) for i in range(8)]
    states = watched.run_batch(rows, backend=fake, num_threads=2, generator_style=True)
    assert next(states).ret_value == 0
    assert done.index(0) == 7
    assert [state.ret_value for state in states] == list(range(1, 8))


def test_no_more_rows_are_taken_than_may_be_live(fake: ramet.Fake) -> None:
    taken, finished = itertools.count(), itertools.count()
    most = 0

    def rows() -> Iterator[tuple[int]]:
        for i in range(40):
            nonlocal most
            next(taken)
            most = max(most, i + 1 - next_value(finished))
            yield (i,)

    @ramet.function
    def counts(s: ProgramState, i: int) -> None:
        s += ramet.gen("x")
        s["x"]
        next(finished)

    counts.run_batch(rows(), backend=ramet.Fake({"x": "-"}, delay=0.002), max_live=3)
    assert most <= 3 + 1  # one row may just be ending


def next_value(counter: "itertools.count[int]") -> int:
    return int(repr(counter)[6:-1])


def test_reader_that_is_slow_holds_the_rows_back(fake: ramet.Fake) -> None:
    taken = []

    def rows() -> Iterator[tuple[int]]:
        for i in itertools.count():
            taken.append(i)
            yield (i,)

    reading = iter(program.as_completed(rows(), backend=fake, num_threads=2))
    next(reading)
    time.sleep(0.2)
    assert len(taken) <= 1 + 2 * 4 + 1
    reading.close()  # type: ignore[attr-defined]


def test_error_of_the_rows_is_raised_when_what_runs_has_ended(fake: ramet.Fake) -> None:
    def rows() -> Iterator[tuple[int]]:
        yield (0,)
        yield (1,)
        raise OSError("the file broke")

    seen: list[int] = []
    completed = program.as_completed(rows(), backend=fake, num_threads=2)
    with pytest.raises(OSError, match="the file broke"):
        seen.extend(index for index, _ in completed)
    assert sorted(seen) == [0, 1]
    with pytest.raises(OSError, match="the file broke"):
        program.run_batch(rows(), backend=fake)


@pytest.mark.parametrize("max_live", [0, True, 1.5])
def test_max_live_is_checked(max_live: int) -> None:
    with pytest.raises(InvalidRequestError, match="max_live"):
        program.run_batch([], backend=ramet.Fake(), max_live=max_live)


def test_rows_can_be_gone_through_once(fake: ramet.Fake) -> None:
    rows = program.as_completed([(1,)], backend=fake)
    assert len(list(rows)) == 1
    with pytest.raises(InvalidRequestError, match="again"):
        list(rows)


def test_as_completed_for_async_for(fake: ramet.Fake) -> None:
    async def main() -> list[int]:
        found = []
        async for index, state in program.as_completed(endless(), backend=fake, max_live=4):
            assert state["x"] == str(index)
            found.append(index)
            if len(found) == 20:
                break
        return found

    assert len(set(asyncio.run(main()))) == 20


def test_ctrl_c_ends_as_completed() -> None:
    fake = ramet.Fake(lambda p, n: "x", delay=30)
    timer = threading.Timer(0.1, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        list(program.as_completed(endless(), backend=fake))
    timer.join()
    assert fake.num_running == 0
    assert not batch_threads()


def test_row_note_is_on_every_rows_error() -> None:
    fake = ramet.Fake({"x": RuntimeError("boom")})
    states = program.run_batch([(0,), (1, 2), {"j": 1}], backend=fake)
    for index, state in enumerate(states):
        error = state.error()
        assert error is not None
        assert f"in row {index} of the batch" in error.__notes__


def test_memory_of_a_finished_row_is_bounded(fake: ramet.Fake) -> None:
    import tracemalloc

    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        states = program.run_batch([(i,) for i in range(300)], backend=ramet.Fake({"x": "-"}))
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (after - before) / len(states) < 20_000
