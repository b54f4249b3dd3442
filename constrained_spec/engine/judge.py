"""Which verifier judges which row of a round, and with which coins. Every row: a path of drafts and one token."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence as Seq
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from constrained_spec.coins import Role
from constrained_spec.drafters.base import Proposal
from constrained_spec.processors.pipeline import Processed
from constrained_spec.verify import (
    Coupling,
    TreeVerdict,
    Verdict,
    block,
    coupling,
    gumbel_choices,
    inverse_cdf,
    match,
    tree,
    typical,
    walk,
)

CHAIN_JUDGES: dict[str, Coupling] = {"coupling": coupling, "tree": coupling, "block": block}


class Decision(NamedTuple):
    """What stands of one proposal. ``dead``: some place that counts had no distribution, so nothing does."""

    path: Seq[int]  # indices of the kept drafts, root first
    token: int
    dead: bool


def judge(proposals: Seq[Proposal], processed: Processed, first: Seq[int]) -> list[Decision]:
    """``processed`` holds, from row ``first[b]`` on, the root and then the place after each draft of proposal b.

    Chains are judged by their verifier; of trees, those of an invariant or greedy row and those of guesses alone by the
    target's own choices, and all others by recursive rejection: what `tree` says is exact, so a row that asked for
    ``typical`` gets more than it asked for. Waits for the device once.
    """
    trees = [_Tree(p, row) for p, row in zip(proposals, first, strict=True) if p.tx.is_tree]
    if not trees:
        accepted, tokens, dead = torch.stack(_decide_chains(proposals, processed, first)).tolist()
        return [Decision(range(n), token, bool(d)) for n, token, d in zip(accepted, tokens, dead, strict=True)]
    parts = list(_decide_trees(trees, processed))
    pairs = [(p, row) for p, row in zip(proposals, first, strict=True) if not p.tx.is_tree]
    if pairs:
        parts += _decide_chains([p for p, _ in pairs], processed, [row for _, row in pairs])
    told = iter(torch.cat([part.flatten() for part in parts]).tolist())  # as above, the round's one device sync

    depth = max(t.depth for t in trees)
    paths = [[next(told) for _ in range(depth)] for _ in trees]
    tokens, dead = ([next(told) for _ in trees] for _ in range(2))
    found = [([i for i in path if i >= 0], *rest) for path, *rest in zip(paths, tokens, dead, strict=True)]
    kept, tokens, dead = ([next(told) for _ in pairs] for _ in range(3))
    chains = zip(map(range, kept), tokens, dead, strict=True)
    of_trees = iter(found)
    decisions = []
    for p in proposals:
        path, token, bad = next(of_trees) if p.tx.is_tree else next(chains)
        decisions.append(Decision(path, token, bool(bad)))
    return decisions


def _decide_chains(proposals: Seq[Proposal], processed: Processed, first: Seq[int]) -> tuple[Tensor, Tensor, Tensor]:
    """Accepted drafts, token, and how many places that count are dead: [B] each."""
    start = torch.tensor(first, device=processed.logits.device)
    verdict = _judge_chains(proposals, processed, first, start)
    # A row is dead if any place up to its cut has no distribution; places behind the cut do not matter.
    dead = processed.dead.long()
    until = dead.cumsum(0)
    return verdict.accepted, verdict.token, until[start + verdict.accepted] - until[start] + dead[start]


def _decide_trees(trees: Seq[_Tree], processed: Processed) -> tuple[Tensor, Tensor, Tensor]:
    """Path [B, depth], token, and how many places that count are dead."""
    start = torch.tensor([t.first for t in trees], device=processed.logits.device)
    found = _judge_trees(trees, processed, start)
    dead = processed.dead.long()
    on_path = torch.where(found.path >= 0, dead[start.unsqueeze(1) + 1 + found.path], 0).sum(1)
    return found.path, found.token, dead[start] + on_path


# ---- chains -------------------------------------------------------------------------------------------------------


def _judge_chains(proposals: Seq[Proposal], processed: Processed, first: Seq[int], start: Tensor) -> Verdict:
    device = processed.logits.device
    draft, lengths = _padded([p.tokens for p in proposals], device)
    if all(p.sequence.sampling.greedy for p in proposals):
        return match(processed.choices(), start, draft, lengths)
    verdict: Verdict | None = None
    for kind in sorted({p.verifier for p in proposals}):
        if kind == "invariant":
            choices = processed.choices().clone()
            for p, begin in zip(proposals, first, strict=True):
                if p.verifier == kind and not p.sequence.sampling.greedy:
                    _choose_by_noise(choices, processed.logits, p, begin, range(len(p.tokens) + 1))
            own = match(choices, start, draft, lengths)
        elif kind == "typical":
            own = typical(processed.probabilities(), start, draft, lengths, _draw_coins(proposals, device))
        else:
            coins = _accept_coins(proposals, draft), _draw_coins(proposals, device)
            rows = processed.probabilities()
            own = CHAIN_JUDGES[kind](rows, start, draft, lengths, *_sources(proposals, draft), *coins)
        if verdict is None:
            verdict = own
            continue
        pick = torch.tensor([p.verifier == kind for p in proposals], device=device)
        verdict = Verdict(
            torch.where(pick, own.accepted, verdict.accepted), torch.where(pick, own.token, verdict.token)
        )
    assert verdict is not None
    return verdict


# ---- trees --------------------------------------------------------------------------------------------------------


class _Tree:
    """One proposal that is a tree, and the row of its root."""

    __slots__ = ("depth", "depths", "first", "proposal")

    def __init__(self, proposal: Proposal, first: int) -> None:
        self.proposal = proposal
        self.first = first
        self.depths = [0]  # drafts before the root, and before the place after each draft
        for parent in proposal.tx.parents:
            self.depths.append(self.depths[parent + 1] + 1)
        self.depth = max(self.depths)

    @property
    def width(self) -> int:
        return max(Counter(self.proposal.tx.parents).values())

    @property
    def chooses(self) -> bool:
        """Whether the target's own choices judge it."""
        p = self.proposal
        return p.sequence.sampling.greedy or p.verifier == "invariant" or all(row is None for row in p.q)


