"""The executor: events in any order of threads, straight-line programs, one dispatcher."""

import logging
import random
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ramet
from ramet import ProgramState
from ramet.errors import GenerationError
from ramet.execution.dispatcher import Dispatcher
from ramet.runtime.protocol import Accepted, ErrorCode, Event, Failed, Request, Text, TokenIds

Step = tuple[str, str]  # ("text" | "gen" | "select", its text)
steps = st.lists(
    st.tuples(st.sampled_from(["text", "gen", "select"]), st.text(max_size=6)), max_size=8
)


def straight_line(pieces: list[Step]) -> tuple[ramet.Program, ramet.Fake]:
    answers = {f"v{i}": text for i, (_, text) in enumerate(pieces)}

    @ramet.function
    def program(s: ProgramState) -> None:
        for i, (kind, text) in enumerate(pieces):
            if kind == "text":
                s += text
            elif kind == "gen":
                s += ramet.gen(f"v{i}")
            else:
                s += ramet.select(f"v{i}", ["other", text])

    return program, ramet.Fake(answers)


def cut(pieces: list[Step], rng: random.Random) -> list[Step]:
    result: list[Step] = []
    for kind, text in pieces:
        if kind == "text":
            place = rng.randint(0, len(text))
            result += [("text", text[:place]), ("text", text[place:])]
        else:
            result.append((kind, text))
    return result


@settings(max_examples=60, deadline=None)
@given(steps, st.randoms(use_true_random=False))
def test_any_cutting_of_literals_gives_the_same_prompts(
    pieces: list[Step], rng: random.Random
) -> None:
    whole, fake = straight_line(pieces)
    text = whole(backend=fake).text()
    assert text == "".join(text for _, text in pieces)
    parts, fake_of_parts = straight_line(cut(pieces, rng))
    assert parts(backend=fake_of_parts).text() == text
    assert [r.prompt for r in fake_of_parts.requests] == [r.prompt for r in fake.requests]


@settings(max_examples=30, deadline=None)
@given(steps, steps, st.integers(0, 8))
def test_fork_is_no_seam(before: list[Step], after: list[Step], place: int) -> None:
    straight, fake = straight_line(before + after)
    prompts = [r.prompt for r in (straight(backend=fake), fake.requests)[1]]

    @ramet.function
    def forked(s: ProgramState) -> str:
        def append(state: ProgramState, pieces: list[Step], start: int) -> None:
            for i, (kind, text) in enumerate(pieces, start):
                if kind == "text":
                    state += text
                elif kind == "gen":
                    state += ramet.gen(f"v{i}")
                else:
                    state += ramet.select(f"v{i}", ["other", text])

        append(s, before, 0)
        branch = s.fork(1)[0]
        append(branch, after, len(before))
        return branch.text()

    _, other = straight_line(before + after)
    state = forked(backend=other)
    assert state.ret_value == "".join(text for _, text in before + after)
    assert [r.prompt for r in other.requests] == prompts


def test_user_code_never_runs_on_the_dispatcher() -> None:
    threads = []

    @ramet.function
    def program(s: ProgramState) -> None:
        s += ramet.gen("x")
        s["x"]
        threads.append(threading.current_thread().name)
        s += ramet.gen("y")

    def answer(prompt: str, name: str) -> str:
        threads.append(threading.current_thread().name)
        return "-"

    program(backend=ramet.Fake(answer))
    assert "ramet-dispatcher" not in threads


def test_there_is_one_dispatcher() -> None:
    program, fake = straight_line([("gen", "a")])
    program.run_batch([{}] * 50, backend=fake)
    names = [thread.name for thread in threading.enumerate()]
    assert names.count("ramet-dispatcher") == 1


def test_gen_is_sent_while_the_body_goes_on() -> None:
    @ramet.function
    def program(s: ProgramState) -> bool:
        s += "a" + ramet.gen("x")
        return fake.num_running == 1 and s._stream.cursor == 2

    fake = ramet.Fake({"x": "-"}, delay=0.3)
    assert program(backend=fake).ret_value is True


