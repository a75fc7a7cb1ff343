from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub.errors import LocalEntryNotFoundError, RepositoryNotFoundError

from ramet.runtime.models import locate
from ramet.runtime.models.locate import locate_model
from ramet.runtime.protocol import ModelDownloadError, ModelFileError, ModelNotFoundError


def folder(path: Path) -> Path:
    path.mkdir(parents=True)
    (path / "config.json").write_text("{}")
    return path


def test_no_name_is_the_default_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locate, "default_model_path", lambda progress: Path("/default.gguf"))
    assert locate_model(None) == Path("/default.gguf")


def test_files_and_folders_are_models(tmp_path: Path) -> None:
    file = tmp_path / "a.gguf"
    file.touch()
    assert locate_model(str(file)) == file
    assert locate_model(str(folder(tmp_path / "model"))) == tmp_path / "model"


def test_what_is_there_but_no_model_is_a_file_error(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(ModelFileError, match="name the folder"):
        locate_model(str(tmp_path / "model.safetensors"))
    (tmp_path / "a.gguf").touch()
    with pytest.raises(ModelFileError, match=r"no config\.json; it holds a\.gguf"):
        locate_model(str(tmp_path))


def test_an_unknown_name_is_answered_with_near_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "smollm2.gguf").touch()
    folder(tmp_path / "qwen3")
    (tmp_path / "notes.txt").touch()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelNotFoundError, match=r"'smolm2\.gguf'; near it: smollm2\.gguf\."):
        locate_model("smolm2.gguf")
    with pytest.raises(ModelNotFoundError, match="near it: qwen3"):
        locate_model(str(tmp_path / "qwen2"))
    with pytest.raises(ModelNotFoundError, match="a hub id such as org/name"):
        locate_model("nothing like it")
    with pytest.raises(ModelNotFoundError):
        locate_model("no/such/path.gguf")


def test_a_hub_id_is_downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def snapshot(name: str, allow_patterns: list[str]) -> str:
        asked.append(name)
        return str(folder(tmp_path / "snapshot"))

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    assert locate_model("org/name-1.5B") == tmp_path / "snapshot"
    assert asked == ["org/name-1.5B"]


class NotThere(RepositoryNotFoundError):
    """The error without the answer of a server."""

    def __init__(self) -> None:
        Exception.__init__(self, "404")


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (LocalEntryNotFoundError("offline"), ModelDownloadError, "hf download org/name"),
        (ConnectionError("no route"), ModelDownloadError, "no route"),
        (NotThere(), ModelNotFoundError, "nor on the hub"),
    ],
)
def test_a_hub_id_that_cannot_be_had_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, error: Exception, kind: type[Exception], words: str
) -> None:
    def snapshot(name: str, allow_patterns: list[str]) -> str:
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    with pytest.raises(kind, match=words):
        locate_model("org/name")
