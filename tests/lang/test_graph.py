"""Nodes and expressions."""

from dataclasses import FrozenInstanceError

import pytest

import ramet
from ramet.expressions.graph import Gen, RoleBegin, RoleEnd, Select, Sequence, Text, as_nodes


def test_expressions_add_up_with_strings_on_either_side() -> None:
    sequence = "a" + ramet.gen("x") + "b" + ramet.select("y", ["1"]) + "c"
    assert [type(node) for node in sequence] == [Text, Gen, Text, Select, Text]


def test_sequences_add_up() -> None:
    both = ramet.user("hi") + ramet.assistant(ramet.gen("x"))
    assert isinstance(both, Sequence)
    assert len(both) == 6


def test_role_function_is_begin_content_end() -> None:
    assert ramet.system("s").nodes() == (RoleBegin("system"), Text("s"), RoleEnd("system"))


def test_nodes_are_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        Text("a").text = "b"  # type: ignore[misc]


def test_empty_text_is_no_node() -> None:
    assert as_nodes("") == ()


@pytest.mark.parametrize("value", [None, 3, 1.5, object(), {"a": 1}, b"bytes"])
def test_other_values_cannot_be_appended(value: object) -> None:
    with pytest.raises(TypeError, match="cannot append"):
        as_nodes(value)


def test_adding_a_number_is_a_type_error() -> None:
    with pytest.raises(TypeError):
        ramet.gen("x") + 3  # type: ignore[operator]


def test_expression_in_an_f_string_is_refused() -> None:
    with pytest.raises(TypeError, match="f-string"):
        f"{ramet.gen('x')}"


def test_special_text_asks_for_special_tokens() -> None:
    assert ramet.special("<|im_end|>") == Text("<|im_end|>", parse_special=True)
