"""How byte-level BPE cuts text into words before merging, by the name a GGUF file gives it.

The file names the rule only (`tokenizer.ggml.pre`); a wrong rule gives wrong ids silently, so
an unknown name is refused. The names and the patterns they stand for are those of the models'
published tokenizers.
"""

from __future__ import annotations

from dataclasses import dataclass

from tokenizers import Regex, pre_tokenizers

from ..protocol import ModelFileError

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_LETTERS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_SYMBOLS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_LLAMA3 = rf"{_CONTRACTIONS}|{_LETTERS}|\p{{N}}{{1,3}}|{_SYMBOLS}|{_SPACES}"
_QWEN2 = rf"{_CONTRACTIONS}|{_LETTERS}|\p{{N}}|{_SYMBOLS}|{_SPACES}"
_QWEN35 = (
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}"
)
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED = r"[^\r\n\p{L}\p{N}]?" + _UPPER
_PATHS = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
_TEKKEN = rf"{_CASED}*{_LOWER}+|{_CASED}+{_LOWER}*|\p{{N}}|{_PATHS}|{_SPACES}"
_GPT4O = (
    rf"{_CASED}*{_LOWER}+{_CONTRACTIONS}?|{_CASED}+{_LOWER}*{_CONTRACTIONS}?"
    rf"|\p{{N}}{{1,3}}|{_PATHS}|{_SPACES}"
)
_DEFAULT = (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")


@dataclass(frozen=True, slots=True)
class PreTokenization:
    """Patterns applied one after the other, each cutting out its matches.

    `whole_words`: a word that is a token is taken as it is, without merging.
    `wants_bos`: the models of this kind begin with BOS unless the file says otherwise.
    """

    patterns: tuple[str, ...]
    whole_words: bool = False
    wants_bos: bool = False

    def build(self) -> pre_tokenizers.PreTokenizer:
        """Return the pre-tokenizer, the last step being the byte alphabet."""
        splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in self.patterns]
        byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        return pre_tokenizers.Sequence([*splits, byte_level])


_KINDS: dict[PreTokenization, str] = {
    PreTokenization((_GPT2,)): "gpt-2 phi-2 mpt olmo jais",
    PreTokenization(_DEFAULT): "default",
    PreTokenization((r"\p{N}", _GPT2)): "smollm starcoder refact command-r codeshell exaone",
    PreTokenization(
        (_LLAMA3,), whole_words=True, wants_bos=True
    ): "llama-bpe llama3 llama-v3 falcon3 lfm2",
    PreTokenization((_LLAMA3,)): "dbrx smaug-bpe",
    PreTokenization((_QWEN2,)): "qwen2 deepseek-r1-qwen stablelm2",
    PreTokenization((_QWEN35,)): "qwen35",
    PreTokenization((_TEKKEN,), whole_words=True, wants_bos=True): "tekken",
    PreTokenization((_GPT4O,)): "gpt-4o",
}
_BY_NAME = {name: kind for kind, names in _KINDS.items() for name in names.split()}


def pre_tokenization(name: str | None) -> PreTokenization:
    """Return the rule that `tokenizer.ggml.pre` names.

    Raises:
        ModelFileError: an unknown rule, or none: its ids could only be guessed.
    """
    kind = _BY_NAME.get(name or "")
    if kind is None:
        what = f"the unknown pre-tokenizer {name!r}" if name else "no pre-tokenizer"
        raise ModelFileError(
            f"the file names {what} (tokenizer.ggml.pre); known are {', '.join(sorted(_BY_NAME))}. "
            "Use the model's own folder with tokenizer.json instead"
        )
    return kind
