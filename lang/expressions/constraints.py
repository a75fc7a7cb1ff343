"""What a gen's text must match, from the arguments of `gen`: at most one of them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from ramet.runtime.protocol import Constraint, InvalidRequestError

from .dtypes import pattern_of


def constraint_of(given: Mapping[str, object]) -> tuple[Constraint | None, tuple[str, ...]]:
    """Return the constraint among `choices`, `dtype`, `regex`, `json_schema`, …, and its stops.

    None and the empty string are "not given".

    Raises:
        TypeError: two of them, or a value of another type.
        InvalidRequestError: a regex that is none, a text that is not JSON.
    """
    wanted = {name: value for name, value in given.items() if _is_given(value)}
    if len(wanted) > 1:
        first, second = list(wanted)[:2]
        raise TypeError(f"{first} and {second} cannot be given together: keep one")
    for name, value in wanted.items():
        match name:
            case "dtype":
                pattern, stops = pattern_of(value)
                return Constraint("regex", pattern), stops
            case "regex":
                return Constraint("regex", _regex(value)), ()
            case "json_schema":
                return Constraint("json_schema", _json_text(name, value)), ()
            case "structural_tag":
                return Constraint("structural_tag", _json_text(name, value)), ()
            case "ebnf":
                return Constraint("ebnf", _string(name, value)), ()
    return None, ()


def _is_given(value: object) -> bool:
    return value is not None and not (isinstance(value, str) and not value)


def _regex(value: object) -> str:
    regex = _string("regex", value)
    try:
        re.compile(regex)
    except re.error as error:
        raise InvalidRequestError(
            f"regex {regex!r} is not a regular expression: {error}"
        ) from error
    return regex


def _json_text(name: str, value: object) -> str:
    """Return a dict as JSON text, and a JSON text as it is."""
    if isinstance(value, str):
        try:
            json.loads(value)
        except ValueError as error:
            raise InvalidRequestError(f"{name} is not JSON: {error}") from error
        return value
    if not isinstance(value, Mapping):
        raise TypeError(f"{name} must be a dict or JSON text, not {value!r}")
    try:
        return json.dumps(dict(value), ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{name} cannot be written as JSON: {error}") from error


def _string(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise InvalidRequestError(f"{name} must be a string, not {value!r}")
    return value
