"""The vocabulary of a model folder: `tokenizer.json`, or what transformers makes of the folder."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers

from ..protocol import ModelFileError
from .vocabulary import (
    SpacePrefix,
    SpecialToken,
    Vocabulary,
    byte_level_bytes,
    sentencepiece_bytes,
)

_NAMED = ("bos_token", "eos_token", "unk_token", "pad_token")
Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Prefix:
    where: SpacePrefix = "never"
    double: bool = False


def folder_vocabulary(path: Path) -> Vocabulary:
    """Build the vocabulary of the model in folder `path`.

    Raises:
        ModelFileError: no tokenizer, a damaged one, or one that is not BPE.
    """
    config = _read(path / "tokenizer_config.json")
    spec = _read(path / "tokenizer.json") or _through_transformers(path)
    try:
        return _vocabulary(path, spec, config)
    except (KeyError, TypeError, AttributeError) as error:
        raise ModelFileError(
            f"{path / 'tokenizer.json'} is not a tokenizer file ({error!r}); fetch it again"
        ) from error


def _vocabulary(path: Path, spec: Json, config: Json) -> Vocabulary:
    model, added = spec["model"], spec.get("added_tokens") or []
    _check_kind(path, model)
    specials = [token for token in added if token["special"]]
    ids: dict[str, int] = {**model["vocab"], **{token["content"]: token["id"] for token in added}}
    table = _bytes_table(ids, {token["content"] for token in added}, _converter(path, spec))
    named = _named(config)
    bos_id = ids.get(named.get("bos_token", "")) if _wants_bos(spec, config) else None
    prefix = _take_space_prefix(path, spec)
    _remove_specials(spec, specials)
    return Vocabulary(
        model=_load(path, spec),
        token_bytes=table,
        specials=tuple(
            SpecialToken(token["content"], token["id"], token["lstrip"], token["rstrip"])
            for token in specials
        ),
        eos_ids=_eos_ids(path, ids.get(named.get("eos_token", ""))),
        bos_id=bos_id,
        named=named,
        chat_template=_chat_template(path, config),
        space_prefix=prefix.where,
        double_space=prefix.double,
    )


def _through_transformers(path: Path) -> Json:
    from transformers import AutoTokenizer  # seconds; only for folders without tokenizer.json

    try:
        tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True)
        return json.loads(tokenizer.backend_tokenizer.to_str())  # type: ignore[no-any-return]
    except (OSError, ValueError, ImportError, AttributeError, KeyError) as error:
        raise ModelFileError(
            f"{path} has no tokenizer.json, and transformers finds no tokenizer there: {error}"
        ) from error


def _check_kind(path: Path, model: Json) -> None:
    if model.get("type", "BPE") != "BPE" or "merges" not in model:
        raise ModelFileError(
            f"{path}: the tokenizer is of the kind {model.get('type')!r}; only BPE is supported"
        )
    for key in ("continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(key):
            raise ModelFileError(f"{path}: a BPE tokenizer with {key} is not supported")


def _converter(path: Path, spec: Json) -> Callable[[str], bytes]:
    kinds = {step["type"] for part in ("pre_tokenizer", "decoder") for step in _steps(spec, part)}
    if "ByteLevel" in kinds:
        return byte_level_bytes
    if "▁" in json.dumps([spec.get("normalizer"), spec.get("pre_tokenizer")], ensure_ascii=False):
        if not spec["model"].get("byte_fallback"):
            raise ModelFileError(f"{path}: a tokenizer without byte fallback is not supported")
        return sentencepiece_bytes
    raise ModelFileError(
        f"{path}: the tokenizer is neither byte-level nor of the SentencePiece kind, "
        "so the bytes of its tokens are not known"
    )


def _bytes_table(
    ids: dict[str, int], verbatim: set[str], convert: Callable[[str], bytes]
) -> list[bytes]:
    table = [b""] * (max(ids.values()) + 1)
    for token, id_ in ids.items():
        table[id_] = token.encode("utf-8") if token in verbatim else convert(token)
    return table


def _steps(spec: Json, part: str) -> list[Json]:
    """Return the steps of a part of the specification, a sequence flattened."""
    step = spec.get(part)
    if not step:
        return []
    if step["type"] != "Sequence":
        return [step]
    inner = next(value for value in step.values() if isinstance(value, list))
    return [leaf for child in inner for leaf in _steps({part: child}, part)]


def _take_space_prefix(path: Path, spec: Json) -> _Prefix:
    """Remove from the specification what puts a space before text, and return where it did."""
    prefix = _Prefix()
    for step in _steps(spec, "normalizer"):
        if step["type"] == "Prepend":
            if step["prepend"] != "▁":
                raise ModelFileError(f"{path}: a tokenizer that prepends {step['prepend']!r}")
            prefix = _Prefix("parts", double=True)
    spec["normalizer"] = _without_prepend(spec.get("normalizer"))
    for step in _steps(spec, "pre_tokenizer"):
        if step["type"] == "Metaspace":
            scheme = step.get("prepend_scheme", "always")
            step["prepend_scheme"] = "never"
            if scheme != "never":
                prefix = _Prefix("start" if scheme == "first" else "parts")
        elif step["type"] == "ByteLevel" and step["add_prefix_space"]:
            step["add_prefix_space"] = False
            prefix = _Prefix("parts")
    return prefix


def _without_prepend(step: Json | None) -> Json | None:
    if step is None or step["type"] == "Prepend":
        return None
    if step["type"] != "Sequence":
        return step
    inner = [kept for child in step["normalizers"] if (kept := _without_prepend(child))]
    return {**step, "normalizers": inner} if inner else None


def _remove_specials(spec: Json, specials: list[Json]) -> None:
    """Leave nothing in the specification that turns plain text into a special token."""
    model = spec["model"]
    names = {token["content"] for token in specials}
    model["dropout"] = None
    kept = {token: id_ for token, id_ in model["vocab"].items() if token not in names}
    ordinary = [token for token in spec.get("added_tokens") or [] if not token["special"]]
    for token in ordinary:  # in the vocabulary they keep their ids
        kept.setdefault(token["content"], token["id"])
    unknown = model.get("unk_token")
    if unknown in model["vocab"]:
        kept[unknown] = model["vocab"][unknown]
    model["vocab"] = kept
    reachable = kept.keys() - {unknown}
    pairs = (merge.split(" ", 1) if isinstance(merge, str) else merge for merge in model["merges"])
    model["merges"] = [list(pair) for pair in pairs if {*pair, "".join(pair)} <= reachable]
    spec["added_tokens"] = ordinary
    spec["post_processor"] = spec["truncation"] = spec["padding"] = None


def _load(path: Path, spec: Json) -> tokenizers.Tokenizer:
    try:
        return tokenizers.Tokenizer.from_str(json.dumps(spec))
    except Exception as error:  # the library raises bare Exception
        raise ModelFileError(f"{path / 'tokenizer.json'} cannot be used: {error}") from error


def _wants_bos(spec: Json, config: Json) -> bool:
    """Return whether the model's own tokenizer begins a text with BOS."""
    if isinstance(config.get("add_bos_token"), bool):
        return bool(config["add_bos_token"])
    for step in _processors(spec.get("post_processor")):
        if step["type"] == "TemplateProcessing":
            return "SpecialToken" in step["single"][0]
        if step["type"] in ("RobertaProcessing", "BertProcessing"):
            return True
    return False


