"""The quantities of speculative sampling (Leviathan et al. 2023, Chen et al. 2023), on tensors of distributions.

Throughout, ``p`` is the target's distribution and ``q`` the draft's, both [..., V], non-negative, summing to 1.
Nothing here divides by a sum or a probability that may be zero.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from constrained_spec.errors import ConfigError


def overlap(p: Tensor, q: Tensor) -> Tensor:  # [..., V], [..., V] -> [...]
    """Sum over x of min(p(x), q(x)): the chance that a token drawn from ``q`` is accepted. Equals 1 - TV."""
    return torch.minimum(p, q).sum(-1)


def total_variation(p: Tensor, q: Tensor) -> Tensor:  # [..., V], [..., V] -> [...]
    """Half the sum of absolute differences: the least chance, over all couplings, that the two draws differ."""
    return (p - q).abs().sum(-1) / 2


def acceptance(p: Tensor, q: Tensor, x: Tensor) -> Tensor:  # [..., V], [..., V], [...] int64 -> [...]
    """Chance min(1, p(x)/q(x)) that the drafted token ``x`` is kept.

    Where q(x) is 0, x cannot have been drawn from q; it counts as a point mass and is kept with chance p(x).
    """
    p_x, q_x = (t.gather(-1, x.unsqueeze(-1)).squeeze(-1) for t in (p, q))
    return (p_x / torch.where(q_x > 0, q_x, 1)).clamp(max=1)


def excess(p: Tensor, q: Tensor) -> Tensor:  # [..., V], [..., V] -> [..., V]
    """Weights (p - q)+ of the residual, not normalised; where their mass is zero, ``p`` itself.

    Zero mass means p <= q everywhere, so p = q up to rounding, and then p is what is left to draw from. A NaN in ``q``
    makes the mass NaN and also ends in ``p``.
    """
    over = (p - q).clamp(min=0)
    return torch.where(over.sum(-1, keepdim=True) > 0, over, p)


def residual(p: Tensor, q: Tensor) -> Tensor:  # [..., V], [..., V] -> [..., V]
    """norm((p - q)+), the law of the recovered token; where its mass is zero, ``p``.

    For a point mass q at x this is p with x removed.
    """
    over = excess(p, q)
    mass = over.sum(-1, keepdim=True)
    return over / torch.where(mass > 0, mass, 1)


def expected_committed(alpha: float, gamma: int) -> float:
    """Tokens committed per round, E[N] = (1 - alpha^(gamma+1)) / (1 - alpha), and gamma + 1 at alpha = 1.

    ``alpha`` is the chance that one draft is accepted, taken as independent across places; ``gamma`` the drafts per
    round. Raises ``ConfigError`` for alpha outside [0, 1] or a negative gamma.
    """
    if not 0 <= alpha <= 1:
        raise ConfigError(f"alpha must lie in [0, 1], got {alpha!r}", param="alpha")
    if gamma < 0:
        raise ConfigError(f"gamma must not be negative, got {gamma!r}", param="gamma")
    total = 1.0
    for _ in range(gamma):  # the geometric sum by Horner's rule: no division, nothing cancels near 1
        total = 1.0 + alpha * total
    return total


def estimated_speedup(
    alpha: float, gamma: int, *, baseline: float, draft: float, verify: float, overhead: float = 0.0
) -> float:
    """E[N] * baseline / (gamma * draft + verify + overhead); below 1, speculation loses.

    All times are in one unit, whichever: ``baseline`` for a target-only step (one token), ``draft`` for one drafted
    token, ``verify`` for the target's forward over the whole block, ``overhead`` for the rest of a round. Raises
    ``ConfigError`` for a negative or non-finite time, and for a baseline or a round that takes none.
    """
    for name, value in (("baseline", baseline), ("draft", draft), ("verify", verify), ("overhead", overhead)):
        if not (math.isfinite(value) and value >= 0):
            raise ConfigError(f"{name} must be a finite time, not negative, got {value!r}", param=name)
    tokens = expected_committed(alpha, gamma)
    cost = gamma * draft + verify + overhead
    if cost == 0 or baseline == 0:
        raise ConfigError("a step and a round must each take some time", param="verify" if cost == 0 else "baseline")
    return tokens * baseline / cost
