"""What a tokenizer is made from, whatever file it was read from, and the token→bytes table."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from typing import Literal

import tokenizers

SpacePrefix = Literal["never", "start", "parts"]
"""Where text gets a space in front: nowhere, at the start of a prompt, or also after each
special token."""


@dataclass(frozen=True, slots=True)
class SpecialToken:
    """A special token. `lstrip` and `rstrip` say that it swallows the white space beside it."""

    text: str
    id: int
    lstrip: bool = False
    rstrip: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """Everything a `Tokenizer` needs.

    Attributes:
        model: encodes plain text; it holds no special token, so that it can produce none.
        token_bytes: the bytes of each id; `b""` for an id without a token.
        specials: the special tokens.
        eos_ids: ids that end a text.
        bos_id: the id to begin a prompt with, None where the model wants none.
        named: spelled `bos_token`, `eos_token`, … as chat templates want them.
        space_prefix: where text gets a space in front.
        double_space: the prefix is also put before text that begins with a space.
    """

    model: tokenizers.Tokenizer
    token_bytes: list[bytes]
    specials: tuple[SpecialToken, ...]
    eos_ids: frozenset[int]
    bos_id: int | None = None
    named: dict[str, str] = field(default_factory=dict)
    chat_template: str | None = None
    space_prefix: SpacePrefix = "never"
    double_space: bool = False


@cache
def byte_alphabet() -> dict[str, int]:
    """Return the character→byte table of byte-level BPE, as GPT-2 defined it."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(byte): byte for byte in printable}
    rest = [byte for byte in range(0x100) if byte not in set(printable)]
    return table | {chr(0x100 + rank): byte for rank, byte in enumerate(rest)}


def byte_level_bytes(token: str) -> bytes:
    """Return the bytes of a token of byte-level BPE."""
    alphabet = byte_alphabet()
    try:
        return bytes(map(alphabet.__getitem__, token))
    except KeyError:  # an added token is spelled as it is
        return token.encode("utf-8")


def sentencepiece_bytes(token: str) -> bytes:
    """Return the bytes of a SentencePiece token: ▁ is a space, <0xXX> a byte."""
    if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
        return bytes.fromhex(token[3:5])
    return token.replace("▁", " ").encode("utf-8")


def missing_bytes(table: Iterable[bytes]) -> bytes:
    """Return the bytes of valid UTF-8 that no token of `table` spells alone, in order."""
    single = {token for token in table if len(token) == 1}
    valid = [*range(0xC0), *range(0xC2, 0xF5)]
    return bytes(byte for byte in valid if bytes([byte]) not in single)
