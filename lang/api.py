"""What programs are written with: `function`, `gen`, `select`, roles."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Unpack, overload

from ramet.runtime.protocol import (
    ROLES,
    Constraint,
    GenOptions,
    InvalidRequestError,
    normalize_options,
    params_of,
    unknown_name,
)

from .choices import token_length_normalized
from .graph import (
    ChoicesMethod,
    Expression,
    Gen,
    RoleBegin,
    RoleEnd,
    Select,
    Sequence,
    Text,
    as_nodes,
)
from .program import Program


@overload
def function(func: Callable[..., object]) -> Program: ...


@overload
def function(func: None = None) -> Callable[[Callable[..., object]], Program]: ...


def function(
    func: Callable[..., object] | None = None,
) -> Program | Callable[[Callable[..., object]], Program]:
    """Make a program of a function whose first parameter is the state.

    Use it as `@ramet.function`; then call the program, or its `run`, `run_batch`, `preview`.
    """
    return function if func is None else Program(func)


def gen(
    name: str | None = None,
    max_tokens: int | None = None,
    *,
    choices: Iterable[str] | None = None,
    choices_method: ChoicesMethod | None = None,
    regex: str | None = None,
    **options: Unpack[GenOptions],
) -> Gen | Select:
    """Generate text and bind it to variable `name` (`gen_0`, `gen_1` … where none is given).

    Args:
        name: the variable.
        max_tokens: limit of generated tokens; else the run's, 128 by default.
        choices: choose one of these instead: `gen(choices=…)` is `select(…)`.
        choices_method: how `select` picks.
        regex: the whole text matches it; without a `max_tokens` of its own such a gen runs until
            the pattern ends. The engine of this version refuses it, and the gen fails with an
            `UnsupportedFeatureError` as its cause.
        **options: sampling options for this gen; each that is not given is the run's.

    Raises:
        TypeError: an unknown option (the nearest known one is named), or one that does not go
            with `choices`.
        InvalidRequestError: a value out of range, an empty `choices`, a regex that is none.
    """
    _check_name(name)
    own = normalize_options({"max_tokens": max_tokens, **options})
    if choices is not None:
        _check_select_options(own, regex)
        return select(name, choices, choices_method=choices_method)
    if choices_method is not None:
        raise TypeError("choices_method was given without choices")
    params_of({"max_new_tokens": None, **own})
    constraint = None if regex is None else _regex_constraint(regex)
    if constraint is not None and "max_new_tokens" not in own:
        own["max_new_tokens"] = None
    return Gen(name, tuple(own.items()), constraint)


def select(
    name: str | None = None,
    choices: Iterable[str] | None = None,
    temperature: float = 0.0,
    choices_method: ChoicesMethod | None = None,
) -> Select:
    """Choose the option that the model finds likeliest, and bind it to variable `name`.

    `get_meta_info(name)` has the log-probabilities of all options. Options are scored, not
    sampled, so `temperature` can only be 0.

    Raises:
        InvalidRequestError: no options, an option that is not a string, or another temperature.
    """
    _check_name(name)
    if choices is None or isinstance(choices, str):
        raise InvalidRequestError(f"choices must be a list of strings, not {choices!r}")
    options = tuple(choices)
    if not options:
        raise InvalidRequestError("choices is empty: give at least one option")
    for option in options:
        if not isinstance(option, str):
            raise InvalidRequestError(f"choices must hold strings, not {option!r}")
    if temperature != 0:
        raise InvalidRequestError(
            f"select scores its options, so temperature must be 0, not {temperature}"
        )
    method = choices_method or token_length_normalized
    if not callable(method):
        raise TypeError(
            f"choices_method must be a function, such as token_length_normalized, not {method!r}"
        )
    return Select(name, options, method)


def special(text: str) -> Text:
    """Return text in which special tokens of the model, such as `<|im_end|>`, are meant."""
    return Text(text, parse_special=True)


def role_block(role: str, content: Expression | str) -> Sequence:
    """Return `content` as a chat turn of `role`."""
    return Sequence((role_begin(role), *as_nodes(content), RoleEnd(role)))


def role_begin(role: str) -> RoleBegin:
    """Return the opening of a chat turn of `role`."""
    if role not in ROLES:
        raise InvalidRequestError(unknown_name(role, ROLES, "role"))
    return RoleBegin(role)


def system(content: Expression | str) -> Sequence:
    """Return a system message."""
    return role_block("system", content)


def user(content: Expression | str) -> Sequence:
    """Return a user's turn."""
    return role_block("user", content)


def assistant(content: Expression | str) -> Sequence:
    """Return an assistant's turn."""
    return role_block("assistant", content)


def system_begin() -> RoleBegin:
    """Open a system message; `system_end()` closes it."""
    return role_begin("system")


def system_end() -> RoleEnd:
    """Close a system message."""
    return RoleEnd("system")


def user_begin() -> RoleBegin:
    """Open a user's turn; `user_end()` closes it."""
    return role_begin("user")


def user_end() -> RoleEnd:
    """Close a user's turn."""
    return RoleEnd("user")


def assistant_begin() -> RoleBegin:
    """Open an assistant's turn; `assistant_end()` closes it.

    What comes next decides what the template puts there: a gen, a select or a read gets the
    template's generation prompt, literal text that of a past turn.
    """
    return role_begin("assistant")


def assistant_end() -> RoleEnd:
    """Close an assistant's turn."""
    return RoleEnd("assistant")


def _check_name(name: object) -> None:
    if name is not None and (not isinstance(name, str) or not name):
        raise TypeError(f"the name of a variable must be a non-empty string, not {name!r}")


def _check_select_options(own: dict[str, object], regex: str | None) -> None:
    if own.pop("temperature", 0) != 0:
        raise TypeError("choices are scored, not sampled: temperature can only be 0")
    if own or regex is not None:
        names = ", ".join([*own, *(["regex"] if regex is not None else [])])
        raise TypeError(f"choices are scored, not sampled: {names} cannot be given with them")


def _regex_constraint(regex: object) -> Constraint:
    if not isinstance(regex, str):
        raise InvalidRequestError(f"regex must be a string, not {regex!r}")
    try:
        re.compile(regex)
    except re.error as error:
        raise InvalidRequestError(
            f"regex {regex!r} is not a regular expression: {error}"
        ) from error
    return Constraint("regex", regex)
