"""How much of an engine's KV pool one row of a batch needs while it goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable

from ramet.runtime.protocol import Usage


class Footprint:
    """Counts the tokens of one row: of all its calls, forks and programs that it calls included.

    Attributes:
        own: tokens that its calls have added: computed first by them, or generated.
        shared: tokens of its beginning that were cached before it; None until a call has ended.
        goes_on: True once it made a call after another had ended: what it has kept is of use.

    Args:
        on_change: is called after each call, in the thread that carries events.
        outer: the footprint of the row that this one is part of, which counts its tokens too.
    """

    __slots__ = ("_lock", "_on_change", "_outer", "goes_on", "own", "shared")

    def __init__(self, on_change: Callable[[], None], outer: Footprint | None = None) -> None:
        self.own = 0
        self.shared: int | None = None
        self.goes_on = False
        self._on_change = on_change
        self._outer = outer
        self._lock = threading.Lock()

    @property
    def whole(self) -> int:
        """The tokens that it needs in the pool, those it shares with other rows included."""
        return self.own + (self.shared or 0)

    def begin_call(self) -> None:
        """Note that a call is made."""
        if self.shared is not None:
            self.goes_on = True
        if self._outer is not None:
            self._outer.begin_call()

    def end_call(self, usage: Usage, num_known: int) -> None:
        """Note that a call has ended, the first `num_known` ids of which the row had before.

        Those are not its own once more, even if they had been evicted and were computed again.
        """
        new = min(usage.computed_tokens, max(usage.prompt_tokens - num_known, 0))
        with self._lock:
            self.own += new + usage.generated_tokens
            if self.shared is None or not num_known:
                before = usage.cached_tokens
                self.shared = before if self.shared is None else min(self.shared, before)
        if self._outer is not None:
            self._outer.end_call(usage, num_known)
        self._on_change()
