"""Limits: how long a prompt and its answer can be."""

from __future__ import annotations

from dataclasses import dataclass

from ..protocol import ContextLengthError


@dataclass(frozen=True, slots=True)
class Limits:
    """How long a prompt and its answer can be, and which ids end a turn."""

    context_length: int
    num_slots: int
    eos_ids: frozenset[int]

    def check(self, num_tokens: int, what: str = "the prompt has") -> None:
        """Refuse a prompt that leaves no room for one more token.

        Raises:
            ContextLengthError: the message states both numbers.
        """
        if num_tokens + 1 > self.context_length:
            raise ContextLengthError(
                f"{what} {num_tokens} tokens and the model's context is "
                f"{self.context_length}: shorten the prompt or use a model with a longer context",
                num_tokens=num_tokens,
                limit=self.context_length,
            )
        if num_tokens + 1 > self.num_slots:
            raise ContextLengthError(
                f"{what} {num_tokens} tokens and the KV pool {self.num_slots} slots: "
                "shorten the prompt or raise max_total_tokens",
                num_tokens=num_tokens,
                limit=self.num_slots,
            )

    def room(self, num_tokens: int) -> int:
        """Return how many tokens can be generated after a prompt of `num_tokens`."""
        return min(self.context_length, self.num_slots) - num_tokens
