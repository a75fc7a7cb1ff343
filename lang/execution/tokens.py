"""The tokens of a state: ids that are known, then text and roles that are not encoded yet.

Both are persistent chains: a fork shares its parent's links, and nothing is ever rewritten. Text
is only encoded by the runtime, and only as a whole **literal run** (all the text between two
generated pieces or role markers), so however a program cuts its literals, the ids are the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from ramet.runtime.protocol import RoleBegin, RoleEnd, Segment, Text, TokenIds

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Link(Generic[T]):
    """One link of a chain that grows at its end."""

    item: T
    previous: Link[T] | None
    size: int  # of the whole chain: ids in a chain of TokenIds, links otherwise


def _items(link: Link[T] | None) -> list[T]:
    items = []
    while link is not None:
        items.append(link.item)
        link = link.previous
    items.reverse()
    return items


@dataclass(frozen=True, slots=True)
class Tokens:
    """Everything a state's next prompt consists of. Immutable: each step returns another one.

    Attributes:
        known: packed ids of what the runtime has encoded or generated.
        waiting: text and role markers after that, not encoded yet.
        last_role: role of the turn that was opened last.
    """

    known: Link[TokenIds] | None = None
    waiting: Link[Segment] | None = None
    last_role: str | None = None

    @property
    def num_known(self) -> int:
        """How many ids are known."""
        return self.known.size if self.known else 0

    def add_text(self, text: str, *, parse_special: bool = False) -> Tokens:
        """Append literal text to the open run."""
        return self._wait(Text(text, parse_special)) if text else self

    def begin_role(self, role: str) -> Tokens:
        """Open a turn."""
        opened = self._wait(RoleBegin(role, self.last_role))
        return replace(opened, last_role=role)

    def end_role(self, role: str) -> Tokens:
        """Close a turn."""
        return self._wait(RoleEnd(role))

    def add_ids(self, prefix_tokens: int, ids: TokenIds) -> Tokens:
        """Replace what waits: the state is the first `prefix_tokens` known ids, then `ids`."""
        known = self.known
        while known is not None and known.size > prefix_tokens:
            start = known.size - len(known.item)
            if start < prefix_tokens:
                known = Link(known.item[: prefix_tokens - start], known.previous, prefix_tokens)
            else:
                known = known.previous
        while known is not None and len(known.item) <= len(ids):  # so links stay few: O(log n)
            ids = known.item + ids
            known = known.previous
        if len(ids):
            known = Link(ids, known, (known.size if known else 0) + len(ids))
        return replace(self, known=known, waiting=None)

    def ids(self) -> TokenIds:
        """Return all known ids."""
        return TokenIds(b"".join(part.packed for part in _items(self.known)))

    def prompt(self) -> tuple[Segment, ...]:
        """Return the segments to send.

        An assistant turn that was opened just before is marked as one to generate: it is, unless
        the program goes on with literal text, and then no prompt is taken at that point.
        """
        segments = list(_joined(_items(self.waiting)))
        if segments and isinstance(segments[-1], RoleBegin) and segments[-1].role == "assistant":
            segments[-1] = replace(segments[-1], generate=True)
        if self.known is not None:
            segments.insert(0, self.ids())
        return tuple(segments)

    def _wait(self, segment: Segment) -> Tokens:
        size = self.waiting.size + 1 if self.waiting else 1
        return replace(self, waiting=Link(segment, self.waiting, size))


def _joined(segments: list[Segment]) -> Iterator[Segment]:
    """Join neighbouring texts, so that a literal run is one string."""
    texts: list[Text] = []
    for segment in segments:
        if texts and not (
            isinstance(segment, Text) and segment.parse_special == texts[0].parse_special
        ):
            yield _one_text(texts)
            texts = []
        if isinstance(segment, Text):
            texts.append(segment)
        else:
            yield segment
    if texts:
        yield _one_text(texts)


def _one_text(texts: list[Text]) -> Text:
    return Text("".join(text.text for text in texts), texts[0].parse_special)
