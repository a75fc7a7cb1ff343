"""Turns the segments of a prompt into token ids: the one place where prompts are encoded.

Text is joined before it is encoded, also with the plain part of a role's marker beside it, so
that the ids do not depend on how a prompt was cut into segments, and are those of the whole
conversation as one string.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from ..protocol import ROLES, InvalidRequestError, RoleBegin, RoleEnd, Segment, Text, TokenIds
from .chat_template import ChatTemplate
from .tokenizer import Tokenizer, check_text


@dataclass(frozen=True, slots=True)
class EncodedPrompt:
    """A prompt as ids.

    Attributes:
        prefix_tokens: how many ids the prompt itself began with.
        ids: all ids, those included.
        warnings: what the writer of the prompt may not have meant.
    """

    prefix_tokens: int
    ids: TokenIds
    warnings: tuple[str, ...] = ()


class PromptEncoder:
    """Encodes and renders prompts for one model.

    Attributes:
        tokenizer: the model's tokenizer.
        template: the model's chat template.
        stop_ids: ids that end a text or an assistant's turn.
    """

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate) -> None:
        self.tokenizer = tokenizer
        self.template = template
        self.stop_ids = tokenizer.eos_ids | template.stop_ids()

    def encode(self, prompt: Sequence[Segment]) -> EncodedPrompt:
        """Return the ids of a prompt; BOS is put first unless the prompt begins with ids.

        Raises:
            InvalidRequestError: an empty prompt, an unknown role, an id outside the vocabulary,
                text that is no text.
            ChatTemplateError: the model has no chat template, or it forbids the order of roles.
        """
        leading, parts, warnings = self._parts(prompt)
        ids = self._encode(leading, parts)
        if not ids and not leading:
            raise InvalidRequestError("the prompt is empty: give it some text")
        return EncodedPrompt(len(leading), leading + TokenIds.of(ids), warnings)

    def encode_options(self, prompt: Sequence[Segment], options: Sequence[str]) -> list[TokenIds]:
        """Return all ids of prompt and option for each option, encoded as one string.

        Raises:
            InvalidRequestError: as for `encode`; or an empty option that has no token of its own
                to score.
        """
        leading, parts, _ = self._parts(prompt)
        fixed = max((n for n, part in enumerate(parts) if isinstance(part, int)), default=-1) + 1
        head = self._encode(leading, parts[:fixed]) if fixed else []
        rows = []
        for option in options:
            run = [*parts[max(fixed - 1, 0) :], _text(option)]
            if fixed:  # its first id stands before the run, and ends the head already
                rows.append(head + self.tokenizer.encode_parts(run, at_start=False)[1:])
            else:
                rows.append(self._encode(leading, run))
        self._check_options(options, rows, is_empty=not leading)
        return [leading + TokenIds.of(row) for row in rows]

    def _check_options(
        self, options: Sequence[str], rows: Sequence[list[int]], *, is_empty: bool
    ) -> None:
        """Refuse an option that would be scored on nothing."""
        for number, (option, row) in enumerate(zip(options, rows, strict=True)):
            if option:
                continue
            if is_empty and not row:
                raise InvalidRequestError(f"option {number} and the prompt are both empty")
            if all(other[: len(row)] == row for other in rows):
                raise InvalidRequestError(
                    f"option {number} is empty and has no token to score: give it some text"
                )

    def render(self, segments: Sequence[Segment]) -> str:
        """Return the text of a prompt, role markers and BOS included, as the model sees it.

        Raises:
            InvalidRequestError, ChatTemplateError: as for `encode`.
        """
        leading, parts, _ = self._parts(segments)
        known = [*leading, *self._bos(leading, parts)]
        pieces = [
            part.encode("utf-8") if isinstance(part, str) else self.tokenizer.token_bytes(part)
            for part in [*known, *parts]
        ]
        return b"".join(pieces).decode("utf-8", errors="replace")

    def _encode(self, leading: TokenIds, parts: Sequence[str | int]) -> list[int]:
        """Return what follows the known ids: BOS if there are none, then the parts."""
        return self._bos(leading, parts) + self.tokenizer.encode_parts(parts, not leading)

    def _bos(self, leading: TokenIds, parts: Sequence[str | int]) -> list[int]:
        """Return BOS where the model wants it and it is not there yet."""
        bos = self.tokenizer.bos_id
        is_there = bool(leading) or bool(parts and parts[0] == bos)
        return [] if bos is None or is_there else [bos]

    def _parts(
        self, prompt: Sequence[Segment]
    ) -> tuple[TokenIds, list[str | int], tuple[str, ...]]:
        """Return the leading known ids, then plain text and ids in order, and the warnings."""
        count = next(
            (n for n, part in enumerate(prompt) if not isinstance(part, TokenIds)), len(prompt)
        )
        leading = TokenIds(b"".join(self._known(ids).packed for ids in prompt[:count]))
        parts: list[str | int] = []
        warnings: dict[str, None] = {}
        for segment in _joined(prompt[count:]):
            match segment:
                case TokenIds():
                    parts += self._known(segment)
                case Text(text=text, parse_special=True):
                    parts += self.tokenizer.split_special(_text(text))
                case Text(text=text):
                    parts.append(_text(text))
                    warnings |= dict.fromkeys(self._warnings(text))
                case RoleBegin(role=role, previous=previous, generate=generate):
                    _check_role(role)
                    prefix = self.template.prefix(role, previous, generate)
                    parts += self.tokenizer.split_special(prefix)
                case RoleEnd(role=role):
                    _check_role(role)
                    parts += self.tokenizer.split_special(self.template.suffix(role))
        return leading, [part for part in parts if part != ""], tuple(warnings)

    def _known(self, segment: Segment) -> TokenIds:
        """Return a segment of ids, all of the vocabulary."""
        ids = segment if isinstance(segment, TokenIds) else TokenIds()
        values = np.frombuffer(ids.packed, dtype=np.int32)
        size = self.tokenizer.vocab_size
        if values.size and not (values.min() >= 0 and values.max() < size):
            wrong = next(token for token in ids if not 0 <= token < size)
            raise InvalidRequestError(
                f"token id {wrong} is outside the vocabulary: ids are 0 … {size - 1}"
            )
        return ids

    def _warnings(self, text: str) -> Iterator[str]:
        for special in self.tokenizer.spelled_specials(text):
            yield (
                f"the text spells the special token {special!r}, which stays plain text; "
                f"append special({special!r}) to mean the token"
            )
        for char in self.tokenizer.inexpressible(text):
            yield f"the model has no token for the character {char!r}, which is left out"


def _joined(prompt: Sequence[Segment]) -> Iterator[Segment]:
    """Yield the segments, neighbouring text of one kind joined."""
    for is_special, group in groupby(prompt, key=_kind):
        if is_special is None:
            yield from group
        else:
            yield Text("".join(_text(part.text) for part in group), is_special)  # type: ignore[union-attr]


def _kind(segment: Segment) -> bool | None:
    return segment.parse_special if isinstance(segment, Text) else None


def _text(text: object) -> str:
    if not isinstance(text, str):
        raise InvalidRequestError(f"text must be a string, not {text!r}")
    check_text(text)
    return text


def _check_role(role: object) -> None:
    if role not in ROLES:
        raise InvalidRequestError(f"unknown role {role!r}: roles are {', '.join(ROLES)}")
