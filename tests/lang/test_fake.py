"""The scripted backend."""

import math
import re
import threading
import time
from typing import Any

import pytest

import ramet
from ramet import ProgramState
from ramet.backends import Backend
from ramet.errors import GenerationError
from ramet.runtime.protocol import (
    Accepted,
    Delta,
    Event,
    Failed,
    Finished,
    GenerateRequest,
    LogprobParams,
    SamplingParams,
    Scored,
    ScoreRequest,
    Text,
    TokenIds,
)


@ramet.function
def ask(s: ProgramState, text: str = "q") -> None:
    s += text + ramet.gen("x")


@ramet.function
def digits(s: ProgramState) -> None:
    s += ramet.gen("x", regex="[0-9]+")


@ramet.function
def pick(s: ProgramState) -> None:
    s += ramet.select("x", ["a", "b"])


def test_fake_is_a_backend() -> None:
    assert isinstance(ramet.Fake(), Backend)


def test_text_function_and_pattern() -> None:
    fake = ramet.Fake({re.compile("weather"): "sunny", re.compile("."): lambda p, n: f"{n} of {p}"})
    assert ask("the weather", backend=fake)["x"] == "sunny"
    assert ask("else", backend=fake)["x"] == "x of else"


def test_name_comes_before_patterns() -> None:
    assert ask(backend=ramet.Fake({re.compile("q"): "pattern", "x": "name"}))["x"] == "name"


def test_list_is_consumed_per_state_and_never_by_arrival() -> None:
    @ramet.function
    def program(s: ProgramState) -> None:
        for name in "abc":
            s += ramet.gen("x")
            s[name] = s["x"]

    fake = ramet.Fake({"x": ["1", "2", "3"]})
    states = program.run_batch([{}] * 20, backend=fake)
    assert [[s[name] for name in "abc"] for s in states] == [["1", "2", "3"]] * 20


def test_list_that_is_used_up_fails() -> None:
    @ramet.function
    def program(s: ProgramState) -> None:
        s += ramet.gen("x") + ramet.gen("x")

    with pytest.raises(GenerationError, match="1 answers are scripted for 'x'"):
        program(backend=ramet.Fake({"x": ["1"]}))


def test_unscripted_gen_fails_by_name_and_says_how() -> None:
    with pytest.raises(
        GenerationError, match=r"'x' failed: no answer.*ramet\.Fake\(\{'x'"
    ) as caught:
        ask(backend=ramet.Fake({"y": "-"}))
    assert caught.value.variable == "x"


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ramet.errors.ContextLengthError("too long"), "too long"),
        (ValueError("odd"), "ValueError: odd"),
        (KeyboardInterrupt("typed"), "KeyboardInterrupt: typed"),
    ],
)
def test_exceptions_are_failures(error: BaseException, message: str) -> None:
    with pytest.raises(GenerationError, match=message) as caught:
        ask(backend=ramet.Fake({"x": error}), timeout=5)
    if isinstance(error, ramet.errors.RametError):
        assert isinstance(caught.value.__cause__, type(error))


def test_function_that_raises_is_a_failure() -> None:
    with pytest.raises(GenerationError, match="ZeroDivisionError"):
        ask(backend=ramet.Fake({"x": lambda p, n: 1 / 0}))


def test_answer_that_is_no_text_is_a_failure() -> None:
    with pytest.raises(GenerationError, match="not a string"):
        ask(backend=ramet.Fake({"x": 3}))  # type: ignore[dict-item]


def test_regex_is_checked() -> None:
    assert digits(backend=ramet.Fake({"x": "12"}))["x"] == "12"
    with pytest.raises(GenerationError, match="does not match the regex"):
        digits(backend=ramet.Fake({"x": "12a"}))


def test_option_is_checked() -> None:
    with pytest.raises(GenerationError, match="none of the options"):
        pick(backend=ramet.Fake({"x": "c"}))


