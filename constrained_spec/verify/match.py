"""Verifiers in which the target makes its own choice at every place, and a draft is kept while it agrees."""

from __future__ import annotations

import torch
from torch import Tensor

from constrained_spec.verify.verdict import Verdict, leading


def match(choices: Tensor, first: Tensor, draft: Tensor, lengths: Tensor) -> Verdict:
    """Keep drafts while they equal the target's own choice; the choice at the cut is the next token.

    ``choices`` [N] holds the target's token at every place, row ``first[b] + j`` being place j of sequence b;
    ``draft`` [B, G], ``lengths`` [B]. Theorem: every committed token is the target's own choice given the committed
    prefix, so the law is that of target-only decoding whatever the drafts are and however they were made.
    """
    place = torch.arange(draft.shape[1], device=draft.device)
    rows = (first.unsqueeze(1) + place).clamp(max=choices.shape[0] - 1)
    accepted = leading((choices[rows] == draft) & (place < lengths.unsqueeze(1)))
    return Verdict(accepted, choices[first + accepted])


def greedy_choices(logits: Tensor) -> Tensor:  # [N, V] -> [N]
    """The temperature-0 limit; the lowest id wins a tie."""
    return logits.argmax(dim=-1)


def gumbel_choices(p: Tensor, noise: Tensor) -> Tensor:  # [N, V] probabilities, [N, V] standard Gumbel -> [N]
    """argmax(log p + g) is distributed as p (Gumbel-max, Maddison et al. 2014).

    Drafter and target that use the same ``noise`` at the same position agree as often as their laws allow for a shared
    source; and the chosen token does not depend on what was drafted. log 0 is minus infinity: never chosen.
    """
    return (p.to(torch.float64).log() + noise).argmax(dim=-1)
