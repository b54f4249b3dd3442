"""The quantities of the theory, for distributions over the last dimension."""

from __future__ import annotations

import torch
from torch import Tensor

from constrained_spec.errors import ConfigError


def overlap(p: Tensor, q: Tensor) -> Tensor:  # [..., V], [..., V] -> [...]
    """sum min(p, q): the probability that a draft from q is accepted."""
    return torch.minimum(p, q).sum(-1)


def total_variation(p: Tensor, q: Tensor) -> Tensor:  # [..., V], [..., V] -> [...]
    """Half the L1 distance; 1 - overlap for normalised arguments."""
    return (p - q).abs().sum(-1) / 2


def acceptance(p: Tensor, q: Tensor) -> Tensor:  # [..., V], [..., V] -> [..., V]
    """min(1, p(x) / q(x)) for every x; 1 where q(x) = 0 < p(x), 0 where both are 0 (neither can occur)."""
    ratio = p / torch.where(q > 0, q, torch.ones_like(q))
    return torch.where(q > 0, ratio.clamp(max=1.0), (p > 0).to(p.dtype))


def residual(p: Tensor, q: Tensor) -> Tensor:  # [..., V], [..., V] -> [..., V]
    """norm((p - q)+), the law of the recovered token; p itself where that has no mass."""
    positive = (p - q).clamp(min=0)
    mass = positive.sum(-1, keepdim=True)
    return torch.where(mass > 0, positive / torch.where(mass > 0, mass, torch.ones_like(mass)), p)


def expected_committed(alpha: float, gamma: int) -> float:
    """Expected tokens per round, (1 - alpha^(gamma + 1)) / (1 - alpha), for independent acceptance ``alpha``.

    Counts the recovered or bonus token. Leviathan et al. 2023, equation 1; the sum form has no division.
    """
    if not 0 <= alpha <= 1:
        raise ConfigError(f"alpha must lie in [0, 1], got {alpha}", param="alpha")
    if gamma < 0:
        raise ConfigError(f"gamma must not be negative, got {gamma}", param="gamma")
    return sum(alpha**i for i in range(gamma + 1))


def estimated_speedup(
    alpha: float, gamma: int, *, baseline: float, draft: float, verify: float, overhead: float = 0.0
) -> float:
    """Target-only time over speculative time per token: E[N] B / (gamma D + V + H).

    ``baseline`` is one target step, ``draft`` one draft step, ``verify`` one forward over gamma + 1 places,
    ``overhead`` the rest of a round; all in the same unit of time.
    """
    round_time = gamma * draft + verify + overhead
    if not round_time > 0:
        raise ConfigError(f"a round must take time, got {round_time}", param="verify")
    return expected_committed(alpha, gamma) * baseline / round_time
