"""What requests asked an engine for, as ids, and how much of it an ideal cache computes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

import ramet
from ramet.runtime.cache.radix_cache import RadixCache
from ramet.runtime.protocol import (
    Accepted,
    Event,
    Finished,
    GenerateRequest,
    Request,
    Scored,
    Segment,
    TokenIds,
    Usage,
)


@dataclass(frozen=True)
class Call:
    """A request that ended: the rows of ids that it computed, and what it generated after the
    only one; a scoring has a row for each option, without the last id, which is never computed."""

    rows: tuple[tuple[int, ...], ...]
    generated: tuple[int, ...]
    usage: Usage


class Recording:
    """A backend that passes everything on to an engine, and keeps the calls in `calls`."""

    def __init__(self, engine: ramet.Engine) -> None:
        self._engine = engine
        self.calls: list[Call] = []

    def submit(self, request: Request, on_event: Callable[[Event], None]) -> None:
        known = [ids for ids in request.prompt if isinstance(ids, TokenIds)]
        prompt: list[int] = []

        def listen(event: Event) -> None:
            if isinstance(event, Accepted):
                prompt.extend([id for ids in known for id in ids][: event.prefix_tokens])
                prompt.extend(event.ids)
            elif isinstance(event, Finished) and isinstance(request, GenerateRequest):
                self.calls.append(Call((tuple(prompt),), tuple(event.sample.ids), event.usage))
            elif isinstance(event, Scored):
                self.calls.append(Call(rows_of(event, known), (), event.usage))
            on_event(event)

        self._engine.submit(request, listen)

    @property
    def num_slots(self) -> int | None:
        return self._engine.num_slots

    def has_room(self, wake: Callable[[], None]) -> bool:
        return self._engine.has_room(wake)

    def abort(self, request_id: str) -> None:
        self._engine.abort(request_id)

    def render(self, segments: tuple[Segment, ...]) -> str:
        return self._engine.render(segments)

    def count_tokens(self, segments: tuple[Segment, ...]) -> int:
        return self._engine.count_tokens(segments)

    def flush_cache(self) -> bool:
        return self._engine.flush_cache()

    def info(self) -> dict[str, object]:
        return self._engine.info()

    def close(self) -> None:
        self._engine.close()


def rows_of(event: Scored, known: list[TokenIds]) -> tuple[tuple[int, ...], ...]:
    before = [id for ids in known for id in ids][: event.prefix_tokens]
    trunk = (*before, *event.trunk)
    return tuple((*trunk, *tuple(option.ids)[:-1]) for option in event.options)


class PrefixTree:
    """Counts the different beginnings of rows of ids."""

    def __init__(self) -> None:
        self._children: dict[tuple[int, int], int] = {}

    def insert(self, ids: Sequence[int]) -> int:
        """Add a row, and return how many of its positions were not there."""
        node, before = 0, len(self._children)
        for token in ids:
            node = self._children.setdefault((node, token), len(self._children) + 1)
        return len(self._children) - before


def distinct_positions(calls: Sequence[Call]) -> int:
    """Return how many prompt positions a cache that forgets nothing computes.

    What a call generated is in that cache too, but for the last token, which was never computed.
    """
    tree = PrefixTree()
    total = 0
    for call in calls:
        total += sum(map(tree.insert, call.rows))
        if len(call.generated) > 1:
            tree.insert((*call.rows[0], *call.generated[:-1]))
    return total


def longest(calls: Sequence[Call]) -> int:
    """Return how many positions the longest row has, what was generated after it included."""
    return max(len(row) + len(call.generated) for call in calls for row in call.rows)


def serial_hit_rate(calls: Sequence[Call], num_slots: int) -> float:
    """Return cached ÷ prompt tokens of the calls one at a time, depth first through their prefix
    tree, in a pool of `num_slots` that evicts what was used least recently."""
    tree = RadixCache(num_slots)
    cached = prompt = 0
    for call in sorted(calls, key=lambda call: call.rows):
        trunk = 0  # counted once, however many options follow it
        for row in call.rows:
            cached += max(store(tree, row, num_slots) - trunk, 0)
            prompt += len(row) - trunk
            trunk = common_length(call.rows)
        store(tree, (*call.rows[0], *call.generated[:-1]), num_slots)
    return cached / prompt


def common_length(rows: Sequence[tuple[int, ...]]) -> int:
    first, last = min(rows), max(rows)
    pairs = enumerate(zip(first, last, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(first), len(last)))


def store(tree: RadixCache, row: Sequence[int], num_slots: int) -> int:
    """Put a row into the tree, and return how many of its tokens were there."""
    ids = np.array(row, dtype=np.int32)
    match = tree.match(ids)
    tree.lock(match.handle)
    tree.evict(max(tree.num_tokens + len(ids) - len(match.slots) - num_slots, 0))
    tree.insert(ids, np.zeros_like(ids))
    tree.unlock(match.handle)
    return len(match.slots)
