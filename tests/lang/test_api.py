"""Arguments of gen, select and roles."""

from typing import Any

import pytest

import ramet
from ramet.errors import InvalidRequestError, UnsupportedFeatureError
from ramet.expressions.graph import Gen, Select
from ramet.runtime.protocol import Constraint


def test_gen_options_go_under_their_field_names() -> None:
    node = ramet.gen("x", 16, temperature=0.5, stop="\n")
    assert isinstance(node, Gen)
    assert dict(node.options) == {"max_new_tokens": 16, "temperature": 0.5, "stop": ("\n",)}


def test_options_that_are_none_are_not_given() -> None:
    node = ramet.gen("x", temperature=None)
    assert isinstance(node, Gen)
    assert node.options == ()


def test_unknown_option_names_the_nearest() -> None:
    with pytest.raises(TypeError, match="temperature"):
        ramet.gen("x", temperatur=0.1)  # type: ignore[call-arg]


def test_both_spellings_of_the_limit_are_refused() -> None:
    with pytest.raises(TypeError, match="keep one"):
        ramet.gen("x", 5, max_new_tokens=6)


@pytest.mark.parametrize(
    "options", [{"temperature": -1.0}, {"top_p": 0.0}, {"top_k": 0}, {"temperature": float("nan")}]
)
def test_value_out_of_range_is_refused_when_written(options: dict[str, float]) -> None:
    with pytest.raises(InvalidRequestError, match=next(iter(options))):
        ramet.gen("x", **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["", 3, ("a",)])
def test_name_must_be_a_non_empty_string(name: object) -> None:
    with pytest.raises(TypeError, match="name"):
        ramet.gen(name)  # type: ignore[arg-type]


def test_regex_without_own_limit_runs_until_it_ends() -> None:
    node = ramet.gen("x", regex="[0-9]+")
    assert isinstance(node, Gen)
    assert dict(node.options) == {"max_new_tokens": None}


def test_regex_with_own_limit_keeps_it() -> None:
    node = ramet.gen("x", 7, regex="[0-9]+")
    assert isinstance(node, Gen)
    assert dict(node.options) == {"max_new_tokens": 7}


def test_invalid_regex_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="not a regular expression"):
        ramet.gen("x", regex="(")


def test_gen_with_choices_is_a_select() -> None:
    assert isinstance(ramet.gen("x", choices=["a", "b"]), Select)


def test_gen_with_choices_and_temperature_zero_is_a_select() -> None:
    assert isinstance(ramet.gen("x", choices=["a"], temperature=0), Select)


@pytest.mark.parametrize("options", [{"max_tokens": 3}, {"stop": "x"}, {"temperature": 1.0}])
def test_choices_do_not_ignore_other_options(options: dict[str, object]) -> None:
    with pytest.raises(TypeError, match="scored"):
        ramet.gen("x", choices=["a"], **options)  # type: ignore[arg-type]


def test_choices_with_regex_is_refused() -> None:
    with pytest.raises(TypeError, match="regex"):
        ramet.gen("x", choices=["a"], regex="a")


def test_empty_choices_are_refused_and_never_become_free_text() -> None:
    with pytest.raises(ValueError, match="at least one"):
        ramet.gen("x", choices=[])


@pytest.mark.parametrize("choices", [None, "text", ["a", 3]])
def test_choices_must_be_strings(choices: object) -> None:
    with pytest.raises(ValueError, match="choices"):
        ramet.select("x", choices)  # type: ignore[arg-type]


def test_select_with_a_temperature_is_refused() -> None:
    with pytest.raises(ValueError, match="temperature must be 0"):
        ramet.select("x", ["a"], temperature=0.7)


def test_choices_method_needs_choices() -> None:
    with pytest.raises(TypeError, match="without choices"):
        ramet.gen("x", choices_method=ramet.token_length_normalized)


def test_callers_lists_are_never_changed() -> None:
    stop, choices = ["a", "b"], ["x", "y"]
    for _ in range(3):
        ramet.gen("x", stop=stop)
        ramet.select("y", choices)
    assert stop == ["a", "b"]
    assert choices == ["x", "y"]


def constraint(**options: Any) -> Any:
    node = ramet.gen("x", **options)
    assert isinstance(node, Gen)
    return node.constraint


def test_schema_may_be_a_dict_or_json_text() -> None:
    assert constraint(json_schema={"type": "object"}) == Constraint(
        "json_schema", '{"type": "object"}'
    )
    assert constraint(json_schema="{}") == Constraint("json_schema", "{}")
    assert constraint(ebnf='root ::= "a"') == Constraint("ebnf", 'root ::= "a"')
    assert constraint(structural_tag={"a": 1}) == Constraint("structural_tag", '{"a": 1}')


