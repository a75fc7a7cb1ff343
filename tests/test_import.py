"""`import ramet` is light: it loads nothing that a program without an engine does not need."""

import json
import subprocess
import sys

HEAVY = {"torch", "numpy", "transformers", "tokenizers", "gguf", "safetensors", "psutil", "tqdm"}


def loaded_after(statement: str) -> set[str]:
    """Return the top-level names of all modules loaded in a fresh process by `statement`."""
    code = f"{statement}; import json, sys; print(json.dumps(sorted(sys.modules)))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return {name.partition(".")[0] for name in json.loads(out.stdout)}


def test_import_ramet_loads_no_heavy_package() -> None:
    assert not loaded_after("import ramet") & HEAVY


def test_import_protocol_loads_no_heavy_package() -> None:
    assert not loaded_after("import ramet.runtime.protocol") & HEAVY


def test_import_command_line_loads_no_heavy_package() -> None:
    assert not loaded_after("import ramet.cli") & HEAVY


def test_import_pytest_plugin_loads_no_heavy_package() -> None:
    assert not loaded_after("import ramet.pytest_plugin") & HEAVY
