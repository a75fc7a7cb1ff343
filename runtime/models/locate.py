"""Finds the model that a user names: a file, a folder, a hub id, or nothing for the default."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from pathlib import Path

from ..protocol import ModelDownloadError, ModelFileError, ModelNotFoundError
from .default import default_model_path

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_HUB_FILES = ("*.json", "*.safetensors", "*.jinja", "*.model", "merges.txt", "vocab.txt")
_NUM_NEAR = 5


def locate_model(name: str | None, *, progress: bool = True) -> Path:
    """Return the `.gguf` file or the folder of the model `name`.

    `None` is the default model and `org/name` a hub id, both downloaded on first use.

    Raises:
        ModelNotFoundError: no such file, folder or id; names near ones.
        ModelFileError: it is there, but no model.
        ModelDownloadError: it could not be downloaded.
    """
    if name is None:
        return default_model_path(progress=progress)
    path = Path(name).expanduser()
    if path.is_dir():
        return _check_folder(path)
    if path.is_file():
        if path.suffix.lower() != ".gguf":
            raise ModelFileError(
                f"{path} is not a .gguf file; for safetensors name the folder that holds them"
            )
        return path
    if _HUB_ID.fullmatch(name) and path.suffix.lower() != ".gguf" and not path.parent.is_dir():
        return _from_hub(name)
    raise ModelNotFoundError(_not_found(name, path))


def _check_folder(path: Path) -> Path:
    if (path / "config.json").is_file():
        return path
    files = sorted(file.name for file in path.glob("*.gguf"))
    hint = f"; it holds {', '.join(files)}: name the file" if files else ""
    raise ModelFileError(f"the folder {path} is no model: it has no config.json{hint}")


def _from_hub(name: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import GatedRepoError, HFValidationError, RepositoryNotFoundError

    try:
        return _check_folder(Path(snapshot_download(name, allow_patterns=list(_HUB_FILES))))
    except GatedRepoError as error:
        raise ModelDownloadError(
            f"the model {name} needs a login: accept its terms on the hub, then run `hf auth login`"
        ) from error
    except RepositoryNotFoundError as error:
        raise ModelNotFoundError(
            f"there is no model {name!r}, neither as a local path nor on the hub "
            "(a private one needs `hf auth login`)"
        ) from error
    except ModelFileError:
        raise
    except HFValidationError:
        raise ModelNotFoundError(_not_found(name, Path(name))) from None
    except Exception as error:  # whatever the hub's HTTP library raises
        raise ModelDownloadError(
            f"the model {name} could not be downloaded: {error}\n"
            f"With a network: hf download {name}. Without: name a local folder or .gguf file, "
            "or leave the model out for the default one"
        ) from error


def _not_found(name: str, path: Path) -> str:
    near = difflib.get_close_matches(path.name, list(_models_beside(path)), n=_NUM_NEAR, cutoff=0.4)
    hint = f"; near it: {', '.join(near)}" if near else ""
    return (
        f"there is no model {name!r}{hint}. A model is a .gguf file, a folder with config.json, "
        "or a hub id such as org/name"
    )


def _models_beside(path: Path) -> Iterator[str]:
    """Yield the names of the models in the folder where `path` would be."""
    folder = path.parent
    if not folder.is_dir():
        return
    for entry in folder.iterdir():
        if entry.suffix.lower() == ".gguf" or (entry / "config.json").is_file():
            yield entry.name
