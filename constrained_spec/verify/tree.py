"""Trees of drafts, exact: several continuations of one prefix, of which the target keeps at most one path."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from constrained_spec.verify.draws import inverse_cdf


@dataclass(frozen=True, slots=True, eq=False)
class TreeVerdict:
    """Per sequence: the path of nodes that stands, and the one token that follows it.

    ``token`` is the *bonus* where the last node of the path has no children, else *recovered*.
    """

    path: Tensor  # [B, depth] int64: indices of the kept nodes, root first; -1 behind the last
    accepted: Tensor  # [B] int64: how many nodes were kept
    token: Tensor  # [B] int64


def tree(
    p: Tensor,  # [N, V] target distributions, flat
    first: Tensor,  # [B] int64: row first[b] is the target at the root of sequence b, row first[b] + 1 + i after node i
    parents: Tensor,  # [B, G] int64: parent of each node, -1 for the root; a parent stands before its child
    tokens: Tensor,  # [B, G] int64, nodes from lengths[b] on are ignored
    lengths: Tensor,  # [B] int64, each in 0..G
    q: Tensor | None,  # [M, V] the rows the sampled nodes were drawn from
    q_row: Tensor,  # [B, G] int64: row of q behind each node, -1 for a point mass
    accept_u: Tensor,  # [B, G] float64 coins in [0, 1), one per node
    draw_u: Tensor,  # [B] float64 coins in [0, 1)
    *,
    depth: int,  # at least the nodes on the longest path
    width: int,  # at least the children of any node
) -> TreeVerdict:
    """Judge the children of a node one after another; descend into the first that is kept, else draw from what is left.

    Theorem (recursive rejection without replacement: Miao et al. 2024, "SpecInfer"; Jeon et al. 2024, "Recursive
    Speculative Decoding"). Let the children x_1 … x_k of a node be drawn in turn, x_i from q_i, which is q without the
    tokens of the earlier siblings, renormalised; let p_1 be the target at the node. Keep x_i with chance
    min(1, p_i(x_i) / q_i(x_i)), else go on with p_{i+1} = norm((p_i - q_i)+), and after the last child draw from
    p_{k+1}. The outcome has law p_1: by induction from the last step backwards, because one step turns any law that
    follows a rejection, if it is p_{i+1}, into p_i (`coupling`). Given x_1 … x_i, whether x_i falls and what x_{i+1}
    will be are independent, so x_{i+1} may well have been drawn before. By induction over depth the committed
    tokens have the target's law.

    A guess is the case q_i = 1 at x_i, wherever it stands among its siblings. A token that q_i gives no chance (NaN,
    drawn twice) is judged as a guess, as in `coupling`. A node may have any number of children, chosen without looking
    at their tokens; whether a node has children at all may depend on its own token, since they are judged after it.

    With one child per node this is `coupling`, to the last bit.
    """
    rows = torch.arange(len(first), device=p.device)
    children = children_table(parents, lengths, width)
    at = torch.full_like(first, -1)
    path = torch.full((len(first), depth), -1, dtype=torch.long, device=p.device)
    walking = torch.ones_like(first, dtype=torch.bool)
    weights = torch.empty(0)
    for level in range(depth + 1):
        left = p[first + 1 + at].double()
        chosen = torch.full_like(at, -1)
        if level < depth and width:
            left, chosen = _judge(left, children[rows, at + 1], tokens, q, q_row, accept_u)
            # A sequence that has settled keeps the weights of its own level, and its node is not judged again.
            chosen = torch.where(walking, chosen, -1)
            path[:, level] = chosen
        weights = left if level == 0 else torch.where(walking.unsqueeze(1), left, weights)
        walking = chosen >= 0
        at = torch.where(walking, chosen, at)
    return TreeVerdict(path, (path >= 0).sum(1), inverse_cdf(weights, draw_u))


def _judge(
    left: Tensor, children: Tensor, tokens: Tensor, q: Tensor | None, q_row: Tensor, accept_u: Tensor
) -> tuple[Tensor, Tensor]:
    """Children [B, W] of one node per sequence in turn. Returns (weights left [B, V], kept child [B] or -1)."""
    mass = torch.ones_like(left[:, :1])
    node = children.clamp(min=0)
    token = tokens.gather(1, node)
    coin = accept_u.gather(1, node).double()
    row = q_row.gather(1, node)
    chosen = torch.full_like(children[:, 0], -1)
    for i in range(children.shape[1]):
        here = (children[:, i] >= 0) & (chosen < 0)
        x = token[:, i : i + 1]
        proposal = torch.zeros_like(left).scatter_(1, x, 1)
        if q is not None and q.shape[0]:
            drawn = q[row[:, i].clamp(min=0)].double()
            if i:
                drawn.scatter_(1, token[:, :i], 0)
                total = drawn.sum(1, keepdim=True)
                drawn /= torch.where(total > 0, total, 1)
            sampled = (row[:, i : i + 1] >= 0) & (drawn.gather(1, x) > 0)
            proposal = torch.where(sampled, drawn, proposal)
        # Before the first sibling has fallen the target counts as it is, like q itself: no rounding of sums near 1.
        target = left / torch.where(mass > 0, mass, 1) if i else left
        kept = here & (coin[:, i : i + 1] * proposal.gather(1, x) < target.gather(1, x)).squeeze(1)
        over = (target - proposal).clamp_(min=0)
        rest = over.sum(1, keepdim=True)
        # Nothing left over (rounding) means that the proposal had the target's law: what is left is still it.
        fell = (here & ~kept).unsqueeze(1) & (rest > 0)
        left = torch.where(fell, over, left)
        mass = torch.where(fell, rest, mass)
        chosen = torch.where(kept, children[:, i], chosen)
    return left, chosen


def walk(
    choices: Tensor, first: Tensor, parents: Tensor, tokens: Tensor, lengths: Tensor, *, depth: int
) -> TreeVerdict:
    """The target makes its own choice at every node, and a path stands while its nodes agree.

    ``choices`` [N] int64: entry first[b] is the choice at the root of sequence b, entry first[b] + 1 + i the one after
    node i; the rest as in `tree`. Every committed token is the target's own choice given the path before it, so the
    output is the target's whatever the tree holds (see `match`, which this is with one child per node): the same
    tokens where the choice is a function of prefix and position, the same law where it is a draw whose coin is
    fresh at every depth. Two nodes of one path never share a depth, so nodes of one depth may share a coin.
    """
    places = tokens.shape[1]
    index = torch.arange(places, device=choices.device)
    inside = index < lengths.unsqueeze(1)
    at = torch.full_like(first, -1)
    walking = torch.ones_like(first, dtype=torch.bool)
    path = torch.full((len(first), depth), -1, dtype=torch.long, device=choices.device)
    for level in range(depth if places else 0):
        wanted = choices[first + 1 + at].unsqueeze(1)
        found = inside & (parents == at.unsqueeze(1)) & (tokens == wanted)
        chosen = torch.where(found & walking.unsqueeze(1), index, -1).amax(1)
        path[:, level] = chosen
        walking = chosen >= 0
        at = torch.where(walking, chosen, at)
    return TreeVerdict(path, (path >= 0).sum(1), choices[first + 1 + at])


def children_table(parents: Tensor, lengths: Tensor, width: int) -> Tensor:
    """[B, G + 1, width] int64: the children of the root (entry 0) and of node i (entry i + 1), -1 behind the last.

    Siblings keep the order of their indices.
    """
    batch, places = parents.shape
    index = torch.arange(places, device=parents.device)
    inside = index < lengths.unsqueeze(1)
    same = (parents.unsqueeze(2) == parents.unsqueeze(1)) & inside.unsqueeze(1)
    rank = (same & (index < index.unsqueeze(1))).sum(2)
    # One column more than asked for takes what does not count: nodes behind the end.
    table = torch.full((batch, places + 1, width + 1), -1, dtype=torch.long, device=parents.device)
    column = torch.where(inside, rank.clamp(max=width), width)
    row = torch.where(inside, parents + 1, 0)
    batches = torch.arange(batch, device=parents.device).unsqueeze(1).expand(-1, places)
    table[batches, row, column] = index.expand(batch, -1)
    return table[:, :, :width]
