"""Requests and the events that answer them: plain data, no callables, no tensors."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from .errors import ErrorCode, InvalidRequestError
from .logprobs import LogprobParams, TokenLogprob
from .sampling import Constraint, SamplingParams
from .segments import Segment, TokenIds


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleHints:
    """What a program knows of the future. Hints order work; they never lock, and never change
    an output.

    Attributes:
        program_id: requests of one program instance share it.
        rank: smaller runs earlier among requests of equal priority.
        next_use: absolute logical time at which this prefix is needed again; −1 unknown.
        consumers: how many later requests start with this prompt; −1 unknown.
    """

    program_id: str = ""
    rank: int = 0
    next_use: int = -1
    consumers: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateRequest:
    """Continue `prompt`, `sampling.n` times.

    `seed` is the derived seed, an unsigned 64-bit integer, of the first sample; that of sample i
    is `sample_seed(seed, i)`. `logprobs` says which log-probabilities are wanted, None = none.
    Requests of higher `priority` run first.
    `timeout` is in seconds from the submission, None = none. `cache_salt` names a namespace of
    the prefix cache. With `stream` the engine sends `Delta` events as text becomes certain.
    `label` is the program's name for this output and `state_id` names the state it is for: both
    are for logs and test doubles, and never change an output. `is_repeatable` says that the same
    request may come again: its seed was named by somebody and not drawn at random.
    """

    id: str
    prompt: tuple[Segment, ...]
    sampling: SamplingParams = field(default_factory=SamplingParams)
    seed: int = 0
    constraint: Constraint | None = None
    logprobs: LogprobParams | None = None
    stream: bool = False
    timeout: float | None = None
    priority: int = 0
    cache_salt: str = ""
    hints: ScheduleHints | None = None
    label: str = ""
    state_id: str = ""
    is_repeatable: bool = False

    def __post_init__(self) -> None:
        _check_timeout(self.timeout)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreRequest:
    """Score each of `options` as the continuation of `prompt`.

    Prompt and option are encoded as one string; the answer is one `Scored` event. With
    `unconditional` each option's own ids are also scored with no prompt before them. `label`,
    `priority` and `state_id` are as in `GenerateRequest`.
    """

    id: str
    prompt: tuple[Segment, ...]
    options: tuple[str, ...]
    unconditional: bool = False
    timeout: float | None = None
    priority: int = 0
    cache_salt: str = ""
    hints: ScheduleHints | None = None
    label: str = ""
    state_id: str = ""

    def __post_init__(self) -> None:
        _check_timeout(self.timeout)
        if not self.options:
            raise InvalidRequestError("there are no options to choose from: give at least one")


Request = GenerateRequest | ScoreRequest


def _check_timeout(timeout: float | None) -> None:
    if timeout is not None and (not math.isfinite(timeout) or timeout < 0):
        raise InvalidRequestError(f"timeout must be finite and ≥ 0 seconds, not {timeout}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Tokens of one request or of many: add them with `+`.

    Every prompt position is either cached (its KV was there) or computed, so
    `prompt_tokens == cached_tokens + computed_tokens`. `recomputed_tokens` counts cached
    positions that ran once more only to get their logits back: at least one where a token is
    generated after a prompt that is cached whole. Only a request that takes its first token from
    the last logit row of an equal one has all its prompt cached and nothing recomputed: that row
    was computed once and is counted once, by the other.
    """

    prompt_tokens: int = 0
    cached_tokens: int = 0
    computed_tokens: int = 0
    recomputed_tokens: int = 0
    generated_tokens: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            prompt_tokens=self.prompt_tokens + other.prompt_tokens,
            cached_tokens=self.cached_tokens + other.cached_tokens,
            computed_tokens=self.computed_tokens + other.computed_tokens,
            recomputed_tokens=self.recomputed_tokens + other.recomputed_tokens,
            generated_tokens=self.generated_tokens + other.generated_tokens,
        )

    def __str__(self) -> str:
        return (
            f"prompt {self.prompt_tokens} tokens: {self.cached_tokens} cached, "
            f"{self.computed_tokens} computed; {self.generated_tokens} generated"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """Seconds: waiting in the queue, to the first token from submission, and in all."""

    queue: float = 0.0
    first_token: float = 0.0
    total: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishReason:
    """Why a generation ended.

    `matched` is the stop string, the pattern of `stop_regex` or the token id; None for `length`.
    """

    kind: Literal["stop", "length"]
    matched: str | int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """First event: the prompt is the first `prefix_tokens` ids that the request itself began
    with (its leading `TokenIds` segments), followed by `ids`."""

    request_id: str
    prefix_tokens: int
    ids: TokenIds
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """Text of sample `index` that is certain: whole characters, and no beginning of a stop.

    `ids` are the tokens that were generated since the sample's last delta, whether or not their
    text is certain already, and `logprobs` theirs where they are wanted.
    """

    request_id: str
    text: str
    index: int = 0
    ids: TokenIds = field(default_factory=TokenIds)
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One generated continuation. The state keeps `ids`, then `tail` opens its next literal run.

    `text` is the whole generated text. It is the text of `ids` followed by `tail`, which is only
    non-empty where a stop string cut a token. A stop token is in neither. `logprobs` has one
    entry per generated token, those cut off at the end included, where they are wanted.
    """

    reason: FinishReason
    ids: TokenIds
    text: str
    tail: str = ""
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """A generation ended: its `samples` in their order, at least one.

    `prompt_logprobs` begins at `LogprobParams.start`; without one it is empty. `is_remembered`:
    the answer is that of an earlier run, and nothing was computed for it.
    """

    request_id: str
    samples: tuple[Sample, ...]
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    usage: Usage = field(default_factory=Usage)
    timings: Timings = field(default_factory=Timings)
    is_remembered: bool = False

    @property
    def sample(self) -> Sample:
        """The first sample: the one that a state goes on with."""
        return self.samples[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionScore:
    """One option: ids after the shared trunk, their log-probabilities, and their text.

    `unconditional` has the log-probability of each id after those before it and no prompt, 0 for
    the first where the model has no start token; None unless the request asked.
    """

    ids: TokenIds
    logprobs: tuple[float, ...]
    text: str
    unconditional: tuple[float, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """Answer to a `ScoreRequest`, options in their order.

    `trunk` holds the ids that all prompt+option strings share, from `prefix_tokens` on as in
    `Accepted`; option i is `trunk` followed by `options[i].ids`. `is_remembered` is as in
    `Finished`.
    """

    request_id: str
    prefix_tokens: int
    trunk: TokenIds
    options: tuple[OptionScore, ...]
    usage: Usage = field(default_factory=Usage)
    timings: Timings = field(default_factory=Timings)
    is_remembered: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """The request ended with an error; everything else goes on.

    `num_tokens` and `limit` are given with `CONTEXT_LENGTH`.
    """

    request_id: str
    code: ErrorCode
    message: str
    num_tokens: int | None = None
    limit: int | None = None


Event = Accepted | Delta | Finished | Scored | Failed
