"""Conversations as data: turns from messages, results of tools, how many tokens there are."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ramet.runtime.protocol import ROLES, InvalidRequestError, unknown_name

from ..expressions.graph import Node, RoleBegin, RoleEnd, Sequence, Text

if TYPE_CHECKING:
    from ..states.readable import ReadableState

Message = Mapping[str, Any]

_KEYS = ("role", "content", "name", "tool_call_id", "tool_calls")
_FIELDS = ("name", "tool_call_id")


def messages(items: Iterable[Message]) -> Sequence:
    """Return the turns of a conversation, to be appended: `s += ramet.messages([…])`.

    `ramet.messages(s.messages())` appends what a state holds: with the same token ids where its
    turns are literal text, and with the same text always. (A generated text is encoded anew, and
    special tokens that were meant as such are plain text.)

    Args:
        items: dicts with `role` (system, user, assistant or tool) and `content`: a text, a list
            of `{"type": "text", "text": …}` parts, which are put together, or None for none.
            `name` and `tool_call_id` are kept for `s.messages()` and not shown to the model,
            whose template has no place for them here. `tool_calls` of an assistant's turn become
            part of its text: a line of JSON for each, `{"name": …, "arguments": …}`.

    Raises:
        TypeError: something that is no list of dicts.
        InvalidRequestError: an unknown role or key, a content of another kind, or `tool_calls`
            outside of an assistant's turn; the message's place is named.

    Example:
        >>> @ramet.function
        ... def chat(s, history):
        ...     s += ramet.messages(history)
        ...     s += ramet.assistant(ramet.gen("answer"))
        >>> history = [{"role": "user", "content": "Where are you?"}]
        >>> chat(history, backend=ramet.Fake({"answer": "Here."})).messages()[-1]
        {'role': 'assistant', 'content': 'Here.'}
    """
    turns = enumerate(check_messages("messages", items))
    return Sequence(tuple(node for index, item in turns for node in turn_of(item, index)))


def tool_result(
    content: object, *, name: str | None = None, call_id: str | None = None
) -> Sequence:
    """Return what a tool has answered, as a turn of its own.

    Args:
        content: a text, or something else that is written as JSON.
        name: of the tool, call_id: of the call. Both are in `s.messages()`; the model does not
            see them.

    Raises:
        TypeError: a content that is no JSON, or a `name` or `call_id` that is no string.

    Example:
        >>> @ramet.function
        ... def look_up(s):
        ...     s += ramet.user("Weather?") + ramet.tool_result({"sun": True}, name="weather")
        >>> look_up(backend=ramet.Fake()).messages()[-1]
        {'role': 'tool', 'name': 'weather', 'content': '{"sun": true}'}
    """
    fields = {"name": name, "tool_call_id": call_id}
    for key, value in fields.items():
        if value is not None and not isinstance(value, str):
            raise TypeError(f"{key} of a tool's result must be a string, not {value!r}")
    text = content if isinstance(content, str) else _json("a tool's result", content)
    kept = tuple((key, value) for key, value in fields.items() if value is not None)
    return Sequence(_turn("tool", text, kept))


def check_messages(function: str, items: Iterable[Message]) -> Iterable[Message]:
    """Return the messages that a function was given.

    Raises:
        TypeError: something that is no list.
    """
    if isinstance(items, (str, bytes, Mapping)) or not isinstance(items, Iterable):
        raise TypeError(f"{function} takes a list of dicts, not {items!r:.80}")
    return items


def turn_of(message: object, index: int) -> tuple[Node, ...]:
    """Return a message as the nodes of a turn; `index` is its place, for errors."""
    where = f"message {index}"
    if not isinstance(message, Mapping):
        raise TypeError(f"{where} must be a dict with role and content, not {message!r:.80}")
    for key in message:
        if key not in _KEYS:
            raise InvalidRequestError(f"{where}: {unknown_name(str(key), _KEYS, 'key')}")
    role = message.get("role")
    if role is None:
        raise InvalidRequestError(f"{where} has no role: there are {', '.join(ROLES)}")
    if role not in ROLES:
        raise InvalidRequestError(f"{where}: {unknown_name(str(role), ROLES, 'role')}")
    text = _content(where, message.get("content"))
    calls = message.get("tool_calls")
    if calls:
        if role != "assistant":
            raise InvalidRequestError(f"{where}: only an assistant's turn can have tool_calls")
        text = "\n".join(filter(None, [text, *_call_lines(where, calls)]))
    elif "content" not in message:
        raise InvalidRequestError(f"{where} has no content")
    return _turn(str(role), text, _fields(where, message))


def num_tokens(state: ReadableState) -> int:
    """Return how many tokens a state has that is done."""
    tokens = state._stream.tokens
    return state._run.settings.backend.count_tokens(tokens.prompt()) if tokens else 0


def remaining_tokens(state: ReadableState) -> int | None:
    """Return how many more fit into the context; None where the backend has no limit."""
    limit = state._run.settings.backend.info().get("context_length")
    return max(0, limit - num_tokens(state)) if isinstance(limit, int) else None


def _turn(role: str, text: str, fields: tuple[tuple[str, str], ...]) -> tuple[Node, ...]:
    inner = (Text(text),) if text else ()
    return (RoleBegin(role, fields), *inner, RoleEnd(role))


def _fields(where: str, message: Message) -> tuple[tuple[str, str], ...]:
    fields = [(key, message[key]) for key in _FIELDS if message.get(key) is not None]
    for key, value in fields:
        if not isinstance(value, str):
            raise InvalidRequestError(f"{where}: {key} must be a string, not {value!r}")
    return tuple(fields)


def _content(where: str, content: object) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, (list, tuple)):
        raise InvalidRequestError(
            f"{where}: content must be a text or a list of text parts, not {content!r:.80}"
        )
    return "".join(_part(where, place, part) for place, part in enumerate(content))


def _part(where: str, place: int, part: object) -> str:
    kind = part.get("type") if isinstance(part, Mapping) else part
    text = part.get("text") if isinstance(part, Mapping) else None
    if kind != "text" or not isinstance(text, str):
        raise InvalidRequestError(
            f"{where}: part {place} of its content is {kind!r}, and this version takes only "
            '{"type": "text", "text": …}'
        )
    return text


def _call_lines(where: str, calls: object) -> list[str]:
    if not isinstance(calls, (list, tuple)):
        raise InvalidRequestError(f"{where}: tool_calls must be a list, not {calls!r:.80}")
    return [_call_line(f"{where}: tool call {place}", call) for place, call in enumerate(calls)]


def _call_line(where: str, call: object) -> str:
    function = call.get("function", call) if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise InvalidRequestError(
            f"{where} must be a dict with a name and arguments, not {call!r:.80}"
        )
    arguments = function.get("arguments", {})
    if isinstance(arguments, str):  # as OpenAI has them: JSON inside a string
        try:
            arguments = json.loads(arguments or "{}")
        except ValueError as error:
            raise InvalidRequestError(f"{where}: its arguments are not JSON: {error}") from error
    return _json(where, {"name": function["name"], "arguments": arguments})


def _json(what: str, value: object) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{what} cannot be written as JSON: {error}") from error
