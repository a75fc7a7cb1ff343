"""`ramet info`: what the engine decided about a model."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Mapping

from ..backends.base import Backend
from ..backends.local import Engine


def show_info(options: Namespace, backend: Backend | None) -> int:
    """Print the engine's own account of itself, as lines or as JSON."""
    if backend is not None:
        info = backend.info()
    else:
        with Engine(options.model) as engine:
            info = engine.info()
    print(json.dumps(info, indent=2, ensure_ascii=False) if options.json else _lines(info))
    return 0


def _lines(info: Mapping[str, object]) -> str:
    """Return a line for each entry, without what is empty or has counted nothing yet."""
    flat = {
        name: value
        for name, value in _flat(info)
        if isinstance(value, bool) or value not in (0, "", None, [])
    }
    width = max(map(len, flat), default=0)
    return "\n".join(f"{name:<{width}}  {_readable(name, value)}" for name, value in flat.items())


def _flat(info: Mapping[str, object], before: str = "") -> list[tuple[str, object]]:
    rows: list[tuple[str, object]] = []
    for name, value in info.items():
        label = before + name.replace("_", " ")
        rows += _flat(value, f"{label}: ") if isinstance(value, Mapping) else [(label, value)]
    return rows


def _readable(name: str, value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int) and "bytes" in name:
        return f"{value:,} ({value / 2**20:,.1f} MiB)"
    if isinstance(value, int):
        return f"{value:,}" if "pid" not in name else str(value)
    if isinstance(value, float):
        return f"{value:.3f}"
    return str(value)
