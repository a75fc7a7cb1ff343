"""The backend of `program.preview`: takes every request and answers none."""

from __future__ import annotations

from collections.abc import Callable

from ramet.runtime.protocol import Event, Request, RoleBegin, Segment, Text

from ..execution.executor import KnownNothingError


class PreviewBackend:
    """Answers nothing; a preview ends at the first read of what it does not know."""

    def submit(self, request: Request, on_event: Callable[[Event], None]) -> None:
        """Take a request."""

    def abort(self, request_id: str) -> None:
        """Do nothing: nothing runs."""

    def render(self, segments: tuple[Segment, ...]) -> str:
        """Return the text with role names."""
        parts = []
        for segment in segments:
            match segment:
                case Text():
                    parts.append(segment.text)
                case RoleBegin():
                    parts.append(f"\n[{segment.role}] " if parts else f"[{segment.role}] ")
                case _:
                    pass
        return "".join(parts)

    def count_tokens(self, segments: tuple[Segment, ...]) -> int:
        """End the preview: without a model there are no tokens to count."""
        raise KnownNothingError

    def flush_cache(self) -> bool:
        """Return True: nothing is cached."""
        return True

    def info(self) -> dict[str, object]:
        """Return that there is no model."""
        return {"model": "preview: no model"}

    def close(self) -> None:
        """Do nothing."""
