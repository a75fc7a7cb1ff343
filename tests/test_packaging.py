"""The package list, the version and what a built wheel holds."""

import importlib.metadata
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import ramet

ROOT = Path(__file__).parent.parent
FOLDERS = {"lang": "ramet", "runtime": "ramet.runtime", "kernels": "ramet.kernels"}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def packages_in_tree() -> list[str]:
    """Return the import name of every folder that holds a module."""
    names = set()
    for folder, package in FOLDERS.items():
        for path in (ROOT / folder).rglob("*.py"):
            inside = path.parent.relative_to(ROOT / folder).parts
            names.add(".".join((package, *inside)))
    return sorted(names)


def test_package_list_is_the_tree() -> None:
    assert PROJECT["tool"]["setuptools"]["packages"] == packages_in_tree()


def test_every_package_has_an_init() -> None:
    folders = {path.parent for name in FOLDERS for path in (ROOT / name).rglob("*.py")}
    assert [str(folder) for folder in folders if not (folder / "__init__.py").exists()] == []


def test_language_has_no_module_named_like_another_folder() -> None:
    names = {path.stem for path in (ROOT / "lang").iterdir()}
    assert names.isdisjoint({"runtime", "kernels"})


def test_version_is_written_once() -> None:
    assert ramet.__version__ == importlib.metadata.version("ramet")
    assert PROJECT["project"]["dynamic"] == ["version"]
    assert PROJECT["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "ramet.__version__"}


def test_changelog_names_the_version() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert "## [Unreleased]" in changelog or f"## [{ramet.__version__}]" in changelog


def test_every_dependency_has_its_reason() -> None:
    reasons = (ROOT / "docs/decisions/0002-dependencies.md").read_text(encoding="utf-8")
    extras = PROJECT["project"]["optional-dependencies"].values()
    wanted = [*PROJECT["project"]["dependencies"], *(name for extra in extras for name in extra)]
    names = [item.split(">")[0].split("=")[0].split(";")[0].strip() for item in wanted]
    assert [name for name in names if f"`{name}`" not in reasons] == []


@pytest.mark.slow
def test_wheel_installs_and_runs_elsewhere(tmp_path: Path) -> None:
    wheel = build_wheel(tmp_path)
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {"ramet/__init__.py", "ramet/py.typed", "ramet/runtime/step.py"} <= names
    assert not [name for name in names if name.startswith(("lang/", "tests/", "runtime/"))]
    environment = tmp_path / "environment"
    run(sys.executable, "-m", "venv", str(environment))
    python = str(next(environment.glob("[bS]*/python*")))
    run(python, "-m", "pip", "install", "--no-deps", "--quiet", str(wheel))
    out = run(python, "-m", "ramet.cli", "version", cwd=tmp_path)
    assert ramet.__version__ in out


def build_wheel(folder: Path) -> Path:
    """Build from a copy, since setuptools reuses an old build/ folder of the tree."""
    import shutil

    source = folder / "source"
    for name in (*FOLDERS, "pyproject.toml", "README.md", "LICENSE"):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        source.mkdir(exist_ok=True)
        copy(ROOT / name, source / name)
    command = ("-m", "pip", "wheel", "--no-deps", "--quiet", "-w", str(folder), str(source))
    run(sys.executable, *command)
    return next(folder.glob("ramet-*.whl"))


def run(*command: str, cwd: Path | None = None) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout
