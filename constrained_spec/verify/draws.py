"""One draw per row from unnormalised weights, by inversion."""

from __future__ import annotations

import torch
from torch import Tensor


def inverse_cdf(weights: Tensor, u: Tensor) -> Tensor:  # [B, V] non-negative, [B] in [0, 1) -> [B] int64
    """The first index whose cumulative weight exceeds u * total: index i with chance weights[i] / total.

    Sums are float64 whatever the dtype of ``weights``. A token of weight zero is never returned. A row without any
    positive weight yields 0; whoever owns the row must know that it is dead.
    """
    size = weights.shape[-1]
    cumulative = weights.cumsum(-1, dtype=torch.float64)
    target = u.double().unsqueeze(-1) * cumulative[:, -1:]
    found = torch.searchsorted(cumulative, target, right=True)
    # In exact arithmetic `found` has positive weight, since at a zero weight the sum does not grow. Two roundings can
    # differ: u * total may round up to total (found = V), and a parallel scan on an accelerator may add in another
    # order at each index, so that the sum wavers by an ulp across zero weights. The last positive index up to `found`
    # is right in all three cases.
    index = torch.arange(size, device=weights.device)
    positive = (weights > 0) & (index <= found)
    return torch.where(positive, index, 0).amax(-1)
