"""The public names: listed, sorted, documented, and nothing else without an underscore.

Every example in a docstring of ours runs.
"""

import doctest
import importlib
import inspect
import types
from collections.abc import Iterator
from typing import Any

import pytest

import ramet

CLASSES = [
    ramet.Program,
    ramet.ProgramState,
    ramet.AsyncProgramState,
    ramet.ForkGroup,
    ramet.AsyncForkGroup,
    ramet.Engine,
    ramet.Fake,
    ramet.Cached,
]
FLAGS = doctest.ELLIPSIS | doctest.IGNORE_EXCEPTION_DETAIL | doctest.NORMALIZE_WHITESPACE
PACKAGES = ["ramet", "ramet.backends", "ramet.errors", "ramet.runtime.protocol"]


def order(name: str) -> tuple[int, str]:
    """Return the key of the order that ruff keeps: constants, classes, the rest."""
    if name.isupper():
        return 0, name
    return (1, name) if name[0].isupper() else (2, name)


def public_names(module: types.ModuleType) -> set[str]:
    """Return the names without an underscore, less submodules that nobody listed."""
    return {
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and name not in ("TYPE_CHECKING", "annotations")
        and (not isinstance(value, types.ModuleType) or name in module.__all__)
    }


@pytest.mark.parametrize("name", PACKAGES)
def test_all_is_what_is_public(name: str) -> None:
    module = importlib.import_module(name)
    assert public_names(module) == {item for item in module.__all__ if not item.startswith("_")}


@pytest.mark.parametrize("name", PACKAGES)
def test_all_is_sorted_without_doubles(name: str) -> None:
    listed = importlib.import_module(name).__all__
    assert listed == sorted(set(listed), key=order)


@pytest.mark.parametrize("name", PACKAGES)
def test_public_things_have_a_docstring(name: str) -> None:
    module = importlib.import_module(name)
    values: dict[str, Any] = {item: getattr(module, item) for item in module.__all__}
    bare = [
        item
        for item, value in values.items()
        if callable(value) and not isinstance(value, types.UnionType) and not value.__doc__
    ]
    assert module.__doc__
    assert bare == []


def members(owner: type) -> Iterator[tuple[str, Any]]:
    """Give the public methods and properties of a class, those it inherits from ours included."""
    for name, value in inspect.getmembers(owner):
        if not name.startswith("_"):
            yield name, value


@pytest.mark.parametrize("owner", CLASSES, ids=lambda owner: owner.__name__)
def test_public_methods_have_a_docstring(owner: type) -> None:
    bare = [name for name, value in members(owner) if not getattr(value, "__doc__", None)]
    assert bare == []


@pytest.mark.parametrize("name", sorted(ramet.__all__))
def test_public_name_has_an_example(name: str) -> None:
    value = getattr(ramet, name)
    if isinstance(value, (str, types.ModuleType)):
        pytest.skip("a constant or a module")
    assert ">>> " in (value.__doc__ or "")


INTERNAL = {"bind_row", "body_of", "execute", "is_async", "new_run", "split"}  # of Program, ours


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        pytest.param(owner, name, id=f"{owner.__name__}.{name}")
        for owner in CLASSES
        for name, _ in members(owner)
        if not (owner is ramet.Program and name in INTERNAL)
    ],
)
def test_public_member_has_an_example(owner: type, name: str) -> None:
    assert ">>> " in (getattr(owner, name).__doc__ or "")


def examples() -> Iterator[Any]:
    """Give the examples of every public thing and of the members of our classes."""
    finder = doctest.DocTestFinder(exclude_empty=True, recurse=False)
    things = {f"ramet.{name}": getattr(ramet, name) for name in ramet.__all__}
    things = {name: value for name, value in things.items() if not isinstance(value, str)}
    for owner in (value for value in list(things.values()) if isinstance(value, type)):
        things |= {f"{owner.__name__}.{name}": value for name, value in members(owner)}
    for name, value in things.items():
        if inspect.ismodule(value):
            continue
        documented = value if callable(value) or isinstance(value, property) else type(value)
        for test in finder.find(documented, name, module=False, globs={"ramet": ramet}):
            if test.examples:
                yield pytest.param(test, id=name)


@pytest.mark.parametrize("test", list(examples()))
def test_example_gives_what_it_says(test: doctest.DocTest) -> None:
    report: list[str] = []
    runner = doctest.DocTestRunner(verbose=False, optionflags=FLAGS)
    failed = runner.run(test, out=report.append, clear_globs=False).failed
    assert not failed, "".join(report)
