"""Regular expressions as syntax trees: the part of Python's syntax that is regular.

Literals, `.` (all but a newline), classes `[a-z]`, `[^…]`, the escapes `\\d \\w \\s \\D \\W \\S`
(of Unicode, as in `re`) and those of single characters, groups `(…)`, `(?:…)`, `(?P<name>…)`,
`|`, `* + ? {m,n}` with or without a lazy `?`, and `^` or `\\A` for the beginning of the text.
What needs memory or a look at what follows is refused by name: back-references, look-around, `$`,
`\\b`, possessive repeats, atomic groups, flags.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

from ..protocol import InvalidRequestError

MAX_DEPTH = 50  # groups inside one another

_CONTROLS = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v", "a": "\a"}
_CODES = {"x": 2, "u": 4, "U": 8}  # hexadecimal digits after the letter
_COUNTS = re.compile(r"\{(?:([0-9]+)(,([0-9]*))?|,([0-9]+))\}")  # applied at one fixed place
_NAME = re.compile(r"P<[^\W\d]\w*>")
_GROUPS = {  # longest first
    "P=": "a back-reference",
    "<=": "look-behind",
    "<!": "look-behind",
    "=": "look-ahead",
    "!": "look-ahead",
    "(": "a conditional group",
    ">": "an atomic group",
    "#": "a comment",
}
_REFUSED_ESCAPES = {
    "b": "a word boundary, which needs the character that follows",
    "B": "a word boundary, which needs the character that follows",
    "Z": "the end of the text, which is not known while it grows",
    "z": "the end of the text, which is not known while it grows",
    "N": "a character by name; write the character",
}


def _is_word(char: str) -> bool:
    return char.isalnum() or char == "_"


_KINDS: dict[str, Callable[[str], bool]] = {
    "d": str.isdecimal,
    "w": _is_word,
    "s": str.isspace,
    "D": lambda char: not char.isdecimal(),
    "W": lambda char: not _is_word(char),
    "S": lambda char: not char.isspace(),
}


@dataclass(frozen=True, slots=True)
class Char:
    """One character: in any of the ranges or of any of the kinds, or in none if `negated`."""

    ranges: tuple[tuple[str, str], ...]
    kinds: tuple[Callable[[str], bool], ...] = ()
    negated: bool = False

    def matches(self, char: str) -> bool:
        """Return whether `char` is one of these."""
        inside = any(low <= char <= high for low, high in self.ranges)
        return (inside or any(kind(char) for kind in self.kinds)) != self.negated


@dataclass(frozen=True, slots=True)
class Begin:
    """Nothing, at the beginning of the text only."""


@dataclass(frozen=True, slots=True)
class Concat:
    """One after the other; none is the empty text."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Either:
    """Any one of them."""

    options: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """`least` to `most` times; None is without limit."""

    item: Node
    least: int
    most: int | None


Node = Char | Begin | Concat | Either | Repeat


def parse(pattern: str) -> Node:
    """Return the syntax tree of a pattern.

    Raises:
        InvalidRequestError: the pattern is wrong, or holds what is not supported, and where.
    """
    parser = _Parser(pattern)
    tree = parser.either()
    if not parser.at_end:
        parser.fail("an unbalanced ')'")
    return tree


