"""What a model is, by its content: the hash of its files; and what computes its numbers."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import zlib
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

from ..protocol import ModelDownloadError, ModelNotFoundError
from .default import cache_folder

_MODEL_SUFFIXES = frozenset({".json", ".safetensors", ".jinja", ".model", ".txt"})


def model_hash(path: Path) -> str:
    """Return the SHA-256 of a .gguf file, or of what belongs to the model in a folder.

    The hash of a file is remembered in Ramet's cache folder by path, size and time of change, so
    that large files are read once. For a folder it is the hash over the names and hashes of its
    configuration, tokenizer and safetensors files.

    Raises:
        ModelNotFoundError: there is nothing at `path`, or it cannot be read.
    """
    try:
        if not path.is_dir():
            return _hash_of_file(path)
        whole = hashlib.sha256()
        for file in _files_of(path):
            whole.update(f"{file.name}\0{_hash_of_file(file)}\n".encode())
        return whole.hexdigest()
    except OSError as error:
        raise ModelNotFoundError(f"the model at {path} cannot be read: {error}") from error


def arithmetic() -> str:
    """Return what the last bits of a result depend on: versions and the processor.

    On another processor torch may choose other instructions, which add in another order.
    """
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        text = ""
    first = [line for line in text.split("\n\n")[0].splitlines() if line.startswith("flags")]
    flags = zlib.crc32("".join(first).encode())
    processor = f"{platform.machine()} {platform.processor()} {flags:08x}"
    return f"ramet {version('ramet')}, torch {version('torch')}, {processor}"


def _files_of(folder: Path) -> Iterator[Path]:
    for entry in sorted(folder.iterdir()):
        if entry.suffix in _MODEL_SUFFIXES and entry.is_file():
            yield entry


def _hash_of_file(path: Path) -> str:
    state = path.stat()
    facts = {"path": str(path.resolve()), "size": state.st_size, "mtime_ns": state.st_mtime_ns}
    note = _note(str(facts["path"]))
    known = _read(note)
    if known is not None and {name: known.get(name) for name in facts} == facts:
        return str(known["sha256"])
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    _write(note, {**facts, "sha256": found})
    return found


def _note(path: str) -> Path | None:
    """Return where the hash of the file `path` is remembered; None where there is no home."""
    try:
        folder = cache_folder().parent / "hashes"
    except ModelDownloadError:
        return None
    return folder / f"{hashlib.sha256(path.encode()).hexdigest()}.json"


def _read(note: Path | None) -> dict[str, object] | None:
    if note is None:
        return None
    try:
        known = json.loads(note.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return known if isinstance(known, dict) and isinstance(known.get("sha256"), str) else None


def _write(note: Path | None, facts: dict[str, object]) -> None:
    """Remember; where the folder cannot be written the file is just read again next time."""
    if note is None:
        return
    with contextlib.suppress(OSError):
        note.parent.mkdir(parents=True, exist_ok=True)
        temporary = note.with_suffix(f".{os.getpid()}.new")
        temporary.write_text(json.dumps(facts), encoding="utf-8")
        temporary.replace(note)
