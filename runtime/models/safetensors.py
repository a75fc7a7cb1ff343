"""Reads model folders: config.json and safetensors, in one file or in shards with an index."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from ..protocol import ModelFileError
from .config import config_from_json

DTYPES = {"F32", "F16", "BF16"}
SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"


class SafetensorsSource:
    """The tensors of a model folder; see `weights.TensorSource`."""

    def __init__(self, folder: Path) -> None:
        config = folder / "config.json"
        self.where = str(folder)
        self.name = folder.name
        self.config = config_from_json(_read_json(config), str(config))
        self._files: dict[str, Any] = {}
        for path in _weight_files(folder):
            file = _open(path)
            for name in file.keys():  # noqa: SIM118 - not a dict
                self._files[name] = file

    def names(self) -> Sequence[str]:
        """Names of all tensors."""
        return list(self._files)

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of one tensor."""
        return tuple(self._files[name].get_slice(name).get_shape())

    def load(self, name: str) -> torch.Tensor:
        """Read one tensor."""
        dtype = self._files[name].get_slice(name).get_dtype()
        if dtype not in DTYPES:
            raise ModelFileError(
                f"{self.where}: tensor {name} has dtype {dtype}; supported are "
                f"{', '.join(sorted(DTYPES))}"
            )
        tensor: torch.Tensor = self._files[name].get_tensor(name)
        return tensor


def _weight_files(folder: Path) -> list[Path]:
    index = folder / INDEX
    if not index.exists():
        if not (folder / SINGLE).exists():
            raise ModelFileError(f"{folder} has neither {SINGLE} nor {INDEX}")
        return [folder / SINGLE]
    shards = sorted(set(_read_json(index).get("weight_map", {}).values()))
    missing = [shard for shard in shards if not (folder / shard).exists()]
    if missing or not shards:
        raise ModelFileError(f"{index} names files that are not there: {', '.join(missing)}")
    return [folder / shard for shard in shards]


def _open(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError) as error:
        raise ModelFileError(
            f"{path} cannot be read as safetensors{_sizes(path)}: {error}"
        ) from error


def _sizes(path: Path) -> str:
    """Say what size the header promises, where it can be read and the file is another."""
    actual = path.stat().st_size
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(min(length, actual)))
        ends = [entry["data_offsets"][1] for name, entry in header.items() if name[:2] != "__"]
    except (ValueError, KeyError, TypeError, AttributeError):
        return f" ({actual} bytes)"
    return f" (expected {8 + length + max(ends, default=0)} bytes, found {actual})"


def _read_json(path: Path) -> dict[str, Any]:
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ModelFileError(
            f"{path.parent} is no model folder: there is no {path.name}"
        ) from error
    except (ValueError, OSError) as error:
        raise ModelFileError(f"{path} cannot be read: {error}") from error
    if not isinstance(body, dict):
        raise ModelFileError(f"{path} must hold a JSON object")
    return body
