"""Text to token ids and back, for one model."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Self

from gguf import GGUFReader

from ..gguf_reader import metadata, open_gguf
from ..protocol import InvalidRequestError
from .folder_tokenizer import folder_vocabulary
from .gguf_tokenizer import gguf_vocabulary
from .vocabulary import SpecialToken, Vocabulary, missing_bytes


class Tokenizer:
    """The tokenizer of a model.

    Plain text never becomes a special token, whatever it spells: special tokens are cut out
    here, and only where `parse_special` asks for it; the model that encodes the rest does not
    know them.

    Attributes:
        vocab_size: usable ids are 0 … vocab_size − 1; rows of the model beyond are padding.
        eos_ids: ids that end a text.
        bos_id: what a prompt begins with; None where the model wants nothing there.
        special_ids: special tokens as spelled, and their ids.
        chat_template: the model's Jinja template, None if it has none.
        named_tokens: spelled `bos_token`, `eos_token`, … as chat templates use them.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._model = vocabulary.model
        self._bytes = vocabulary.token_bytes
        self._space_prefix = vocabulary.space_prefix
        self._double_space = vocabulary.double_space
        self._specials = {token.text: token for token in vocabulary.specials}
        self._pattern = _pattern(self._specials)
        self.vocab_size = len(vocabulary.token_bytes)
        self.eos_ids = vocabulary.eos_ids
        self.bos_id = vocabulary.bos_id
        self.special_ids = {token.text: token.id for token in vocabulary.specials}
        self._special_set = frozenset(self.special_ids.values())
        self.chat_template = vocabulary.chat_template
        self.named_tokens = vocabulary.named
        missing = missing_bytes(vocabulary.token_bytes)
        self._missing = re.compile(b"[" + re.escape(missing) + b"]") if missing else None

    @classmethod
    def from_gguf(cls, source: Path | GGUFReader) -> Self:
        """Read the tokenizer of a GGUF file, by path or from a reader that is open already.

        Raises:
            ModelFileError: damaged, or of a kind whose ids could only be guessed.
        """
        reader = open_gguf(source) if isinstance(source, Path) else source
        return cls(gguf_vocabulary(metadata(reader)))

    @classmethod
    def from_folder(cls, path: Path) -> Self:
        """Read the tokenizer of a model folder (tokenizer.json, else through transformers).

        Raises:
            ModelFileError: missing, damaged, or of a kind that is not supported.
        """
        return cls(folder_vocabulary(path))

    def encode(self, text: str, *, parse_special: bool = False, at_start: bool = True) -> list[int]:
        """Return the ids of `text`, without BOS.

        `at_start` says that the text begins a prompt, where some tokenizers put a space.

        Raises:
            InvalidRequestError: the text holds a lone surrogate.
        """
        return self.encode_parts(self.split_special(text) if parse_special else [text], at_start)

    def split_special(self, text: str) -> list[str | int]:
        """Cut `text` at the special tokens that it spells; each becomes its id."""
        if self._pattern is None:
            return [text]
        parts: list[str | int] = []
        end = 0
        for match in self._pattern.finditer(text):
            if match.start() > end:
                parts.append(text[end : match.start()])
            parts.append(self._special(match).id)
            end = match.end()
        return [*parts, text[end:]] if end < len(text) or not parts else parts

    def encode_parts(self, parts: Iterable[str | int], at_start: bool = True) -> list[int]:
        """Encode pieces of plain text between ids that are given; neighbouring text is joined."""
        ids: list[int] = []
        text: list[str] = []
        prefix = at_start
        for part in parts:
            if isinstance(part, str):
                text.append(part)
                continue
            ids += self._encode_plain("".join(text), prefix)
            text = []
            ids.append(part)
            prefix = self._space_prefix == "parts" and part in self._special_set
        return ids + self._encode_plain("".join(text), prefix)

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes of a token; a special token's are those of its name."""
        return self._bytes[token]

    def is_special(self, token: int) -> bool:
        """Return whether the id is a special token."""
        return token in self._special_set

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of `ids`, special tokens spelled, halves of characters as U+FFFD."""
        return b"".join(map(self._bytes.__getitem__, ids)).decode("utf-8", errors="replace")

    def special_spans(self, text: str) -> list[tuple[int, int]]:
        """Return where `text` spells special tokens, from the first character to the last."""
        return [match.span() for match in self._pattern.finditer(text)] if self._pattern else []

    def spelled_specials(self, text: str) -> list[str]:
        """Return the special tokens that `text` spells, each once, in order."""
        if self._pattern is None:
            return []
        found = (self._special(match).text for match in self._pattern.finditer(text))
        return list(dict.fromkeys(found))

    def inexpressible(self, text: str) -> list[str]:
        """Return the characters that no token can spell, each once; encoding leaves them out."""
        if self._missing is None or not self._missing.search(text.encode("utf-8")):
            return []
        found = (char for char in text if self._missing.search(char.encode("utf-8")))
        return list(dict.fromkeys(found))

    def _special(self, match: re.Match[str]) -> SpecialToken:
        spelled = match.group()
        return self._specials.get(spelled) or self._specials[spelled.strip()]

    def _encode_plain(self, text: str, prefix: bool) -> list[int]:
        if not text:
            return []
        check_text(text)
        wants_space = self._double_space or not text.startswith(" ")
        if prefix and self._space_prefix != "never" and wants_space:
            text = " " + text
        return self._model.encode(text, add_special_tokens=False).ids


def check_text(text: str) -> None:
    """Refuse text that UTF-8 cannot hold.

    Raises:
        InvalidRequestError: the text holds a lone surrogate, and where.
    """
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidRequestError(
            f"the text holds a lone surrogate (character {error.start}), which is half a "
            "character; replace it, for example with text.encode('utf-8', 'replace').decode()"
        ) from error


def _pattern(specials: dict[str, SpecialToken]) -> re.Pattern[str] | None:
    """Match any special token, the longest first, with the white space that it swallows."""
    choices = [
        (r"\s*" if token.lstrip else "") + re.escape(text) + (r"\s*" if token.rstrip else "")
        for text, token in sorted(specials.items(), key=lambda item: -len(item[0]))
    ]
    return re.compile("|".join(choices)) if choices else None
