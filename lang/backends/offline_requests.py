"""The arguments of `Engine.generate`, in SGLang's form, as requests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

from ramet.runtime.protocol import (
    LOGPROB_NAMES,
    GenerateRequest,
    InvalidRequestError,
    LogprobParams,
    SamplingParams,
    Segment,
    Text,
    TokenIds,
    UnsupportedFeatureError,
    normalize_options,
    params_of,
    unknown_name,
)
from ramet.runtime.protocol.checks import check_bool, check_integer

from ..execution.seeds import random_seed
from ..expressions.constraints import constraint_of
from .calls import call_id

_GRAMMARS = ("regex", "json_schema", "ebnf", "structural_tag")
_SAMPLING = tuple(field.name for field in fields(SamplingParams))
_SPACES = "spaces_between_special_tokens"
_KEYS = (*_SAMPLING, *_GRAMMARS, "sampling_seed", _SPACES)
_MEDIA = ("image_data", "audio_data", "video_data")
_OPTIONS = (
    *("input_ids", "stream", "priority", "cache_salt", "rid", "timeout"),
    *LOGPROB_NAMES,
    *_MEDIA,
)


@dataclass(frozen=True, slots=True)
class Call:
    """One call of `generate`: its requests, and how the answers are handed back.

    Attributes:
        is_batch: several prompts, so that the answers are a list.
        num_samples: how many answers each request has.
    """

    requests: tuple[GenerateRequest, ...]
    is_batch: bool
    num_samples: int
    logprobs: LogprobParams | None
    with_text: bool
    stream: bool
    timeout: float | None

    @property
    def has_index(self) -> bool:
        """True where there are several answers, which then say their `index`."""
        return self.is_batch or self.num_samples > 1

    def shaped(self, answers: list[dict[str, Any]]) -> Any:
        """Return the one answer, or all of them in their order."""
        if not self.has_index:
            return answers[0]
        answers = sorted(answers, key=lambda answer: int(answer["index"]))
        return [{k: v for k, v in answer.items() if k != "index"} for answer in answers]


def requests_of(prompt: object, sampling_params: object, options: dict[str, Any]) -> Call:
    """Return the call.

    Raises:
        TypeError: an unknown option or sampling parameter; the nearest one is named.
        InvalidRequestError: a value out of range, or lists of different lengths.
        UnsupportedFeatureError: images, audio or video.
    """
    given = _checked(options)
    prompts, is_batch = _prompts(prompt, given.get("input_ids"))
    sampling = list(_sampling(sampling_params, len(prompts), is_batch))
    ids = _ids(given.get("rid"), len(prompts), is_batch)
    logprobs = _logprobs(given)
    stream = given.get("stream", False)
    check_bool("stream", stream)
    requests = []
    for id, segments, own in zip(ids, prompts, sampling, strict=True):
        seed = own.pop("sampling_seed", None)
        if seed is not None:
            check_integer("sampling_seed", seed, low=0)
        constraint, _ = constraint_of({name: own.pop(name, None) for name in _GRAMMARS})
        requests.append(
            GenerateRequest(
                id=id,
                prompt=segments,
                sampling=params_of(own)[0],
                seed=random_seed() if seed is None else seed,
                constraint=constraint,
                logprobs=logprobs,
                stream=stream,
                timeout=given.get("timeout"),
                priority=given.get("priority", 0),
                cache_salt=given.get("cache_salt", ""),
            )
        )
    counts = {request.sampling.n for request in requests}
    if len(counts) > 1:
        raise InvalidRequestError(f"n must be the same for all prompts, not {sorted(counts)}")
    return Call(
        tuple(requests),
        is_batch,
        min(counts, default=1),
        logprobs,
        given.get("return_text_in_logprobs", False),
        stream,
        given.get("timeout"),
    )


def _checked(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options that were given."""
    for name in options:
        if name not in _OPTIONS:
            raise TypeError(unknown_name(name, _OPTIONS, "option of generate"))
    given = {name: value for name, value in options.items() if value is not None}
    for name in _MEDIA:
        if name in given:
            raise UnsupportedFeatureError(
                f"{name} cannot be given: the models of this engine read text. A vision endpoint "
                "behind ramet.OpenAI could; that backend comes with the HTTP server"
            )
    check_integer("priority", given.get("priority", 0), low=-(2**63))
    if not isinstance(given.get("cache_salt", ""), str):
        raise InvalidRequestError(f"cache_salt must be a string, not {given['cache_salt']!r}")
    return given


