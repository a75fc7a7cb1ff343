"""Conversations that fit: `ramet.trim`."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ramet.runtime.protocol import (
    ContextLengthError,
    RoleBegin,
    RoleEnd,
    Segment,
    Text,
    TokenIds,
)
from ramet.runtime.protocol.checks import check_bool, check_integer, check_number

from ..backends.base import Backend
from ..execution import context
from ..expressions.graph import Text as TextNode
from .conversation import Message, check_messages, turn_of

_log = logging.getLogger("ramet")
_BEFORE = TokenIds.of((0,))  # so that a turn alone is not counted as the beginning of a prompt


class Trimmed(list[Any]):
    """The messages that are kept; `dropped` are those that are not, in their order.

    Example:
        >>> kept = ramet.trim([{"role": "user", "content": "Hi"}], 100, backend=ramet.Fake())
        >>> kept, kept.dropped
        ([{'role': 'user', 'content': 'Hi'}], [])
    """

    def __init__(self, kept: Iterable[Message], dropped: Iterable[Message]) -> None:
        super().__init__(kept)
        self.dropped: list[Message] = list(dropped)


@dataclass(slots=True)
class _Group:
    """A user's turn with its answers, or what stands before the first one."""

    first: int  # index of its first message
    num_tokens: int = 0


def trim(
    messages: Iterable[Message],
    max_tokens: int,
    *,
    keep_system: bool = True,
    low_water: float = 0.75,
    backend: Backend | None = None,
) -> Trimmed:
    """Return the end of a conversation that fits into `max_tokens`.

    Whole turns are dropped, the oldest first: a user's turn with all that answers it, so that no
    tool's result is left without its call. When something must go, so much goes that `low_water`
    of the limit is reached; and which turns those are follows from the conversation alone. So as
    it grows message by message, the kept part begins alike until the next drop, and a prefix cache
    keeps it. The result says what was `dropped`, and one log line how much.

    Args:
        messages: as for `ramet.messages`.
        max_tokens: the limit, counted in the model's tokens with its role markers, at least 1.
        keep_system: system messages are never dropped; True.
        low_water: the share of `max_tokens` that is left after a drop, in (0, 1].
        backend: whose tokens count; None = the backend in force, as for a run.

    Raises:
        ContextLengthError: not even the last turn fits, with the system messages that are kept;
            `num_tokens` and `limit` are the numbers.
        InvalidRequestError: a limit out of range.
        TypeError, InvalidRequestError: messages that `ramet.messages` refuses.

    Example:
        >>> history = [{"role": "user", "content": text} for text in ("one", "two", "three")]
        >>> kept = ramet.trim(history, 34, backend=ramet.Fake())
        >>> [message["content"] for message in kept], len(kept.dropped)
        (['two', 'three'], 1)
    """
    check_integer("max_tokens", max_tokens, low=1)
    check_number("low_water", low_water, low=0.0, high=1.0, low_open=True)
    check_bool("keep_system", keep_system)
    given = list(check_messages("trim", messages))
    trimmer = _Trimmer(given, keep_system, context.backend_in_force(backend))
    start = trimmer.start_of_kept(max_tokens, int(max_tokens * low_water))
    return trimmer.result(start, max_tokens)


class _Trimmer:
    def __init__(self, messages: list[Message], keep_system: bool, backend: Backend) -> None:
        self._messages = messages
        self._backend = backend
        self._turns = [_segments(message, index) for index, message in enumerate(messages)]
        self._is_kept = [keep_system and m["role"] == "system" for m in messages]

    def start_of_kept(self, max_tokens: int, low: int) -> int:
        """Return the first message that is not dropped, as if they had come one by one."""
        groups: list[_Group] = []
        first, total = 0, 0  # the first group that is kept, and the tokens of all that is
        for index, message in enumerate(self._messages):
            size = self._size(index)
            total += size
            if self._is_kept[index]:
                continue
            if not groups or message["role"] == "user":
                groups.append(_Group(index))
            groups[-1].num_tokens += size
            if total > max_tokens:
                while total > low and first < len(groups) - 1:
                    total -= groups[first].num_tokens
                    first += 1
        return groups[first].first if first else 0

    def result(self, start: int, max_tokens: int) -> Trimmed:
        """Return what is kept from `start` on, or from a later turn where that does not fit."""
        while True:
            kept = [i for i in range(len(self._messages)) if i >= start or self._is_kept[i]]
            num_tokens = self._count(kept)
            if num_tokens <= max_tokens:
                break
            start = self._next_group(start, num_tokens, max_tokens)
        chosen = set(kept)
        dropped = [m for i, m in enumerate(self._messages) if i not in chosen]
        if dropped:
            _log.warning(
                "trim dropped %d of %d messages: the other %d have %d tokens of at most %d",
                *(len(dropped), len(self._messages), len(kept), num_tokens, max_tokens),
            )
        return Trimmed([self._messages[i] for i in kept], dropped)

    def _next_group(self, start: int, num_tokens: int, max_tokens: int) -> int:
        for index in range(start + 1, len(self._messages)):
            if self._messages[index]["role"] == "user":
                return index
        raise ContextLengthError(
            f"the last turn of the conversation, with what is kept before it, has {num_tokens} "
            f"tokens, and the limit is {max_tokens}: shorten it, or allow more",
            num_tokens=num_tokens,
            limit=max_tokens,
        )

    def _size(self, index: int) -> int:
        """Return how many tokens a message adds to those before it."""
        previous = self._role(index - 1) if index else None
        segments = (_BEFORE, *self._segments(index, previous))
        return self._backend.count_tokens(segments) - len(_BEFORE)

    def _count(self, kept: list[int]) -> int:
        """Return how many tokens the conversation of some of the messages has, exactly."""
        segments: list[Segment] = []
        previous: str | None = None
        for index in kept:
            segments += self._segments(index, previous)
            previous = self._role(index)
        return self._backend.count_tokens(tuple(segments))

    def _role(self, index: int) -> str:
        return str(self._messages[index]["role"])

    def _segments(self, index: int, previous: str | None) -> tuple[Segment, ...]:
        role = self._role(index)
        return (RoleBegin(role, previous), *self._turns[index], RoleEnd(role))


def _segments(message: object, index: int) -> tuple[Text, ...]:
    """Check a message, and return its text."""
    nodes = turn_of(message, index)
    return tuple(Text(node.text) for node in nodes if isinstance(node, TextNode))
