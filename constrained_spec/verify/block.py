"""Block verification: the block is judged as a whole, and never accepts less of it than token by token."""

from __future__ import annotations

import torch
from torch import Tensor

from constrained_spec.verify.draws import inverse_cdf
from constrained_spec.verify.verdict import Verdict


def block(
    p: Tensor,  # [N, V] target distributions, flat
    first: Tensor,  # [B] int64: row first[b] + j of p is the target at place j of sequence b, j = 0..lengths[b]
    draft: Tensor,  # [B, G] int64, places from lengths[b] on are ignored
    lengths: Tensor,  # [B] int64, each in 0..G
    q: Tensor | None,  # [M, V] the very rows the sampled drafts were drawn from
    q_row: Tensor,  # [B, G] int64: row of q behind each draft, -1 for a point mass
    accept_u: Tensor,  # [B, G] float64 coins in [0, 1)
    draw_u: Tensor,  # [B] float64 coins in [0, 1)
) -> Verdict:
    """Keep the longest prefix whose coin falls below its chance; then draw from what that prefix leaves of the target.

    Theorem (Sun et al. 2024, "Block Verification Accelerates Speculative Decoding"). Let x_1 … x_G be drawn from
    q(. | prefix) place by place, w_0 = 1, w_i = min(1, w_{i-1} p(x_i) / q(x_i)): the share of the draft's chance of
    this prefix that the target can use. With r_i = sum_x (w_i p(x | i) - q(x | i))+ keep i tokens where coin i is below
    h_i = r_i / (r_i + 1 - w_i), h_G = w_G, for the largest such i, and draw the next token from
    (w_i p - q)+, after all G from p. The committed tokens have the target's law, and the expected number accepted is
    the largest any verifier reaches that sees one block. A block may end anywhere, as long as the tokens before its end
    decide that: its last place is then a G of its own.

    A draft that q gives no chance is judged as a point mass, as in `coupling`.
    """
    places = draft.shape[1]
    if places == 0:
        return Verdict(torch.zeros_like(first), inverse_cdf(p[first], draw_u))
    chance, share = block_chances(p, first, draft, lengths, q, q_row)
    place = torch.arange(1, places + 1, device=p.device)
    kept = (place <= lengths.unsqueeze(1)) & (accept_u.double() < chance)
    accepted = (kept * place).amax(1)

    target = p[first + accepted].double()
    cut = accepted.clamp(max=places - 1).unsqueeze(1)
    token = torch.where(cut < lengths.unsqueeze(1), draft.gather(1, cut), 0)
    proposal = torch.zeros_like(target).scatter_(1, token, 1)
    if q is not None and q.shape[0]:
        cut_row = q_row.gather(1, cut).squeeze(1)
        rows = q[cut_row.clamp(min=0)].double()
        sampled = (cut_row >= 0) & (rows.gather(1, token).squeeze(1) > 0)
        proposal = torch.where(sampled.unsqueeze(1), rows, proposal)
    left = (share.gather(1, accepted.unsqueeze(1)) * target - proposal).clamp(min=0)
    # Without anything left (rounding) the draft's law was the target's: then any draw from p is right.
    weights = torch.where((accepted < lengths).unsqueeze(1) & (left.sum(1, keepdim=True) > 0), left, target)
    return Verdict(accepted, inverse_cdf(weights, draw_u))


def block_chances(
    p: Tensor, first: Tensor, draft: Tensor, lengths: Tensor, q: Tensor | None, q_row: Tensor
) -> tuple[Tensor, Tensor]:
    """(h [B, G], w [B, G + 1]) of the theorem: h[:, i - 1] is the chance of keeping i tokens, w[:, i] their share.

    Arguments as `block`'s; G is at least 1. Both float64. Places behind a block's end hold no meaning.
    """
    places = draft.shape[1]
    place = torch.arange(places, device=p.device)
    inside = place < lengths.unsqueeze(1)
    token = torch.where(inside, draft, 0)
    row = first.unsqueeze(1) + torch.minimum(place, lengths.unsqueeze(1))  # never beyond the sequence's own rows
    p_x = p[row, token].double()
    q_x = torch.ones_like(p_x)
    is_sampled = torch.zeros_like(inside)
    if q is not None and q.shape[0]:
        found = q[q_row.clamp(min=0), token].double()
        is_sampled = inside & (q_row >= 0) & (found > 0)
        q_x = torch.where(is_sampled, found, q_x)

    # A running minimum with a product has no closed form, and G is small.
    share = torch.ones(len(first), places + 1, dtype=torch.float64, device=p.device)
    for i in range(places):
        share[:, i + 1] = (share[:, i] * (p_x[:, i] / q_x[:, i])).clamp(max=1)
    # rest[:, i] = r_i, over the row of the draft that follows i tokens. A point mass at x leaves w p without x.
    rest = share[:, :-1] * (1 - p_x).clamp(min=0)
    if q is not None and q.shape[0]:
        at = is_sampled.nonzero(as_tuple=True)
        over = share[:, :-1][at].unsqueeze(1) * p[row[at]].double() - q[q_row[at]].double()
        rest[at] = over.clamp_(min=0).sum(1)
    w = share[:, 1:]
    following = torch.nn.functional.pad(rest[:, 1:], (0, 1))
    whole = following + 1 - w
    # Nothing left over and nothing missing: target and draft agree there, and keeping is free.
    inner = torch.where(whole > 0, following / torch.where(whole > 0, whole, 1), 1)
    return torch.where(place + 1 == lengths.unsqueeze(1), w, inner), share
