"""What the fake backend makes of a scripted text: samples, pieces, made-up log-probabilities."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence

from ramet.runtime.protocol import (
    Delta,
    FinishReason,
    GenerateRequest,
    InvalidRequestError,
    LogprobParams,
    Sample,
    SamplingParams,
    TokenIds,
    TokenLogprob,
    UnsupportedFeatureError,
)

from .fake_text import END_ID, common_prefix, decode, encode

NUM_IDS = END_ID + 1


def sample_of(request: GenerateRequest, text: str) -> Sample:
    """Return a text as the request's constraint and stops leave it, and why it ends."""
    text, reason = _generated(request, text)
    ids = encode((), text)
    return Sample(
        reason=reason,
        ids=TokenIds.of(ids),
        text=text,
        logprobs=_logprobs(request.logprobs, ids),
    )


def deltas(request: GenerateRequest, samples: Sequence[Sample], num_pieces: int) -> Iterator[Delta]:
    """Give the samples in pieces, one piece of each after another."""
    cut = [_pieces(sample.text, num_pieces) for sample in samples]
    for place in range(max(map(len, cut))):
        for index, pieces in enumerate(cut):
            if place < len(pieces):
                ids = encode((), pieces[place])
                yield Delta(
                    request_id=request.id,
                    text=pieces[place],
                    index=index,
                    ids=TokenIds.of(ids),
                    logprobs=_logprobs(request.logprobs, ids),
                )


def prompt_logprobs(request: GenerateRequest, prompt: list[int]) -> tuple[TokenLogprob, ...]:
    """Return the log-probabilities of the prompt that the request wants."""
    wanted = request.logprobs
    if wanted is None or wanted.start < 0:
        return ()
    rows = _logprobs(wanted, prompt[wanted.start :])
    if wanted.start == 0 and rows:
        return (TokenLogprob(id=rows[0].id, text=rows[0].text, logprob=None), *rows[1:])
    return rows


def scores(own: Sequence[int], answer: Sequence[int]) -> tuple[float, ...]:
    """Return scores of an option's own tokens by which `answer` wins under every choice method.

    Tokens that stand where the answer has the same are alike, as those of a model are.
    """
    shared = common_prefix(own, answer)
    likely = [-0.01] * shared
    if shared == len(answer) and likely:
        likely[-1] = -0.005
    return (*likely, *[-10.0] * (len(own) - shared))


def unconditional_scores(length: int) -> tuple[float, ...]:
    """Return scores without a prompt: nothing stands before the first token."""
    return (0.0, *(-5.0,) * (length - 1)) if length else ()


def logprob_of(token: int) -> float:
    """Return the made-up log-probability of an id, wherever it stands."""
    return -(1 + token % 8) / 8


def _generated(request: GenerateRequest, text: str) -> tuple[str, FinishReason]:
    if request.sampling.max_new_tokens == 0:
        return "", FinishReason(kind="length")
    _check_constraint(request, text)
    first = min(_ends(request.sampling, text), default=None)
    if first is None:
        return text, FinishReason(kind="stop", matched=END_ID)
    end, negative_length, stop = first
    kept = end if request.sampling.no_stop_trim else end + negative_length
    return text[:kept], FinishReason(kind="stop", matched=stop)


def _ends(sampling: SamplingParams, text: str) -> Iterator[tuple[int, int, str]]:
    """Give where each stop completes, its length made negative, and what it is."""
    for stop in sampling.stop:
        if stop in text:
            yield text.find(stop) + len(stop), -len(stop), stop
    for pattern in sampling.stop_regex:
        try:
            found = [match for match in re.finditer(pattern, text) if match.group()]
        except re.error as error:
            raise InvalidRequestError(
                f"stop_regex {pattern!r} is not a regular expression: {error}"
            ) from error
        if found:
            first = min(found, key=lambda match: match.end())
            yield first.end(), -len(first.group()), pattern


def _check_constraint(request: GenerateRequest, text: str) -> None:
    constraint = request.constraint
    if constraint is None:
        return
    scripted = f"the answer scripted for {request.label!r}, {text!r},"
    if constraint.kind == "regex":
        if not re.fullmatch(constraint.value, text, re.ASCII):
            raise InvalidRequestError(f"{scripted} does not match the regex {constraint.value!r}")
    elif constraint.kind == "json_schema":
        try:
            json.loads(text)
        except ValueError as error:
            raise InvalidRequestError(f"{scripted} is not JSON: {error}") from error
    else:
        raise UnsupportedFeatureError(
            f"Fake does not check the grammar {constraint.kind}: script the answer of a gen with "
            "a regex or a JSON schema, or of one without a grammar"
        )


def _logprobs(wanted: LogprobParams | None, ids: Sequence[int]) -> tuple[TokenLogprob, ...]:
    if wanted is None:
        return ()
    top = sorted(range(NUM_IDS), key=lambda token: (-logprob_of(token), token))[: wanted.top]
    return tuple(
        TokenLogprob(
            id=token,
            text=decode([token]),
            logprob=logprob_of(token),
            top_ids=tuple(top),
            top_texts=tuple(decode([other]) for other in top),
            top_logprobs=tuple(map(logprob_of, top)),
            token_logprobs=tuple(map(logprob_of, wanted.token_ids)),
        )
        for token in ids
    )


def _pieces(text: str, count: int) -> list[str]:
    size = max(1, -(-len(text) // count))
    return [text[start : start + size] for start in range(0, len(text), size)]
