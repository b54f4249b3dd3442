"""Exact acceptance of drafted blocks: the maximal coupling of target and draft, place by place."""

from __future__ import annotations

import torch
from torch import Tensor

from constrained_spec.verify.draws import inverse_cdf
from constrained_spec.verify.theory import excess
from constrained_spec.verify.verdict import Verdict, leading


def coupling(
    p: Tensor,  # [N, V] target distributions, flat
    first: Tensor,  # [B] int64: row first[b] + j of p is the target at place j of sequence b, j = 0..lengths[b]
    draft: Tensor,  # [B, G] int64, places from lengths[b] on are ignored
    lengths: Tensor,  # [B] int64, each in 0..G
    q: Tensor | None,  # [M, V] the very rows the sampled drafts were drawn from
    q_row: Tensor,  # [B, G] int64: row of q behind each draft, -1 for a point mass
    accept_u: Tensor,  # [B, G] float64 coins in [0, 1)
    draw_u: Tensor,  # [B] float64 coins in [0, 1)
) -> Verdict:
    """Keep draft x while u * q(x) < p(x); at the first rejection draw from the residual, after none from p.

    Theorem (Leviathan et al. 2023, Chen et al. 2023). If x ~ q, is kept with chance a(x) = min(1, p(x)/q(x)), and is
    otherwise replaced by y ~ norm((p - q)+), the outcome has law p: z is kept with chance min(p(z), q(z)), the
    rejection chance is 1 - sum min(p, q) = sum (p - q)+, so z is recovered with chance (p(z) - q(z))+, and
    min(p, q) + (p - q)+ = p. By induction over places the committed tokens have the law of drawing one by one from p.

    A point mass (a guess chosen without the target's coins, q = 1 at x) is kept with chance p(x), else replaced by a
    draw from p with x removed. That is the law of "draw y ~ p, accept while y equals the draft": y = x has chance
    p(x), and given y != x, y has law p with x removed. This form needs one draw per block instead of one per place.

    A draft whose q(x) is not positive cannot have been drawn from q: only a faulty drafter hands one in. It is judged
    as a point mass. Given x that rule has law p whatever x is, so the output law holds even then; keeping it always
    (u * 0 < p) would not. A token with p(x) = 0 is never kept: u * q < 0 is false. Zero residual mass draws from p.

    The product form needs no division. Copies of p: one row per sequence, never a padded block.
    """
    places = draft.shape[1]
    if places == 0:
        return Verdict(torch.zeros_like(first), inverse_cdf(p[first], draw_u))
    place = torch.arange(places, device=p.device)
    inside = place < lengths.unsqueeze(1)
    token = torch.where(inside, draft, 0)
    row = first.unsqueeze(1) + torch.minimum(place, lengths.unsqueeze(1))  # never beyond the sequence's own rows

    if q is None or q.shape[0] == 0:
        q_x = torch.ones_like(accept_u, dtype=torch.float64)
    else:
        sampled = q[q_row.clamp(min=0), token].double()
        q_x = torch.where((q_row >= 0) & (sampled > 0), sampled, 1)
        q_row = torch.where(sampled > 0, q_row, -1)
    accepted = leading(inside & (accept_u.double() * q_x < p[row, token].double()))

    cut = accepted.clamp(max=places - 1).unsqueeze(1)
    target = p[first + accepted].double()
    point = torch.zeros_like(target).scatter_(1, token.gather(1, cut), 1)
    if q is None or q.shape[0] == 0:
        proposal = point
    else:
        cut_row = q_row.gather(1, cut)
        proposal = torch.where(cut_row >= 0, q[cut_row.squeeze(1).clamp(min=0)].double(), point)
    rejected = (accepted < lengths).unsqueeze(1)
    return Verdict(accepted, inverse_cdf(torch.where(rejected, excess(target, proposal), target), draw_u))
