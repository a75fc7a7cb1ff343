"""Counters of an engine: sums since its start that only grow."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..protocol import Usage


@dataclass(slots=True)
class Counters:
    """`usage` is the sum over requests, as each was admitted; `num_generated` counts apart."""

    usage: Usage = field(default_factory=Usage)
    num_generated: int = 0
    num_steps: int = 0
    num_retractions: int = 0
    num_failed_steps: int = 0

    def as_dict(self) -> dict[str, int]:
        """Return them by name."""
        return {
            "prompt_tokens": self.usage.prompt_tokens,
            "cached_tokens": self.usage.cached_tokens,
            "computed_tokens": self.usage.computed_tokens,
            "recomputed_tokens": self.usage.recomputed_tokens,
            "generated_tokens": self.num_generated,
            "steps": self.num_steps,
            "retractions": self.num_retractions,
            "failed_steps": self.num_failed_steps,
        }
