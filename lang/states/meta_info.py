"""What `get_meta_info` reports of a variable.

For a gen: `id`, `finish_reason` (`type` "stop" or "length", `matched`), `prompt_tokens`,
`cached_tokens`, `computed_tokens`, `recomputed_tokens`, `completion_tokens`, `queue_time`,
`first_token_latency`, `e2e_latency` (seconds), `cached_result` (True: `ramet.Cached` had the
answer), `seed`. For a select, `finish_reason.type` is
"select", and there are `choices` (for each option its `text`, own token `ids`, their `logprobs`
and its `probability` among the options), `choices_method`, `trunk_ids` and `trunk_text`.
With `function(num_api_spec_tokens=…)` there is `speculation`: "not applicable" on this machine.
With `return_logprob` there are SGLang's `input_token_logprobs`, `output_token_logprobs` and their
likes (see `ramet.states.logprobs`): entries are `[logprob, token id, text]`, the text None unless
`return_text_in_logprobs` was given; those of the input begin at position `logprob_start_len` of
the state's whole prompt. A gen with `n` samples also has the list `samples`: for each its
`finish_reason`, `seed` and log-probabilities; outside of it are those of the first.

A select also has SGLang's `normalized_prompt_logprobs` (means over the own tokens),
`input_token_logprobs` and `output_token_logprobs` (a list for each option), and by its method
`greedy_logprob_matrix`, or `unconditional_token_logprobs` and
`normalized_unconditional_prompt_logprobs` (the means of what the prompt adds).

A variable that the program set itself, or that a join made, has none: the dictionary is empty.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ramet.runtime.protocol import TokenIds, sample_seed

from ..backends.base import Backend
from ..choices import (
    Decision,
    Rows,
    greedy_matrix,
    greedy_token_selection,
    means,
    normalized_gains,
)
from .logprobs import report
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
        "attempts": value.attempts,
        "cached_result": evidence.is_remembered,
    }
    if value.stream is not None and value.stream.run.settings.num_api_spec_tokens is not None:
        result["speculation"] = "not applicable"
    if evidence.decision is None:
        return {**result, **_of_gen(value, evidence)}
    return {**result, **_of_select(evidence, evidence.decision, backend)}


def _of_gen(value: Value, evidence: Evidence) -> dict[str, Any]:
    samples = [_of_sample(value, evidence, index) for index in range(len(evidence.samples))]
    if len(samples) == 1:
        return samples[0]
    return {**samples[0], "samples": samples}


def _of_sample(value: Value, evidence: Evidence, index: int) -> dict[str, Any]:
    sample = evidence.samples[index]
    result: dict[str, Any] = {
        "finish_reason": {"type": sample.reason.kind, "matched": sample.reason.matched},
        "seed": sample_seed(value.seed, index),
    }
    if value.wanted is None:
        return result
    prompt, output = evidence.prompt_logprobs, sample.logprobs
    return {**result, **report(value.wanted, prompt, output, with_text=value.with_text)}


def _of_select(evidence: Evidence, decision: Decision, backend: Backend) -> dict[str, Any]:
    ids = [ids for ids, _ in evidence.options]
    scored = zip(evidence.options, decision.logprobs, decision.probabilities, strict=True)
    result: dict[str, Any] = {
        "choices": [
            {"text": text, "ids": list(ids), "logprobs": list(row), "probability": probability}
            for (ids, text), row, probability in scored
        ],
        "choices_method": evidence.method,
        "trunk_ids": list(evidence.trunk),
        "trunk_text": backend.render((evidence.trunk,)),
        "normalized_prompt_logprobs": list(means(decision.logprobs)),
        "input_token_logprobs": _entries(decision.logprobs, ids),
        "output_token_logprobs": [[] for _ in ids],
    }
    if evidence.method == greedy_token_selection.__name__:
        result["greedy_logprob_matrix"] = [list(row) for row in greedy_matrix(decision.logprobs)]
    if decision.unconditional:
        gains = normalized_gains(decision.logprobs, decision.unconditional)
        result["unconditional_token_logprobs"] = _entries(decision.unconditional, ids)
        result["normalized_unconditional_prompt_logprobs"] = list(gains)
    return result


def _entries(rows: Rows, ids: Sequence[TokenIds]) -> list[list[list[Any]]]:
    """Return `[logprob, id, None]` for each own token of each option."""
    return [
        [[logprob, token, None] for logprob, token in zip(row, own, strict=False)]
        for row, own in zip(rows, ids, strict=True)
    ]
