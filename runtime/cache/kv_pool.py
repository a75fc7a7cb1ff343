"""KVPool: which slots of the KV cache are free. Slot 0 is padding and is never given out."""

from __future__ import annotations

import numpy as np

from ..step import Int32Array


class KVPool:
    """A stack of free slots, numbered 1 to `num_slots`, kept in one array.

    The pool knows numbers only: keys and values themselves belong to the runner.
    """

    def __init__(self, num_slots: int) -> None:
        if num_slots < 1:
            raise ValueError(f"num_slots must be at least 1, not {num_slots}")
        self.num_slots = num_slots
        self._stack = np.arange(num_slots, 0, -1, dtype=np.int32)
        self._num_free = num_slots

    @property
    def num_free(self) -> int:
        """How many slots can be allocated."""
        return self._num_free

    @property
    def free_slots(self) -> Int32Array:
        """The free slots, a copy, in no particular order."""
        return self._stack[: self._num_free].copy()

    def allocate(self, count: int) -> Int32Array:
        """Take `count` slots.

        Raises:
            MemoryError: fewer are free; nothing is taken then.
        """
        if count > self._num_free:
            raise MemoryError(f"{count} KV slots were asked for and {self._num_free} are free")
        rest = self._num_free - count
        taken = self._stack[rest : self._num_free][::-1].copy()
        self._num_free = rest
        return taken

    def free(self, slots: Int32Array) -> None:
        """Give `slots` back."""
        end = self._num_free + len(slots)
        if end > self.num_slots:
            raise ValueError(f"{len(slots)} KV slots were freed that nobody had allocated")
        self._stack[self._num_free : end] = slots[::-1]
        self._num_free = end
