"""Sampling parameters and constraints: declared once, here, and checked once."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from hashlib import blake2b
from typing import Any, Literal, TypedDict

from .checks import check_bool, check_integer, check_number, check_strings, items
from .errors import InvalidRequestError
from .logprobs import LogprobParams

MAX_STOP_STRINGS = 32
MAX_STOP_REGEX_BYTES = 256
MAX_SAMPLES = 128
MAX_LOGIT_BIAS = 100.0
MAX_NAMED = 8  # so many names an error tells where none is near


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How one generation samples and when it stops.

    Logits go through penalties, the mask of a constraint, `logit_bias`, temperature, top-k, top-p
    and min-p, in this order.

    Attributes:
        max_new_tokens: limit of generated tokens, ≥ 0; 0 only fills the cache; None = until the
            context is full.
        min_new_tokens: no end-of-turn token and no stop before this many tokens, ≥ 0.
        n: how many continuations, 1 to 128; they share the prompt.
        temperature: ≥ 0, finite; below 1e-6 is greedy (ties go to the lowest id).
        top_p: nucleus, in (0, 1].
        top_k: −1 = all, else ≥ 1.
        min_p: in [0, 1]; drops tokens less likely than this share of the likeliest.
        frequency_penalty: in [−2, 2]; taken off a token's logit once per time it was generated.
        presence_penalty: in [−2, 2]; taken off the logit of every token that was generated.
        repetition_penalty: in (0, 2]; the logit of every token of prompt and output is divided
            by it where it is positive, multiplied where negative. 1 = off.
        logit_bias: pairs of token id and what is added to its logit, in [−100, 100].
        stop: up to 32 non-empty strings; the text ends before the match that completes first.
        stop_regex: up to 32 patterns of at most 256 bytes, as `stop`; at most 4,096 states in all.
        stop_token_ids: ids that end the generation; the id is not part of the text.
        ignore_eos: go on past the model's end-of-turn tokens.
        no_stop_trim: what matched `stop` or `stop_regex` stays part of the text.
        skip_special_tokens: special tokens have no text.

    Raises:
        InvalidRequestError: a value out of range or of the wrong type, naming the parameter.
    """

    max_new_tokens: int | None = 128
    min_new_tokens: int = 0
    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    stop: tuple[str, ...] = ()
    stop_regex: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    no_stop_trim: bool = False
    skip_special_tokens: bool = True

    def __post_init__(self) -> None:
        if self.max_new_tokens is not None:
            check_integer("max_new_tokens", self.max_new_tokens, low=0)
        check_integer("min_new_tokens", self.min_new_tokens, low=0)
        if self.max_new_tokens is not None and self.min_new_tokens > self.max_new_tokens:
            raise InvalidRequestError(
                f"min_new_tokens={self.min_new_tokens} is more than "
                f"max_new_tokens={self.max_new_tokens}"
            )
        check_integer("n", self.n, low=1, high=MAX_SAMPLES)
        check_number("temperature", self.temperature, low=0.0)
        check_number("top_p", self.top_p, low=0.0, high=1.0, low_open=True)
        check_number("min_p", self.min_p, low=0.0, high=1.0)
        if self.top_k != -1:
            check_integer("top_k", self.top_k, low=1, also="or -1 for all tokens")
        for name in ("frequency_penalty", "presence_penalty"):
            check_number(name, getattr(self, name), low=-2.0, high=2.0)
        check_number(
            "repetition_penalty", self.repetition_penalty, low=0.0, high=2.0, low_open=True
        )
        _check_logit_bias(self.logit_bias)
        check_strings("stop", self.stop, most=MAX_STOP_STRINGS)
        check_strings(
            "stop_regex", self.stop_regex, most=MAX_STOP_STRINGS, longest=MAX_STOP_REGEX_BYTES
        )
        for token in items("stop_token_ids", self.stop_token_ids):
            check_integer("stop_token_ids", token, low=0)
        for name in ("ignore_eos", "no_stop_trim", "skip_special_tokens"):
            check_bool(name, getattr(self, name))

    @property
    def is_greedy(self) -> bool:
        """True where the likeliest token is taken and no noise is drawn."""
        return self.temperature < 1e-6

    @property
    def has_penalties(self) -> bool:
        """True where what a token's logit becomes depends on the tokens before."""
        return bool(
            self.frequency_penalty or self.presence_penalty or self.repetition_penalty != 1.0
        )


