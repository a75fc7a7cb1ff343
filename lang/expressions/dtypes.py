"""`gen(dtype=…)`: SGLang's patterns for numbers, truth values and quoted strings."""

from __future__ import annotations

REGEX_INT = r"[-+]?[0-9]+[ \n]*"
REGEX_FLOAT = r"[-+]?[0-9]*\.?[0-9]+[ \n]*"
REGEX_BOOL = r"(True|False)"
REGEX_STR = r"\"[\w\d\s]*\""

NUMBER_STOPS = (" ", "\n")
"""What ends a number, beside its own stops."""

_PATTERNS = {"int": REGEX_INT, "float": REGEX_FLOAT, "str": REGEX_STR, "bool": REGEX_BOOL}
_NAMES: dict[object, str] = {int: "int", float: "float", str: "str", bool: "bool"}


def pattern_of(dtype: object) -> tuple[str, tuple[str, ...]]:
    """Return the pattern of a dtype, and the strings that end its text.

    Raises:
        TypeError: another dtype than the four, which are named.
    """
    name = dtype if isinstance(dtype, str) else _NAMES.get(dtype) if _is_type(dtype) else None
    if name not in _PATTERNS:
        raise TypeError(
            f"dtype must be int, float, str or bool, or one of their names, not {dtype!r}"
        )
    return _PATTERNS[name], NUMBER_STOPS if name in ("int", "float") else ()


def _is_type(dtype: object) -> bool:
    return isinstance(dtype, type)
