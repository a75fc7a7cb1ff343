"""Finds a pattern in text that grows, in time linear in the text whatever the pattern.

Thompson's simulation of a nondeterministic automaton (*Regular expression search algorithm*,
1968): all ways to match are followed at once, so no pattern can make one text take long. Each
state remembers the earliest place where a way that leads to it began.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from ..protocol import InvalidRequestError
from .regex_syntax import Begin, Char, Concat, Either, Node, Repeat, parse

MAX_STATES = 4096


@dataclass(frozen=True, slots=True)
class _State:
    """Takes a character (`char`), or goes on at once to all of `nexts`, at the start only if so."""

    char: Char | None
    nexts: tuple[int, ...]
    only_at_start: bool = False


@dataclass(frozen=True, slots=True)
class StopPattern:
    """A compiled pattern: its states, and those that wait for a match's first character.

    State 0 is the one that accepts.
    """

    text: str
    states: tuple[_State, ...]
    openings: tuple[int, ...]
    openings_at_start: tuple[int, ...]


@lru_cache(maxsize=256)
def compile_pattern(text: str) -> StopPattern:
    """Compile a pattern of `stop_regex`; see `regex_syntax` for what it may hold.

    Raises:
        InvalidRequestError: it is wrong or not supported (what and where), matches the empty
            text, or has more than 4,096 states when its counted repeats are written out.
    """
    tree = parse(text)
    if _can_be_empty(tree):
        raise InvalidRequestError(
            f"the pattern {text!r} matches the empty text, so every answer would end at once"
        )
    size = _size(tree)
    if size > MAX_STATES:
        raise InvalidRequestError(
            f"the pattern {text!r} has {size} states with its counted repeats written out and may "
            f"have {MAX_STATES}: use smaller counts, or * and +"
        )
    builder = _Builder()
    first = builder.add(tree, 0)
    states = tuple(builder.states)
    openings = [_reached(states, first, at_start) for at_start in (False, True)]
    return StopPattern(text, states, *openings)


def compile_patterns(texts: Iterable[str]) -> list[StopPattern]:
    """Compile the patterns of one request, which run side by side on each character.

    Raises:
        InvalidRequestError: one of them cannot be compiled, or all have more than 4,096 states.
    """
    patterns = [compile_pattern(text) for text in texts]
    sizes = [len(pattern.states) for pattern in patterns]
    if len(patterns) > 1 and sum(sizes) > MAX_STATES:
        raise InvalidRequestError(
            f"the {len(patterns)} patterns of stop_regex have {sum(sizes)} states together with "
            f"their counted repeats written out ({', '.join(map(str, sizes))}) and may have "
            f"{MAX_STATES}: use smaller counts, fewer patterns, or * and +"
        )
    return patterns


def _reached(states: tuple[_State, ...], first: int, at_start: bool) -> tuple[int, ...]:
    """Return the states that `first` leads to without a character and that wait for one."""
    reached: dict[int, None] = {}
    stack = [first]
    while stack:
        one = stack.pop()
        if one in reached or (states[one].only_at_start and not at_start):
            continue
        reached[one] = None
        stack.extend(states[one].nexts if states[one].char is None else ())
    return tuple(one for one in reached if states[one].char)


def _can_be_empty(node: Node) -> bool:
    match node:
        case Char():
            return False
        case Begin():
            return True
        case Concat(parts):
            return all(map(_can_be_empty, parts))
        case Either(options):
            return any(map(_can_be_empty, options))
        case Repeat(item, least, _):
            return least == 0 or _can_be_empty(item)


def _size(node: Node) -> int:
    """Return at least as many states as `_Builder` makes."""
    match node:
        case Char() | Begin():
            return 1
        case Concat(parts):
            return 1 + sum(map(_size, parts))
        case Either(options):
            return 1 + sum(map(_size, options))
        case Repeat(item, least, most):
            copies = 1 if most is None else most - least
            return 1 + _size(item) * least + (_size(item) + 1) * copies


class _Builder:
    """Makes states from the end of the pattern to its beginning."""

    def __init__(self) -> None:
        self.states = [_State(None, ())]

    def add(self, node: Node, after: int) -> int:
        """Return the state from which `node` leads to `after`."""
        match node:
            case Char():
                return self._state(_State(node, (after,)))
            case Begin():
                return self._state(_State(None, (after,), only_at_start=True))
            case Concat(parts):
                for part in reversed(parts):
                    after = self.add(part, after)
                return after
            case Either(options):
                firsts = tuple(self.add(option, after) for option in options)
                return self._state(_State(None, firsts))
            case Repeat():
                return self._repeat(node, after)

    def _repeat(self, node: Repeat, after: int) -> int:
        if node.most is None:
            loop = self._state(_State(None, ()))
            self.states[loop] = _State(None, (self.add(node.item, loop), after))
            entry = loop
        else:
            entry = after
            for _ in range(node.most - node.least):
                entry = self._state(_State(None, (self.add(node.item, entry), after)))
        for _ in range(node.least):
            entry = self.add(node.item, entry)
        return entry

    def _state(self, state: _State) -> int:
        self.states.append(state)
        return len(self.states) - 1


class StopRegex:
    """Follows one pattern through the characters of a text.

    The first match to be complete is reported, from the earliest place where it can begin.

    Attributes:
        num_steps: states looked at so far; for each character at most three times the pattern's.
    """

    def __init__(self, pattern: StopPattern) -> None:
        self.pattern = pattern
        self.num_steps = 0
        self._live: dict[int, int] = {}  # state that waits for a character -> earliest beginning
        self._is_at_start = True

    @property
    def earliest(self) -> int | None:
        """Where the earliest beginning of what may still become a match is; None without one."""
        return next(iter(self._live.values()), None)  # kept in order of beginnings

    def advance(self, char: str, place: int) -> int | None:
        """Take the character at `place`; return where the match began that it completes."""
        pattern = self.pattern
        openings = pattern.openings_at_start if self._is_at_start else pattern.openings
        self._is_at_start = False
        reached: dict[int, int] = {}
        for state, begin in self._live.items():  # in order of beginnings: the first to come stays
            self._take(state, char, begin, reached)
        for state in openings:
            self._take(state, char, place, reached)
        self._live = {one: begin for one, begin in reached.items() if pattern.states[one].char}
        return reached.get(0)

    def _take(self, state: int, char: str, begin: int, reached: dict[int, int]) -> None:
        """Add every state that `char` leads to from a state that waits for one."""
        states = self.pattern.states
        self.num_steps += 1
        wanted = states[state].char
        if wanted is None or not wanted.matches(char):
            return
        stack = list(states[state].nexts)
        while stack:
            one = stack.pop()
            found = states[one]
            if one in reached or found.only_at_start:
                continue
            self.num_steps += 1
            reached[one] = begin
            if found.char is None:
                stack.extend(found.nexts)
