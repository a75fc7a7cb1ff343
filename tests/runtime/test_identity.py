"""The hash of a model's files."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from ramet.runtime.models.identity import arithmetic, model_hash
from ramet.runtime.protocol import ModelNotFoundError


@pytest.fixture(autouse=True)
def cache_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("ramet.runtime.models.identity.cache_folder", lambda: tmp_path / "c" / "m")
    return tmp_path / "c"


def test_the_hash_of_a_file_is_that_of_its_bytes(tmp_path: Path) -> None:
    file = tmp_path / "m.gguf"
    file.write_bytes(b"weights")
    assert model_hash(file) == hashlib.sha256(b"weights").hexdigest()


def test_a_file_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "m.gguf"
    file.write_bytes(b"weights")
    first = model_hash(file)
    with monkeypatch.context() as patch:
        patch.setattr("hashlib.file_digest", None)
        assert model_hash(file) == first


def test_a_changed_file_has_another_hash(tmp_path: Path) -> None:
    file = tmp_path / "m.gguf"
    file.write_bytes(b"weights")
    before = model_hash(file)
    file.write_bytes(b"WEIGHTS")
    os.utime(file, ns=(1, 1))
    assert model_hash(file) != before


def test_the_hash_of_a_folder_is_that_of_its_model_files(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
        (tmp_path / name / "model.safetensors").write_bytes(b"weights")
    assert model_hash(tmp_path / "a") == model_hash(tmp_path / "b")
    (tmp_path / "a" / "README.md").write_text("no part of the model")
    assert model_hash(tmp_path / "a") == model_hash(tmp_path / "b")
    (tmp_path / "a" / "config.json").write_text("{ }")
    assert model_hash(tmp_path / "a") != model_hash(tmp_path / "b")


def test_a_damaged_note_is_ignored(tmp_path: Path, cache_home: Path) -> None:
    file = tmp_path / "m.gguf"
    file.write_bytes(b"weights")
    first = model_hash(file)
    (note,) = (cache_home / "hashes").iterdir()
    note.write_text("[")
    assert model_hash(file) == first


def test_a_cache_folder_that_cannot_be_written_does_not_matter(
    tmp_path: Path, cache_home: Path
) -> None:
    cache_home.write_text("a file, not a folder")
    file = tmp_path / "m.gguf"
    file.write_bytes(b"weights")
    assert model_hash(file) == hashlib.sha256(b"weights").hexdigest()


def test_a_missing_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"none\.gguf"):
        model_hash(tmp_path / "none.gguf")


def test_the_arithmetic_names_versions_and_stays_the_same() -> None:
    assert "torch" in arithmetic()
    assert arithmetic() == arithmetic()
