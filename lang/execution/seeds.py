"""Derived seeds: what makes every gen's noise its own, and every run repeatable.

A gen's seed is the first 64 bits of BLAKE2b over (run seed, batch row, fork path, ordinal of the
gen in its state, sample index, retry attempt). So forks differ from each other, a run with the
same seed repeats, and it does not matter what else ran, in which order or in how many threads.
A program called inside another one gets its run seed from the caller's run seed, row, and how
many programs that run had called before.
"""

from __future__ import annotations

import os
from hashlib import blake2b

from ramet.runtime.protocol import InvalidRequestError

ForkPath = tuple[tuple[int, int], ...]
"""For each fork on the way: its ordinal among the forks of its state, and the branch's index."""


def random_seed() -> int:
    """Return a fresh run seed."""
    return int.from_bytes(os.urandom(8), "little")


def check_seed(seed: object) -> int:
    """Return `seed` if it is an integer of 64 bits without sign."""
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**64:
        raise InvalidRequestError(f"seed must be an integer from 0 to 2**64 - 1, not {seed!r}")
    return seed


def gen_seed(run_seed: int, row: int, path: ForkPath, ordinal: int, attempt: int = 0) -> int:
    """Return the seed of the `ordinal`-th gen of a state (sample 0)."""
    sample = 0
    return _hash("gen", run_seed, row, path, ordinal, sample, attempt)


def nested_seed(run_seed: int, row: int, ordinal: int) -> int:
    """Return the run seed of the `ordinal`-th program that a run calls."""
    return _hash("program", run_seed, row, ordinal)


def _hash(*parts: object) -> int:
    return int.from_bytes(blake2b(repr(parts).encode(), digest_size=8).digest(), "little")
