"""What a Fake answers to a select: the scripted option wins, with made-up scores."""

from __future__ import annotations

from ramet.runtime.protocol import (
    InvalidRequestError,
    OptionScore,
    Scored,
    ScoreRequest,
    Timings,
    TokenIds,
)

from .fake_samples import scores, unconditional_scores
from .fake_text import PrefixHistory, common_prefix, decode, encode, num_known


def scored(request: ScoreRequest, text: str, history: PrefixHistory, seconds: float) -> Scored:
    """Return scores with which option `text` wins; `history` counts what was cached.

    Raises:
        InvalidRequestError: `text` is none of the options.
    """
    if text not in request.options:
        raise InvalidRequestError(
            f"the answer scripted for {request.label!r}, {text!r}, is none of the options "
            f"{list(request.options)}"
        )
    rows = [encode(request.prompt, option) for option in request.options]
    length = min(common_prefix(rows[0], row) for row in rows)
    answer = rows[request.options.index(text)]
    options = tuple(
        OptionScore(
            ids=TokenIds.of(row[length:]),
            logprobs=scores(row[length:], answer[length:]),
            text=decode(row[length:]),
            unconditional=unconditional_scores(len(row) - length)
            if request.unconditional
            else None,
        )
        for row in rows
    )
    usage = sum((history.usage(row, []) for row in rows[1:]), history.usage(rows[0], []))
    prefix = num_known(request.prompt)
    return Scored(
        request_id=request.id,
        prefix_tokens=prefix,
        trunk=TokenIds.of(rows[0][prefix:length]),
        options=options,
        usage=usage,
        timings=Timings(total=seconds),
    )
