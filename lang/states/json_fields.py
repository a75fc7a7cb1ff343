"""Which fields of a JSON text are complete, while the text still comes."""

from __future__ import annotations

import json
from typing import Any

_SPACE = " \t\r\n"
_MORE_OF_A_SCALAR = frozenset("0123456789+-.eEtrufalsn")


class JsonFields:
    """Takes a JSON text in pieces, and gives each field and each item of a list once complete.

    Inner ones come before what they are in; the whole text is no field. Text that is not JSON ends
    the scan: what came until then stands, and nothing more comes. Time is linear in the text, but
    for the values that are given more than once because they are inside each other.
    """

    def __init__(self) -> None:
        self._text = ""
        self._place = 0
        self._places: list[_Level] = []
        self._start: int | None = None  # of the string or scalar being read
        self._is_escaped = False
        self._is_broken = False

    def feed(self, text: str) -> list[tuple[str, Any]]:
        """Return the fields that are complete now, as ("people[2].name", value)."""
        self._text += text
        found: list[tuple[str, Any]] = []
        while not self._is_broken and self._place < len(self._text):
            self._take(self._text[self._place], found)
        return found

    def _take(self, char: str, found: list[tuple[str, Any]]) -> None:
        if self._start is not None:
            self._go_on(char, found)
            return
        self._place += 1
        if char in "{[":
            self._places.append(_Level(self._place - 1, is_list=char == "["))
        elif char in "}]":
            self._close(found)
        elif char == ",":
            self._next_item()
        elif char not in _SPACE + ":":
            self._start = self._place - 1

    def _go_on(self, char: str, found: list[tuple[str, Any]]) -> None:
        """Take a character of the string or scalar that has begun."""
        start = self._start if self._start is not None else 0
        if self._text[start] != '"':
            if char in _MORE_OF_A_SCALAR:
                self._place += 1
            else:  # the character after it is no part of it
                self._complete(start, found)
            return
        self._place += 1
        if self._is_escaped:
            self._is_escaped = False
        elif char == "\\":
            self._is_escaped = True
        elif char == '"':
            self._complete(start, found)

    def _complete(self, start: int, found: list[tuple[str, Any]]) -> None:
        """Take the value from `start` to here: a key, or the value of a field."""
        self._start = None
        try:
            value = json.loads(self._text[start : self._place])
        except ValueError:
            self._is_broken = True
            return
        level = self._places[-1] if self._places else None
        if level is not None and not level.is_list and level.key is None:
            level.key = value
        elif level is not None:
            found.append((self._path(), value))

    def _close(self, found: list[tuple[str, Any]]) -> None:
        if not self._places:
            self._is_broken = True
            return
        level = self._places.pop()
        if self._places:
            self._complete(level.start, found)

    def _next_item(self) -> None:
        if not self._places:
            self._is_broken = True
            return
        level = self._places[-1]
        level.key = None
        level.index += 1

    def _path(self) -> str:
        path = ""
        for level in self._places:
            if level.is_list:
                path += f"[{level.index}]"
            else:
                path += f".{level.key}" if path else str(level.key)
        return path


class _Level:
    """An object or a list that is open."""

    __slots__ = ("index", "is_list", "key", "start")

    def __init__(self, start: int, *, is_list: bool) -> None:
        self.start = start
        self.is_list = is_list
        self.key: object = None
        self.index = 0
