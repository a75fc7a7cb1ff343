"""Questions to the backend in force, without a program: `flush_cache`, `get_server_info`."""

from __future__ import annotations

from .backends.base import Backend
from .execution import context


def flush_cache(backend: Backend | None = None) -> bool:
    """Empty the prefix cache; return False, and change nothing, while something runs.

    Args:
        backend: whose; None (the default) = the backend in force.

    Raises:
        TypeError: something that is no backend.
        EngineClosedError: it was closed.

    Example:
        >>> ramet.flush_cache(ramet.Fake())
        True
    """
    return context.backend_in_force(backend).flush_cache()


def get_server_info(backend: Backend | None = None) -> dict[str, object]:
    """Return the model, its context length, the load and the counters of a backend.

    Args:
        backend: whose; None (the default) = the backend in force.

    Raises:
        TypeError: something that is no backend.
        EngineClosedError: it was closed.

    Example:
        >>> ramet.get_server_info(ramet.Fake())["model"]
        'fake: scripted answers'
    """
    return context.backend_in_force(backend).info()
