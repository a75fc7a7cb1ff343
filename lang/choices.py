"""How `select` picks: from the log-probabilities of each option's own tokens.

A **choice method** is a function that takes one row of log-probabilities for each option and
returns the index of the winner. One that also needs the log-probabilities of the same tokens with
no prompt before them has `with_unconditional` put on it, and takes them as its second argument.

The runtime encodes prompt and option as one string. What all of them share is the trunk; the
tokens after it are an option's **own tokens**, and only they are scored. An option without any is
the bare prompt, `""`. The engine refuses it; where a backend scores the others beside it, as `Fake`
does, it counts as "none of them goes on here": the logarithm of one minus the probabilities of
their distinct first tokens.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import SupportsIndex

from ramet.runtime.protocol import OptionScore

Rows = tuple[tuple[float, ...], ...]
UnconditionalMethod = Callable[[Rows, Rows], int]
_MARK = "needs_unconditional"
_LOWEST = -1e9  # stands for the logarithm of 0, so that arithmetic and JSON stay finite


def token_length_normalized(logprobs: Rows) -> int:
    """Pick the option with the highest mean log-probability per own token (the default).

    Example:
        >>> ramet.token_length_normalized(((-0.5, -9.0), (-0.6, -0.1)))
        1
    """
    return _first_highest(list(means(logprobs)))


def greedy_token_selection(logprobs: Rows) -> int:
    """Pick as greedy decoding would: at each token, keep the options that have the likeliest.

    An option that has run out of tokens is compared by its own mean.

    Example:
        >>> ramet.greedy_token_selection(((-0.5, -9.0), (-0.6, -0.1)))
        0
    """
    alive = list(range(len(logprobs)))
    for column in zip(*greedy_matrix(logprobs), strict=True):
        best = max(column[i] for i in alive)
        alive = [i for i in alive if column[i] == best]
        if len(alive) == 1:
            break
    return alive[0]


def with_unconditional(method: UnconditionalMethod) -> UnconditionalMethod:
    """Say that a choice method also takes the tokens' log-probabilities with no prompt.

    Example:
        >>> @ramet.choices.with_unconditional
        ... def most_surprising(logprobs, unconditional):
        ...     gains = [sum(row) - sum(alone) for row, alone in zip(logprobs, unconditional)]
        ...     return gains.index(max(gains))
        >>> ramet.choices.needs_unconditional(most_surprising)
        True
    """
    setattr(method, _MARK, True)
    return method


def needs_unconditional(method: object) -> bool:
    """Return whether a choice method takes log-probabilities with no prompt as well."""
    return bool(getattr(method, _MARK, False))


@with_unconditional
def unconditional_likelihood_normalized(logprobs: Rows, unconditional: Rows) -> int:
    """Pick the option whose tokens the prompt makes likelier by the highest mean.

    That is the mean of each token's log-probability minus the one it has with no prompt before the
    option; 0 for the first token of a model without a start token, as before nothing there is none.

    Example:
        >>> ramet.unconditional_likelihood_normalized(((-2.0,), (-1.0,)), ((-9.0,), (-1.0,)))
        0
    """
    return _first_highest(list(normalized_gains(logprobs, unconditional)))


def normalized_gains(logprobs: Rows, unconditional: Rows) -> tuple[float, ...]:
    """Return the mean of what each option's tokens gain by the prompt."""
    return tuple(
        math.fsum(value - alone for value, alone in zip(row, alones, strict=True)) / len(row)
        for row, alones in zip(logprobs, unconditional, strict=True)
    )


def greedy_matrix(logprobs: Rows) -> Rows:
    """Return the rows padded to the longest, each with its own mean."""
    width = max(len(row) for row in logprobs)
    rows = zip(logprobs, means(logprobs), strict=True)
    return tuple(row + (mean,) * (width - len(row)) for row, mean in rows)


def means(logprobs: Rows) -> tuple[float, ...]:
    """Return the mean of each row."""
    return tuple(math.fsum(row) / len(row) for row in logprobs)


@dataclass(frozen=True, slots=True)
class Decision:
    """The winner, and the evidence: one row of log-probabilities and one probability an option.

    Probabilities are the softmax over the options' summed log-probabilities: how likely each is,
    given that it is one of them. `unconditional` has the rows with no prompt before the options;
    empty where the method does not need them.
    """

    index: int
    logprobs: Rows
    probabilities: tuple[float, ...]
    unconditional: Rows = ()


def decide(method: object, options: Sequence[OptionScore]) -> Decision:
    """Apply a choice method; ties go to the lowest index.

    Raises:
        ValueError: the method is not callable, or names no option.
    """
    rows = scored_rows(options)
    alone = _unconditional_rows(options, rows) if needs_unconditional(method) else ()
    given = method(rows, *([alone] if alone else [])) if callable(method) else None
    index = operator.index(given) if isinstance(given, SupportsIndex) else -1  # int, numpy's too
    if not 0 <= index < len(rows):
        raise ValueError(f"choices_method {method!r} gave {given!r}, not the index of an option")
    return Decision(index, rows, _softmax([math.fsum(row) for row in rows]), alone)


def scored_rows(options: Sequence[OptionScore]) -> Rows:
    """Return a non-empty row of log-probabilities for each option."""
    firsts = {next(iter(o.ids)): o.logprobs[0] for o in options if o.logprobs}
    left = 1.0 - math.fsum(math.exp(value) for value in firsts.values())
    ended = math.log(left) if left > 0 else _LOWEST
    return tuple(tuple(_finite(o.logprobs)) or (ended,) for o in options)


def _unconditional_rows(options: Sequence[OptionScore], rows: Rows) -> Rows:
    """Return a row as long as that of `rows` for each option; 0 for one without own tokens."""
    if any(option.unconditional is None for option in options):
        raise ValueError("the backend did not score the options without a prompt")
    return tuple(
        tuple(_finite(option.unconditional or ())) or (0.0,) * len(row)
        for option, row in zip(options, rows, strict=True)
    )


def _finite(values: Iterable[float]) -> list[float]:
    return [max(value, _LOWEST) for value in values]


def _first_highest(scores: list[float]) -> int:
    return max(range(len(scores)), key=lambda i: (scores[i], -i))


def _softmax(scores: list[float]) -> tuple[float, ...]:
    highest = max(scores)
    weights = [math.exp(score - highest) for score in scores]
    total = math.fsum(weights)
    return tuple(weight / total for weight in weights)
