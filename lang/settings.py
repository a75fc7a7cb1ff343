"""`ramet.global_config`: SGLang's process-wide settings. Options of a run win over them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ramet.runtime.protocol import UnsupportedFeatureError, unknown_name
from ramet.runtime.protocol.checks import check_bool, check_integer

from .backends.base import Backend
from .execution import context

if TYPE_CHECKING:
    from .execution.executor import Run

_FIELDS = (
    "verbosity",
    "default_backend",
    "skip_special_tokens_in_output",
    "spaces_between_special_tokens_in_out",
    "enable_precache_with_tracing",
    "enable_parallel_encoding",
)
_ONLY_TRUE = {
    "spaces_between_special_tokens_in_out": (
        "text comes from the tokens' bytes, and nothing is ever put between them"
    ),
    "enable_precache_with_tracing": (
        "rows of a batch share their beginning without a trace, because requests wait for the "
        "first that computes it; ramet.Engine(enable_radix_cache=False) turns sharing off"
    ),
    "enable_parallel_encoding": (
        "join('concate_and_append') always computes the joined text anew, so there is nothing to "
        "turn off"
    ),
}


class GlobalConfig:
    """The settings of the whole process, which can be read and written as attributes.

    Attributes:
        verbosity: 0 (the default) is quiet; from 2 on each run prints its final text.
        default_backend: as `ramet.set_default_backend` sets it; None = the default engine.
        skip_special_tokens_in_output: what a run without `skip_special_tokens` does; True.
        spaces_between_special_tokens_in_out: True; cannot be changed.
        enable_precache_with_tracing: True; cannot be changed.
        enable_parallel_encoding: True; cannot be changed.

    Raises:
        AttributeError: an unknown name; the nearest one is named.
        InvalidRequestError: a value of the wrong type.
        UnsupportedFeatureError: another value for what cannot be changed, with the reason.

    Example:
        >>> ramet.global_config.verbosity
        0
    """

    verbosity: int
    skip_special_tokens_in_output: bool
    spaces_between_special_tokens_in_out: bool
    enable_precache_with_tracing: bool
    enable_parallel_encoding: bool

    def __init__(self) -> None:
        self.verbosity = 0
        self.skip_special_tokens_in_output = True
        for name in _ONLY_TRUE:
            setattr(self, name, True)

    @property
    def default_backend(self) -> Backend | None:
        """What runs where no backend is named; None = the default engine."""
        return context.default_backend()

    @default_backend.setter
    def default_backend(self, backend: Backend | None) -> None:
        context.set_default_backend(backend)

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in _FIELDS:
            raise AttributeError(unknown_name(name, _FIELDS, "field of global_config"))
        if name == "verbosity":
            check_integer(name, value, low=0)
        elif name != "default_backend":
            check_bool(name, value)
        if name in _ONLY_TRUE and not value:
            raise UnsupportedFeatureError(f"{name} can only be True: {_ONLY_TRUE[name]}")
        super().__setattr__(name, value)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(unknown_name(name, _FIELDS, "field of global_config"))

    def __repr__(self) -> str:
        return f"GlobalConfig({', '.join(f'{n}={getattr(self, n)!r}' for n in _FIELDS)})"


global_config = GlobalConfig()


def sampling_defaults() -> dict[str, object]:
    """Return the sampling options of a run that names none of them."""
    skips = global_config.skip_special_tokens_in_output
    return {} if skips else {"skip_special_tokens": False}


def note_end(run: Run) -> None:
    """Print the text of a run that has ended well, where that is wanted."""
    if global_config.verbosity >= 2 and run.root.tokens is not None:
        print(run.settings.backend.render(run.root.tokens.prompt()))
