"""Rows of a batch begin as the backend's KV pool permits."""

import asyncio
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import ramet
from ramet import ProgramState
from ramet.errors import DeadlineError
from ramet.execution.footprint import Footprint
from ramet.programs.pool_share import PRESUMED, WINDOW, PoolShare
from ramet.runtime.protocol import Usage

TURN = "t" * 100
NUM_TURNS = 4
ROW = NUM_TURNS * (len(TURN) + 10)  # tokens of a row of `chat`: the fake's are bytes


class Pool(ramet.Fake):
    """Says that it has `num_slots`; notes how many rows were live at most."""

    def __init__(self, num_slots: object, delay: float = 0.0) -> None:
        super().__init__(lambda prompt, name: "r" * 10, delay=delay)
        self.num_slots = num_slots
        self.most = self.live = 0
        self.lock = threading.Lock()

    @contextmanager
    def row(self) -> Iterator[None]:
        with self.lock:
            self.live += 1
            self.most = max(self.most, self.live)
        yield
        with self.lock:
            self.live -= 1


@ramet.function
def chat(s: ProgramState, pool: Pool, start: str, row: int, turns: int = NUM_TURNS) -> None:
    with pool.row():
        s += start + f"{row:03d}"
        for turn in range(turns):
            s += TURN + ramet.gen(f"reply_{turn}")
            s[f"reply_{turn}"]


def rows_of(pool: Pool, count: int, start: str = "", **more: Any) -> list[dict[str, Any]]:
    return [{"pool": pool, "start": start, "row": row, **more} for row in range(count)]


def run_chats(pool: Pool, count: int = 24, start: str = "", **options: Any) -> int:
    """Run a batch, and return how many rows were live at most."""
    states = chat.run_batch(rows_of(pool, count, start), backend=pool, **options)
    assert [state.error() for state in states] == [None] * count
    return pool.most


@pytest.mark.parametrize(("num_slots", "most"), [(100, 1), (900, 1), (1100, 2), (2000, 4)])
def test_as_many_rows_are_live_as_the_pool_holds_to_their_end(num_slots: int, most: int) -> None:
    assert run_chats(Pool(num_slots, delay=0.003)) == most


@pytest.mark.parametrize("num_slots", [None, "many", 100_000])
def test_all_rows_begin_at_once_without_a_pool_or_in_a_large_one(num_slots: object) -> None:
    barrier = threading.Barrier(64)

    @ramet.function
    def together(s: ProgramState, row: int) -> None:
        barrier.wait(20)
        s += f"{row}" + ramet.gen("x")

    states = together.run_batch([(i,) for i in range(64)], backend=Pool(num_slots))
    assert [state.error() for state in states] == [None] * 64


def test_a_number_of_threads_that_is_given_is_kept() -> None:
    assert run_chats(Pool(500, delay=0.003), num_threads=7) == 7


def test_max_live_is_a_bound_and_the_pool_another() -> None:
    assert run_chats(Pool(100_000, delay=0.003), max_live=3) == 3
    assert run_chats(Pool(600, delay=0.003), max_live=3) == 1


def test_rows_of_one_call_all_run_once_some_have_ended() -> None:
    barrier = threading.Barrier(32)

    @ramet.function
    def once(s: ProgramState, row: int) -> None:
        if row >= WINDOW:
            barrier.wait(20)
        s += f"{row}" + TURN + ramet.gen("x")

    states = once.run_batch([(i,) for i in range(WINDOW + 32)], backend=Pool(200))
    assert [state.error() for state in states] == [None] * (WINDOW + 32)


def test_what_rows_share_counts_once() -> None:
    num_slots = 3000 + 4 * ROW + 400  # with the margin
    assert run_chats(Pool(num_slots, delay=0.003), start="e" * 3000) == 4


def test_forks_and_programs_that_a_row_calls_count_too() -> None:
    @ramet.function
    def branching(s: ProgramState, pool: Pool, row: int) -> None:
        with pool.row():
            s += f"{row:03d}" + ramet.gen("a")
            group = s.fork(3)
            group += TURN + ramet.gen("b")
            group.join()
            called(row)
            s += ramet.gen("c")

    @ramet.function
    def called(s: ProgramState, row: int) -> None:
        s += f"{row:03d}" + 4 * TURN + ramet.gen("d")

    pool = Pool(1800, delay=0.003)  # a row needs about 350 for its forks and 410 for what it calls
    states = branching.run_batch([(pool, i) for i in range(16)], backend=pool)
    assert [state.error() for state in states] == [None] * 16
    assert pool.most == 2


def test_a_program_on_another_backend_does_not_count() -> None:
    other = ramet.Fake(lambda prompt, name: "y" * 5000)

    @ramet.function
    def asking(s: ProgramState, pool: Pool, row: int) -> None:
        with pool.row():
            s += f"{row:03d}" + ramet.gen("a")
            s["a"]
            chat(pool, "", row, 2, backend=other)
            s += ramet.gen("b")

    pool = Pool(3 * PRESUMED, delay=0.003)
    asking.run_batch([(pool, i) for i in range(24)], backend=pool, on_error="raise")
    assert pool.most > 5


def test_batches_inside_rows_end_in_any_pool() -> None:
    @ramet.function
    def outer(s: ProgramState, pool: Pool, row: int) -> int:
        s += f"{row}" + ramet.gen("a")
        inner = chat.run_batch(rows_of(pool, 5, f"{row}"))
        s += ramet.gen("b")
        return sum(state.error() is None for state in inner)

    pool = Pool(60)
    states = outer.run_batch([(pool, i) for i in range(5)], backend=pool, timeout=60)
    assert [state.ret_value for state in states] == [5] * 5


