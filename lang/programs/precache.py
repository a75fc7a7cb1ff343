"""`program.cache(…)`: the beginning of a program's prompt, computed before anyone asks for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NoReturn

from ramet.runtime.protocol import (
    Finished,
    GenerateRequest,
    Request,
    RoleBegin,
    SamplingParams,
    Segment,
    Usage,
)

from ..backends.base import Backend
from ..backends.calls import call, call_id
from ..execution.executor import KnownNothingError
from .preview import PreviewBackend


class HeadBackend(PreviewBackend):
    """Ends the body at its first gen or select."""

    def __init__(self) -> None:
        self.reached_gen = False

    def submit(self, request: Request, on_event: Callable[..., None]) -> None:
        """End the body."""
        self.reached_gen = True
        raise KnownNothingError


class NotGiven:
    """Stands for an argument that was not given: whatever is done with it ends the body.

    Only `is` and `type()` cannot notice.
    """

    __slots__ = ()

    def __getattribute__(self, name: str) -> NoReturn:
        raise KnownNothingError

    def _end(self, *args: object, **kwargs: object) -> NoReturn:
        raise KnownNothingError

    __str__ = __repr__ = __format__ = __bytes__ = __bool__ = __hash__ = __len__ = _end
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _end
    __iter__ = __next__ = __contains__ = __getitem__ = __setitem__ = __delitem__ = _end
    __call__ = __enter__ = __exit__ = __await__ = __aiter__ = __index__ = _end
    __int__ = __float__ = __complex__ = __round__ = __neg__ = __pos__ = __abs__ = _end
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __mod__ = __rmod__ = _end
    __truediv__ = __rtruediv__ = __floordiv__ = __rfloordiv__ = __pow__ = __rpow__ = _end
    __and__ = __rand__ = __or__ = __ror__ = __xor__ = __rxor__ = __invert__ = _end
    __lshift__ = __rlshift__ = __rshift__ = __rrshift__ = __matmul__ = __rmatmul__ = _end
    __setattr__ = __delattr__ = __fspath__ = __reversed__ = __dir__ = _end


def send(
    backend: Backend, head: tuple[Segment, ...], options: dict[str, Any], timeout: float | None
) -> Usage:
    """Fill the cache with a prompt, and return its usage; an empty one sends nothing."""
    if not head:
        return Usage()
    request = GenerateRequest(
        id=call_id("cache"),
        prompt=head,
        sampling=SamplingParams(max_new_tokens=0),
        timeout=timeout,
        label="cache",
        **options,
    )
    event = call(backend, request)
    return event.usage if isinstance(event, Finished) else Usage()


def constant(head: tuple[Segment, ...], *, reached_gen: bool) -> tuple[Segment, ...]:
    """Return the prompt as what follows needs it: literal text, where it is no gen."""
    if head and isinstance(head[-1], RoleBegin) and not reached_gen:
        return (*head[:-1], replace(head[-1], generate=False))
    return head
