"""The import rules, the size of modules and the layout; see docs/architecture/index.md.

Each rule is a function of a tree, so that it can be shown to fail on a crossing put there.
"""

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = ("lang", "runtime", "kernels")
MAX_LINES = 350

# Not for lang, at any depth: a program without an engine must need none of them.
HEAVY = {"torch", "numpy", "transformers", "tokenizers", "gguf", "safetensors", "triton"}
LAZY_CROSSING = "lang/backends/local.py"  # may import the engine inside a function
DEVICE_FILES = {"kernels/ops.py", "runtime/config.py", "runtime/model_runner.py"}
TOP_LEVEL = {
    *FOLDERS,
    *("tests", "docs", "examples", ".ci"),
    *("pyproject.toml", "README.md", "CHANGELOG.md", "LICENSE", "Makefile", ".gitignore"),
}
NOT_OURS = {"build", "dist", ".git", ".venv", "__pycache__", "shared"}


@dataclass(frozen=True)
class Import:
    """One imported module; `is_lazy` inside a function, `level` the dots of a relative import."""

    path: str
    line: int
    module: str
    level: int = 0
    is_lazy: bool = False

    @property
    def place(self) -> str:
        return f"{self.path}:{self.line}"

    @property
    def folder(self) -> str:
        return self.path.split("/")[0]


def source_files(root: Path) -> Iterator[tuple[str, str]]:
    """Yield the path from the root and the text of each module of ours."""
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*.py")):
            yield path.relative_to(root).as_posix(), path.read_text(encoding="utf-8")


