"""How many KV slots the machine's memory allows."""

from __future__ import annotations

import logging
from pathlib import Path

import psutil

from ..protocol import InvalidRequestError

_log = logging.getLogger("ramet.engine")

SHARE_OF_MEMORY = 0.25
MAX_SLOTS = 131_072
FEW_SLOTS = 1024
_CGROUP_V1_UNLIMITED = 2**60
_CGROUP = Path("/sys/fs/cgroup")


def plan_slots(kv_bytes_per_token: int, context_length: int, wanted: int | None = None) -> int:
    """Return how many slots the KV pool gets.

    That is `wanted`, or else what fits a quarter of the available memory, at most 131,072. A
    pool that is smaller than the context is said so.

    Raises:
        InvalidRequestError: `wanted` needs more memory than the machine has.
    """
    available = available_bytes()
    if wanted is not None and wanted * kv_bytes_per_token > psutil.virtual_memory().total:
        raise InvalidRequestError(
            f"max_total_tokens={wanted} needs {wanted * kv_bytes_per_token / 1e9:,.0f} GB of "
            f"memory and this machine has {psutil.virtual_memory().total / 1e9:,.0f}, of which "
            f"{available / 1e9:,.0f} are available: take fewer"
        )
    slots = wanted
    if slots is None:
        slots = min(int(available * SHARE_OF_MEMORY) // kv_bytes_per_token, MAX_SLOTS)
        slots = max(slots, 1)
    if slots < max(FEW_SLOTS, context_length):
        _log.warning(
            "the KV pool has %d tokens (%.0f MB) and the model's context %d: longer prompts are "
            "refused; %.0f MB of memory are available, max_total_tokens sets the pool",
            slots,
            slots * kv_bytes_per_token / 1e6,
            context_length,
            available / 1e6,
        )
    return slots


def available_bytes(cgroup: Path = _CGROUP) -> int:
    """Return the memory that this process may still take, container limits included."""
    bounds = [int(psutil.virtual_memory().available)]
    files = (
        (cgroup / "memory.max", cgroup / "memory.current"),  # version 2
        (cgroup / "memory" / "memory.limit_in_bytes", cgroup / "memory" / "memory.usage_in_bytes"),
    )
    for limit_file, usage_file in files:
        limit, usage = _read(limit_file), _read(usage_file)
        if limit is not None and usage is not None and limit < _CGROUP_V1_UNLIMITED:
            bounds.append(max(limit - usage, 0))
    return min(bounds)


def _read(path: Path) -> int | None:
    """Return the number in `path`; None if there is no such file or it says "max"."""
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None
