"""Arguments of gen, select and roles."""

import pytest

import ramet
from ramet.errors import InvalidRequestError
from ramet.graph import Gen, Select


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
