"""The next draft of each row: its most probable id, a draw from q, or the choice that the target's noise makes in q."""

from __future__ import annotations

from collections.abc import Sequence as Seq

import torch
from torch import Tensor

from constrained_spec.coins import Role
from constrained_spec.drafters.base import Proposal
from constrained_spec.processors.pipeline import Processed
from constrained_spec.verify import gumbel_choices, inverse_cdf


def has_noise(proposal: Proposal) -> bool:
    """Will the target choose by noise that is known already?"""
    return proposal.verifier == "invariant" and not proposal.sequence.sampling.greedy


def draw(processed: Processed, live: Seq[Proposal], within: Tensor | None = None) -> Tensor:
    """Row i belongs to the place where ``live[i]`` stands: [N] int64.

    A greedy row takes its most probable id, a row of the "invariant" verifier shares the target's noise, and any other
    is drawn from its q. ``within`` [R]: no other id has a positive q in any row.
    """
    tokens = processed.choices().clone()
    shared = [i for i, p in enumerate(live) if has_noise(p)]
    coupled = [i for i, p in enumerate(live) if not p.sequence.sampling.greedy and not has_noise(p)]
    places = [p.tx.position.output_index for p in live]
    if coupled:
        coins = [live[i].sequence.coins.uniform(Role.DRAFT, live[i].round, places[i]) for i in coupled]
        u = torch.tensor(coins, dtype=torch.float64, device=tokens.device)
        q = processed.probabilities()[coupled]
        # Where q is zero nothing can be drawn, so it may be left out.
        tokens[coupled] = inverse_cdf(q, u) if within is None else within[inverse_cdf(q.index_select(1, within), u)]
    if shared:
        width = processed.logits.shape[1]
        noise = [torch.from_numpy(live[i].sequence.coins.gumbel(places[i], width)) for i in shared]
        tokens[shared] = gumbel_choices(processed.logits[shared], noise)
    return tokens