@pytest.mark.parametrize("name", ["regex", "json_schema", "ebnf", "structural_tag", "dtype"])
def test_empty_text_means_not_given(name: str) -> None:
    assert constraint(**{name: ""}) is None


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"dtype": int, "regex": "a"}, "dtype and regex"),
        ({"regex": "a", "json_schema": "{}"}, "regex and json_schema"),
        ({"ebnf": "a", "structural_tag": "{}"}, "ebnf and structural_tag"),
        ({"choices": ["a"], "dtype": int}, "choices and dtype"),
    ],
)
def test_two_ways_to_bind_the_text_are_refused_by_name(options: Any, names: str) -> None:
    with pytest.raises(TypeError, match=names):
        ramet.gen("x", **options)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"json_schema": "{"}, InvalidRequestError),
        ({"json_schema": {"a": object()}}, TypeError),
        ({"json_schema": ["a"]}, TypeError),
        ({"ebnf": 3}, InvalidRequestError),
    ],
)
def test_schema_that_is_none_is_refused_by_name(options: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=next(iter(options))):
        ramet.gen("x", **options)


@pytest.mark.parametrize(
    ("dtype", "pattern"),
    [
        (int, ramet.REGEX_INT),
        ("float", ramet.REGEX_FLOAT),
        (str, ramet.REGEX_STR),
        ("bool", ramet.REGEX_BOOL),
    ],
)
def test_dtype_is_a_regex_and_keeps_the_runs_limit(dtype: Any, pattern: str) -> None:
    node = ramet.gen("x", dtype=dtype)
    assert isinstance(node, Gen)
    assert node.constraint == Constraint("regex", pattern)
    assert node.options == ()


@pytest.mark.parametrize("dtype", ["integer", list, 3, None.__class__])
def test_other_dtype_is_refused_at_the_call(dtype: Any) -> None:
    with pytest.raises(TypeError, match="int, float, str or bool"):
        ramet.gen("x", dtype=dtype)


def test_seed_of_a_gen_is_its_own() -> None:
    @ramet.function
    def program(s: ramet.ProgramState) -> None:
        s += ramet.gen("x", seed=7) + ramet.gen("y")

    fake = ramet.Fake({"x": "a", "y": "b"})
    program(backend=fake, seed=1)
    program(backend=fake, seed=2)
    first, second, third, fourth = (request.seed for request in fake.requests)  # type: ignore[union-attr]
    assert first == third == 7
    assert second != fourth


@pytest.mark.parametrize("seed", [-1, 2**63, "1", True])
def test_seed_out_of_range_is_refused(seed: Any) -> None:
    with pytest.raises(InvalidRequestError, match="seed"):
        ramet.gen("x", seed=seed)
    with pytest.raises(TypeError, match="seed cannot be given with"):
        ramet.gen("x", choices=["a"], seed=1)


@pytest.mark.parametrize("number", [0, -1, "1", True])
def test_number_of_speculated_tokens_is_checked(number: Any) -> None:
    with pytest.raises(InvalidRequestError, match="num_api_spec_tokens"):
        ramet.function(num_api_spec_tokens=number)


@pytest.mark.parametrize("build", [lambda: ramet.image("a.png"), lambda: ramet.video("a.mp4", 4)])
def test_media_are_built_and_refused_before_any_call(build: Any) -> None:
    @ramet.function
    def program(s: ramet.ProgramState) -> None:
        s += ramet.gen("never") + ramet.user(build() + "What is this?")

    fake = ramet.Fake({"never": "x"})
    with pytest.raises(UnsupportedFeatureError, match=r"ramet\.OpenAI"):
        program(backend=fake)
    assert fake.requests == []


@pytest.mark.parametrize(
    ("build", "match"),
    [
        (lambda: ramet.image(3), "path or bytes"),  # type: ignore[arg-type]
        (lambda: ramet.video("a", 0), "num_frames"),
    ],
)
def test_media_of_nothing_are_refused(build: Any, match: str) -> None:
    with pytest.raises((TypeError, ValueError), match=match):
        build()


def test_role_without_text_is_an_empty_turn() -> None:
    assert [type(node).__name__ for node in ramet.user()] == ["RoleBegin", "RoleEnd"]


def test_programs_are_methods_of_every_kind() -> None:
    class Agent:
        @ramet.function
        def ask(self, s: ramet.ProgramState, question: str) -> object:
            s += question
            return self

        @ramet.function
        @classmethod
        def of_class(cls, s: ramet.ProgramState, question: str) -> object:
            s += question
            return cls

        @ramet.function
        @staticmethod
        def of_none(s: ramet.ProgramState, question: str) -> object:
            s += question
            return None

        @staticmethod
        @ramet.function
        def also_of_none(s: ramet.ProgramState, question: str) -> object:
            s += question
            return None

    agent, fake = Agent(), ramet.Fake()
    assert agent.ask("q", backend=fake).ret_value is agent
    assert agent.ask.bind(question="q")(backend=fake).ret_value is agent
    assert [s.ret_value for s in agent.ask.run_batch([{"question": "q"}], backend=fake)] == [agent]
    assert Agent.of_class("q", backend=fake).ret_value is Agent
    assert agent.of_none("q", backend=fake).text() == "q"
    assert Agent.also_of_none("q", backend=fake).text() == "q"