def test_rows_wait_for_no_row_that_failed() -> None:
    @ramet.function
    def failing(s: ProgramState, row: int) -> None:
        s += f"{row}" + ramet.gen("a")
        s["a"]
        raise ValueError(f"row {row}")

    states = failing.run_batch([(i,) for i in range(20)], backend=Pool(50), timeout=60)
    assert all(isinstance(state.error(), ValueError) for state in states)


def test_awaited_rows_begin_as_the_pool_permits() -> None:
    pool = Pool(1100, delay=0.003)

    @ramet.function
    async def chat_async(s: ramet.AsyncProgramState, row: int) -> None:
        with pool.row():
            s += f"{row:03d}"
            for turn in range(NUM_TURNS):
                s += TURN + ramet.gen(f"reply_{turn}")
                await s.get(f"reply_{turn}")

    rows = [(i,) for i in range(12)]
    states = asyncio.run(chat_async.arun_batch(rows, backend=pool))
    assert [state.error() for state in states] == [None] * 12
    assert pool.most == 2


def blocked(begun: threading.Event, end: threading.Event) -> ramet.Program:
    """Return a program whose first row goes on until `end`, whatever happens to its run."""

    @ramet.function
    def program(s: ProgramState, row: int) -> None:
        begun.set()
        end.wait(20)
        s += ramet.gen("x")

    return program


def test_time_limit_ends_the_wait_for_the_pool() -> None:
    end = threading.Event()
    program = blocked(threading.Event(), end)
    start = time.monotonic()
    late = []
    for index, state in program.as_completed(
        [(i,) for i in range(4)], backend=Pool(100), timeout=0.2
    ):
        late.append((index, type(state.error())))
        if len(late) == 3:
            took = time.monotonic() - start
            end.set()
    assert sorted(late) == [(i, DeadlineError) for i in range(4)]
    assert late[3][0] == 0
    assert 0.2 <= took < 5


def test_time_limit_ends_the_wait_for_the_pool_on_an_event_loop() -> None:
    pool = Pool(100, delay=30)
    start = time.monotonic()
    states = asyncio.run(chat.arun_batch(rows_of(pool, 4), backend=pool, timeout=0.2))
    assert all(isinstance(state.error(), DeadlineError) for state in states)
    assert time.monotonic() - start < 5


def test_ctrl_c_ends_the_wait_for_the_pool() -> None:
    begun, end = threading.Event(), threading.Event()

    def interrupt() -> None:
        begun.wait(20)
        time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.1)
        end.set()

    thread = threading.Thread(target=interrupt)
    thread.start()
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        blocked(begun, end).run_batch([(i,) for i in range(4)], backend=Pool(100))
    thread.join()
    assert time.monotonic() - start < 5


def test_leaving_the_loop_ends_the_wait_for_the_pool() -> None:
    pool = Pool(600, delay=0.01)
    for index, _ in chat.as_completed(rows_of(pool, 50), backend=pool):
        if index == 2:
            break
    assert pool.num_running == 0


# -- what is counted


def used(prompt: int, cached: int, generated: int = 10) -> Usage:
    return Usage(
        prompt_tokens=prompt,
        cached_tokens=cached,
        computed_tokens=prompt - cached,
        generated_tokens=generated,
    )


def test_tokens_that_were_evicted_and_computed_again_are_not_more_of_a_rows_own() -> None:
    row = Footprint(lambda: None)
    row.begin_call()
    row.end_call(used(500, 400), 0)
    assert (row.own, row.shared, row.goes_on) == (110, 400, False)
    row.begin_call()
    row.end_call(used(550, 0), 510)
    assert (row.own, row.shared, row.goes_on) == (160, 400, True)


def test_rows_that_computed_nothing_say_nothing_of_others() -> None:
    share = PoolShare(2 * PRESUMED, lambda: None)
    for index in range(9):
        share.begin(index)
        share.end(index)
    share.begin(9)
    assert not share.has_room()


def test_who_waits_is_woken_once_by_the_next_change() -> None:
    woken: list[int] = []
    share = PoolShare(PRESUMED, lambda: woken.append(1))
    share.begin(0)
    share.end(0)
    assert not woken
    share.begin(1)
    assert not share.has_room()
    for index in (1, 2):
        share.end(index)
    assert woken == [1]
    assert share.has_room()


def test_remembered_answers_take_no_room_and_the_file_passes_the_pool_on(tmp_path: Path) -> None:
    pool = Pool(2 * PRESUMED, delay=0.003)
    with ramet.Cached(pool, tmp_path / "results.sqlite") as backend:
        assert backend.num_slots == 2 * PRESUMED
        for _ in range(2):
            chat.run_batch(rows_of(pool, 12), backend=backend, temperature=0, on_error="raise")
    assert len(pool.requests) == 12 * NUM_TURNS
    assert pool.most <= 4
    with ramet.Cached(ramet.Fake(), tmp_path / "more.sqlite") as backend:
        assert backend.num_slots is None
        assert backend.has_room(lambda: None)


def test_results_in_a_file_pass_the_wait_for_room_on(tmp_path: Path) -> None:
    asked = []

    class Full(ramet.Fake):
        def has_room(self, wake: object) -> bool:
            asked.append(wake)
            return len(asked) > 1

    with ramet.Cached(Full(), tmp_path / "results.sqlite") as backend:
        assert not backend.has_room(print)
        assert backend.has_room(print)
    assert asked == [print, print]
