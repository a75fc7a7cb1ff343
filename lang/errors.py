"""Every error a program can meet, `ramet.errors`: the language's own and the runtime's.

RametError
├── … the runtime's, see `ramet.runtime.protocol.errors`
└── ProgramError
    ├── GenerationError (RuntimeError)       a gen or select that failed; the reason is its cause
    ├── UndefinedVariableError (KeyError)    no such variable in this state
    ├── RoleOrderError (ValueError)          a role opened inside another, or closed twice
    └── ForkEndedError (RuntimeError)        a fork used after its join
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ramet.runtime.protocol import (
    ChatTemplateError,
    ContextLengthError,
    DeadlineError,
    EngineClosedError,
    EngineError,
    InvalidRequestError,
    ModelDownloadError,
    ModelError,
    ModelFileError,
    ModelNotFoundError,
    NonFiniteLogitsError,
    OverloadedError,
    ProgramError,
    RametError,
    RequestCancelledError,
    UnsupportedFeatureError,
)

if TYPE_CHECKING:
    from .states.state import ProgramState

__all__ = [
    "ChatTemplateError",
    "ContextLengthError",
    "DeadlineError",
    "EngineClosedError",
    "EngineError",
    "ForkEndedError",
    "GenerationError",
    "InvalidRequestError",
    "ModelDownloadError",
    "ModelError",
    "ModelFileError",
    "ModelNotFoundError",
    "NonFiniteLogitsError",
    "OverloadedError",
    "ProgramError",
    "RametError",
    "RequestCancelledError",
    "RoleOrderError",
    "UndefinedVariableError",
    "UnsupportedFeatureError",
]


class GenerationError(ProgramError, RuntimeError):
    """A gen or select failed; `__cause__` is the reason.

    Attributes:
        state: the state it belongs to.
        variable: the name of its variable.
        line: the line of the program that appended it.
    """

    def __init__(
        self,
        message: str,
        *,
        state: ProgramState | None = None,
        variable: str = "",
        line: int = 0,
    ) -> None:
        super().__init__(message)
        self.state = state
        self.variable = variable
        self.line = line


class UndefinedVariableError(ProgramError, KeyError):
    """The state has no variable of that name at this point of the program."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class RoleOrderError(ProgramError, ValueError):
    """A role was opened inside another one, or closed where it was not open."""


class ForkEndedError(ProgramError, RuntimeError):
    """A fork was used after the join that ended it."""