def _prompts(prompt: object, input_ids: object) -> tuple[list[tuple[Segment, ...]], bool]:
    if (prompt is None) == (input_ids is None):
        raise InvalidRequestError("give either a prompt or input_ids")
    if isinstance(prompt, str):
        return [_text(prompt)], False
    if prompt is not None:
        if not isinstance(prompt, (list, tuple)):
            raise InvalidRequestError(
                f"prompt must be a string or a list of strings, not {prompt!r}"
            )
        return [_text(item) for item in prompt], True
    if not isinstance(input_ids, (list, tuple)):
        raise InvalidRequestError(f"input_ids must be a list of token ids, not {input_ids!r}")
    if input_ids and isinstance(input_ids[0], (list, tuple)):
        return [_token_ids(item) for item in input_ids], True
    return [_token_ids(input_ids)], False


def _text(prompt: object) -> tuple[Segment, ...]:
    if not isinstance(prompt, str):
        raise InvalidRequestError(f"a prompt must be a string, not {prompt!r}")
    return (Text(prompt, parse_special=True),)


def _token_ids(ids: object) -> tuple[Segment, ...]:
    if not isinstance(ids, (list, tuple)):
        raise InvalidRequestError(f"input_ids must hold lists of token ids only, not {ids!r}")
    for token in ids:
        check_integer("input_ids", token, low=0, high=2**31 - 1)
    return (TokenIds.of(ids),)


def _sampling(given: object, num_prompts: int, is_batch: bool) -> Iterator[dict[str, Any]]:
    """Give the normalized sampling parameters of each prompt."""
    if isinstance(given, (list, tuple)):
        if not is_batch or len(given) != num_prompts:
            raise InvalidRequestError(
                f"{len(given)} sampling_params for {num_prompts} prompts: give one dict, or a "
                "list of prompts and one dict for each"
            )
        yield from map(_normalized, given)
    else:
        yield from (_normalized(given) for _ in range(num_prompts))


def _normalized(given: object) -> dict[str, Any]:
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise TypeError(f"sampling_params must be a dict, not {given!r}")
    for name in given:
        if name not in _KEYS:
            raise TypeError(unknown_name(str(name), _KEYS, "sampling parameter"))
    if given.get(_SPACES) not in (None, True):
        raise UnsupportedFeatureError(
            f"{_SPACES} can only be True: text comes from the tokens' bytes, and nothing is put "
            "between them"
        )
    others = {
        name: given[name] for name in ("sampling_seed", *_GRAMMARS) if given.get(name) is not None
    }
    own = {name: value for name, value in given.items() if name in _SAMPLING}
    return {**normalize_options(own), **others}


def _ids(rid: object, num_prompts: int, is_batch: bool) -> list[str]:
    """Return an id for each request; one string for a batch becomes `rid_0`, `rid_1` …"""
    if rid is None:
        return [call_id("generate") for _ in range(num_prompts)]
    if isinstance(rid, str) and rid:
        return [f"{rid}_{index}" for index in range(num_prompts)] if is_batch else [rid]
    if not isinstance(rid, (list, tuple)) or not all(isinstance(i, str) and i for i in rid):
        raise InvalidRequestError(f"rid must be a non-empty string or a list of them, not {rid!r}")
    if not is_batch or len(rid) != num_prompts or len(set(rid)) != len(rid):
        raise InvalidRequestError(f"rid must hold one id of its own for each prompt, not {rid!r}")
    return list(rid)


def _logprobs(given: dict[str, Any]) -> LogprobParams | None:
    _, wanted = params_of(normalize_options({n: given[n] for n in LOGPROB_NAMES if n in given}))
    if wanted is not None:
        return wanted
    neutral = {"logprob_start_len": -1, "top_logprobs_num": 0, "token_ids_logprob": []}
    for name in LOGPROB_NAMES[1:]:
        if given.get(name, False) not in (False, neutral.get(name, False)):
            raise InvalidRequestError(f"{name} needs return_logprob=True")
    return None
