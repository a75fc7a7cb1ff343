"""The options of a batch that are not those of its rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ramet.runtime.protocol.checks import check_bool

from ..errors import InvalidRequestError
from .options import check_on_error
from .worker_threads import share_of_threads


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchOptions:
    """How the rows are run.

    With "auto" a batch has at most `worker_threads.MOST_THREADS` threads, and one inside a row of
    another batch its share of them; rows then begin as the backend's KV pool permits.
    """

    num_threads: int | str = "auto"
    max_live: int | None = None
    progress_bar: bool = False
    output: Any = None

    def __post_init__(self) -> None:
        check_bool("progress_bar", self.progress_bar)
        wanted, most = self.num_threads, self.max_live
        if wanted != "auto" and (
            isinstance(wanted, bool) or not isinstance(wanted, int) or wanted < 1
        ):
            raise InvalidRequestError(
                f"num_threads must be 'auto' or an integer of at least 1, not {wanted!r}"
            )
        if most is not None and (isinstance(most, bool) or not isinstance(most, int) or most < 1):
            raise InvalidRequestError(
                f"max_live must be None or an integer of at least 1, not {most!r}"
            )

    def num_workers(self, num_rows: int | None) -> int:
        """Return how many threads to use."""
        wanted = self.num_threads if isinstance(self.num_threads, int) else share_of_threads()
        limits = [n for n in (wanted, num_rows, self.max_live) if n is not None]
        return max(1, min(limits))

    def num_slots(self, backend: object) -> int | None:
        """Return the size of the KV pool that bounds the rows, None = nothing does."""
        slots = getattr(backend, "num_slots", None) if self.num_threads == "auto" else None
        return slots if isinstance(slots, int) else None


def check_result(generator_style: object, on_error: object) -> None:
    """Refuse what says nothing of how a batch gives its states, or two ways at once."""
    check_on_error(on_error)
    check_bool("generator_style", generator_style)
    if generator_style and on_error == "raise":
        raise TypeError("on_error='raise' needs all rows: not with generator_style")


def take_rows(rows: object, options: dict[str, Any]) -> object:
    """Return the rows, which can be in the options under SGLang's name, and take them out there.

    Raises:
        TypeError: rows under both names.
    """
    if "batch_kwargs" not in options:
        return rows
    if rows is not None:
        raise TypeError("rows and batch_kwargs are two names of one argument: keep one")
    return options.pop("batch_kwargs")
