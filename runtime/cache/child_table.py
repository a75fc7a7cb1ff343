"""ChildTable: finds a node's child by its first token, for all nodes of a tree in one table."""

from __future__ import annotations

from array import array

_TOKEN_BITS = 32
_WORD = 2**64 - 1
_MULTIPLIER = 0x9E3779B97F4A7C15  # 2**64 divided by the golden ratio: neighbours land far apart


class ChildTable:
    """Maps (node, token) to a child's number, which is never 0.

    A hash table with open addressing in two arrays of fixed size, at most half full. A dict would
    pause for milliseconds whenever it grows, and the garbage collector would walk through it.
    """

    def __init__(self, capacity: int) -> None:
        """`capacity` is the most children there ever are at once."""
        bits = max((2 * capacity - 1).bit_length(), 1)
        self._mask = (1 << bits) - 1
        self._shift = 64 - bits
        self._keys = array("q", bytes(8 << bits))
        self._children = array("i", bytes(4 << bits))

    def find(self, node: int, token: int) -> int:
        """Return the child of `node` that begins with `token`, 0 if there is none."""
        return self._children[self._cell(node << _TOKEN_BITS | token)]

    def put(self, node: int, token: int, child: int) -> None:
        """Set the child of `node` that begins with `token`."""
        key = node << _TOKEN_BITS | token
        cell = self._cell(key)
        self._keys[cell], self._children[cell] = key, child

    def remove(self, node: int, token: int) -> None:
        """Forget a child that is there.

        Entries behind it that were pushed on by it move up, so that no search ends early.
        """
        keys, children, mask = self._keys, self._children, self._mask
        hole = cell = self._cell(node << _TOKEN_BITS | token)
        while True:
            cell = (cell + 1) & mask
            if not children[cell]:
                break
            if (cell - self._home(keys[cell])) & mask >= (cell - hole) & mask:
                keys[hole], children[hole] = keys[cell], children[cell]
                hole = cell
        children[hole] = 0

    def _cell(self, key: int) -> int:
        """Return where `key` is, or else the empty cell where it belongs."""
        keys, children, mask = self._keys, self._children, self._mask
        cell = self._home(key)
        while children[cell] and keys[cell] != key:
            cell = (cell + 1) & mask
        return cell

    def _home(self, key: int) -> int:
        return (key * _MULTIPLIER & _WORD) >> self._shift