def test_no_tokens_give_no_text() -> None:
    @ramet.function
    def program(s: ProgramState) -> None:
        s += ramet.gen("x", 0)

    state = program(backend=ramet.Fake({"x": "text"}))
    assert state["x"] == ""
    assert state.get_meta_info("x")["finish_reason"]["type"] == "length"


def test_delay_holds_for_selects_too() -> None:
    start = time.monotonic()
    pick(backend=ramet.Fake({"x": "a"}, delay=0.1))
    assert time.monotonic() - start >= 0.1


@pytest.mark.parametrize("kwargs", [{"delay": -1}, {"delay": math.inf}, {"stream_chunks": 0}])
def test_arguments_are_checked(kwargs: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(kwargs))):
        ramet.Fake({}, **kwargs)
    with pytest.raises(TypeError, match="answers"):
        ramet.Fake("text")  # type: ignore[arg-type]


def test_usage_counts_common_prefixes_as_cached() -> None:
    @ramet.function
    def program(s: ProgramState) -> None:
        s += "12345678" + ramet.gen("x")
        s += "ab" + ramet.gen("y")

    state = program(backend=ramet.Fake({"x": "90", "y": "-"}))
    assert state.get_meta_info("x")["cached_tokens"] == 0
    assert state.get_meta_info("y")["cached_tokens"] == 10
    assert state.get_meta_info("y")["computed_tokens"] == 2


def test_same_prompt_again_computes_its_last_token() -> None:
    fake = ramet.Fake({"x": "-"})
    ask(backend=fake)
    info = ask("q", backend=fake).get_meta_info("x")
    assert (info["prompt_tokens"], info["cached_tokens"], info["computed_tokens"]) == (1, 0, 1)
    fake.flush_cache()


def test_events_of_a_request_are_accepted_then_one_end() -> None:
    events: list[Event] = []
    ended = threading.Event()

    def on_event(event: Event) -> None:
        events.append(event)
        if isinstance(event, (Finished, Scored, Failed)):
            ended.set()

    fake = ramet.Fake({"x": "é!"})
    prompt = (TokenIds.of([1, 2]), Text("ab"))
    fake.submit(GenerateRequest(id="1", prompt=prompt, label="x"), on_event)
    assert ended.wait(5)
    accepted, finished = events
    assert isinstance(accepted, Accepted)
    assert (accepted.prefix_tokens, list(accepted.ids)) == (2, [97, 98])
    assert isinstance(finished, Finished)
    assert list(finished.sample.ids) == list("é!".encode())


def test_scores_begin_after_what_the_options_share() -> None:
    events: list[Event] = []
    ended = threading.Event()

    def on_event(event: Event) -> None:
        events.append(event)
        if isinstance(event, (Scored, Failed)):
            ended.set()

    options = ("app", "apt")
    request = ScoreRequest(id="1", prompt=(Text("x"),), options=options, label="x")
    ramet.Fake({"x": "apt"}).submit(request, on_event)
    assert ended.wait(5)
    accepted, scored = events
    assert isinstance(accepted, Accepted)
    assert list(accepted.ids) == list(b"x")
    assert isinstance(scored, Scored)
    assert list(scored.trunk) == list(b"xap")
    assert [list(option.ids) for option in scored.options] == [list(b"p"), list(b"t")]


def test_aborting_twice_or_something_unknown_is_fine() -> None:
    events: list[Event] = []
    fake = ramet.Fake({"x": "-"}, delay=30)
    fake.submit(GenerateRequest(id="1", prompt=(Text("a"),), label="x"), events.append)
    fake.abort("1")
    fake.abort("1")
    fake.abort("unknown")
    assert [event for event in events if isinstance(event, Failed)] == events[-1:]


def test_roles_are_rendered_as_chatml() -> None:
    @ramet.function
    def program(s: ProgramState) -> None:
        s += ramet.user("hi") + ramet.special("<|im_end|>") + "<|im_end|>"
        s += ramet.gen("x")

    fake = ramet.Fake({"x": "-"})
    text = program(backend=fake).text()
    assert text == "<|im_start|>user\nhi<|im_end|>\n<|im_end|><|im_end|>-"


