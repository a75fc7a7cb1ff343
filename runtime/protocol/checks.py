"""Checks of parameters: each raises an error that names the parameter and the rule."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable

from .errors import InvalidRequestError

INT64_MAX = 2**63 - 1


def items(name: str, value: object) -> tuple[object, ...]:
    """Return the items of a list-like value; a string is none."""
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        raise InvalidRequestError(f"{name} must be a list, not {value!r}")
    return tuple(value)


def check_integer(
    name: str, value: object, *, low: int, high: int = INT64_MAX, also: str = ""
) -> None:
    """Refuse what is no integer in [low, high]; `also` names a value that is allowed beside."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidRequestError(f"{name} must be an integer, not {value!r}")
    if not low <= value <= high:
        rule = f"at least {low}" if value < low else f"at most {high}"
        raise InvalidRequestError(f"{name} must be {rule}{' ' + also if also else ''}, not {value}")


def check_number(
    name: str, value: object, *, low: float, high: float = math.inf, low_open: bool = False
) -> None:
    """Refuse what is no finite number in [low, high], or (low, high] with `low_open`."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InvalidRequestError(f"{name} must be a number, not {value!r}")
    if not math.isfinite(value) or value < low or value > high or (low_open and value == low):
        bracket = "(" if low_open else "["
        rule = f"in {bracket}{low:g}, {high:g}]" if math.isfinite(high) else f"at least {low:g}"
        raise InvalidRequestError(f"{name} must be finite and {rule}, not {value}")


def path_text(name: str, value: object) -> str:
    """Return a path as text.

    Raises:
        TypeError: it is no path.
    """
    if not isinstance(value, (str, os.PathLike)):
        raise TypeError(f"{name} must be a path, not {value!r}")
    return str(os.fspath(value))


def check_bool(name: str, value: object) -> None:
    """Refuse what is neither True nor False."""
    if not isinstance(value, bool):
        raise InvalidRequestError(f"{name} must be a bool, not {value!r}")


def check_strings(name: str, value: object, *, most: int, longest: int | None = None) -> None:
    """Refuse a list with an empty string or none, more than `most`, or longer (in bytes)."""
    strings = items(name, value)
    if len(strings) > most:
        raise InvalidRequestError(f"{name} takes at most {most} strings, not {len(strings)}")
    for text in strings:
        if not isinstance(text, str) or not text:
            raise InvalidRequestError(f"{name} must hold non-empty strings, not {text!r}")
        size = len(text.encode("utf-8", errors="surrogatepass"))
        if longest is not None and size > longest:
            raise InvalidRequestError(
                f"{name} takes strings of at most {longest} bytes, and {text[:40]!r}… has {size}"
            )
