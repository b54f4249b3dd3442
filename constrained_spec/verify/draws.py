"""One coin, one token: draws by the inverse cumulative distribution."""

from __future__ import annotations

import torch
from torch import Tensor


def inverse_cdf(weights: Tensor, u: Tensor) -> Tensor:  # [B, V] >= 0, [B] in [0, 1) -> [B] int64
    """Index i with probability weights[i] / sum(weights): the first whose cumulative weight exceeds u * total.

    A zero weight is never drawn, because the cumulative sum grows at the first index where it exceeds a value; where
    rounding lifts u * total to the total itself, the draw is the last index at which the sum still grew. A row without
    any mass yields an arbitrary id (callers flag such rows). Sums are float64: 49k float32 terms would drift.
    """
    cumulative = weights.to(torch.float64).cumsum(-1)
    total = cumulative[:, -1:].contiguous()
    drawn = torch.searchsorted(cumulative, u.to(torch.float64).unsqueeze(1) * total, right=True)
    last = torch.searchsorted(cumulative, total, right=False)
    return torch.minimum(drawn, last).squeeze(1)
