"""What `get_meta_info` reports of a variable.

For a gen: `id`, `finish_reason` (`type` "stop" or "length", `matched`), `prompt_tokens`,
`cached_tokens`, `computed_tokens`, `recomputed_tokens`, `completion_tokens`, `queue_time`,
`first_token_latency`, `e2e_latency` (seconds), `seed`. For a select, `finish_reason.type` is
"select", and there are `choices` (for each option its `text`, own token `ids`, their `logprobs`
and its `probability` among the options), `choices_method`, `trunk_ids` and `trunk_text`.
A variable that the program set itself, or that a join made, has none: the dictionary is empty.
"""

from __future__ import annotations

from typing import Any

from .backends.base import Backend
from .value import Evidence, Value


def describe(value: Value, backend: Backend) -> dict[str, Any]:
    """Return the meta info of a value that is there."""
    evidence = value.evidence
    if evidence is None:
        return {}
    usage, timings = evidence.usage, evidence.timings
    result: dict[str, Any] = {
        "id": evidence.request_id,
        "finish_reason": {"type": evidence.reason, "matched": evidence.matched},
        "prompt_tokens": usage.prompt_tokens,
        "cached_tokens": usage.cached_tokens,
        "computed_tokens": usage.computed_tokens,
        "recomputed_tokens": usage.recomputed_tokens,
        "completion_tokens": usage.generated_tokens,
        "queue_time": timings.queue,
        "first_token_latency": timings.first_token,
        "e2e_latency": timings.total,
    }
    if evidence.decision is None:
        return {**result, "seed": value.seed}
    return {**result, **_of_select(evidence, backend)}


def _of_select(evidence: Evidence, backend: Backend) -> dict[str, Any]:
    decision = evidence.decision
    if decision is None:
        return {}
    scored = zip(evidence.options, decision.logprobs, decision.probabilities, strict=True)
    return {
        "choices": [
            {"text": text, "ids": list(ids), "logprobs": list(row), "probability": probability}
            for (ids, text), row, probability in scored
        ],
        "choices_method": evidence.method,
        "trunk_ids": list(evidence.trunk),
        "trunk_text": backend.render((evidence.trunk,)),
    }
