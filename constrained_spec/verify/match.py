"""Verification by matching: the target makes its own choice at every place, and a draft stands while it agrees."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from constrained_spec.verify.verdict import Verdict, leading


def match(choices: Tensor, first: Tensor, draft: Tensor, lengths: Tensor) -> Verdict:
    """Keep drafts while they equal the target's choice; the token is the target's choice at the cut.

    ``choices`` [N] int64, where entry first[b] + j is the choice at place j of sequence b (j = 0..lengths[b]);
    ``first`` [B], ``draft`` [B, G], ``lengths`` [B] int64. Every committed token is the target's own choice given the
    tokens before it, so the output is the target's whatever was drafted: the same tokens where the choice is a
    function of prefix and position (`greedy_choices`, `gumbel_choices`), the same law where it is a fresh draw.
    """
    places = draft.shape[1]
    if places == 0:
        return Verdict(torch.zeros_like(first), choices[first])
    place = torch.arange(places, device=choices.device)
    row = first.unsqueeze(1) + torch.minimum(place, lengths.unsqueeze(1))
    accepted = leading((place < lengths.unsqueeze(1)) & (choices[row] == draft))
    return Verdict(accepted, choices[first + accepted])


def greedy_choices(logits: Tensor) -> Tensor:  # [N, V] -> [N] int64
    """The temperature-0 limit: the largest logit, the lowest id among equals."""
    return logits.argmax(-1)


def gumbel_choices(scores: Tensor, noise: Sequence[Tensor]) -> Tensor:  # [N, V], N times [V] float64 -> [N] int64
    """argmax(log p + g): a draw from p when g is standard Gumbel noise (Gumbel 1954; Maddison et al. 2014).

    ``scores`` are log p up to a constant per row, -inf where p is zero. With noise keyed by position alone the draw is
    a function of (prefix, position): the *invariant* verifier. Target and draft that share the noise agree often
    (`gumbel_joint` has the exact chance). A token of probability zero is never chosen; a row without any yields 0.
    """
    if scores.device.type == "cpu":
        # Row by row: a table of doubles for all of them would not fit the cache. numpy's argmax is vectorised.
        rows = zip(scores.numpy(), noise, strict=True)
        return torch.tensor([int((row + own.numpy()).argmax()) for row, own in rows], dtype=torch.long)
    return (scores.double() + torch.stack(tuple(noise)).to(scores.device)).argmax(-1)
