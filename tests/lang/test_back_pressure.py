"""Requests beyond what an engine takes wait where they are made."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator

import pytest

import ramet
from ramet import ProgramState
from ramet.backends.outbox import Outbox
from ramet.errors import DeadlineError, RequestCancelledError
from ramet.runtime.protocol import ErrorCode, Event, Failed, GenerateRequest, Request, Segment


class SmallEngine:
    """Refuses a request where `limit` are under way, as an engine with a full queue does."""

    def __init__(self, limit: int, delay: float = 0.0) -> None:
        self.fake = ramet.Fake(lambda prompt, name: "x", delay=delay)
        self.limit = limit
        self.most = 0
        self.outbox = Outbox(self._take, self.fake.abort, limit)

    def _take(self, request: Request, on_event: Callable[[Event], None]) -> None:
        running = self.fake.num_running
        self.most = max(self.most, running + 1)
        if running >= self.limit:
            code = ErrorCode.OVERLOADED
            on_event(Failed(request_id=request.id, code=code, message="the queue is full"))
        else:
            self.fake.submit(request, on_event)

    def submit(self, request: Request, on_event: Callable[[Event], None]) -> None:
        self.outbox.submit(request, on_event)

    def abort(self, request_id: str) -> None:
        self.outbox.abort(request_id)

    def has_room(self, wake: Callable[[], None]) -> bool:
        return self.outbox.has_room(wake)

    def render(self, segments: tuple[Segment, ...]) -> str:
        return self.fake.render(segments)

    def count_tokens(self, segments: tuple[Segment, ...]) -> int:
        return self.fake.count_tokens(segments)

    def flush_cache(self) -> bool:
        return self.fake.flush_cache()

    def info(self) -> dict[str, object]:
        return self.fake.info()

    def close(self) -> None:
        self.fake.close()
        self.outbox.close()


@ramet.function
def wide(s: ProgramState, count: int) -> list[str]:
    group = s.fork(count)
    group += ramet.gen("x")
    group.join()
    return list(s["x"])


@pytest.fixture
def no_new_threads() -> Iterator[None]:
    before = threading.active_count()
    yield
    end = time.monotonic() + 5
    while threading.active_count() > before + 2 and time.monotonic() < end:
        time.sleep(0.01)
    assert threading.active_count() <= before + 2  # the dispatcher may be new


@pytest.mark.usefixtures("no_new_threads")
def test_ten_thousand_forks_never_overload_the_engine() -> None:
    engine = SmallEngine(64)
    state = wide(10_000, backend=engine)
    assert state.ret_value == ["x"] * 10_000
    assert engine.most == 64


def test_body_waits_while_as_many_are_kept_as_may_be_under_way() -> None:
    engine = SmallEngine(4, delay=30)
    state = wide.start(100, backend=engine)
    while engine.outbox.num_kept < 4:
        time.sleep(0.001)
    time.sleep(0.05)
    assert engine.outbox.num_kept == 4
    assert engine.fake.num_running == 4
    state.cancel()
    assert state.wait(timeout=5)
    assert engine.fake.num_running == engine.outbox.num_kept == 0


def test_time_limit_ends_the_wait_for_room() -> None:
    engine = SmallEngine(2, delay=30)
    start = time.monotonic()
    with pytest.raises(DeadlineError):
        wide(20, backend=engine, timeout=0.1)
    assert time.monotonic() - start < 5
    assert engine.fake.num_running == engine.outbox.num_kept == 0


def test_ctrl_c_ends_the_wait_for_room() -> None:
    engine = SmallEngine(2, delay=30)
    timer = threading.Timer(0.1, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        wide(20, backend=engine)
    timer.join()
    assert engine.fake.num_running == engine.outbox.num_kept == 0


def test_closing_ends_what_is_kept() -> None:
    engine = SmallEngine(2, delay=30)
    threading.Timer(0.1, engine.close).start()
    state = wide(20, backend=engine, on_error="return", timeout=20)
    assert "closed" in str(state.error())


def request(number: int, timeout: float | None = None) -> GenerateRequest:
    return GenerateRequest(id=str(number), prompt=(), timeout=timeout)


def test_kept_requests_go_on_in_order_with_the_time_that_is_left() -> None:
    sent: list[Request] = []
    callbacks: list[Callable[[Event], None]] = []

    def submit(request: Request, on_event: Callable[[Event], None]) -> None:
        sent.append(request)
        callbacks.append(on_event)

    outbox = Outbox(submit, lambda request_id: None, 1)
    for number in range(3):
        outbox.submit(request(number, timeout=100), lambda event: None)
    assert [r.id for r in sent] == ["0"]
    for number in range(2):
        callbacks[number](Failed(request_id=str(number), code=ErrorCode.INTERNAL, message=""))
        while len(sent) < number + 2:
            time.sleep(0.001)
    assert [r.id for r in sent] == ["0", "1", "2"]
    assert 0 < (sent[1].timeout or 0) < 100


def test_request_whose_time_is_over_is_not_sent() -> None:
    sent: list[Request] = []
    outbox = Outbox(lambda request, on_event: sent.append(request), lambda request_id: None, 1)
    outbox.submit(request(0), lambda event: None)
    events: list[Event] = []
    outbox.submit(request(1, timeout=0.0), events.append)
    outbox._ended("0")
    while not events:
        time.sleep(0.001)
    assert isinstance(events[0], Failed)
    assert events[0].code is ErrorCode.DEADLINE
    assert [r.id for r in sent] == ["0"]


def test_aborting_a_kept_request_ends_it_at_once() -> None:
    aborted: list[str] = []
    outbox = Outbox(lambda request, on_event: None, aborted.append, 1)
    outbox.submit(request(0), lambda event: None)
    events: list[Event] = []
    outbox.submit(request(1), events.append)
    outbox.abort("1")
    outbox.abort("0")
    assert [type(event) for event in events] == [Failed]
    assert aborted == ["0"]


def test_cancelled_error_says_who() -> None:
    engine = SmallEngine(2, delay=30)
    state = wide.start(20, backend=engine)
    state.cancel()
    assert state.wait(timeout=5)
    assert isinstance(state.error(), RequestCancelledError)