def imports_of(path: str, text: str) -> Iterator[Import]:
    """Yield every import of a module, those inside functions and type-checking blocks too."""
    tree = ast.parse(text, path)
    lazy = {
        id(inner)
        for outer in ast.walk(tree)
        if isinstance(outer, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        for inner in ast.walk(outer)
    }
    for node in ast.walk(tree):
        for module, level in modules_named(node):
            yield Import(path, getattr(node, "lineno", 0), module, level, id(node) in lazy)


def modules_named(node: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield (module, dots) of an import statement, or of `import_module("…")`."""
    if isinstance(node, ast.Import):
        yield from ((alias.name, 0) for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        base = node.module or ""
        is_package = base in ("", "ramet", "ramet.runtime", "ramet.kernels")
        names = [alias.name for alias in node.names] if is_package else [""]
        yield from ((".".join(filter(None, (base, name))), node.level) for name in names)
    elif isinstance(node, ast.Call) and node.args:
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        first = node.args[0]
        if name in ("import_module", "__import__") and isinstance(first, ast.Constant):
            yield str(first.value), 0


def is_inside(module: str, parent: str) -> bool:
    return module == parent or module.startswith(parent + ".")


def target_folder(module: str) -> str | None:
    """Return which folder of ours an absolute import leads to, None for another's."""
    for folder in ("runtime", "kernels"):
        if is_inside(module, f"ramet.{folder}"):
            return folder
    return "lang" if is_inside(module, "ramet") else None


def import_violations(root: Path) -> list[str]:
    """Return what breaks the import rules, one line each."""
    return [
        f"{found.place} {problem}"
        for path, text in source_files(root)
        for found in imports_of(path, text)
        if (problem := problem_of(found))
    ]


def problem_of(found: Import) -> str | None:
    if found.level:
        depth = len(Path(found.path).parts) - 1
        return "imports relatively across folders" if found.level > depth else None
    top = found.module.split(".")[0]
    if top in FOLDERS:
        return f"imports {top!r} by its folder name"
    target = target_folder(found.module)
    if target is None:
        return problem_of_foreign(found, top)
    if target == found.folder:
        return f"imports {found.module} absolutely inside its own folder"
    return problem_of_crossing(found, target)


def problem_of_foreign(found: Import, top: str) -> str | None:
    if found.folder == "lang" and top in HEAVY:
        return f"imports {top} in the language"
    if found.path.startswith("runtime/protocol/") and top not in sys.stdlib_module_names:
        return f"imports {top} in the protocol, which is standard library only"
    return None


def problem_of_crossing(found: Import, target: str) -> str | None:
    crossing = f"{found.folder} imports {found.module}"
    if found.folder == "lang" and target == "runtime":
        if is_inside(found.module, "ramet.runtime.protocol"):
            return None
        is_allowed = found.path == LAZY_CROSSING and found.is_lazy
        return None if is_allowed else f"{crossing}: only ramet.runtime.protocol is allowed"
    if found.folder == "runtime" and target == "kernels":
        is_allowed = is_inside(found.module, "ramet.kernels.ops")
        return None if is_allowed else f"{crossing}: only ramet.kernels.ops is allowed"
    return crossing


def device_violations(root: Path) -> list[str]:
    """Return where the device is asked for outside the files that decide about it."""
    return [
        f"{path}:{node.lineno} asks for the device ({ast.unparse(node)})"
        for path, text in source_files(root)
        if path not in DEVICE_FILES
        for node in ast.walk(ast.parse(text, path))
        if isinstance(node, ast.Attribute) and asks_for_device(node)
    ]


def asks_for_device(node: ast.Attribute) -> bool:
    if node.attr in ("is_cuda", "is_cpu", "is_mps", "is_xpu"):
        return True
    if node.attr == "type" and isinstance(node.value, ast.Attribute):
        return node.value.attr == "device"
    of_torch = isinstance(node.value, ast.Name) and node.value.id == "torch"
    return of_torch and node.attr in ("cuda", "mps", "xpu", "accelerator")


def size_violations(root: Path) -> list[str]:
    """Return the modules with too many lines."""
    sizes = ((path, text.count("\n")) for path, text in source_files(root))
    return [f"{path} has {size} lines" for path, size in sizes if size > MAX_LINES]


def layout_violations(root: Path) -> list[str]:
    """Return what lies at the top and should not; caches and build folders do not count."""
    found = {path.name for path in root.iterdir()}
    ours = {name for name in found - NOT_OURS if not name.endswith(("_cache", ".egg-info", ".pyc"))}
    return sorted(name for name in ours - TOP_LEVEL if name != ".hypothesis")


def test_imports_follow_the_rules() -> None:
    assert import_violations(ROOT) == []


def test_device_is_asked_for_only_where_it_is_decided() -> None:
    assert device_violations(ROOT) == []


def test_modules_are_short() -> None:
    assert size_violations(ROOT) == []


def test_top_level_is_fixed() -> None:
    assert layout_violations(ROOT) == []


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("lang/states/state.py", "import torch"),
        ("lang/states/state.py", "def f():\n    import numpy as np"),
        ("lang/states/state.py", "from ramet.runtime.engine import Engine"),
        ("lang/states/state.py", "from ramet.runtime import engine"),
        ("lang/states/state.py", "def f():\n    from ramet.runtime.engine import Engine"),
        ("lang/backends/local.py", "from ramet.runtime.engine import Engine"),
        ("lang/backends/fake.py", "from ramet.expressions.graph import Gen"),
        ("lang/states/state.py", "from ramet import kernels"),
        ("lang/states/state.py", "import_module('ramet.runtime.engine')"),
        ("runtime/engine.py", "import ramet"),
        ("runtime/engine.py", "from ramet.states.state import ProgramState"),
        ("runtime/engine.py", "if TYPE_CHECKING:\n    from ramet import state"),
        ("runtime/engine.py", "from ramet.kernels.reference import attention"),
        ("runtime/engine.py", "from ramet.kernels import reference"),
        ("runtime/engine.py", "from ramet.runtime.protocol import Text"),
        ("runtime/engine.py", "from lang.state import ProgramState"),
        ("runtime/models/llama.py", "from ...kernels import ops"),
        ("runtime/protocol/messages.py", "import numpy"),
        ("kernels/ops.py", "from ramet.runtime.protocol import Text"),
        ("kernels/ops.py", "import ramet.function"),
        ("kernels/ops.py", "from ..runtime import step"),
    ],
)
def test_forbidden_import_is_found(tmp_path: Path, path: str, line: str) -> None:
    write(tmp_path, path, line)
    violations = import_violations(tmp_path)
    assert len(violations) == 1
    assert violations[0].startswith(f"{path}:")


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("lang/states/state.py", "from ramet.runtime.protocol import Text"),
        ("lang/states/state.py", "from .graph import Gen"),
        ("lang/backends/fake.py", "from ..graph import Gen"),
        ("lang/backends/local.py", "def f():\n    from ramet.runtime.engine import Engine"),
        ("runtime/engine.py", "import torch\nfrom .protocol import Text"),
        ("runtime/models/llama.py", "from ramet.kernels import ops"),
        ("runtime/models/llama.py", "from ramet.kernels.ops import linear"),
        ("runtime/protocol/messages.py", "from dataclasses import dataclass"),
        ("kernels/ops.py", "import torch\nfrom . import reference"),
    ],
)
def test_allowed_import_is_not_reported(tmp_path: Path, path: str, line: str) -> None:
    write(tmp_path, path, line)
    assert import_violations(tmp_path) == []


@pytest.mark.parametrize(
    "line", ["x = torch.cuda.is_available()", "x = t.is_cuda", "x = t.device.type == 'cpu'"]
)
def test_device_question_is_found(tmp_path: Path, line: str) -> None:
    write(tmp_path, "runtime/sampler.py", line)
    assert len(device_violations(tmp_path)) == 1
    write(tmp_path, "runtime/sampler.py", "")
    write(tmp_path, "runtime/model_runner.py", line)
    assert device_violations(tmp_path) == []


def test_long_module_is_found(tmp_path: Path) -> None:
    write(tmp_path, "lang/states/state.py", "\n" * (MAX_LINES + 1))
    assert size_violations(tmp_path) == [f"lang/states/state.py has {MAX_LINES + 1} lines"]


def test_stray_top_level_folder_is_found(tmp_path: Path) -> None:
    (tmp_path / "utils").mkdir()
    assert layout_violations(tmp_path) == ["utils"]


def write(root: Path, path: str, text: str) -> None:
    target = root / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text, encoding="utf-8")
