"""Protocol data: the JSON round trip of every message, and what is refused."""

import dataclasses
import json
import math
import types
import typing
from enum import Enum
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramet.runtime import protocol
from ramet.runtime.protocol import (
    Constraint,
    ErrorCode,
    GenerateRequest,
    InvalidRequestError,
    LogprobParams,
    RametError,
    SamplingParams,
    ScoreRequest,
    Text,
    TokenIds,
    Usage,
    code_of_error,
    error_from_code,
    from_json,
    normalize_options,
    to_json,
    unknown_name,
)

MESSAGES = [
    value
    for value in vars(protocol).values()
    if isinstance(value, type) and dataclasses.is_dataclass(value)
]
text = st.text(max_size=8)
valid_sampling = st.builds(
    SamplingParams,
    max_new_tokens=st.none() | st.integers(100, 2**63 - 1),
    min_new_tokens=st.integers(0, 100),
    temperature=st.floats(0, 1e6),
    top_p=st.floats(0, 1, exclude_min=True),
    top_k=st.just(-1) | st.integers(1, 10**6),
    min_p=st.floats(0, 1),
    stop=st.lists(st.text(min_size=1, max_size=4), max_size=4).map(tuple),
    stop_token_ids=st.lists(st.integers(0, 2**31 - 1), max_size=4).map(tuple),
    ignore_eos=st.booleans(),
    n=st.integers(1, 128),
    frequency_penalty=st.floats(-2, 2),
    presence_penalty=st.floats(-2, 2),
    repetition_penalty=st.floats(0, 2, exclude_min=True),
    logit_bias=st.lists(st.tuples(st.integers(0, 2**31 - 1), st.floats(-100, 100)), max_size=4).map(
        tuple
    ),
    stop_regex=st.lists(st.text(min_size=1, max_size=4), max_size=4).map(tuple),
    no_stop_trim=st.booleans(),
    skip_special_tokens=st.booleans(),
)


