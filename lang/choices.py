"""How `select` picks: from the log-probabilities of each option's own tokens.

The runtime encodes prompt and option as one string. What all of them share is the trunk; the
tokens after it are an option's **own tokens**, and only they are scored. An option without any is
the bare prompt, `""`. The engine refuses it; where a backend scores the others beside it, as `Fake`
does, it counts as "none of them goes on here": the logarithm of one minus the probabilities of
their distinct first tokens.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import SupportsIndex

from ramet.runtime.protocol import OptionScore

Rows = tuple[tuple[float, ...], ...]
_LOWEST = -1e9  # stands for the logarithm of 0, so that arithmetic and JSON stay finite


def token_length_normalized(logprobs: Rows) -> int:
    """Pick the option with the highest mean log-probability per own token (the default)."""
    return _first_highest([math.fsum(row) / len(row) for row in logprobs])


def greedy_token_selection(logprobs: Rows) -> int:
    """Pick as greedy decoding would: at each token, keep the options that have the likeliest.

    An option that has run out of tokens is compared by its own mean.
    """
    alive = list(range(len(logprobs)))
    padding = [math.fsum(row) / len(row) for row in logprobs]
    for column in range(max(len(row) for row in logprobs)):
        values = {
            i: logprobs[i][column] if column < len(logprobs[i]) else padding[i] for i in alive
        }
        best = max(values.values())
        alive = [i for i in alive if values[i] == best]
        if len(alive) == 1:
            break
    return alive[0]


@dataclass(frozen=True, slots=True)
class Decision:
    """The winner, and the evidence: one row of log-probabilities and one probability an option.

    Probabilities are the softmax over the options' summed log-probabilities: how likely each is,
    given that it is one of them.
    """

    index: int
    logprobs: Rows
    probabilities: tuple[float, ...]


def decide(method: object, options: Sequence[OptionScore]) -> Decision:
    """Apply a choice method; ties go to the lowest index.

    Raises:
        ValueError: the method is not callable, or names no option.
    """
    rows = scored_rows(options)
    given = method(rows) if callable(method) else None
    index = operator.index(given) if isinstance(given, SupportsIndex) else -1  # int, numpy's too
    if not 0 <= index < len(rows):
        raise ValueError(f"choices_method {method!r} gave {given!r}, not the index of an option")
    return Decision(index, rows, _softmax([math.fsum(row) for row in rows]))


def scored_rows(options: Sequence[OptionScore]) -> Rows:
    """Return a non-empty row of log-probabilities for each option."""
    firsts = {next(iter(o.ids)): o.logprobs[0] for o in options if o.logprobs}
    left = 1.0 - math.fsum(math.exp(value) for value in firsts.values())
    ended = math.log(left) if left > 0 else _LOWEST
    return tuple(tuple(_finite(o.logprobs)) or (ended,) for o in options)


def _finite(values: Iterable[float]) -> list[float]:
    return [max(value, _LOWEST) for value in values]


def _first_highest(scores: list[float]) -> int:
    return max(range(len(scores)), key=lambda i: (scores[i], -i))


def _softmax(scores: list[float]) -> tuple[float, ...]:
    highest = max(scores)
    weights = [math.exp(score - highest) for score in scores]
    total = math.fsum(weights)
    return tuple(weight / total for weight in weights)
