"""What programs are written with: `function`, `gen` and its variants, `select`, `special`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Unpack, overload

from ramet.runtime.protocol import (
    GenOptions,
    InvalidRequestError,
    normalize_options,
    params_of,
)
from ramet.runtime.protocol.checks import check_integer

from ..choices import token_length_normalized
from ..programs.program import Program
from .constraints import constraint_of
from .graph import ChoicesMethod, Gen, Select, Text
from .positions import GEN_DTYPE_ORDER, GEN_ORDER, positional


@overload
def function(func: Callable[..., object], num_api_spec_tokens: int | None = None) -> Program: ...


@overload
def function(
    func: None = None, num_api_spec_tokens: int | None = None
) -> Callable[[Callable[..., object]], Program]: ...


def function(
    func: Callable[..., object] | None = None, num_api_spec_tokens: int | None = None
) -> Program | Callable[[Callable[..., object]], Program]:
    """Make a program of a function whose first parameter is the state.

    Use it as `@ramet.function`; then call the program, or its `run`, `run_batch`, `preview`.
    In a class, the instance is the first parameter and the state the second.

    Args:
        func: the function; its first parameter may have any name.
        num_api_spec_tokens: how many tokens an API backend may generate ahead of what the
            program asked for, at least 1; None (the default) = none. The engine on this machine
            has no use for it, and the meta info of each gen says so.

    Raises:
        TypeError: something that cannot be a program.
        InvalidRequestError: `num_api_spec_tokens` is no integer of at least 1.

    Example:
        >>> @ramet.function
        ... def ask(s, question):
        ...     s += ramet.user(question)
        ...     s += ramet.assistant(ramet.gen("answer"))
        >>> ask("Where?", backend=ramet.Fake({"answer": "Here."}))["answer"]
        'Here.'
    """
    if num_api_spec_tokens is not None:
        check_integer("num_api_spec_tokens", num_api_spec_tokens, low=1)
    if func is None:
        return lambda func: Program(func, num_api_spec_tokens=num_api_spec_tokens)
    return Program(func, num_api_spec_tokens=num_api_spec_tokens)


@positional(GEN_ORDER)
def gen(  # noqa: PLR0913 the public signature: one keyword for each way to bind the text
    name: str | None = None,
    max_tokens: int | None = None,
    *,
    choices: Iterable[str] | None = None,
    choices_method: ChoicesMethod | None = None,
    regex: str | None = None,
    json_schema: Mapping[str, Any] | str | None = None,
    ebnf: str | None = None,
    structural_tag: Mapping[str, Any] | str | None = None,
    dtype: type | str | None = None,
    seed: int | None = None,
    **options: Unpack[GenOptions],
) -> Gen | Select:
    """Generate text and bind it to variable `name` (`gen_0`, `gen_1` … where none is given).

    At most one of `choices`, `regex`, `json_schema`, `ebnf`, `structural_tag` and `dtype` can be
    given; None (the default of all) and the empty string mean "not given". With one of the three
    grammars or a regex, and no `max_tokens` of its own, a gen runs until the text is complete.
    By position the arguments after `max_tokens` have SGLang's order: `min_tokens`, `n`, `stop` …

    Args:
        name: the variable.
        max_tokens: limit of generated tokens; else the run's, 128 by default.
        choices: choose one of these instead: `gen(choices=…)` is `select(…)`.
        choices_method: how `select` picks.
        regex: the whole text matches it. The engine of this version refuses this and the three
            below, and the gen fails with an `UnsupportedFeatureError` as its cause.
        json_schema: the text is JSON of this schema: a dict, or JSON text.
        ebnf: the text is of this grammar, whose start is `root`.
        structural_tag: a dict or JSON text that says where in the text which schema holds.
        dtype: int, float, str or bool, or one of their names: a regex, as in SGLang
            (`ramet.REGEX_INT` …); the value stays text. A space or a line end ends a number.
        seed: of this gen, from 0 to 2**63 - 1; else derived from the run's.
        **options: sampling options for this gen, such as `temperature`, `stop`, `n`,
            `frequency_penalty`, `logit_bias`, and `return_logprob`; each that is not given is
            the run's.

    Raises:
        TypeError: an unknown option (the nearest known one is named), an unknown dtype, two ways
            to bind the text at once, or an option that does not go with `choices`.
        InvalidRequestError: a value out of range, an empty `choices`, a regex that is none, a
            schema that is not JSON.

    Example:
        >>> @ramet.function
        ... def count(s):
        ...     s += "One, two, " + ramet.gen("next", max_tokens=8, stop=",")
        >>> count(backend=ramet.Fake({"next": "three, four"}))["next"]
        'three'
    """
    _check_name(name)
    own = normalize_options({"max_tokens": max_tokens, **options})
    constraint, stops = constraint_of(
        {
            "choices": choices,
            "dtype": dtype,
            "regex": regex,
            "json_schema": json_schema,
            "ebnf": ebnf,
            "structural_tag": structural_tag,
        }
    )
    if choices is not None:
        _check_select_options(own, seed)
        return select(name, choices, choices_method=choices_method)
    if choices_method is not None:
        raise TypeError("choices_method was given without choices")
    if seed is not None:
        check_integer("seed", seed, low=0)
    params_of({"max_new_tokens": None, **own})
    if constraint is not None and dtype is None and "max_new_tokens" not in own:
        own["max_new_tokens"] = None
    return Gen(name, tuple(own.items()), constraint, stops, seed)


@positional(GEN_DTYPE_ORDER)
def gen_int(
    name: str | None = None,
    max_tokens: int | None = None,
    *,
    seed: int | None = None,
    **options: Unpack[GenOptions],
) -> Gen | Select:
    """Generate a whole number, as text: `gen(…, dtype=int)`.

    Example:
        >>> @ramet.function
        ... def count(s):
        ...     s += "7 + 5 = " + ramet.gen_int("sum")
        >>> count(backend=ramet.Fake({"sum": "12"}))["sum"]
        '12'
    """
    return gen(name, max_tokens, dtype=int, seed=seed, **options)


@positional(GEN_DTYPE_ORDER)
def gen_string(
    name: str | None = None,
    max_tokens: int | None = None,
    *,
    seed: int | None = None,
    **options: Unpack[GenOptions],
) -> Gen | Select:
    """Generate words in double quotes, the quotes included: `gen(…, dtype=str)`.

    Example:
        >>> @ramet.function
        ... def title(s):
        ...     s += "Title: " + ramet.gen_string("title")
        >>> title(backend=ramet.Fake({"title": '"The shoot"'}))["title"]
        '"The shoot"'
    """
    return gen(name, max_tokens, dtype=str, seed=seed, **options)


def select(
    name: str | None = None,
    choices: Iterable[str] | None = None,
    temperature: float = 0.0,
    choices_method: ChoicesMethod | None = None,
) -> Select:
    """Choose the option that the model finds likeliest, and bind it to variable `name`.

    `get_meta_info(name)` has the log-probabilities of all options. Options are scored, not
    sampled, so `temperature` can only be 0.

    Args:
        name: the variable; None = `gen_0`, `gen_1` …
        choices: the options, at least one.
        temperature: 0, its default.
        choices_method: how to pick; `token_length_normalized` by default.

    Raises:
        TypeError: a `choices_method` that is no function.
        InvalidRequestError: no options, an option that is not a string, or another temperature.

    Example:
        >>> @ramet.function
        ... def sky(s):
        ...     s += "The sky is " + ramet.select("colour", ["blue", "red"])
        >>> sky(backend=ramet.Fake({"colour": "blue"}))["colour"]
        'blue'
    """
    _check_name(name)
    if isinstance(choices, str) or not isinstance(choices, Iterable):
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
    """Return text in which special tokens of the model, such as `<|im_end|>`, are meant.

    Raises:
        TypeError: something that is no string.

    Example:
        >>> @ramet.function
        ... def turn(s):
        ...     s += "Hello" + ramet.special("<|im_end|>")
        >>> turn(backend=ramet.Fake()).text()
        'Hello<|im_end|>'
    """
    if not isinstance(text, str):
        raise TypeError(f"special takes a string, not {text!r:.80}")
    return Text(text, parse_special=True)


def _check_name(name: object) -> None:
    if name is not None and (not isinstance(name, str) or not name):
        raise TypeError(f"the name of a variable must be a non-empty string, not {name!r}")


def _check_select_options(own: dict[str, object], seed: object) -> None:
    if own.pop("temperature", 0) != 0:
        raise TypeError("choices are scored, not sampled: temperature can only be 0")
    names = [*own, *(["seed"] if seed is not None else [])]
    if names:
        raise TypeError(
            f"choices are scored, not sampled: {', '.join(names)} cannot be given with them"
        )
