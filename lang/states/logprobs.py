"""Log-probabilities in SGLang's layout: `[logprob, id, text or None]` for each token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ramet.runtime.protocol import LogprobParams, TokenLogprob

Entry = list[Any]


def report(
    wanted: LogprobParams,
    prompt: Sequence[TokenLogprob],
    output: Sequence[TokenLogprob],
    *,
    with_text: bool,
) -> dict[str, Any]:
    """Return the entries of a meta info.

    `input_token_logprobs` begins at the asked start and `output_token_logprobs` with the first
    generated token. The likeliest tokens are in `input_top_logprobs` and `output_top_logprobs`,
    and the chosen ones in `input_token_ids_logprobs` and `output_token_ids_logprobs`, one list for
    each position; None where there is nothing before the position. Texts only `with_text`.
    """
    result: dict[str, Any] = {
        "input_token_logprobs": [_own(token, with_text) for token in prompt],
        "output_token_logprobs": [_own(token, with_text) for token in output],
        "output_token_logprobs_length": len(output),
    }
    if wanted.top:
        result["input_top_logprobs"] = [_top(token, with_text) for token in prompt]
        result["output_top_logprobs"] = [_top(token, with_text) for token in output]
    if wanted.token_ids:
        result["input_token_ids_logprobs"] = [_chosen(token, wanted) for token in prompt]
        result["output_token_ids_logprobs"] = [_chosen(token, wanted) for token in output]
    return result


def _own(token: TokenLogprob, with_text: bool) -> Entry:
    return [token.logprob, token.id, token.text if with_text else None]


def _top(token: TokenLogprob, with_text: bool) -> list[Entry] | None:
    if token.logprob is None:
        return None
    rows = zip(token.top_logprobs, token.top_ids, token.top_texts, strict=True)
    return [[logprob, id, text if with_text else None] for logprob, id, text in rows]


def _chosen(token: TokenLogprob, wanted: LogprobParams) -> list[Entry] | None:
    if token.logprob is None:
        return None
    rows = zip(token.token_logprobs, wanted.token_ids, strict=True)
    return [[logprob, id, None] for logprob, id in rows]
