"""What the language needs of whatever runs its requests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable

from ramet.runtime.protocol import Event, Request, Segment


@runtime_checkable
class Backend(Protocol):
    """Runs requests. Each ends with exactly one of `Finished`, `Scored`, `Failed`.

    A backend may have two more members. `has_room(wake)` returns whether another request is
    welcome, and calls `wake` once it is. `num_slots` says how many tokens its KV pool holds (None
    = it does not matter): a batch then begins no more rows than that holds to their end.

    Example:
        >>> isinstance(ramet.Fake(), ramet.Backend)
        True
    """

    def submit(self, request: Request, on_event: Callable[[Event], None]) -> None:
        """Take a request and return soon.

        `Accepted` comes first, unless the request fails; a bad request is a `Failed` event, not
        an exception. Events of one request come in order, on any thread.
        """
        ...

    def abort(self, request_id: str) -> None:
        """End a request with `Failed(CANCELLED)`, unless it has ended; unknown ids are fine."""
        ...

    def render(self, segments: tuple[Segment, ...]) -> str:
        """Return the text that the model would see."""
        ...

    def count_tokens(self, segments: tuple[Segment, ...]) -> int:
        """Return how many tokens the prompt has; raise what a request with it would fail with."""
        ...

    def flush_cache(self) -> bool:
        """Empty the prefix cache; False, and nothing happens, while something runs."""
        ...

    def info(self) -> dict[str, object]:
        """Return a description for people: the model, its context length, where it runs."""
        ...

    def close(self) -> None:
        """Stop; whatever still runs ends with `Failed(ENGINE_CLOSED)`."""
        ...
