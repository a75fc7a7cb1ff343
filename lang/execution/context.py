"""What surrounds a call: the backend in force and the run whose body is being executed."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

from ..backends import local
from ..backends.base import Backend
from .executor import Run

_backend: ContextVar[Backend | None] = ContextVar("ramet_backend", default=None)
_run: ContextVar[Run | None] = ContextVar("ramet_run", default=None)
_process_backend: Backend | None = None
_OWN_FOLDER = f"{Path(__file__).parent.parent}{os.sep}"


def set_default_backend(backend: Backend | None) -> None:
    """Use `backend` wherever none is named, in the whole process; None = the default engine.

    Raises:
        TypeError: something that is no backend.

    Example:
        >>> ramet.set_default_backend(ramet.Fake())
        >>> ramet.get_server_info()["model"]
        'fake: scripted answers'
        >>> ramet.set_default_backend(None)
    """
    global _process_backend
    _process_backend = None if backend is None else check_backend(backend)


def default_backend() -> Backend | None:
    """Return what `set_default_backend` has set."""
    return _process_backend


@contextmanager
def backend(backend: Backend) -> Iterator[Backend]:
    """Use `backend` inside a `with` block, in this thread or task only.

    Raises:
        TypeError: something that is no backend.

    Example:
        >>> with ramet.backend(ramet.Fake()):
        ...     ramet.get_server_info()["model"]
        'fake: scripted answers'
    """
    token = _backend.set(check_backend(backend))
    try:
        yield backend
    finally:
        _backend.reset(token)


@contextmanager
def executing(run: Run) -> Iterator[None]:
    """Make `run` the caller of the programs that are called inside the block."""
    token = _run.set(run)
    try:
        with backend(run.settings.backend):
            yield
    finally:
        _run.reset(token)


def calling_run() -> Run | None:
    """Return the run in whose body we are, if any."""
    return _run.get()


def backend_in_force(named: object = None) -> Backend:
    """Return the backend named at the call, else the block's, the process's, the default engine."""
    if named is not None:
        return check_backend(named)
    return _backend.get() or _process_backend or local.default_engine()


def check_backend(backend: object) -> Backend:
    """Return `backend` if it is one."""
    if isinstance(backend, type) or not isinstance(backend, Backend):
        raise TypeError(
            f"{backend!r} is not a backend: give ramet.Engine(…), ramet.Fake(…) or an object with "
            "submit, abort, render, info and close"
        )
    return backend


def program_line(file: str) -> int:
    """Return the line being executed: of the program's file, else of whoever called Ramet."""
    frame = sys._getframe(1)
    outside = 0
    while frame is not None:
        name = frame.f_code.co_filename
        if name == file:
            return frame.f_lineno
        if not outside and not name.startswith(_OWN_FOLDER):
            outside = frame.f_lineno
        frame = frame.f_back  # type: ignore[assignment]
    return outside
