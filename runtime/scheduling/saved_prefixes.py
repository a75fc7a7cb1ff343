"""SavedPrefixes: between the prefixes on disk and the KV memory."""

from __future__ import annotations

import logging
from functools import partial
from typing import Protocol

from ..cache.prefix_store import PrefixStore, SavedPrefix, UInt8Array
from ..step import Int32Array
from .kv_memory import KVMemory

_log = logging.getLogger("ramet.engine")

SHARE_OF_POOL = 0.5


class KVBytes(Protocol):
    """Gives and takes KV as bytes."""

    @property
    def kv_layout(self) -> str:
        """What a row means: rows of equal layouts are exchangeable."""
        ...

    @property
    def kv_row_bytes(self) -> int:
        """Bytes of one row: the KV of one token."""
        ...

    def read_kv(self, slots: Int32Array) -> UInt8Array:
        """Return the KV of `slots`, one row each."""
        ...

    def write_kv(self, slots: Int32Array, rows: UInt8Array) -> None:
        """Put rows into `slots`."""
        ...


class SavedPrefixes:
    """Puts saved prefixes into the cache when an engine starts, and takes new ones out of it.

    `load` and `read` run where nothing else touches the memory: before the engine's thread
    starts, and on it.
    """

    def __init__(self, store: PrefixStore, kv: KVBytes, memory: KVMemory) -> None:
        self._store = store
        self._kv = kv
        self._memory = memory

    def load(self) -> int:
        """Cache what the disk has, longest first, in at most half the pool; return the tokens."""
        most = int(self._memory.pool.num_slots * SHARE_OF_POOL)
        before = self._memory.tree.num_tokens
        saved = sorted(self._store.load(), key=lambda one: (-len(one.ids), one.name))
        for one in saved:
            room = most - (self._memory.tree.num_tokens - before)
            missing = len(one.ids) - self._memory.tree.match_length(one.ids)
            write = partial(self._write, one)
            if not missing:
                continue  # it is part of a longer one
            if one.rows.shape[1] != self._kv.kv_row_bytes:
                _log.warning("the saved prefix %s is left out: its rows are too short", one.name)
            elif missing > room or not self._memory.store(one.ids, write):
                _log.warning(
                    "the saved prefix %s is left out: it needs %d slots and %d of the half of the "
                    "pool that saved prefixes may take are left; max_total_tokens sets the pool",
                    one.name,
                    missing,
                    room,
                )
        loaded = self._memory.tree.num_tokens - before
        if loaded:
            _log.info("%d tokens of saved prefixes are cached", loaded)
        return loaded

    def read(self, ids: Int32Array) -> UInt8Array | None:
        """Return the KV of `ids`, None if not all of it is cached."""
        slots = self._memory.slots_of(ids)
        return self._kv.read_kv(slots) if len(slots) == len(ids) else None

    def save(self, name: str, ids: Int32Array, rows: UInt8Array) -> None:
        """Write a prefix to the disk.

        Raises:
            EngineError: the file cannot be written.
        """
        path = self._store.save(name, ids, rows)
        _log.info("saved the prefix %s: %d tokens in %s", name, len(ids), path)

    def _write(self, saved: SavedPrefix, start: int, slots: Int32Array) -> None:
        self._kv.write_kv(slots, saved.rows[start:])
