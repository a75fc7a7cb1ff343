"""From `file.py:function` and `name=value` to a program and its arguments."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import ModuleType

from ramet.runtime.protocol import unknown_name

from ..programs.program import Program
from .problem import describe

_TRUE, _FALSE = ("true", "yes", "1"), ("false", "no", "0")


class UsageError(Exception):
    """What is wrong with the command line, in words for the person who typed it."""


def load_program(spec: str) -> Program:
    """Return the program that `file.py:function` names.

    Raises:
        UsageError: no such file or function (the nearest name is told), or not a program.
    """
    file, colon, name = spec.rpartition(":")
    if not colon or not file or not name:
        raise UsageError(f"{spec!r} names no function: write it as file.py:function")
    path = Path(file)
    if not path.is_file():
        raise UsageError(_no_file(path))
    module = _load_module(path)
    found = getattr(module, name, None)
    if isinstance(found, Program):
        return found
    programs = [key for key, value in vars(module).items() if isinstance(value, Program)]
    if found is not None:
        raise UsageError(f"{name!r} of {path} is not a program: decorate it with @ramet.function")
    none = "" if programs else "; it has no programs"
    raise UsageError(unknown_name(name, programs, f"program of {path}:") + none)


def _no_file(path: Path) -> str:
    near = sorted(path.parent.glob("*.py")) if path.parent.is_dir() else []
    return unknown_name(str(path), map(str, near), "file")


def _load_module(path: Path) -> ModuleType:
    """Run a file as a module, its folder first on the import path."""
    spec = importlib.util.spec_from_file_location(f"ramet_program_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path} is no Python file: its name must end in .py")
    sys.path.insert(0, str(path.parent.resolve()))
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # whatever the person's own file raises
        raise UsageError(f"cannot load {path}: {describe(error, path)}") from error
    return module


def read_arguments(pairs: Iterable[str], program: Program) -> dict[str, object]:
    """Return `name=value` pairs as arguments of `program`.

    Raises:
        UsageError: a pair without `=`, a name given twice, unknown or missing, a value that its
            parameter's annotation does not take, a file that cannot be read.
    """
    parameters = dict(list(inspect.signature(program.func).parameters.items())[1:])
    given: dict[str, object] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name:
            raise UsageError(f"--arg takes NAME=VALUE, not {pair!r}")
        if name in given:
            raise UsageError(f"--arg {name} was given twice")
        given[name] = _value(name, text, _parameter(name, parameters))
    missing = program.parameters.missing(program.bound, given)
    if missing:
        raise UsageError("missing: " + " ".join(f"--arg {name}=…" for name in missing))
    return given


def _parameter(name: str, parameters: Mapping[str, inspect.Parameter]) -> object:
    """Return the annotation of a parameter; of `**kwargs` for a name that only it can take."""
    if name in parameters:
        return parameters[name].annotation
    for parameter in parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            return parameter.annotation
    raise UsageError(unknown_name(name, parameters, "argument of the program"))


def _value(name: str, text: str, annotation: object) -> object:
    text = _text(name, text)
    kind = getattr(annotation, "__name__", annotation)  # a string under postponed annotations
    if kind == "bool":
        if text.lower() not in _TRUE + _FALSE:
            raise UsageError(f"--arg {name} takes true or false, not {text!r}")
        return text.lower() in _TRUE
    if kind not in ("int", "float"):
        return text
    try:
        return int(text) if kind == "int" else float(text)
    except ValueError:
        raise UsageError(f"--arg {name} takes a number ({kind}), not {text!r}") from None


def _text(name: str, text: str) -> str:
    if text.startswith("@@"):
        return text[1:]
    if not text.startswith("@"):
        return text
    try:
        return Path(text[1:]).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--arg {name}: cannot read {text[1:]}: {error}") from error
