"""The public names: listed, sorted, documented, and nothing else without an underscore."""

import importlib
import types
from typing import Any

import pytest

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
