"""What a prompt is made of: token ids that are known, text and roles that are not yet encoded."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

ROLES = ("system", "user", "assistant", "tool")


@dataclass(frozen=True, slots=True)
class TokenIds:
    """Token ids, packed as native 32-bit integers so that long prompts stay small.

    Build one with `TokenIds.of([1, 2, 3])`; iterate, measure and slice it like a tuple.
    """

    packed: bytes = b""

    @classmethod
    def of(cls, ids: Iterable[int]) -> TokenIds:
        """Pack `ids`; each must be in [0, 2**31)."""
        return cls(array("i", ids).tobytes())

    @property
    def array(self) -> array[int]:
        """The ids as an `array('i')`, a copy."""
        ids = array("i")
        ids.frombytes(self.packed)
        return ids

    def __len__(self) -> int:
        return len(self.packed) // 4

    def __iter__(self) -> Iterator[int]:
        return iter(memoryview(self.packed).cast("i"))

    def __getitem__(self, index: slice) -> TokenIds:
        return TokenIds(memoryview(self.packed).cast("i")[index].tobytes())

    def __add__(self, other: TokenIds) -> TokenIds:
        return TokenIds(self.packed + other.packed)

    def __repr__(self) -> str:
        return f"TokenIds({list(self)})"


@dataclass(frozen=True, slots=True)
class Text:
    """Text to encode. Special tokens spelled in it stay plain text unless `parse_special`.

    Neighbouring `Text` segments with the same `parse_special` are encoded as one string.
    """

    text: str
    parse_special: bool = False


@dataclass(frozen=True, slots=True)
class RoleBegin:
    """Opens a chat turn; the runtime appends what the model's template puts there.

    `previous` is the role of the turn before, None at the first turn: the template may add a
    default system message there, or forbid the order. `generate` says that a generation follows
    at once (the template's generation prompt, which may differ from a past assistant turn).
    """

    role: str
    previous: str | None = None
    generate: bool = False


@dataclass(frozen=True, slots=True)
class RoleEnd:
    """Closes a chat turn with what the model's template puts there."""

    role: str


Segment = TokenIds | Text | RoleBegin | RoleEnd
