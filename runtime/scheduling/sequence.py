"""Sequence: token ids that run through the model, and where their KV lies."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..cache.radix_cache import PrefixHandle
from ..step import Int32Array

if TYPE_CHECKING:
    from .job import Job

_ROOM = 64


class Sequence:
    """The unit of scheduling: one row of a step. A job has one or several.

    Attributes:
        index: its number within the job.
        order: (rank, arrival, index): place in the queue, unique.
        epoch: when its request arrived, as the queue counts; the same for those that came at once.
        estimate: how much of it was cached when the queue looked last.
        stamp: which of its entries in the queue is the one that counts.
        logits_from: first position whose logits are wanted; those before only fill the cache.
        count_from: first position that counts in the job's usage.
        max_more: tokens that may still be generated, for the admission reserve.
        num_computed: leading positions whose KV is there.
        num_shared: leading slots that belong to the tree; the others are the sequence's own.
        num_matched: positions that were cached when it was admitted last.
        prefill_end: positions from here on were generated since it was admitted last.
        is_suspect: its step raised; it runs alone next.
        was_attached: it was given cached KV before: its use of the cache has been counted.
    """

    __slots__ = (
        "_ids",
        "_key",
        "_slots",
        "count_from",
        "epoch",
        "estimate",
        "handle",
        "index",
        "is_suspect",
        "job",
        "logits_from",
        "looked_up",
        "looked_up_version",
        "max_more",
        "namespace",
        "num_computed",
        "num_ids",
        "num_matched",
        "num_shared",
        "num_slots",
        "order",
        "prefill_end",
        "stamp",
        "was_admitted",
        "was_attached",
    )

    def __init__(self, job: Job, ids: Int32Array, index: int, *, logits_from: int) -> None:
        self.job = job
        self.namespace = job.ticket.namespace
        self.index = index
        self.order = (job.ticket.rank, job.ticket.arrival, index)
        self.epoch = self.estimate = self.stamp = 0
        self.num_ids = len(ids)
        self.logits_from = logits_from
        self.count_from = 0
        self.max_more = 0
        self.was_admitted = False
        self.was_attached = False
        self.is_suspect = False
        self.looked_up = 0
        self.looked_up_version = -1
        self.num_matched = 0
        self.prefill_end = len(ids)
        self._ids = np.asarray(ids, dtype=np.int32)
        self._key: tuple[str, bytes] | None = None
        self._slots = np.empty(len(ids) + _ROOM, dtype=np.int32)
        self.num_slots = 0
        self.num_shared = 0
        self.num_computed = 0
        self.handle: PrefixHandle | None = None

    @property
    def ids(self) -> Int32Array:
        """All token ids so far, a view."""
        return self._ids[: self.num_ids]

    @property
    def slots(self) -> Int32Array:
        """One slot per position that has one, a view that can be written to."""
        return self._slots[: self.num_slots]

    @property
    def num_pending(self) -> int:
        """Positions whose KV is still to be computed."""
        return self.num_ids - self.num_computed

    @property
    def key(self) -> tuple[str, bytes]:
        """Equal for sequences with the same ids in the same namespace."""
        if self._key is None:
            self._key = (self.namespace, self.ids.tobytes())
        return self._key

    def append_id(self, token: int) -> None:
        """Add a generated token, to be computed next."""
        if self.num_ids == len(self._ids):
            self._ids = _grown(self._ids)
        self._ids[self.num_ids] = token
        self.num_ids += 1
        self.logits_from = self.num_ids - 1  # what the positions before had to say is known
        self.looked_up_version = -1
        self._key = None

    def append_slots(self, slots: Int32Array) -> None:
        """Add slots for the next positions."""
        end = self.num_slots + len(slots)
        while end > len(self._slots):
            self._slots = _grown(self._slots)
        self._slots[self.num_slots : end] = slots
        self.num_slots = end

    def clear_slots(self) -> None:
        """Forget all KV; the ids stay."""
        self.num_slots = self.num_shared = self.num_computed = 0
        self.handle = None


def _grown(array: Int32Array) -> Int32Array:
    """Return a copy with room for half as much again, so that appending stays cheap."""
    larger = np.empty(len(array) + max(len(array) // 2, _ROOM), dtype=np.int32)
    larger[: len(array)] = array
    return larger
