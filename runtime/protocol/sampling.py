"""Sampling parameters and constraints: declared once, here, and checked once."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Literal, TypedDict

from .errors import InvalidRequestError

MAX_STOP_STRINGS = 32
INT64_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How one generation samples and when it stops.

    Attributes:
        max_new_tokens: limit of generated tokens, ≥ 0; 0 only fills the cache; None = until the
            context is full.
        min_new_tokens: no end-of-turn token and no stop before this many tokens, ≥ 0.
        temperature: ≥ 0, finite; below 1e-6 is greedy (ties go to the lowest id).
        top_p: nucleus, in (0, 1].
        top_k: −1 = all, else ≥ 1.
        min_p: in [0, 1]; drops tokens less likely than this share of the likeliest.
        stop: up to 32 non-empty strings; the text ends before the match that completes first.
        stop_token_ids: ids that end the generation; the id is not part of the text.
        ignore_eos: go on past the model's end-of-turn tokens.

    Raises:
        InvalidRequestError: a value out of range or of the wrong type, naming the parameter.
    """

    max_new_tokens: int | None = 128
    min_new_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        if self.max_new_tokens is not None:
            _check_integer("max_new_tokens", self.max_new_tokens, low=0)
        _check_integer("min_new_tokens", self.min_new_tokens, low=0)
        if self.max_new_tokens is not None and self.min_new_tokens > self.max_new_tokens:
            raise InvalidRequestError(
                f"min_new_tokens={self.min_new_tokens} is more than "
                f"max_new_tokens={self.max_new_tokens}"
            )
        _check_number("temperature", self.temperature, low=0.0)
        _check_number("top_p", self.top_p, low=0.0, high=1.0, low_open=True)
        _check_number("min_p", self.min_p, low=0.0, high=1.0)
        if self.top_k != -1:
            _check_integer("top_k", self.top_k, low=1, also="or -1 for all tokens")
        _check_stop(self.stop)
        for token in _items("stop_token_ids", self.stop_token_ids):
            _check_integer("stop_token_ids", token, low=0)
        if not isinstance(self.ignore_eos, bool):
            raise InvalidRequestError(f"ignore_eos must be a bool, not {self.ignore_eos!r}")

    @property
    def is_greedy(self) -> bool:
        """True where the likeliest token is taken and no noise is drawn."""
        return self.temperature < 1e-6


class GenOptions(TypedDict, total=False):
    """The same parameters as keyword options of a gen, each optional.

    `min_tokens` is another spelling of `min_new_tokens`; `stop` may be one string; None means
    "not given". `max_tokens` is a parameter of `gen` itself.
    """

    max_new_tokens: int | None
    min_tokens: int | None
    min_new_tokens: int | None
    temperature: float | None
    top_p: float | None
    top_k: int | None
    min_p: float | None
    stop: str | Iterable[str] | None
    stop_token_ids: Iterable[int] | None
    ignore_eos: bool | None


class SamplingOptions(GenOptions, total=False):
    """All of them: `max_tokens` is another spelling of `max_new_tokens`."""

    max_tokens: int | None


ALIASES = {"max_tokens": "max_new_tokens", "min_tokens": "min_new_tokens"}
_NAMES = tuple(field.name for field in fields(SamplingParams))


def normalize_options(options: Mapping[str, object]) -> dict[str, object]:
    """Return `options` under their field names, without those that are None.

    Raises:
        TypeError: an unknown name (the nearest known one is named), or two spellings at once.
    """
    result: dict[str, object] = {}
    for given, value in options.items():
        name = ALIASES.get(given, given)
        if name not in _NAMES:
            raise TypeError(unknown_name(given, (*_NAMES, *ALIASES), "option"))
        if value is None:
            continue
        if name in result:
            raise TypeError(f"{given!r} and its other spelling were both given: keep one")
        result[name] = _normalize_value(name, value)
    return result


def unknown_name(given: str, known: Iterable[str], kind: str) -> str:
    """Return the message for an unknown `kind` of name, with the nearest known one."""
    near = difflib.get_close_matches(given, list(known), n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return f"unknown {kind} {given!r}{hint}"


def _normalize_value(name: str, value: object) -> object:
    if name == "stop":
        return (value,) if isinstance(value, str) else tuple(_items(name, value))
    if name == "stop_token_ids":
        return tuple(_items(name, value))
    return value


def _items(name: str, value: object) -> tuple[object, ...]:
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        raise InvalidRequestError(f"{name} must be a list, not {value!r}")
    return tuple(value)


def _check_integer(name: str, value: object, *, low: int, also: str = "") -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidRequestError(f"{name} must be an integer, not {value!r}")
    if not low <= value <= INT64_MAX:
        rule = f"at least {low}" if value < low else f"at most {INT64_MAX}"
        raise InvalidRequestError(f"{name} must be {rule}{' ' + also if also else ''}, not {value}")


def _check_number(
    name: str, value: object, *, low: float, high: float = math.inf, low_open: bool = False
) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InvalidRequestError(f"{name} must be a number, not {value!r}")
    if not math.isfinite(value) or value < low or value > high or (low_open and value == low):
        bracket = "(" if low_open else "["
        rule = f"in {bracket}{low:g}, {high:g}]" if math.isfinite(high) else f"at least {low:g}"
        raise InvalidRequestError(f"{name} must be finite and {rule}, not {value}")


def _check_stop(stop: object) -> None:
    strings = _items("stop", stop)
    if len(strings) > MAX_STOP_STRINGS:
        raise InvalidRequestError(
            f"stop takes at most {MAX_STOP_STRINGS} strings, not {len(strings)}"
        )
    for text in strings:
        if not isinstance(text, str) or not text:
            raise InvalidRequestError(f"stop must hold non-empty strings, not {text!r}")


@dataclass(frozen=True, slots=True)
class Constraint:
    """What the generated text must match: `regex` is a full match with `re.ASCII` meaning."""

    kind: Literal["regex"]
    value: str
