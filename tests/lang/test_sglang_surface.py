"""Every public name of SGLang's language and every parameter is there, with its default."""

from __future__ import annotations

import inspect
from operator import attrgetter
from typing import Any, get_type_hints

import pytest

import ramet as sgl
from ramet.backends import OfflineOptions
from ramet.errors import UnsupportedFeatureError
from ramet.runtime.protocol import GenOptions, SamplingOptions, params_of

NAMES = [
    *(
        "function",
        "gen",
        "gen_int",
        "gen_string",
        "select",
        "image",
        "video",
        "system",
        "user",
        "assistant",
        "system_begin",
        "system_end",
        "user_begin",
        "user_end",
        "assistant_begin",
        "assistant_end",
        "separate_reasoning",
        "token_length_normalized",
        "greedy_token_selection",
        "unconditional_likelihood_normalized",
        "Runtime",
        "Engine",
        "ServerArgs",
        "set_default_backend",
        "flush_cache",
        "get_server_info",
        "global_config",
        "RuntimeEndpoint",
        "OpenAI",
        "Anthropic",
        "LiteLLM",
        "VertexAI",
        "Crusoe",
    ),
]

SAMPLING: dict[str, Any] = {
    "max_new_tokens": 128,
    "n": 1,
    "stop": (),
    "stop_token_ids": (),
    "stop_regex": (),
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": -1,
    "min_p": 0.0,
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
    "ignore_eos": False,
}
LOGPROBS = ["return_logprob", "logprob_start_len", "top_logprobs_num", "return_text_in_logprobs"]

REQUIRED = inspect.Parameter.empty
PARAMETERS: list[tuple[str, dict[str, Any]]] = [
    ("function", {"func": None, "num_api_spec_tokens": None}),
    (
        "gen",
        {
            "name": None,
            "max_tokens": None,
            "dtype": None,
            "choices": None,
            "choices_method": None,
            "regex": None,
            "json_schema": None,
        },
    ),
    ("gen_int", {"name": None, "max_tokens": None}),
    ("gen_string", {"name": None, "max_tokens": None}),
    ("select", {"name": None, "choices": None, "temperature": 0.0, "choices_method": None}),
    ("image", {"expr": REQUIRED}),
    ("video", {"path": REQUIRED, "num_frames": REQUIRED}),
    ("system", {"expr": None}),
    ("user", {"expr": None}),
    ("assistant", {"expr": None}),
    ("separate_reasoning", {"expr": None, "model_type": None}),
    ("set_default_backend", {"backend": REQUIRED}),
    ("flush_cache", {"backend": None}),
    ("get_server_info", {"backend": None}),
    (
        "Program.run_batch",
        {"generator_style": False},
    ),
    ("ProgramState.fork", {"size": 1, "position_ids_offset": None}),
    ("ProgramState.copy", {"position_ids_offset": None}),
    ("ProgramState.text_iter", {"var": None}),
    ("ProgramState.text_async_iter", {"var": None, "return_meta_data": False}),
    ("ProgramState.var_scope", {"name": REQUIRED}),
    ("ProgramState.get_var", {"name": REQUIRED}),
    ("ProgramState.set_var", {"name": REQUIRED, "value": REQUIRED}),
    ("ProgramState.get_meta_info", {"name": REQUIRED}),
    ("ProgramState.user", {"expr": None}),
    ("ForkGroup.join", {"mode": "gather_variable"}),
    ("Engine.generate", {"prompt": None, "sampling_params": None}),
    ("Engine.async_generate", {"prompt": None, "sampling_params": None}),
]
METHODS = [
    (sgl.Program, "run run_batch trace cache bind"),
    (sgl.ProgramState, "text messages sync error text_iter user assistant system ret_value"),
]
CONFIG = {
    "verbosity": 0,
    "default_backend": None,
    "skip_special_tokens_in_output": True,
    "spaces_between_special_tokens_in_out": True,
    "enable_precache_with_tracing": True,
    "enable_parallel_encoding": True,
}


@pytest.mark.parametrize("name", NAMES)
def test_public_name_is_there(name: str) -> None:
    assert name in sgl.__all__
    assert getattr(sgl, name).__doc__


@pytest.mark.parametrize(("name", "expected"), PARAMETERS, ids=[name for name, _ in PARAMETERS])
def test_parameters_have_their_names_and_defaults(name: str, expected: dict[str, Any]) -> None:
    parameters = inspect.signature(attrgetter(name)(sgl)).parameters
    assert {name: parameters[name].default for name in expected} == expected


@pytest.mark.parametrize(("owner", "names"), METHODS)
def test_method_is_there(owner: type, names: str) -> None:
    assert [name for name in names.split() if not hasattr(owner, name)] == []


