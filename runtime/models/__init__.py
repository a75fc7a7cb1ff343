"""Models: their configuration, weights and forward pass.

Importing this package loads no torch; `load_model` does.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..protocol import ModelFileError, ModelNotFoundError

if TYPE_CHECKING:
    from ..prompts.tokenizer import Tokenizer
    from .config import ModelConfig
    from .decoder import Decoder
    from .weights import TensorSource

__all__ = ["LoadedModel", "load_model", "load_tokenizer"]


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model that is ready to run, and what belongs to it."""

    config: ModelConfig
    network: Decoder
    tokenizer: Tokenizer
    chat_template: str | None
    path: Path
    name: str
    num_parameters: int


def load_model(path: Path, *, dtype: str = "auto", device: str = "cpu") -> LoadedModel:
    """Load a .gguf file, or a folder with safetensors and config.json.

    Args:
        path: the file or folder.
        dtype: "float32", "bfloat16", or "auto": bfloat16 where `device` multiplies it natively.
        device: a torch device.

    Raises:
        ModelNotFoundError: there is nothing at `path`.
        ModelFileError: a damaged or unsupported file, naming the part that is.
    """
    from .decoder import Decoder
    from .dtypes import resolve_dtype

    path = Path(path)
    source = _open_source(path)
    network = Decoder(source.config, source, dtype=resolve_dtype(dtype, device), device=device)
    tokenizer = load_tokenizer(path)
    if tokenizer.vocab_size > source.config.vocab_size:
        raise ModelFileError(
            f"{path}: the tokenizer has {tokenizer.vocab_size} ids, the model only "
            f"{source.config.vocab_size}: they do not belong together"
        )
    return LoadedModel(
        config=source.config,
        network=network,
        tokenizer=tokenizer,
        chat_template=tokenizer.chat_template,
        path=path,
        name=source.name,
        num_parameters=network.num_parameters,
    )


def _open_source(path: Path) -> TensorSource:
    if path.is_dir():
        from .safetensors import SafetensorsSource

        return SafetensorsSource(path)
    if not path.exists():
        raise ModelNotFoundError(f"no model at {path}: give a .gguf file or a model folder")
    if path.suffix != ".gguf":
        raise ModelFileError(f"{path} is not a .gguf file nor a folder with config.json")
    from .gguf import GGUFSource

    return GGUFSource(path)


def load_tokenizer(path: Path) -> Tokenizer:
    """Load the tokenizer, with the chat template, of a .gguf file or a model folder.

    Raises:
        ModelFileError: a damaged or unsupported file, naming the part that is.
    """
    from ..prompts.tokenizer import Tokenizer

    return Tokenizer.from_folder(path) if path.is_dir() else Tokenizer.from_gguf(path)
