"""What a generation reports of log-probabilities: from a row's numbers to tokens with texts."""

from __future__ import annotations

from ..prompts.tokenizer import Tokenizer
from ..protocol import InvalidRequestError, LogprobParams, TokenLogprob
from ..step import Gather, RowLogprobs


class LogprobReport:
    """Asks for the log-probabilities that `params` name, and writes them down.

    Raises:
        InvalidRequestError: an id that the model does not have, or a start beyond the prompt.
    """

    def __init__(self, params: LogprobParams, tokenizer: Tokenizer, num_prompt: int) -> None:
        if params.start > num_prompt:
            raise InvalidRequestError(
                f"logprob_start_len={params.start} lies beyond the prompt, which has "
                f"{num_prompt} tokens"
            )
        check_ids("token_ids_logprob", params.token_ids, tokenizer.vocab_size)
        self._params = params
        self._tokenizer = tokenizer
        # the row of a position tells of the token after it
        self.first_row = max(params.start - 1, 0) if params.start >= 0 else num_prompt

    def of_drawn(self, row: int) -> Gather:
        """Ask beside a draw: the drawn token's own log-probability comes first."""
        return Gather(row, self._params.token_ids, self._params.top)

    def of_prompt(self, row: int, token: int) -> Gather:
        """Ask for `token`, the one of the prompt that follows the row's position."""
        return Gather(row, (token, *self._params.token_ids), self._params.top)

    def token(self, token: int, scores: RowLogprobs | None) -> TokenLogprob:
        """Return what is reported of `token`; nothing precedes it where there are no scores."""
        if scores is None:
            return TokenLogprob(id=token, text=self._text(token), logprob=None)
        return TokenLogprob(
            id=token,
            text=self._text(token),
            logprob=scores.logprobs[0],
            top_ids=tuple(likely for likely, _ in scores.top),
            top_texts=tuple(self._text(likely) for likely, _ in scores.top),
            top_logprobs=tuple(value for _, value in scores.top),
            token_logprobs=tuple(scores.logprobs[1:]),
        )

    def prompt(self, ids: list[int], scores: dict[int, RowLogprobs]) -> tuple[TokenLogprob, ...]:
        """Return what is reported of the prompt, from the start on; `scores` are by position."""
        if self._params.start < 0:
            return ()
        return tuple(
            self.token(ids[position], scores.get(position))
            for position in range(self._params.start, len(ids))
        )

    def _text(self, token: int) -> str:
        return self._tokenizer.token_bytes(token).decode("utf-8", errors="replace")


def check_ids(name: str, ids: tuple[int, ...], vocab_size: int) -> None:
    """Refuse ids that the model cannot generate.

    Raises:
        InvalidRequestError: naming the parameter, the id and the range.
    """
    if ids and max(ids) >= vocab_size:
        raise InvalidRequestError(
            f"{name} has {max(ids)}, which cannot be generated: the model's ids are 0 to "
            f"{vocab_size - 1}"
        )
