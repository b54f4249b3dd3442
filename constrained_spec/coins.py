"""Counter-based randomness: a coin is a pure function of (seed, choice, role, round, position).

Philox 4x64 (Salmon et al. 2011) as numpy ships it: key = (seed, choice), counter = (block, position, round, role).
No generator is shared or advanced, so nothing has to be rolled back, neighbours in a batch cannot disturb one
another, and no global seed is read or set.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

_UNIT = 2.0**-53


class Role(IntEnum):
    """What a coin decides. Two roles never share a counter."""

    DRAFT = 0
    ACCEPT = 1
    RECOVER = 2
    BONUS = 3
    GUMBEL = 4


@dataclass(frozen=True, slots=True)
class Coins:
    """The coins of one choice (one of ``n`` outputs) of one request."""

    seed: int
    choice: int = 0

    def uniform(self, role: Role, round_: int, position: int) -> float:
        """One coin in [0, 1). ``position`` is the index of the token in the output."""
        return float(self.raw(role, round_, position, 1)[0]) * _UNIT

    def uniforms(self, role: Role, round_: int, position: int, n: int) -> NDArray[np.float64]:
        """``n`` coins in [0, 1) for the places from ``position`` on, shape [n]; the first is ``uniform``'s."""
        return self.raw(role, round_, position, n) * _UNIT

    def gumbel(self, position: int, size: int) -> NDArray[np.float64]:
        """Standard Gumbel noise, shape [size], keyed by position alone (the *invariant* verifier's noise).

        Not to be written to: the same array is given again while it is among the last ones asked for.
        """
        return _gumbel(self, position, size)

    def raw(self, role: Role, round_: int, position: int, n: int) -> NDArray[np.float64]:
        """``n`` whole numbers in [0, 2**53), shape [n]."""
        # Typed words: numpy would turn a plain list that mixes small and huge integers into floats.
        key = np.array([self.seed, self.choice], dtype=np.uint64)
        bits = np.random.Philox(key=key, counter=np.array([0, position, round_, role], dtype=np.uint64))
        # 53 bits are exact in a double, so the product with 2**-53 is below 1 without any clamp.
        return (bits.random_raw(n) >> np.uint64(11)).astype(np.float64)


@lru_cache(maxsize=32)  # drafter and verifier ask for a place in turn, and again if its draft was rejected
def _gumbel(coins: Coins, position: int, size: int) -> NDArray[np.float64]:
    # u lies in (0, 1), so both logarithms are finite: a half step on 52 bits is exact in a double, while on 53 bits the
    # largest one would round up to 1.
    u = (np.floor(coins.raw(Role.GUMBEL, 0, position, size) / 2) + 0.5) * (2 * _UNIT)
    noise: NDArray[np.float64] = -np.log(-np.log(u))
    return noise
