"""`ramet.trim`: whole turns, the oldest first, and seldom."""

import logging
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ramet
from ramet.errors import ContextLengthError, InvalidRequestError

FAKE = ramet.Fake()  # its tokens are bytes; a turn of role "user" has 8 beside its text
Messages = list[dict[str, Any]]


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def answer(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def trim(messages: Messages, max_tokens: int, **options: Any) -> ramet.Trimmed:
    return ramet.trim(messages, max_tokens, backend=FAKE, **options)


def size(messages: Messages) -> int:
    @ramet.function
    def program(s: ramet.ProgramState) -> int:
        s += ramet.messages(messages)
        return s.num_tokens

    return int(program(backend=FAKE).ret_value)


def test_what_fits_is_kept_silently(caplog: pytest.LogCaptureFixture) -> None:
    messages = [user("a"), answer("b")]
    kept = trim(messages, 1000)
    assert kept == messages
    assert kept.dropped == []
    assert caplog.records == []


def test_a_drop_takes_whole_turns_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    system = {"role": "system", "content": "s"}
    tool = {"role": "tool", "content": "t" * 9}
    old = [user("u" * 20), answer("call"), tool, answer("a")]
    new = [user("now?")]
    with caplog.at_level(logging.WARNING, "ramet"):
        kept = trim([system, *old, *new], size([system, *old, *new]) - 1)
    assert kept == [system, *new]
    assert kept.dropped == old
    assert [record.message for record in caplog.records] == [
        f"trim dropped 4 of 6 messages: the other 2 have {size([system, *new])} tokens of at most "
        f"{size([system, *old, *new]) - 1}"
    ]


def test_system_messages_can_be_dropped_too() -> None:
    messages = [{"role": "system", "content": "s" * 40}, user("u"), user("v")]
    kept = trim(messages, 30, keep_system=False)
    assert kept == messages[1:]


def test_a_last_turn_that_does_not_fit_is_an_error_with_both_numbers() -> None:
    messages = [user("old"), user("x" * 50), answer("y")]
    with pytest.raises(ContextLengthError, match="last turn") as caught:
        trim(messages, 40)
    assert (caught.value.num_tokens, caught.value.limit) == (size(messages[1:]), 40)
    assert "40" in str(caught.value)


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(InvalidRequestError, match="max_tokens"):
        trim([], 0)
    with pytest.raises(InvalidRequestError, match="low_water"):
        trim([], 5, low_water=0)
    with pytest.raises(InvalidRequestError, match="keep_system"):
        trim([], 5, keep_system=1)
    with pytest.raises(InvalidRequestError, match="message 0"):
        trim([{"role": "nobody", "content": ""}], 5)


turn_texts = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), min_size=1, max_size=12)


@settings(max_examples=40, deadline=None)
@given(turn_texts, st.booleans(), st.integers(120, 300))
def test_growing_turn_by_turn_the_prefix_changes_only_at_a_rare_drop(
    sizes: list[tuple[int, int]], has_system: bool, limit: int
) -> None:
    history: Messages = [{"role": "system", "content": "be kind"}] if has_system else []
    kept: Messages = []
    num_drops = 0
    for question, reply in sizes:
        history += [user("q" * question), answer("a" * reply)]
        now = trim(history, limit)
        assert size(now) <= limit
        assert now[-1] == history[-1]
        assert sorted(map(id, [*now, *now.dropped])) == sorted(map(id, history))
        if list(now)[: len(kept)] != kept:
            num_drops += 1
        kept = list(now)
    assert num_drops <= sum(map(size_of, sizes)) / (limit * 0.25) + 1


def size_of(turn: tuple[int, int]) -> int:
    return size([user("q" * turn[0]), answer("a" * turn[1])])
