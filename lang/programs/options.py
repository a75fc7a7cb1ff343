"""The options of a run: everything given by keyword that is no argument of the program."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Any

from ramet.runtime.protocol import (
    ALIASES,
    GenOptions,
    InvalidRequestError,
    normalize_options,
    params_of,
)
from ramet.runtime.protocol.checks import check_bool, check_integer, check_number

from .. import settings
from ..backends.base import Backend
from ..execution.context import check_backend
from ..execution.seeds import check_seed

_log = logging.getLogger("ramet")

OWN_OPTIONS = (
    "backend",
    "stream",
    "seed",
    "timeout",
    "on_error",
    "priority",
    "cache_salt",
    "retries",
    "use_thread",
)
OPTIONS = tuple(dict.fromkeys((*OWN_OPTIONS, *GenOptions.__annotations__, *ALIASES)))
ON_ERROR = ("raise", "return")
LARGEST_PRIORITY = 2**31 - 1

_has_warned_of_threads = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """The options of a run that are not the program's own arguments.

    `priority` and `cache_salt` are None where they are the caller's. `sampling` holds the defaults
    of every gen in it.
    """

    backend: Backend | None = None
    stream: bool = False
    seed: int | None = None
    is_seeded: bool = False  # somebody named the seed: it was not drawn for a batch
    timeout: float | None = None
    on_error: str = "raise"
    priority: int | None = None
    cache_salt: str | None = None
    retries: int | None = None
    sampling: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, given: dict[str, Any]) -> RunOptions:
        """Check the options that were given by keyword."""
        own = {name: given[name] for name in OWN_OPTIONS if name in given}
        rest = {name: value for name, value in given.items() if name not in own}
        if own.pop("use_thread", None) is not None:
            _warn_of_threads()
        sampling = {**settings.sampling_defaults(), **normalize_options(rest)}
        params_of({"max_new_tokens": None, **sampling})
        options = cls(**own, is_seeded=own.get("seed") is not None, sampling=sampling)
        check_on_error(options.on_error)
        if options.stream and own.get("on_error") == "raise":
            raise TypeError(
                "a run that returns at once cannot raise what comes later: leave on_error out, "
                "and read state.error() or a variable"
            )
        check_bool("stream", options.stream)
        if options.backend is not None:
            check_backend(options.backend)
        if options.timeout is not None:
            check_number("timeout", options.timeout, low=0.0)
        if options.seed is not None:
            check_seed(options.seed)
        if options.priority is not None:
            largest = LARGEST_PRIORITY
            check_integer("priority", options.priority, low=-largest, high=largest)
        if options.retries is not None:
            check_integer("retries", options.retries, low=0)
        if options.cache_salt is not None and not isinstance(options.cache_salt, str):
            raise InvalidRequestError(f"cache_salt must be a string, not {options.cache_salt!r}")
        return options


def check_on_error(on_error: object) -> None:
    """Refuse what is neither "raise" nor "return"."""
    if on_error not in ON_ERROR:
        raise InvalidRequestError(f"on_error must be 'raise' or 'return', not {on_error!r}")


def _warn_of_threads() -> None:
    global _has_warned_of_threads
    if not _has_warned_of_threads:
        _has_warned_of_threads = True
        _log.warning(
            "use_thread has no meaning in Ramet: requests go on while the program runs, in any "
            "thread; start(…) returns at once"
        )
