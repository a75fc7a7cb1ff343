"""retries=n, priority, cache_salt, with_options."""

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

import ramet
from ramet import ProgramState
from ramet.errors import DeadlineError, GenerationError, InvalidRequestError
from ramet.programs import options
from ramet.runtime.protocol import ErrorCode, Event, Failed, GenerateRequest, Request


class Flaky(ramet.Fake):
    """Refuses the first `failures` requests."""

    def __init__(self, failures: int, code: ErrorCode = ErrorCode.INTERNAL, **more: Any) -> None:
        super().__init__(lambda prompt, name: "yes", **more)
        self.failures = failures
        self.code = code
        self.seen: list[Request] = []

    def submit(self, request: Request, on_event: Callable[[Event], None]) -> None:
        self.seen.append(request)
        if len(self.seen) <= self.failures:
            on_event(Failed(request_id=request.id, code=self.code, message="for now"))
        else:
            super().submit(request, on_event)

    @property
    def seeds(self) -> list[int]:
        return [r.seed for r in self.seen if isinstance(r, GenerateRequest)]


@ramet.function
def ask(s: ProgramState) -> None:
    s += ramet.gen("x")


@ramet.function
def choose(s: ProgramState) -> None:
    s += ramet.select("x", ["yes", "no"])


@pytest.mark.parametrize("program", [ask, choose])
def test_failed_request_is_sent_again(program: ramet.Program) -> None:
    fake = Flaky(2)
    state = program(backend=fake, retries=2)
    assert state["x"] == "yes"
    assert state.get_meta_info("x")["attempts"] == 3
    assert len({request.id for request in fake.seen}) == 3


def test_request_fails_when_the_retries_are_used_up() -> None:
    fake = Flaky(2)
    with pytest.raises(GenerationError, match="for now"):
        ask(backend=fake, retries=1)
    assert len(fake.seen) == 2


def test_nothing_is_sent_again_by_default() -> None:
    fake = Flaky(1)
    with pytest.raises(GenerationError, match="for now"):
        ask(backend=fake)
    assert len(fake.seen) == 1


def test_what_will_not_pass_is_not_sent_again() -> None:
    fake = Flaky(1, ErrorCode.INVALID_REQUEST)
    with pytest.raises(GenerationError):
        ask(backend=fake, retries=5)
    assert len(fake.seen) == 1


def test_each_attempt_that_ran_has_its_own_seed_and_repeats() -> None:
    first, second = Flaky(2), Flaky(2)
    ask(backend=first, retries=2, seed=7)
    ask(backend=second, retries=2, seed=7)
    assert len(set(first.seeds)) == 3
    assert first.seeds == second.seeds


def test_refusal_of_a_full_queue_changes_no_seed_and_waits_a_little() -> None:
    fake = Flaky(2, ErrorCode.OVERLOADED)
    start = time.monotonic()
    ask(backend=fake, retries=2, seed=7)
    assert time.monotonic() - start >= 0.14
    assert len(set(fake.seeds)) == 1


def test_seed_of_a_gen_stays() -> None:
    @ramet.function
    def program(s: ProgramState) -> None:
        s += ramet.gen("x", seed=5)

    fake = Flaky(1)
    program(backend=fake, retries=1)
    assert fake.seeds == [5, 5]


def test_retries_end_with_the_time_limit() -> None:
    fake = Flaky(10**6, ErrorCode.OVERLOADED)
    start = time.monotonic()
    with pytest.raises((DeadlineError, GenerationError)):
        ask(backend=fake, retries=10**6, timeout=0.3)
    assert time.monotonic() - start < 3


def test_cancel_ends_the_waiting_for_another_attempt() -> None:
    fake = Flaky(10**6, ErrorCode.OVERLOADED)
    state = ask.start(backend=fake, retries=10**6)
    while len(fake.seen) < 2:
        time.sleep(0.001)
    state.cancel()
    assert state.wait(timeout=5)
    seen = len(fake.seen)
    time.sleep(0.3)
    assert len(fake.seen) <= seen + 1


def test_no_thread_is_left_behind() -> None:
    ask(backend=Flaky(1, ErrorCode.OVERLOADED), retries=1)
    end = time.monotonic() + 5
    while time.monotonic() < end:
        if not [t for t in threading.enumerate() if t.name == "ramet-retries"]:
            return
        time.sleep(0.01)
    pytest.fail("the thread of the retries stays")


def test_priority_and_salt_are_in_every_request_nested_programs_included() -> None:
    @ramet.function
    def outer(s: ProgramState) -> None:
        s += ramet.gen("x")
        choose()
        ask(priority=1, cache_salt="")

    fake = ramet.Fake(lambda prompt, name: "yes")
    outer(backend=fake, priority=-5, cache_salt="tenant")
    assert [(r.priority, r.cache_salt) for r in fake.requests] == [
        (-5, "tenant"),
        (-5, "tenant"),
        (1, ""),
    ]


@pytest.mark.parametrize(
    "given",
    [{"retries": -1}, {"retries": 1.5}, {"priority": "high"}, {"cache_salt": 3}],
)
def test_bad_option_names_itself(given: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError, match=next(iter(given))):
        ask(backend=ramet.Fake(), **given)


def test_use_thread_says_once_that_it_has_no_meaning(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(options, "_has_warned_of_threads", False)
    with caplog.at_level(logging.WARNING, "ramet"):
        for _ in range(2):
            ask(backend=ramet.Fake({"x": "-"}), use_thread=True)
    assert caplog.text.count("use_thread") == 1


def test_with_options_reaches_an_option_that_a_parameter_shadows() -> None:
    @ramet.function
    def program(s: ProgramState, temperature: str) -> str:
        s += ramet.gen("x")
        return temperature

    fake = ramet.Fake({"x": "-"})
    cold = program.with_options(temperature=0.2, backend=fake)
    assert cold(temperature="warm").ret_value == "warm"
    request = fake.requests[0]
    assert isinstance(request, GenerateRequest)
    assert request.sampling.temperature == 0.2


def test_options_at_the_call_win_over_with_options_and_bind() -> None:
    fake = ramet.Fake({"x": "-"})
    ask.with_options(temperature=0.2, backend=fake).bind(temperature=0.5)(temperature=0.7)
    ask.with_options(temperature=0.2, backend=fake).bind(temperature=0.5)()
    ask.with_options(temperature=0.2).with_options(backend=fake).run_batch([{}])
    temperatures = [r.sampling.temperature for r in fake.requests if isinstance(r, GenerateRequest)]
    assert temperatures == [0.7, 0.5, 0.2]


def test_with_options_checks_names_and_values() -> None:
    with pytest.raises(TypeError, match="did you mean 'temperature'"):
        ask.with_options(temprature=0)
    with pytest.raises(InvalidRequestError, match="temperature"):
        ask.with_options(temperature=-1)


def test_speculation_of_api_backends_is_kept_by_bind_and_with_options() -> None:
    @ramet.function(num_api_spec_tokens=8)
    def program(s: ProgramState, x: int) -> None: ...

    assert program.bind(1).with_options(temperature=0).num_api_spec_tokens == 8