class _Parser:
    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._place = 0
        self._depth = 0

    @property
    def at_end(self) -> bool:
        return self._place == len(self._pattern)

    def fail(self, what: str, place: int | None = None) -> NoReturn:
        where = self._place if place is None else place
        raise InvalidRequestError(f"the pattern {self._pattern!r} has {what} at character {where}")

    def either(self) -> Node:
        options = [self._concat()]
        while self._take("|"):
            options.append(self._concat())
        return options[0] if len(options) == 1 else Either(tuple(options))

    def _concat(self) -> Node:
        parts: list[Node] = []
        while not self.at_end and self._pattern[self._place] not in "|)":
            parts.append(self._repeat())
        return parts[0] if len(parts) == 1 else Concat(tuple(parts))

    def _repeat(self) -> Node:
        place = self._place
        if self._counts() is not None:
            self.fail("a repeat of nothing", place)
        item = self._atom()
        counts = self._counts()
        if counts is None:
            return item
        if isinstance(item, Begin):
            self.fail("a repeat of the beginning", place)
        if self._take("+"):
            self.fail("a possessive repeat, which is not supported,", place)
        self._take("?")  # lazy: the same texts match
        again = self._place
        if self._counts() is not None:
            self.fail("a repeat of a repeat", again)
        least, most = counts
        if most is not None and most < least:
            self.fail("a repeat whose limits are the wrong way round", place)
        return Repeat(item, least, most)

    def _counts(self) -> tuple[int, int | None] | None:
        """Take a `*`, `+`, `?` or `{m,n}` if one is here."""
        for char, counts in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self._take(char):
                return counts
        found = _COUNTS.match(self._pattern, self._place)
        if found is None:
            return None
        self._place = found.end()
        least, comma, most, only_most = found.groups()
        if only_most:
            return 0, int(only_most)
        if not comma:
            return int(least), int(least)
        return int(least), int(most) if most else None

    def _atom(self) -> Node:
        char = self._next()
        if char == "(":
            return self._group()
        if char == "[":
            return self._class()
        if char == ".":
            return Char((("\n", "\n"),), negated=True)
        if char == "^":
            return Begin()
        if char == "$":
            self.fail(f"$: {_REFUSED_ESCAPES['Z']},", self._place - 1)
        if char == "\\":
            if self._take("A"):
                return Begin()
            return self._escape()
        return Char(((char, char),))

    def _group(self) -> Node:
        place = self._place - 1
        if self._take("?"):
            self._group_kind(place)
        self._depth += 1
        if self._depth > MAX_DEPTH:
            self.fail(f"more than {MAX_DEPTH} groups inside one another", place)
        inside = self.either()
        if not self._take(")"):
            self.fail("a '(' without its ')'", place)
        self._depth -= 1
        return inside

    def _group_kind(self, place: int) -> None:
        if self._take(":"):
            return
        name = _NAME.match(self._pattern, self._place)
        if name is not None:
            self._place = name.end()
            return
        for start, what in _GROUPS.items():
            if self._pattern.startswith(start, self._place):
                self.fail(f"{what}, which is not supported,", place)
        self.fail("flags or an unknown group, which are not supported,", place)

    def _class(self) -> Node:
        place = self._place - 1
        negated = self._take("^")
        ranges: list[tuple[str, str]] = []
        kinds: list[Callable[[str], bool]] = []
        is_first = True
        while is_first or not self._take("]"):
            if self.at_end:
                self.fail("a '[' without its ']'", place)
            is_first = False
            start = self._place
            low = self._member()
            if self._pattern.startswith("-", self._place) and not self._pattern.startswith(
                "-]", self._place
            ):
                self._place += 1
                if self.at_end:
                    self.fail("a '[' without its ']'", place)
                ranges.append(self._range(low, self._member(), start))
            elif low.kinds:
                kinds += low.kinds
            else:
                ranges += low.ranges
        return Char(tuple(ranges), tuple(kinds), negated)

    def _range(self, low: Char, high: Char, place: int) -> tuple[str, str]:
        if low.kinds or high.kinds:
            self.fail("a range that ends at a kind of characters", place)
        ends = low.ranges[0][0], high.ranges[0][0]
        if ends[0] > ends[1]:
            self.fail("a range whose ends are the wrong way round", place)
        return ends

    def _member(self) -> Char:
        char = self._next()
        if char != "\\":
            return Char(((char, char),))
        return Char((("\b", "\b"),)) if self._take("b") else self._escape()

    def _escape(self) -> Char:
        place = self._place - 1
        if self.at_end:
            self.fail("a '\\' with nothing after it", place)
        char = self._next()
        if char in _KINDS:
            return Char((), (_KINDS[char],))
        if char in _CODES:
            char = self._code(char, place)
        elif char in _CONTROLS:
            char = _CONTROLS[char]
        elif char == "0" and not self._pattern[self._place : self._place + 1].isdecimal():
            char = "\0"
        elif char in "0123456789":
            self.fail("a back-reference or an octal escape, which are not supported,", place)
        elif char in _REFUSED_ESCAPES:
            self.fail(f"\\{char}: {_REFUSED_ESCAPES[char]},", place)
        elif char.isascii() and char.isalpha():
            self.fail(f"the unknown escape \\{char}", place)
        return Char(((char, char),))

    def _code(self, letter: str, place: int) -> str:
        count = _CODES[letter]
        digits = self._pattern[self._place : self._place + count]
        if re.fullmatch(f"[0-9a-fA-F]{{{count}}}", digits) is None or int(digits, 16) > 0x10FFFF:
            self.fail(f"\\{letter} without {count} hexadecimal digits of a character", place)
        self._place += count
        return chr(int(digits, 16))

    def _next(self) -> str:
        self._place += 1
        return self._pattern[self._place - 1]

    def _take(self, char: str) -> bool:
        found = self._pattern.startswith(char, self._place)
        if found:
            self._place += len(char)
        return found
