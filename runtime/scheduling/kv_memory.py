"""KVMemory: pool and tree as one, as a sequence sees them.

Every slot is in exactly one place: free in the pool, cached in the tree, or held by one
sequence. A sequence's first `num_shared` slots are the tree's and locked, the others its own.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from time import perf_counter
from typing import Concatenate, ParamSpec, TypeVar

import numpy as np

from ..cache.kv_pool import KVPool
from ..cache.radix_cache import RadixCache
from ..step import Int32Array
from .sequence import Sequence

MOST_AHEAD = 4096  # tokens that one step evicts ahead of need, and
MOST_LEAVES_AHEAD = 512  # leaves: some milliseconds, so that no step pauses for it

P = ParamSpec("P")
R = TypeVar("R")


def _timed(
    method: Callable[Concatenate[KVMemory, P], R],
) -> Callable[Concatenate[KVMemory, P], R]:
    """Add the time that `method` takes to `seconds`."""

    @wraps(method)
    def timed(self: KVMemory, /, *args: P.args, **kwargs: P.kwargs) -> R:
        started = perf_counter()
        try:
            return method(self, *args, **kwargs)
        finally:
            self.seconds += perf_counter() - started

    return timed


class KVMemory:
    """Gives sequences their slots, and keeps what they computed for others to share.

    `seconds` is the time spent in here: what the prefix cache costs.
    """

    def __init__(
        self,
        num_slots: int,
        *,
        enable_radix_cache: bool = True,
        evict_policy: str = "lru",
        eviction_watermark: float = 0.0,
    ) -> None:
        """`eviction_watermark` is the share of the slots that `evict_ahead` keeps free.

        Raises:
            ValueError: there is no such policy.
        """
        self.enable_radix_cache = enable_radix_cache
        self.pool = KVPool(num_slots)
        self.tree = RadixCache(num_slots, policy=evict_policy)
        self.seconds = 0.0
        self.eviction_watermark = eviction_watermark
        self._wanted_free = int(num_slots * eviction_watermark)

    @property
    def num_available(self) -> int:
        """Slots that can be had: free ones, and cached ones that nobody uses."""
        return self.pool.num_free + self.tree.num_evictable

    @_timed
    def look_up(self, sequence: Sequence) -> int:
        """Return how many of its tokens are cached now; a repeated question costs nothing."""
        if not self.enable_radix_cache:
            return 0
        if sequence.looked_up_version != self.tree.version:
            sequence.looked_up = self.tree.match_length(sequence.ids, sequence.namespace)
            sequence.looked_up_version = self.tree.version
        return sequence.looked_up

    @_timed
    def attach(self, sequence: Sequence, limit: int) -> int:
        """Give `sequence` the cached KV of its prefix, locked; return how many tokens matched.

        It takes over at most `limit` positions: those whose logits are wanted run again. Only
        these are locked: in a small pool their copies may have to make room for the new run.
        """
        if not self.enable_radix_cache:
            return 0
        num_matched = self.tree.match_length(sequence.ids, sequence.namespace)
        match = self.tree.match(
            sequence.ids[:limit],
            sequence.namespace,
            priority=sequence.job.ticket.priority,
            is_new_use=not sequence.was_attached,
        )
        sequence.was_attached = True
        self.tree.lock(match.handle)
        sequence.handle = match.handle
        sequence.append_slots(match.slots)
        sequence.num_shared = sequence.num_computed = len(match.slots)
        return num_matched

    @_timed
    def reserve(self, sequence: Sequence, length: int) -> None:
        """Give `sequence` slots for its first `length` positions, evicting for them.

        Raises:
            MemoryError: there are not so many; check `num_available` first.
        """
        count = length - sequence.num_slots
        if count <= 0:
            return
        missing = count - self.pool.num_free
        if missing > 0:
            self.pool.free(self.tree.evict(missing))
        sequence.append_slots(self.pool.allocate(count))

    @_timed
    def publish(self, sequence: Sequence) -> None:
        """Put what `sequence` has computed into the tree, and lock it there.

        Where the tree has a position already, the sequence's own copy is freed.
        """
        if not self.enable_radix_cache or sequence.num_computed <= sequence.num_shared:
            return
        done, start = sequence.num_computed, sequence.num_shared
        insertion = self.tree.insert(
            sequence.ids[:done],
            sequence.slots[:done],
            sequence.namespace,
            priority=sequence.job.ticket.priority,
        )
        self.tree.lock(insertion.handle)
        if sequence.handle is not None:
            self.tree.unlock(sequence.handle)
        sequence.handle = insertion.handle
        existing = insertion.existing_slots[start:]
        if len(existing):
            self.pool.free(sequence.slots[start : start + len(existing)].copy())
            sequence.slots[start : start + len(existing)] = existing
        sequence.num_shared = done

    def release(self, sequence: Sequence, *, keep: bool) -> None:
        """Take everything from `sequence`; `keep` puts what it computed into the tree first.

        KV that may not be finite must not be kept.
        """
        if keep:
            self.publish(sequence)
        self._drop(sequence)

    @_timed
    def _drop(self, sequence: Sequence) -> None:
        self.pool.free(sequence.slots[sequence.num_shared :].copy())
        if sequence.handle is not None:
            self.tree.unlock(sequence.handle)
        sequence.clear_slots()

    @_timed
    def evict_ahead(self) -> None:
        """Free slots up to the watermark, a bounded number at once: to be called after a step."""
        missing = min(self._wanted_free - self.pool.num_free, MOST_AHEAD)
        if missing > 0:
            self.pool.free(self.tree.evict(missing, most_leaves=MOST_LEAVES_AHEAD))

    def store(
        self, ids: Int32Array, write: Callable[[int, Int32Array], None], namespace: str = ""
    ) -> bool:
        """Put a prefix that no sequence computed into the tree; False if the pool has no room.

        `write(start, slots)` puts the KV of `ids[start:]` into `slots`; the beginning is cached.
        """
        start = self.tree.match_length(ids, namespace)
        if len(ids) - start > self.pool.num_free:
            return False
        new = self.pool.allocate(len(ids) - start)
        try:
            write(start, new)
        except BaseException:
            self.pool.free(new)
            raise
        cached = np.zeros(start, dtype=np.int32)  # the tree has its own for these
        self.tree.insert(ids, np.concatenate([cached, new]), namespace)
        return True

    def slots_of(self, ids: Int32Array, namespace: str = "") -> Int32Array:
        """Return the slots of the longest cached prefix of `ids`: valid until something runs."""
        return self.tree.match(ids, namespace, is_new_use=False).slots

    def flush(self) -> None:
        """Forget everything that no running sequence uses."""
        self.pool.free(self.tree.evict(self.tree.num_evictable))