class GenOptions(TypedDict, total=False):
    """The same parameters as keyword options of a gen, each optional.

    `min_tokens` is another spelling of `min_new_tokens`; `stop` and `stop_regex` may be one
    string and `logit_bias` a dict; None means "not given". `max_tokens` is a parameter of `gen`
    itself. With `return_logprob` the meta info has the log-probabilities of the generated tokens;
    `logprob_start_len` (from that prompt position on too), `top_logprobs_num`,
    `token_ids_logprob` and `return_text_in_logprobs` say what else.
    """

    max_new_tokens: int | None
    min_tokens: int | None
    min_new_tokens: int | None
    n: int | None
    temperature: float | None
    top_p: float | None
    top_k: int | None
    min_p: float | None
    frequency_penalty: float | None
    presence_penalty: float | None
    repetition_penalty: float | None
    logit_bias: Mapping[int, float] | None
    stop: str | Iterable[str] | None
    stop_regex: str | Iterable[str] | None
    stop_token_ids: Iterable[int] | None
    ignore_eos: bool | None
    no_stop_trim: bool | None
    skip_special_tokens: bool | None
    return_logprob: bool | None
    logprob_start_len: int | None
    top_logprobs_num: int | None
    token_ids_logprob: Iterable[int] | None
    return_text_in_logprobs: bool | None


class SamplingOptions(GenOptions, total=False):
    """All of them: `max_tokens` is another spelling of `max_new_tokens`."""

    max_tokens: int | None


ALIASES = {"max_tokens": "max_new_tokens", "min_tokens": "min_new_tokens"}
LOGPROB_NAMES = (
    "return_logprob",
    "logprob_start_len",
    "top_logprobs_num",
    "token_ids_logprob",
    "return_text_in_logprobs",
)
_NAMES = (*(field.name for field in fields(SamplingParams)), *LOGPROB_NAMES)


def normalize_options(options: Mapping[str, object]) -> dict[str, object]:
    """Return `options` under their field names, without those that are None.

    Raises:
        TypeError: an unknown name (the nearest known one is named), or two spellings at once.
    """
    result: dict[str, object] = {}
    for given, value in options.items():
        name = ALIASES.get(given, given)
        if name not in _NAMES:
            raise TypeError(unknown_name(given, (*_NAMES, *ALIASES), "option"))
        if value is None:
            continue
        if name in result:
            raise TypeError(f"{given!r} and its other spelling were both given: keep one")
        result[name] = _normalize_value(name, value)
    return result


def params_of(options: Mapping[str, Any]) -> tuple[SamplingParams, LogprobParams | None]:
    """Return what normalized options say: how to sample, and which log-probabilities to report.

    Raises:
        InvalidRequestError: a value out of range or of the wrong type, naming the parameter.
    """
    sampling = SamplingParams(
        **{name: value for name, value in options.items() if name not in LOGPROB_NAMES}
    )
    for name in ("return_logprob", "return_text_in_logprobs"):
        check_bool(name, options.get(name, False))
    wanted = LogprobParams(
        start=options.get("logprob_start_len", -1),
        top=options.get("top_logprobs_num", 0),
        token_ids=options.get("token_ids_logprob", ()),
    )
    return sampling, wanted if options.get("return_logprob", False) else None


def sample_seed(seed: int, index: int) -> int:
    """Return the seed of sample `index` of a request: `seed` itself for the first."""
    if index == 0:
        return seed
    digest = blake2b(repr(("sample", seed, index)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def unknown_name(given: str, known: Iterable[str], kind: str) -> str:
    """Return the message for an unknown `kind` of name, naming the nearest known one or all."""
    names = list(known)
    near = difflib.get_close_matches(given, names, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    if not near and 0 < len(names) <= MAX_NAMED:
        hint = f": there are {', '.join(names)}"
    return f"unknown {kind} {given!r}{hint}"


def _normalize_value(name: str, value: object) -> object:
    if name in ("stop", "stop_regex"):
        return (value,) if isinstance(value, str) else items(name, value)
    if name in ("stop_token_ids", "token_ids_logprob"):
        return items(name, value)
    if name == "logit_bias":
        if not isinstance(value, Mapping):
            raise InvalidRequestError(
                f"logit_bias must be a dict from token id to bias, not {value!r}"
            )
        return tuple(value.items())
    return value


def _check_logit_bias(pairs: object) -> None:
    for pair in items("logit_bias", pairs):
        entry = items("logit_bias", pair)
        if len(entry) != 2:
            raise InvalidRequestError(f"logit_bias must hold (token id, bias) pairs, not {pair!r}")
        check_integer("logit_bias: a token id", entry[0], low=0)
        check_number(
            f"logit_bias of token {entry[0]}", entry[1], low=-MAX_LOGIT_BIAS, high=MAX_LOGIT_BIAS
        )


ConstraintKind = Literal["regex", "json_schema", "ebnf", "structural_tag"]


@dataclass(frozen=True, slots=True)
class Constraint:
    """What the generated text must match.

    `regex` is a full match with `re.ASCII` meaning, `json_schema` a schema as JSON text (`{}` for
    any value), `ebnf` a grammar whose start is `root`, `structural_tag` its JSON text.
    """

    kind: ConstraintKind
    value: str
