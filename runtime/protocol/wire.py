"""The JSON form of requests and events: `{"type": class name, field: value, …}`, both ways."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable
from enum import Enum
from functools import cache
from typing import Any, TypeVar

from . import logprobs, messages, sampling, segments
from .errors import InvalidRequestError

Json = dict[str, Any]
T = TypeVar("T")

_TYPES: dict[str, type] = {
    cls.__name__: cls
    for module in (segments, sampling, logprobs, messages)
    for cls in vars(module).values()
    if dataclasses.is_dataclass(cls) and isinstance(cls, type)
}


def to_json(value: Any) -> Any:
    """Return `value` (protocol data, or a tuple of it) as what `json.dumps` takes."""
    if isinstance(value, segments.TokenIds):
        return {"type": "TokenIds", "ids": list(value)}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        body = {f.name: to_json(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return {"type": type(value).__name__, **body}
    if isinstance(value, tuple):
        return [to_json(item) for item in value]
    return value.value if isinstance(value, Enum) else value


def from_json(body: Json) -> Any:
    """Return the protocol object that `to_json` made `body` from.

    Raises:
        InvalidRequestError: an unknown type or field, or a missing one.
    """
    tag = body.get("type")
    cls = _TYPES.get(tag) if isinstance(tag, str) else None
    if cls is None:
        raise InvalidRequestError(f"unknown message type {tag!r}")
    if cls is segments.TokenIds:
        return segments.TokenIds.of(body["ids"])
    decoders = _decoders(cls)
    given = {name: value for name, value in body.items() if name != "type"}
    unknown = given.keys() - decoders.keys()
    if unknown:
        raise InvalidRequestError(sampling.unknown_name(min(unknown), decoders, f"{tag} field"))
    try:
        return cls(**{name: decoders[name](value) for name, value in given.items()})
    except TypeError as error:
        raise InvalidRequestError(f"{tag}: {error}") from error


@cache
def _decoders(cls: type) -> dict[str, Callable[[Any], Any]]:
    hints = typing.get_type_hints(cls)
    return {f.name: _decoder(hints[f.name]) for f in dataclasses.fields(cls)}


def _decoder(hint: Any) -> Callable[[Any], Any]:
    """Return what turns the JSON form of a value of type `hint` into that value."""
    origin = typing.get_origin(hint)
    if origin is tuple:
        item = _decoder(typing.get_args(hint)[0])
        return lambda value: tuple(item(x) for x in value)
    if origin in (typing.Union, types.UnionType):
        rows = [_decoder(a) for a in typing.get_args(hint) if typing.get_origin(a) is tuple]
        return lambda value: _decode_union(value, rows)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return hint
    if dataclasses.is_dataclass(hint):
        return from_json
    return lambda value: value


def _decode_union(value: Any, rows: list[Callable[[Any], Any]]) -> Any:
    if isinstance(value, list) and rows:
        return rows[0](value)
    return from_json(value) if isinstance(value, dict) else value
