"""Arguments by position in the order that SGLang gives its generations."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

_SAMPLING_ORDER = (
    "n",
    "stop",
    "stop_token_ids",
    "stop_regex",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "frequency_penalty",
    "presence_penalty",
    "ignore_eos",
    "return_logprob",
    "logprob_start_len",
    "top_logprobs_num",
    "return_text_in_logprobs",
)
GEN_ORDER = (
    "min_tokens",
    *_SAMPLING_ORDER,
    "dtype",
    "choices",
    "choices_method",
    "regex",
    "json_schema",
)
GEN_DTYPE_ORDER = _SAMPLING_ORDER


Function = TypeVar("Function", bound=Callable[..., object])


def positional(order: tuple[str, ...], *, after: int = 2) -> Callable[[Function], Function]:
    """Let a function take more arguments by position: those of `order`, from the one `after`.

    Type checkers see the function as it is written, where these are keywords: so is new code.

    Example:
        >>> @positional(("b", "c"), after=1)
        ... def add(a, *, b=0, c=0):
        ...     return a + 10 * b + 100 * c
        >>> add(1, 2, 3), add(1, 2, c=4)
        (321, 421)
    """

    def taking(func: Function) -> Function:
        @functools.wraps(func)
        def call(*args: Any, **kwargs: Any) -> object:
            if len(args) <= after:
                return func(*args, **kwargs)
            most = after + len(order)
            if len(args) > most:
                raise TypeError(
                    f"{func.__name__}() takes up to {most} arguments by position, "
                    f"but {len(args)} were given"
                )
            for name, value in zip(order, args[after:], strict=False):
                if name in kwargs:
                    raise TypeError(f"{func.__name__}() got {name!r} by position and by name")
                kwargs[name] = value
            return func(*args[:after], **kwargs)

        return cast(Function, call)

    return taking