def of_type(hint: Any) -> st.SearchStrategy[Any]:
    """Return values of a type as the messages use it."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin is tuple:
        return st.lists(of_type(arguments[0]), min_size=1, max_size=3).map(tuple)
    if origin in (typing.Union, types.UnionType):
        return st.one_of([of_type(argument) for argument in arguments])
    if hint is SamplingParams:
        return valid_sampling
    if hint is LogprobParams:
        return st.builds(
            LogprobParams,
            start=st.integers(-1, 10**6),
            top=st.integers(0, 128),
            token_ids=st.lists(st.integers(0, 2**31 - 1), max_size=4).map(tuple),
        )
    if hint is TokenIds:
        return st.lists(st.integers(0, 2**31 - 1), max_size=5).map(TokenIds.of)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return st.sampled_from(list(hint))
    if dataclasses.is_dataclass(hint):
        hints = typing.get_type_hints(hint)
        fields = {f.name: of_type(hints[f.name]) for f in dataclasses.fields(hint)}
        return st.builds(typing.cast(Any, hint), **fields)
    simple: dict[Any, st.SearchStrategy[Any]] = {
        str: text,
        int: st.integers(0, 2**63 - 1),
        float: st.floats(0, 1e6),
        bool: st.booleans(),
        type(None): st.none(),
        bytes: st.just(b""),
    }
    return simple[hint]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.__name__)
def test_every_message_comes_back_from_json(message: type) -> None:
    @settings(max_examples=25, deadline=None)
    @given(of_type(message))
    def comes_back(value: object) -> None:
        body = json.loads(json.dumps(to_json(value)))
        assert from_json(body) == value

    comes_back()


def test_all_messages_are_checked() -> None:
    assert {
        "GenerateRequest",
        "ScoreRequest",
        "Accepted",
        "Delta",
        "Finished",
        "Scored",
        "Failed",
    } < {message.__name__ for message in MESSAGES}


def test_ids_are_plain_in_json() -> None:
    assert to_json(TokenIds.of([1, 2])) == {"type": "TokenIds", "ids": [1, 2]}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"type": "Nothing"}, "unknown message type 'Nothing'"),
        ({"text": "a"}, "unknown message type None"),
        ({"type": "Text", "txt": "a"}, "did you mean 'text'"),
        ({"type": "Text"}, "missing"),
        ({"type": "SamplingParams", "temperature": -1}, "temperature"),
    ],
)
def test_json_that_is_no_message_is_refused(body: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        from_json(body)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_new_tokens", -1),
        ("max_new_tokens", 1.5),
        ("max_new_tokens", True),
        ("max_new_tokens", 2**63),
        ("min_new_tokens", -1),
        ("min_new_tokens", 129),
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("temperature", "0"),
        ("top_p", 0),
        ("top_p", 1.01),
        ("top_k", 0),
        ("top_k", -2),
        ("min_p", 1.5),
        ("stop", ("",)),
        ("stop", "text"),
        ("stop", ("a",) * 33),
        ("stop_token_ids", (-1,)),
        ("ignore_eos", 1),
    ],
)
def test_sampling_value_out_of_range_names_itself(name: str, value: object) -> None:
    with pytest.raises(InvalidRequestError, match=name):
        SamplingParams(**{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("timeout", [-1.0, math.nan, math.inf])
def test_timeout_must_be_finite(timeout: float) -> None:
    with pytest.raises(InvalidRequestError, match="timeout"):
        GenerateRequest(id="1", prompt=(Text("a"),), timeout=timeout)
    with pytest.raises(InvalidRequestError, match="timeout"):
        ScoreRequest(id="1", prompt=(Text("a"),), options=("a",), timeout=timeout)


def test_score_request_needs_options() -> None:
    with pytest.raises(InvalidRequestError, match="at least one"):
        ScoreRequest(id="1", prompt=(), options=())


def test_requests_name_what_they_are_for() -> None:
    request = GenerateRequest(id="1", prompt=(), label="answer", state_id="run1")
    assert from_json(to_json(request)) == request


def test_greedy_is_a_temperature_of_about_zero() -> None:
    assert SamplingParams(temperature=0).is_greedy
    assert not SamplingParams(temperature=0.1).is_greedy


def test_options_have_two_spellings() -> None:
    assert normalize_options({"max_tokens": 3, "min_tokens": None}) == {"max_new_tokens": 3}
    assert normalize_options({"stop": "a", "stop_token_ids": [1]}) == {
        "stop": ("a",),
        "stop_token_ids": (1,),
    }
    with pytest.raises(TypeError, match="keep one"):
        normalize_options({"max_tokens": 3, "max_new_tokens": 3})
    with pytest.raises(TypeError, match="did you mean 'top_k'"):
        normalize_options({"topk": 3})


def test_unknown_name_without_a_near_one_tells_a_few_but_not_many() -> None:
    names = [letter * 3 for letter in "abcdefghi"]
    told = "unknown option 'zzz': there are aaa, bbb"
    assert unknown_name("zzz", names[:2], "option") == told
    assert unknown_name("zzz", names, "option") == "unknown option 'zzz'"
    assert unknown_name("zzz", [], "option") == "unknown option 'zzz'"


@pytest.mark.parametrize("code", list(ErrorCode))
def test_every_code_has_an_error_and_back(code: ErrorCode) -> None:
    error = error_from_code(code, "why")
    assert isinstance(error, RametError)
    assert str(error) == "why"
    assert code_of_error(error) is code


def test_other_errors_are_internal() -> None:
    assert code_of_error(ZeroDivisionError()) is ErrorCode.INTERNAL


counts = st.builds(
    Usage,
    prompt_tokens=st.integers(0, 99),
    cached_tokens=st.integers(0, 99),
    computed_tokens=st.integers(0, 99),
    recomputed_tokens=st.integers(0, 99),
    generated_tokens=st.integers(0, 99),
)


@given(counts, counts)
def test_usage_adds_up(a: Usage, b: Usage) -> None:
    total = dataclasses.asdict(a + b)
    assert total == {k: v + dataclasses.asdict(b)[k] for k, v in dataclasses.asdict(a).items()}
    assert a + Usage() == a


@given(st.lists(st.integers(0, 2**31 - 1), max_size=20), st.integers(0, 25), st.integers(0, 25))
def test_token_ids_behave_like_a_tuple(ids: list[int], start: int, end: int) -> None:
    packed = TokenIds.of(ids)
    assert list(packed) == ids
    assert len(packed) == len(ids)
    assert list(packed[start:end]) == ids[start:end]
    assert packed[:start] + packed[start:] == packed
    assert list(packed.array) == ids
    assert hash(packed) == hash(TokenIds.of(ids))


def test_constraint_comes_back() -> None:
    assert from_json(to_json(Constraint("regex", "a+"))) == Constraint("regex", "a+")
