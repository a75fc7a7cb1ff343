"""Small real tokenizers, trained here on a few lines, written as folders and as GGUF files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import gguf
import tokenizers
from tokenizers import Regex, decoders, models, pre_tokenizers, trainers

SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<s>", "</s>", "[INST]", "[/INST]")
LINES = (
    "Hello world, the quick brown fox doesn't jump over 1234567 lazy dogs.",
    "A tree has a trunk; a trunk has branches.\n\n  They share it:\t100 %, 3.14, it's.",
    "user\nassistant\nsystem\nWhat is the answer? The answer is yes. No. Perhaps.",
    "hej världen, größer, naïve, 日本語のテキスト, привет мир, 🦙🦙 👩‍🚀",
    "<|im_end|> and <|im_start|> are spelled here, <s> too, im_end im_start endoftext",
)
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")


def published_pre_tokenizer(name: str) -> pre_tokenizers.PreTokenizer:
    """Return the pre-tokenizer as the models' own tokenizer.json has it."""
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    if name == "gpt-2":
        return pre_tokenizers.ByteLevel(add_prefix_space=False)
    if name == "smollm":
        digits = pre_tokenizers.Digits(individual_digits=True)
        return pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    pattern = {"llama-bpe": LLAMA3, "qwen2": QWEN2}[name]
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), byte_level])


@cache
def byte_level(name: str = "smollm") -> tokenizers.Tokenizer:
    """Train a byte-level BPE tokenizer with special tokens."""
    tokenizer = tokenizers.Tokenizer(models.BPE(ignore_merges=name == "llama-bpe"))
    tokenizer.pre_tokenizer = published_pre_tokenizer(name)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=460,
        special_tokens=list(SPECIALS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(LINES, trainer)
    return tokenizer


def write_folder(path: Path, tokenizer: tokenizers.Tokenizer | None = None, **config: Any) -> Path:
    """Write `tokenizer.json` and its configuration."""
    (tokenizer or byte_level()).save(str(path / "tokenizer.json"))
    content = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "<|im_end|>",
        **config,
    }
    (path / "tokenizer_config.json").write_text(json.dumps(content))
    return path


def write_gguf(path: Path, pre: str | None = "smollm", **extra: Any) -> Path:
    """Write a GGUF file with the byte-level tokenizer `pre` and no tensors."""
    tokenizer = byte_level(pre if pre in ("gpt-2", "llama-bpe", "qwen2") else "smollm")
    vocab = tokenizer.get_vocab()
    tokens = sorted(vocab, key=lambda token: vocab[token])
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    types = [3 if token in SPECIALS else 1 for token in tokens]
    return write_vocabulary(
        path,
        "gpt2",
        tokens,
        types,
        **{"pre": pre, "merges": [" ".join(pair) for pair in merges], "eos": 2, **extra},
    )


def write_vocabulary(
    path: Path,
    kind: str,
    tokens: Sequence[str],
    types: Sequence[int],
    **extra: Any,
) -> Path:
    """Write a GGUF file that holds only this vocabulary."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model(kind)
    writer.add_token_list(list(tokens))
    writer.add_token_types(list(types))
    add = {
        "pre": writer.add_tokenizer_pre,
        "merges": writer.add_token_merges,
        "scores": writer.add_token_scores,
        "bos": writer.add_bos_token_id,
        "eos": writer.add_eos_token_id,
        "add_bos": writer.add_add_bos_token,
        "space": writer.add_add_space_prefix,
        "template": writer.add_chat_template,
    }
    for name, value in extra.items():
        if value is not None:
            add[name](value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