def test_sampling_options_of_run_and_gen_have_their_names_and_defaults() -> None:
    sampling, _ = params_of({})
    assert {name: getattr(sampling, name) for name in SAMPLING} == SAMPLING
    assert set(SAMPLING) | set(LOGPROBS) <= set(get_type_hints(SamplingOptions))
    assert {"min_tokens", *LOGPROBS} | set(SAMPLING) <= set(get_type_hints(GenOptions))


@pytest.mark.parametrize("option", [*SAMPLING, *LOGPROBS, "max_tokens"])
def test_option_of_run_that_is_none_is_not_given(option: str) -> None:
    @sgl.function
    def program(s: sgl.ProgramState) -> None:
        s += sgl.gen("x")

    assert program.run(backend=sgl.Fake({"x": "a"}), **{option: None})["x"] == "a"


def test_use_thread_is_taken() -> None:
    @sgl.function
    def program(s: sgl.ProgramState) -> None:
        s += "text"

    assert program.run(use_thread=True, backend=sgl.Fake()).text() == "text"


def test_options_of_the_offline_engine_are_there() -> None:
    expected = "input_ids return_logprob logprob_start_len top_logprobs_num token_ids_logprob"
    assert set(f"{expected} stream rid priority cache_salt image_data".split()) <= set(
        get_type_hints(OfflineOptions)
    )


@pytest.mark.parametrize(("name", "default"), CONFIG.items())
def test_global_config_has_its_fields_and_defaults(name: str, default: object) -> None:
    assert getattr(sgl.global_config, name) == default


@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        ("REGEX_INT", r"[-+]?[0-9]+[ \n]*"),
        ("REGEX_FLOAT", r"[-+]?[0-9]*\.?[0-9]+[ \n]*"),
        ("REGEX_BOOL", r"(True|False)"),
        ("REGEX_STR", r"\"[\w\d\s]*\""),
    ],
)
def test_patterns_of_dtypes_are_sglangs(name: str, pattern: str) -> None:
    assert getattr(sgl, name) == pattern


@pytest.mark.parametrize(
    "name",
    [
        "Runtime",
        "RuntimeEndpoint",
        "ServerArgs",
        "OpenAI",
        "Anthropic",
        "LiteLLM",
        "VertexAI",
        "Crusoe",
    ],
)
def test_server_and_foreign_apis_say_when_they_come_and_what_to_use(name: str) -> None:
    with pytest.raises(UnsupportedFeatureError, match=rf"ramet\.{name} comes with.*ramet\.Engine"):
        getattr(sgl, name)("model", base_url="http://localhost")


def test_position_ids_offset_is_refused() -> None:
    @sgl.function
    def program(s: sgl.ProgramState) -> None:
        s.fork(2, position_ids_offset=[1, 2])  # type: ignore[arg-type]

    with pytest.raises(UnsupportedFeatureError, match="position_ids_offset"):
        program(backend=sgl.Fake())


@pytest.mark.parametrize("options", [{}, {"num_threads": "auto", "progress_bar": False}])
def test_options_of_run_batch_are_taken(options: dict[str, Any]) -> None:
    @sgl.function
    def program(s: sgl.ProgramState, x: str) -> None:
        s += x

    states = program.run_batch([{"x": "a"}, {"x": "b"}], backend=sgl.Fake(), **options)
    assert [state.text() for state in states] == ["a", "b"]


def test_rows_can_be_named_batch_kwargs() -> None:
    @sgl.function
    def program(s: sgl.ProgramState, x: str) -> None:
        s += x

    states = program.run_batch(batch_kwargs=[{"x": "a"}, {"x": "b"}], backend=sgl.Fake())
    assert [state.text() for state in states] == ["a", "b"]
    with pytest.raises(TypeError, match="rows and batch_kwargs"):
        program.run_batch([{"x": "a"}], batch_kwargs=[{"x": "b"}], backend=sgl.Fake())


def test_gen_takes_its_arguments_in_sglangs_order() -> None:
    generation: Any = sgl.gen
    assert generation("x", 16, 2, 1, "\n", [5], "a+", 0.5, 0.9, 4, 0.1) == sgl.gen(
        name="x",
        max_tokens=16,
        min_tokens=2,
        n=1,
        stop="\n",
        stop_token_ids=[5],
        stop_regex="a+",
        temperature=0.5,
        top_p=0.9,
        top_k=4,
        min_p=0.1,
    )
    assert generation("x", None, *[None] * 17, ["a"]) == sgl.select("x", ["a"])
    number: Any = sgl.gen_int
    assert number("x", 16, 1, "\n") == sgl.gen_int("x", 16, n=1, stop="\n")


def test_gen_refuses_an_option_given_twice_and_too_many() -> None:
    generation: Any = sgl.gen
    with pytest.raises(TypeError, match="'stop' by position and by name"):
        generation("x", 16, 0, 1, "a", stop="b")
    with pytest.raises(TypeError, match="up to 23 arguments by position, but 24"):
        generation("x", *[None] * 23)
