"""Every error that Ramet raises, under one root, each also the built-in that people catch.

    RametError
    ├── InvalidRequestError (ValueError)        a request or parameter that cannot be served
    │   ├── ContextLengthError                  longer than the model's context or the KV pool
    │   └── UnsupportedFeatureError             this backend cannot do that; names what could
    ├── ModelError (RuntimeError)
    │   ├── ModelNotFoundError (FileNotFoundError)
    │   ├── ModelFileError (ValueError)         truncated, damaged or of an unknown type
    │   ├── ModelDownloadError (OSError)
    │   └── ChatTemplateError (ValueError)      the model's template forbids the conversation
    ├── EngineError (RuntimeError)              a request that failed inside the engine
    │   ├── EngineClosedError                   the engine has stopped; start another
    │   ├── NonFiniteLogitsError (ArithmeticError)
    │   └── OverloadedError                     the queue is full; try again later
    ├── DeadlineError (TimeoutError)
    ├── RequestCancelledError
    └── ProgramError                            the language's own errors, see `ramet.errors`

On the wire an error is its `ErrorCode` and its message; `error_from_code` turns them back.
"""

from __future__ import annotations

from enum import StrEnum


class ErrorCode(StrEnum):
    """Why a request failed, as it travels in a `Failed` event."""

    INVALID_REQUEST = "invalid_request"
    CONTEXT_LENGTH = "context_length"
    UNSUPPORTED = "unsupported"
    CHAT_TEMPLATE = "chat_template"
    CANCELLED = "cancelled"
    DEADLINE = "deadline"
    NON_FINITE = "non_finite"
    ENGINE_CLOSED = "engine_closed"
    OVERLOADED = "overloaded"
    INTERNAL = "internal"


class RametError(Exception):
    """Root of every error that Ramet raises on purpose."""


class InvalidRequestError(RametError, ValueError):
    """A request, parameter or argument that cannot be served as it is."""


class ContextLengthError(InvalidRequestError):
    """The prompt does not fit the model's context or the KV pool.

    The message states both numbers; `num_tokens` (of the prompt) and `limit` are them where they
    are known, else None.
    """

    def __init__(
        self, message: str, *, num_tokens: int | None = None, limit: int | None = None
    ) -> None:
        super().__init__(message)
        self.num_tokens = num_tokens
        self.limit = limit


class UnsupportedFeatureError(InvalidRequestError):
    """The backend cannot do what was asked; the message says what could."""


class ModelError(RametError, RuntimeError):
    """A model could not be found, read or used."""


class ModelNotFoundError(ModelError, FileNotFoundError):
    """No such model file, folder or name."""


class ModelFileError(ModelError, ValueError):
    """A model file that is truncated, damaged or of an unsupported kind."""


class ModelDownloadError(ModelError, OSError):
    """The default model could not be downloaded; the message has the manual command."""


class ChatTemplateError(ModelError, ValueError):
    """The model has no chat template, or its template forbids this conversation."""


class EngineError(RametError, RuntimeError):
    """A request that failed inside the engine; other requests go on."""


class EngineClosedError(EngineError):
    """The engine has stopped and takes no more requests."""


class NonFiniteLogitsError(EngineError, ArithmeticError):
    """The model produced NaN or infinite logits for this request."""


class OverloadedError(EngineError):
    """The engine's queue is full: send the request again later."""


class DeadlineError(RametError, TimeoutError):
    """The time limit passed before the work was done."""


class RequestCancelledError(RametError):
    """The request was cancelled before it ended."""


class ProgramError(RametError):
    """Root of the language's own errors."""


_ERRORS: dict[ErrorCode, type[RametError]] = {
    ErrorCode.INVALID_REQUEST: InvalidRequestError,
    ErrorCode.CONTEXT_LENGTH: ContextLengthError,
    ErrorCode.UNSUPPORTED: UnsupportedFeatureError,
    ErrorCode.CHAT_TEMPLATE: ChatTemplateError,
    ErrorCode.CANCELLED: RequestCancelledError,
    ErrorCode.DEADLINE: DeadlineError,
    ErrorCode.NON_FINITE: NonFiniteLogitsError,
    ErrorCode.ENGINE_CLOSED: EngineClosedError,
    ErrorCode.OVERLOADED: OverloadedError,
    ErrorCode.INTERNAL: EngineError,
}
_CODES = {error: code for code, error in _ERRORS.items()}


RETRYABLE = frozenset({ErrorCode.OVERLOADED, ErrorCode.NON_FINITE, ErrorCode.INTERNAL})
"""What may go well when the same request is sent again."""


def error_from_code(
    code: ErrorCode, message: str, *, num_tokens: int | None = None, limit: int | None = None
) -> RametError:
    """Return the exception that stands for a `Failed` event."""
    if code is ErrorCode.CONTEXT_LENGTH:
        return ContextLengthError(message, num_tokens=num_tokens, limit=limit)
    return _ERRORS[code](message)


def code_of_error(error: BaseException) -> ErrorCode:
    """Return the code of an exception; `INTERNAL` for one that is not of ours."""
    for cls in type(error).__mro__:
        if cls in _CODES:
            return _CODES[cls]
    return ErrorCode.INTERNAL