def test_events_that_come_during_submit_are_fine() -> None:
    class Immediate(ramet.Fake):
        def submit(self, request: Request, on_event: Callable[[Event], None]) -> None:
            done = threading.Event()

            def pass_on(event: Event) -> None:
                on_event(event)
                if not isinstance(event, Accepted):
                    done.set()

            super().submit(request, pass_on)
            done.wait(5)

    program, _ = straight_line([("gen", "a"), ("text", "b"), ("select", "c")])
    state = program(backend=Immediate({"v0": "a", "v2": "c"}))
    assert state.text() == "abc"


def test_prefix_that_the_runtime_shortens_is_replaced() -> None:
    class Healing(ramet.Fake):
        """Encodes the last known id anew, together with what follows it."""

        def submit(self, request: Request, on_event: Callable[[Event], None]) -> None:
            def pass_on(event: Event) -> None:
                if isinstance(event, Accepted) and event.prefix_tokens:
                    last = event.prefix_tokens - 1
                    event = Accepted(
                        request_id=event.request_id,
                        prefix_tokens=last,
                        ids=TokenIds.of([ord("Z"), *event.ids]),
                    )
                on_event(event)

            super().submit(request, pass_on)

    program, _ = straight_line([("gen", "ab"), ("text", "c"), ("gen", "d")])
    assert program(backend=Healing({"v0": "ab", "v2": "d"})).text() == "aZcd"


def test_warnings_of_the_runtime_are_logged_once_per_line(caplog: pytest.LogCaptureFixture) -> None:
    class Warning_(ramet.Fake):
        def submit(self, request: Request, on_event: Callable[[Event], None]) -> None:
            def pass_on(event: Event) -> None:
                if isinstance(event, Accepted):
                    event = Accepted(
                        request_id=event.request_id,
                        prefix_tokens=event.prefix_tokens,
                        ids=event.ids,
                        warnings=("text spells a special token",),
                    )
                on_event(event)

            super().submit(request, pass_on)

    program, _ = straight_line([("gen", "a")])
    with caplog.at_level(logging.WARNING, "ramet"):
        for _ in range(3):
            program(backend=Warning_({"v0": "a"}))
    assert [record.name for record in caplog.records] == ["ramet"]
    assert "spells a special token" in caplog.text


def test_choice_method_that_raises_fails_its_select() -> None:
    def broken(rows: Any) -> int:
        raise ZeroDivisionError("no")

    @ramet.function
    def program(s: ProgramState) -> None:
        s += ramet.select("x", ["a", "b"], choices_method=broken)

    with pytest.raises(GenerationError) as caught:
        program(backend=ramet.Fake({"x": "a"}))
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_requests_name_their_variable_and_state() -> None:
    @ramet.function
    def program(s: ProgramState) -> None:
        s += "t"
        group = s.fork(2)
        group += ramet.gen("x")

    fake = ramet.Fake({"x": "-"})
    program(backend=fake)
    assert {r.label for r in fake.requests} == {"x"}
    assert len({r.state_id for r in fake.requests}) == 2
    assert all(r.prompt == (Text("t"),) for r in fake.requests)


def test_dispatcher_that_could_not_start_starts_with_the_next_event(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dispatcher = Dispatcher()
    done = threading.Event()
    stream: Any = SimpleNamespace(
        run=SimpleNamespace(condition=threading.Condition(), notify=lambda: None),
        handle=lambda event: done.set(),
    )
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="new thread"):
            dispatcher.put(stream, Failed(request_id="1", code=ErrorCode.INTERNAL, message=""))
    dispatcher.put(stream, Failed(request_id="2", code=ErrorCode.INTERNAL, message=""))
    assert done.wait(5)


def refuse(thread: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")