def _processors(step: Json | None) -> list[Json]:
    if not step:
        return []
    return step["processors"] if step["type"] == "Sequence" else [step]


def _named(config: Json) -> dict[str, str]:
    values = {name: config.get(name) for name in _NAMED}
    return {
        name: value["content"] if isinstance(value, dict) else value
        for name, value in values.items()
        if value
    }


def _eos_ids(path: Path, named: int | None) -> frozenset[int]:
    """Return the ids that the folder's configurations call the end of a text."""
    ids: set[int] = set() if named is None else {named}
    for name in ("generation_config.json", "config.json"):
        value = _read(path / name).get("eos_token_id")
        ids.update(value if isinstance(value, list) else [] if value is None else [value])
    return frozenset(ids)


def _chat_template(path: Path, config: Json) -> str | None:
    file = path / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    template = _read(path / "chat_template.json").get("chat_template", config.get("chat_template"))
    if isinstance(template, list):  # several by name
        named = {item["name"]: item["template"] for item in template}
        template = named.get("default")
    return template


def _read(path: Path) -> Json:
    """Return a JSON file's object, empty where there is no such file."""
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise ModelFileError(f"{path} is damaged: {error}; fetch it again") from error
    if not isinstance(content, dict):
        raise ModelFileError(f"{path} holds no JSON object; fetch it again")
    return content
