"""Turns from messages, results of tools, and how many tokens a state has."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ramet
from ramet import ProgramState
from ramet.errors import ContextLengthError, GenerationError, InvalidRequestError, ProgramError

texts = st.text(st.sampled_from('ab "\n{é🙂<|im_end|>'), max_size=12)
fields = st.fixed_dictionaries({}, optional={"name": texts, "tool_call_id": texts})
turns = st.lists(
    st.builds(
        lambda role, content, extra: {"role": role, "content": content, **extra},
        st.sampled_from(["system", "user", "assistant", "tool"]),
        texts,
        fields,
    ),
    max_size=6,
)


@ramet.function
def replay(s: ProgramState, history: list[dict[str, Any]]) -> None:
    s += ramet.messages(history)


@ramet.function
def ask(s: ProgramState, text: str = "q") -> None:
    s += ramet.user(text) + ramet.assistant(ramet.gen("answer"))


def history_of(history: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return replay(history, backend=ramet.Fake()).messages()


@settings(max_examples=60, deadline=None)
@given(turns)
def test_messages_come_back_as_they_were_and_are_json(history: list[dict[str, Any]]) -> None:
    back = history_of(history)
    assert back == history
    assert json.loads(json.dumps(back)) == history


@settings(max_examples=60, deadline=None)
@given(turns)
def test_replayed_messages_have_the_same_tokens(history: list[dict[str, Any]]) -> None:
    fake = ramet.Fake()
    first = replay(history, backend=fake)
    second = replay(first.messages(), backend=fake)
    assert second._stream.tokens == first._stream.tokens
    assert second.num_tokens == first.num_tokens == len(fake_ids(first))


def fake_ids(state: ProgramState) -> list[int]:
    from ramet.backends.fake_text import encode

    assert state._stream.tokens is not None
    return encode(state._stream.tokens.prompt())


def test_text_parts_are_put_together_and_none_is_empty() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    got = history_of([{"role": "user", "content": parts}, {"role": "assistant", "content": None}])
    assert [message["content"] for message in got] == ["ab", ""]


def test_tool_calls_become_lines_of_json_in_the_text() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    plain = {"name": "now"}
    got = history_of([{"role": "assistant", "content": "So:", "tool_calls": [call, plain]}])
    lines = got[0]["content"].split("\n")
    assert lines[0] == "So:"
    assert [json.loads(line) for line in lines[1:]] == [
        {"name": "add", "arguments": {"a": 1}},
        {"name": "now", "arguments": {}},
    ]


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ({"role": "usr", "content": ""}, ["message 1", "user"]),
        ({"role": "user"}, ["message 1", "no content"]),
        ({"role": "user", "content": 3}, ["message 1", "content"]),
        ({"role": "user", "content": [{"type": "image_url"}]}, ["part 0", "image_url"]),
        ({"role": "user", "content": "", "contents": ""}, ["contents", "content"]),
        ({"role": "user", "content": "", "name": 3}, ["name", "string"]),
        ({"role": "user", "content": "", "tool_calls": [{"name": "f"}]}, ["assistant"]),
        ({"role": "assistant", "tool_calls": [{"arguments": {}}]}, ["tool call 0", "name"]),
        ({"role": "assistant", "tool_calls": [{"name": "f", "arguments": "{"}]}, ["JSON"]),
    ],
)
def test_a_bad_message_is_refused_by_its_place(message: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        ramet.messages([{"role": "user", "content": "fine"}, message])
    assert all(word in str(caught.value) for word in words)


@pytest.mark.parametrize("items", ["text", {"role": "user", "content": ""}, 3, ["text"]])
def test_messages_takes_a_list_of_dicts(items: Any) -> None:
    with pytest.raises(TypeError, match="dict"):
        ramet.messages(items)


def test_a_tool_result_is_a_turn_with_its_call() -> None:
    @ramet.function
    def program(s: ProgramState) -> None:
        s += ramet.tool_result([1, "é"], name="f", call_id="c1") + ramet.tool_result("text")

    assert program(backend=ramet.Fake()).messages() == [
        {"role": "tool", "name": "f", "tool_call_id": "c1", "content": '[1, "é"]'},
        {"role": "tool", "content": "text"},
    ]


@pytest.mark.parametrize("content", [float("nan"), object(), {1, 2}])
def test_a_tool_result_that_is_no_json_is_refused(content: object) -> None:
    with pytest.raises(TypeError, match="JSON"):
        ramet.tool_result(content)


def test_messages_cannot_hold_text_outside_of_roles() -> None:
    @ramet.function
    def program(s: ProgramState) -> None:
        s += "bare"

    with pytest.raises(ProgramError, match="bare"):
        program(backend=ramet.Fake()).messages()


def test_num_tokens_counts_what_waits_and_what_was_generated() -> None:
    @ramet.function
    def program(s: ProgramState) -> list[int]:
        counts = [s.num_tokens]
        s += "four" + ramet.gen("x")
        counts.append(s.num_tokens)
        s += "!"
        return [*counts, s.num_tokens]

    assert program(backend=ramet.Fake({"x": "seven"})).ret_value == [0, 9, 10]


def test_remaining_tokens_is_what_the_context_leaves() -> None:
    fake = ramet.Fake({"answer": "yes"}, context_length=100)
    state = ask(backend=fake)
    assert state.remaining_tokens == 100 - state.num_tokens > 0
    assert ask(backend=ramet.Fake({"answer": "yes"})).remaining_tokens is None
    assert replay([{"role": "user", "content": "x" * 200}], backend=fake).remaining_tokens == 0


def test_a_prompt_that_is_too_long_says_both_numbers() -> None:
    with pytest.raises(GenerationError) as caught:
        ask("x" * 50, backend=ramet.Fake({"answer": "yes"}, context_length=40))
    cause = caught.value.__cause__
    assert isinstance(cause, ContextLengthError)
    assert cause.limit == 40
    assert cause.num_tokens == len("<user\n") + 50 + len("><assistant\n") + 1
    assert "40" in str(caught.value)
    assert str(cause.num_tokens) in str(caught.value)