def test_no_thread_is_left_when_nothing_is_to_be_done() -> None:
    ask(backend=ramet.Fake({"x": "-"}))
    end = time.monotonic() + 5
    while any(t.name == "ramet-fake" for t in threading.enumerate()) and time.monotonic() < end:
        time.sleep(0.02)
    assert not any(t.name == "ramet-fake" for t in threading.enumerate())


def test_samples_of_a_list_and_of_a_text() -> None:
    @ramet.function
    def program(s: ProgramState) -> None:
        s += ramet.gen("a", n=2) + ramet.gen("b", n=2)

    state = program(backend=ramet.Fake({"a": ["1", "2"], "b": "same"}))
    assert (state["a"], state["b"]) == (["1", "2"], ["same", "same"])


@pytest.mark.parametrize(
    ("options", "expected", "matched"),
    [
        ({"stop_regex": "[0-9]+"}, "abc", "[0-9]+"),
        ({"stop_regex": "[0-9]+", "no_stop_trim": True}, "abc12", "[0-9]+"),
        ({"stop": "d", "no_stop_trim": True}, "abc12d", "d"),
        ({"stop": "d", "stop_regex": ["e", "1"]}, "abc", "1"),
        ({"stop_regex": "x*"}, "abc12de", 257),
    ],
)
def test_stops_cut(options: dict[str, Any], expected: str, matched: object) -> None:
    @ramet.function
    def program(s: ProgramState) -> None:
        s += ramet.gen("x", **options)

    state = program(backend=ramet.Fake({"x": "abc12de"}))
    assert state["x"] == expected
    assert state.get_meta_info("x")["finish_reason"]["matched"] == matched


def test_a_json_schema_asks_for_json() -> None:
    @ramet.function
    def program(s: ProgramState) -> None:
        s += ramet.gen("x", json_schema={"type": "object"})

    assert program(backend=ramet.Fake({"x": '{"a": 1}'}))["x"] == '{"a": 1}'
    with pytest.raises(GenerationError, match="is not JSON"):
        program(backend=ramet.Fake({"x": "{a}"}))


@pytest.mark.parametrize("grammar", [{"ebnf": 'root ::= "a"'}, {"structural_tag": {}}])
def test_other_grammars_are_refused(grammar: dict[str, Any]) -> None:
    @ramet.function
    def program(s: ProgramState) -> None:
        s += ramet.gen("x", **grammar)

    with pytest.raises(GenerationError, match="Fake does not check"):
        program(backend=ramet.Fake({"x": "a"}))


def test_deltas_have_ids_index_and_logprobs_that_add_up_to_the_samples() -> None:
    fake = ramet.Fake({"x": ["héllo", "yes"]}, stream_chunks=2)
    events: list[Event] = []
    ended = threading.Event()

    def take(event: Event) -> None:
        events.append(event)
        if isinstance(event, (Finished, Failed)):
            ended.set()

    request = GenerateRequest(
        id="1",
        prompt=(Text("p"),),
        sampling=SamplingParams(n=2),
        logprobs=LogprobParams(),
        stream=True,
        label="x",
    )
    fake.submit(request, take)
    assert ended.wait(5)
    finished = events[-1]
    assert isinstance(finished, Finished)
    for index, sample in enumerate(finished.samples):
        own = [event for event in events if isinstance(event, Delta) and event.index == index]
        assert "".join(delta.text for delta in own) == sample.text
        assert [i for delta in own for i in delta.ids] == list(sample.ids)
        assert tuple(row for delta in own for row in delta.logprobs) == sample.logprobs


def test_context_length_must_be_at_least_one() -> None:
    with pytest.raises(ValueError, match="context_length"):
        ramet.Fake(context_length=0)
