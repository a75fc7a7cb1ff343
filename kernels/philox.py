"""Philox4x32-10, a counter-based random generator in plain torch.

Salmon, Moraes, Dror, Shaw: *Parallel Random Numbers: As Easy as 1, 2, 3* (2011).
"""

from __future__ import annotations

import torch

MASK = 0xFFFFFFFF
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)
ROUNDS = 10

Words = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]
Key = tuple[torch.Tensor, torch.Tensor]


def philox_4x32(counter: Words, key: Key) -> Words:
    """Return four random 32-bit words per counter; all words are int64 in [0, 2**32).

    The words of counter and key may have any shapes that broadcast.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(ROUNDS):
        # Only what is multiplied or returned must be cut to 32 bits: xor keeps the rest apart.
        product0, product1 = c0 * MULTIPLIERS[0], c2 * MULTIPLIERS[1]  # wrap, but keep 64 bits
        c0 = ((product1 >> 32) ^ (c1 ^ k0)).bitwise_and_(MASK)
        c2 = ((product0 >> 32) ^ (c3 ^ k1)).bitwise_and_(MASK)
        c1, c3 = product1, product0
        k0, k1 = (k0 + WEYL[0]) & MASK, (k1 + WEYL[1]) & MASK
    return c0, c1 & MASK, c2, c3 & MASK
