"""Log-probabilities: which are wanted, and how they are reported.

They are `log_softmax` of the model's float32 logits, before penalties, bias, mask and temperature.
"""

from __future__ import annotations

from dataclasses import dataclass

from .checks import check_integer, items

MAX_TOP = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class LogprobParams:
    """Which log-probabilities a generation reports; those of its own tokens always.

    Attributes:
        start: the first prompt position to report, ≥ 0; −1 = none of the prompt.
        top: how many of the likeliest tokens to report at each position, 0 to 128.
        token_ids: tokens to report at each position.

    Raises:
        InvalidRequestError: a value out of range or of the wrong type, naming the parameter.
    """

    start: int = -1
    top: int = 0
    token_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        check_integer("logprob_start_len", self.start, low=-1)
        check_integer("top_logprobs_num", self.top, low=0, high=MAX_TOP)
        for token in items("token_ids_logprob", self.token_ids):
            check_integer("token_ids_logprob", token, low=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprob:
    """One position: its token and how likely it was.

    Attributes:
        id, text: the token, and its bytes as text (U+FFFD where they are no whole character).
        logprob: None for the very first position, before which there is nothing.
        top_ids, top_logprobs: the likeliest tokens there, likeliest first, equals by id.
        token_logprobs: of the request's `token_ids`, in their order.
    """

    id: int
    text: str
    logprob: float | None
    top_ids: tuple[int, ...] = ()
    top_texts: tuple[str, ...] = ()
    top_logprobs: tuple[float, ...] = ()
    token_logprobs: tuple[float, ...] = ()
