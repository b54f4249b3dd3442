"""Typical acceptance (Cai et al. 2024, "Medusa"): approximate. It changes the law, and is used by name only."""

from __future__ import annotations

import torch
from torch import Tensor

from constrained_spec.verify.draws import inverse_cdf
from constrained_spec.verify.verdict import Verdict, leading

EPSILON, DELTA = 0.3, 0.09  # the paper's, delta = epsilon squared


def typical_threshold(p: Tensor) -> Tensor:  # [..., V] -> [...]
    """min(epsilon, delta * exp(-H(p))), H in nats: what a draft's probability must exceed."""
    entropy = torch.special.entr(p.double()).sum(-1)
    return (DELTA * torch.exp(-entropy)).clamp(max=EPSILON)


def typical(p: Tensor, first: Tensor, draft: Tensor, lengths: Tensor, draw_u: Tensor) -> Verdict:
    """Keep drafts whose target probability exceeds the threshold; then draw from the target.

    Arguments as `coupling`'s. NOT the target's law: likely drafts are kept more often than they are likely. How far off
    it is on a small world is what `law(world, "typical", ...)` tells.
    """
    places = draft.shape[1]
    if places == 0:
        return Verdict(torch.zeros_like(first), inverse_cdf(p[first], draw_u))
    place = torch.arange(places, device=p.device)
    inside = place < lengths.unsqueeze(1)
    row = first.unsqueeze(1) + torch.minimum(place, lengths.unsqueeze(1))
    p_x = p[row, torch.where(inside, draft, 0)].double()
    accepted = leading(inside & (p_x > typical_threshold(p)[row]))
    return Verdict(accepted, inverse_cdf(p[first + accepted], draw_u))
