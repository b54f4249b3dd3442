"""Speculative sampling: a coupling of draft and target that keeps the target's law.

Leviathan et al. 2023 (arXiv 2211.17192), Chen et al. 2023 (arXiv 2302.01318).
"""

from __future__ import annotations

import torch
from torch import Tensor

from constrained_spec.verify.draws import inverse_cdf
from constrained_spec.verify.verdict import Verdict, leading


def coupling(
    p: Tensor,  # [N, V] target probabilities, row first[b] + j is place j of sequence b
    first: Tensor,  # [B] int64
    draft: Tensor,  # [B, G] int64, padded arbitrarily behind lengths[b]
    lengths: Tensor,  # [B] int64, 0 <= lengths <= G
    q: Tensor | None,  # [M, V] the very rows that drafts were sampled from, or None
    q_row: Tensor,  # [B, G] int64, row of q for each draft, -1 for a point mass
    accept_u: Tensor,  # [B, G] float64 in [0, 1)
    draw_u: Tensor,  # [B] float64 in [0, 1)
) -> Verdict:
    """Keep draft x with probability min(1, p(x) / q(x)); stop at the first rejection and draw norm((p - q)+); draw p
    after a fully accepted block.

    Theorem: for x ~ q, P(token = i) = q(i) min(1, p(i)/q(i)) + P(reject) norm((p - q)+)(i) = min(p, q)(i) + (p - q)+(i)
    = p(i). A point mass is q(x) = 1: kept with probability p(x), repaired by p without x, which is the law of drawing
    y ~ p and keeping the draft while y = x. The test ``u q(x) < p(x)`` needs no division, and refuses where p(x) = 0.
    If q(x) = 0 < p(x), it accepts; no sampler can draw such an x.
    """
    batch, gamma = draft.shape
    place = torch.arange(gamma, device=p.device)
    live = place < lengths.unsqueeze(1)
    rows = (first.unsqueeze(1) + place).clamp(max=p.shape[0] - 1)
    p_draft = p[rows, draft].to(torch.float64)
    q_draft = torch.ones_like(p_draft)
    if q is not None:
        q_draft = torch.where(q_row >= 0, q[q_row.clamp(min=0), draft].to(torch.float64), q_draft)
    accepted = leading((accept_u * q_draft < p_draft) & live)

    weights = p[first + accepted]
    if gamma:
        cut = accepted.clamp(max=gamma - 1).unsqueeze(1)
        rejected = (accepted < lengths).unsqueeze(1)
        x = draft.gather(1, cut)
        row = q_row.gather(1, cut)
        # A point mass takes all of x; a sampled draft takes q.
        repaired = weights.scatter(1, x, 0.0)
        if q is not None:
            repaired = torch.where(row >= 0, (weights - q[row.clamp(min=0).squeeze(1)]).clamp(min=0), repaired)
        # Where p and q agree to the last bit the residual is empty, and a rejection had probability zero: p is right.
        repaired = torch.where(repaired.sum(-1, keepdim=True) > 0, repaired, weights)
        weights = torch.where(rejected, repaired, weights)
    return Verdict(accepted, inverse_cdf(weights, draw_u))
