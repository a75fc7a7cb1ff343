"""The vocabulary of a GGUF file: byte-level BPE (`gpt2`) or SentencePiece BPE (`llama`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from enum import IntEnum
from typing import Any

import tokenizers
from tokenizers import models, normalizers

from ..protocol import ModelFileError
from .pre_tokenizers import pre_tokenization
from .vocabulary import SpecialToken, Vocabulary, byte_level_bytes, sentencepiece_bytes

_END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")
_NAMED_KEYS = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
}


class TokenType(IntEnum):
    """`tokenizer.ggml.token_type` of one token."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


class _Tokens:
    """The tokens of a file, by kind."""

    def __init__(self, fields: dict[str, Any]) -> None:
        self.fields = fields
        self.texts: list[str] = self.get("tokens", [])
        if not self.texts:
            raise ModelFileError("the file holds no vocabulary (tokenizer.ggml.tokens)")
        self.types: list[int] = self.get("token_type", [TokenType.NORMAL] * len(self.texts))
        if len(self.types) != len(self.texts):
            raise ModelFileError(
                f"the file has {len(self.texts)} tokens but {len(self.types)} token types"
            )
        self.ends = frozenset(id_ for key in _END_KEYS if (id_ := self.id_of(key)) is not None)
        special_types = (TokenType.CONTROL, TokenType.UNKNOWN)
        markers = self.ends | {self.id_of("bos_token_id")}
        self.special_ids = [
            id_ for id_, type_ in enumerate(self.types) if type_ in special_types or id_ in markers
        ]
        self.size = len(self.texts)
        while self.size and self.types[self.size - 1] == TokenType.UNUSED:
            self.size -= 1  # padding of the embedding, not tokens

    def get(self, key: str, default: Any = None) -> Any:
        return self.fields.get(f"tokenizer.ggml.{key}", default)

    def id_of(self, key: str) -> int | None:
        id_ = self.get(key)
        if id_ is not None and not 0 <= id_ < len(self.texts):
            raise ModelFileError(f"tokenizer.ggml.{key} is {id_}, outside the vocabulary")
        return id_  # type: ignore[no-any-return]

    def plain(self) -> dict[str, int]:
        """Return the tokens that text may become, without the special and unused ones."""
        special = set(self.special_ids)
        return {
            text: id_
            for id_, text in enumerate(self.texts)
            if id_ not in special and self.types[id_] != TokenType.UNUSED
        }

    def user_defined(self) -> list[str]:
        special = set(self.special_ids)
        return [
            self.texts[id_]
            for id_, type_ in enumerate(self.types)
            if type_ == TokenType.USER_DEFINED and id_ not in special
        ]

    def bytes_table(self, convert: Callable[[str], bytes]) -> list[bytes]:
        spelled = {
            *self.special_ids,
            *(id_ for id_, type_ in enumerate(self.types) if type_ == TokenType.USER_DEFINED),
        }
        return [
            text.encode("utf-8") if id_ in spelled else convert(text)
            for id_, text in enumerate(self.texts[: self.size])
        ]

    def named(self) -> dict[str, str]:
        ids = {name: self.id_of(key) for name, key in _NAMED_KEYS.items()}
        return {name: self.texts[id_] for name, id_ in ids.items() if id_ is not None}


def gguf_vocabulary(fields: dict[str, Any]) -> Vocabulary:
    """Build the vocabulary from a file's metadata.

    Raises:
        ModelFileError: a kind of tokenizer, or a pre-tokenizer, that is not known.
    """
    try:
        return _read(_Tokens(fields))
    except (TypeError, AttributeError, KeyError, IndexError) as error:
        raise ModelFileError(
            f"the file's tokenizer metadata is damaged ({error!r}); fetch the file again"
        ) from error


def _read(tokens: _Tokens) -> Vocabulary:
    kind = tokens.get("model")
    if kind == "gpt2":
        return _byte_level(tokens)
    if kind == "llama":
        return _sentencepiece(tokens)
    raise ModelFileError(
        f"the file's tokenizer is of the kind {kind!r} (tokenizer.ggml.model); "
        "known are 'gpt2' (byte-level BPE) and 'llama' (SentencePiece BPE)"
    )


