"""The pytest plugin of Ramet: tests of programs without a model.

`ramet_fake` is a function: `ramet_fake({"answer": "Paris"}, …)` makes a `ramet.Fake` with these
arguments and the backend in force until the test ends. In such a test the default engine cannot
start, so nothing is ever downloaded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from .backends import Fake


@pytest.fixture
def ramet_fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Fake]]:
    """Return what makes a fake backend and puts it in force for this test."""
    from .backends import Fake, local
    from .execution import context

    def refuse() -> Any:
        raise RuntimeError(
            "the default engine does not start in a test with ramet_fake: "
            "call ramet_fake({…}) first, or name a backend"
        )

    monkeypatch.setattr(local, "default_engine", refuse)
    monkeypatch.setattr(context, "_process_backend", None)
    made: list[Fake] = []

    def make(*args: Any, **kwargs: Any) -> Fake:
        fake = Fake(*args, **kwargs)
        made.append(fake)
        context.set_default_backend(fake)
        return fake

    yield make
    for fake in made:
        fake.close()