def _judge_trees(trees: Seq[_Tree], processed: Processed, start: Tensor) -> TreeVerdict:
    device = processed.logits.device
    proposals = [t.proposal for t in trees]
    tokens, lengths = _padded([p.tokens for p in proposals], device)
    parents, _ = _padded([p.tx.parents for p in proposals], device)
    depth = max(t.depth for t in trees)
    walked = judged = None
    if any(t.chooses for t in trees):
        walked = walk(_own_choices(trees, processed), start, parents, tokens, lengths, depth=depth)
    if not all(t.chooses for t in trees):
        width = max(t.width for t in trees)
        coins = _accept_coins(proposals, tokens), _draw_coins(proposals, device)
        parts = (parents, tokens, lengths, *_sources(proposals, tokens), *coins)
        judged = tree(processed.probabilities(), start, *parts, depth=depth, width=width)
    if walked is None or judged is None:
        found = walked or judged
        assert found is not None
        return found
    pick = torch.tensor([t.chooses for t in trees], device=device)
    return TreeVerdict(
        torch.where(pick.unsqueeze(1), walked.path, judged.path),
        torch.where(pick, walked.accepted, judged.accepted),
        torch.where(pick, walked.token, judged.token),
    )


def _own_choices(trees: Seq[_Tree], processed: Processed) -> Tensor:
    """What the target chooses at every place of the trees that it walks down; other entries mean nothing. [N] int64"""
    choices = processed.choices()
    sampled = [t for t in trees if t.chooses and not t.proposal.sequence.sampling.greedy]
    if not sampled:
        return choices
    choices = choices.clone()
    for t in sampled:
        p = t.proposal
        if p.verifier == "invariant":
            _choose_by_noise(choices, processed.logits, p, t.first, t.depths)
            continue
        # A draw per place in the output: the nodes of one depth share it, and no two of them stand in one path.
        coins = p.sequence.coins.uniforms(Role.RECOVER, p.round, p.first, t.depth + 1)[t.depths]
        rows = slice(t.first, t.first + len(t.depths))
        choices[rows] = inverse_cdf(processed.probabilities()[rows], torch.from_numpy(coins).to(choices.device))
    return choices


# ---- coins and sources --------------------------------------------------------------------------------------------


def _choose_by_noise(choices: Tensor, scores: Tensor, p: Proposal, first: int, depths: Seq[int]) -> None:
    """Write into ``choices`` [N] what the target chooses with the noise of each place of ``p``, of the given depths."""
    width = scores.shape[1]
    noise = [torch.from_numpy(p.sequence.coins.gumbel(p.first + d, width)) for d in range(max(depths) + 1)]
    rows = slice(first, first + len(depths))
    choices[rows] = gumbel_choices(scores[rows], [noise[d] for d in depths])


def _padded(rows: Seq[Seq[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Rows of different lengths as [B, longest], zeros behind each end, and their lengths [B]."""
    longest = max(map(len, rows))
    table = torch.tensor([[*row, *[0] * (longest - len(row))] for row in rows], dtype=torch.long, device=device)
    return table.view(len(rows), longest), torch.tensor([len(row) for row in rows], device=device)


def _sources(proposals: Seq[Proposal], draft: Tensor) -> tuple[Tensor | None, Tensor]:
    """The rows that drafts were drawn from [M, V], and which of them is behind each draft [B, G], -1 for a guess."""
    rows: dict[int, int] = {}  # siblings share a row
    found: list[Tensor] = []
    index = []
    for p in proposals:
        own = []
        for row in p.q:
            if row is not None and id(row) not in rows:
                rows[id(row)] = len(found)
                found.append(row)
            own.append(-1 if row is None else rows[id(row)])
        index.append(own + [-1] * (draft.shape[1] - len(own)))
    q_row = torch.tensor(index, dtype=torch.long, device=draft.device).view(draft.shape)
    return torch.stack(found) if found else None, q_row


def _accept_coins(proposals: Seq[Proposal], draft: Tensor) -> Tensor:
    """A coin per draft, in the order in which they were made. [B, G] float64"""
    coins = np.zeros(tuple(draft.shape))
    for row, p in zip(coins, proposals, strict=True):
        n = len(p.tokens)
        if n:
            row[:n] = p.sequence.coins.uniforms(Role.ACCEPT, p.round, p.first, n)
    return torch.from_numpy(coins).to(draft.device)


def _draw_coins(proposals: Seq[Proposal], device: torch.device) -> Tensor:
    """One draw per round: the recovered or the bonus token, never both. [B] float64"""
    coins = [p.sequence.coins.uniform(Role.RECOVER, p.round, p.first) for p in proposals]
    return torch.tensor(coins, dtype=torch.float64, device=device)