def _byte_level(tokens: _Tokens) -> Vocabulary:
    rule = pre_tokenization(tokens.get("pre"))
    vocab = tokens.plain()
    merges = _merges(tokens, vocab)
    model = _build(vocab, merges, ignore_merges=rule.whole_words)
    model.pre_tokenizer = rule.build()
    model.add_tokens([_verbatim(text) for text in tokens.user_defined()])
    return _vocabulary(tokens, model, byte_level_bytes, wants_bos=rule.wants_bos)


def _merges(tokens: _Tokens, vocab: dict[str, int]) -> list[tuple[str, str]]:
    """Return the file's merges, without those of tokens that text may not become."""
    lines: list[str] = tokens.get("merges", [])
    pairs = [(left, right) for left, _, right in (line.partition(" ") for line in lines)]
    if not pairs or not all(left and right for left, right in pairs):
        raise ModelFileError("the file's merges (tokenizer.ggml.merges) are missing or damaged")
    excluded = set(tokens.texts) - vocab.keys()
    if not excluded:
        return pairs
    return [pair for pair in pairs if excluded.isdisjoint((*pair, "".join(pair)))]


def _sentencepiece(tokens: _Tokens) -> Vocabulary:
    """SentencePiece joins the adjacent pair with the best score, the leftmost first.

    The same as BPE whose merges are all ways to make a piece of two pieces, best score first.
    """
    scores: list[float] = tokens.get("scores", [])
    if len(scores) != len(tokens.texts):
        raise ModelFileError(
            f"the file has {len(tokens.texts)} tokens but {len(scores)} scores, "
            "which SentencePiece needs"
        )
    if sum(type_ == TokenType.BYTE for type_ in tokens.types) != 256:
        raise ModelFileError(
            "the file's SentencePiece vocabulary has no token for each byte, so some text would "
            "be lost; such a vocabulary is not supported"
        )
    vocab = tokens.plain()
    pieces = {text: id_ for text, id_ in vocab.items() if tokens.types[id_] == TokenType.NORMAL}
    merges = _merges_by_score(pieces, scores)
    model = _build(vocab, merges, byte_fallback=True)
    model.normalizer = normalizers.Replace(" ", "▁")
    model.add_tokens([_verbatim(text) for text in tokens.user_defined()])
    vocabulary = _vocabulary(tokens, model, sentencepiece_bytes, wants_bos=True)
    if tokens.get("add_space_prefix", True):
        return replace(vocabulary, space_prefix="parts", double_space=True)
    return vocabulary


def _merges_by_score(pieces: dict[str, int], scores: list[float]) -> list[tuple[str, str]]:
    ranked = []
    for piece, id_ in pieces.items():
        for cut in range(1, len(piece)):
            left, right = piece[:cut], piece[cut:]
            if (len(left) == 1 or left in pieces) and (len(right) == 1 or right in pieces):
                if left not in pieces or right not in pieces:
                    raise ModelFileError(
                        f"the piece {piece!r} is made of a character that is no piece itself; "
                        "such a SentencePiece vocabulary is not supported"
                    )
                ranked.append((-scores[id_], id_, left, right))
    ranked.sort()
    return [(left, right) for _, _, left, right in ranked]


def _verbatim(text: str) -> tokenizers.AddedToken:
    return tokenizers.AddedToken(text, normalized=False, special=False)


def _build(
    vocab: dict[str, int], merges: list[tuple[str, str]], **options: bool
) -> tokenizers.Tokenizer:
    try:
        return tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=merges, **options))
    except Exception as error:  # the library raises nothing narrower
        raise ModelFileError(f"the file's vocabulary and merges do not fit: {error}") from error


def _vocabulary(
    tokens: _Tokens,
    model: tokenizers.Tokenizer,
    convert: Callable[[str], bytes],
    *,
    wants_bos: bool,
) -> Vocabulary:
    bos = tokens.id_of("bos_token_id") if tokens.get("add_bos_token", wants_bos) else None
    return Vocabulary(
        model=model,
        token_bytes=tokens.bytes_table(convert),
        specials=tuple(SpecialToken(tokens.texts[id_], id_) for id_ in tokens.special_ids),
        eos_ids=tokens.ends,
        bos_id=bos,
        named=tokens.named(),
        chat_template=tokens.fields.get("tokenizer.chat_template"),
    )
