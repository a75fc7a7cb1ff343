"""One step of the engine as plain data: what the scheduler asks and what the runner answers.

A plan holds arrays and numbers only, so that it can be logged, compared, or broadcast to ranks.
The scheduler never sees a tensor; the runner never sees a request.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from .protocol import SamplingParams

Int32Array = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Draw:
    """Sample one token from logit row `row`.

    `seed` and `position` (the output position, 0 for the first generated token) key the noise.
    `banned` ids are never sampled (end-of-turn tokens before `min_new_tokens`). `history` holds
    prompt and output so far, the last `position` of them generated; it is there only where
    `sampling.has_penalties`. With `report` the log-probability of the drawn token is reported,
    then those of `report.ids` and the `report.top` likeliest.
    """

    row: int
    seed: int
    position: int
    sampling: SamplingParams
    banned: tuple[int, ...] = ()
    history: Int32Array | None = None
    report: Gather | None = None


@dataclass(frozen=True, slots=True)
class Gather:
    """Report the log-probabilities of `ids` in logit row `row`, and the `top` likeliest there."""

    row: int
    ids: tuple[int, ...]
    top: int = 0


@dataclass(frozen=True, slots=True)
class RowLogprobs:
    """Log-probabilities of one row: of the asked ids in their order, and the likeliest.

    `top` holds (id, log-probability), likeliest first, equals by id.
    """

    logprobs: list[float]
    top: list[tuple[int, float]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class StepPlan:
    """A forward pass over S sequences with T new tokens in all, and R wanted logit rows.

    Sequence s has the new tokens `q_indptr[s]:q_indptr[s+1]` of the flat arrays, its last
    positions; its KV, those tokens included, lies at
    `kv_slots[kv_indptr[s]:kv_indptr[s+1]]`, one slot per position from 0.
    """

    input_ids: Int32Array  # [T]
    positions: Int32Array  # [T]
    slot_mapping: Int32Array  # [T] the slot that each new token's KV is written to
    q_indptr: Int32Array  # [S+1]
    kv_indptr: Int32Array  # [S+1]
    kv_slots: Int32Array  # [kv_indptr[-1]]
    logit_rows: Int32Array  # [R] indices into the T new tokens
    draws: tuple[Draw, ...] = ()
    gathers: tuple[Gather, ...] = ()
    trunk_groups: tuple[tuple[int, ...], ...] = ()  # sequences that share whole leading blocks


@dataclass(frozen=True, slots=True)
class StepResult:
    """Answers in the plan's order. A draw of −1 says that its logits were not finite.

    `gathered` has one entry per gather, NaN as it is. `reported` has one per draw: None where
    there was no report, else the drawn token's log-probability first, then the asked ids'.
    """

    tokens: list[int] = field(default_factory=list)  # one per draw
    gathered: list[RowLogprobs] = field(default_factory=list)
    reported: list[RowLogprobs | None] = field(default_factory=list)


class Runner(Protocol):
    """Runs steps in two phases, so that a device can work while the host plans ahead."""

    @property
    def num_slots(self) -> int:
        """KV slots that may be used, numbered from 1 (slot 0 is padding and stays zero)."""
        ...

    def launch(self, plan: StepPlan) -> object:
        """Start the step and return what `collect` takes."""
        ...

    def collect(self, pending: object) -> StepResult:
        """Wait for the step and return its answers."""
        ...
