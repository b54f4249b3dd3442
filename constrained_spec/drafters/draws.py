"""The next draft of each row: its most probable id, a draw from q, or the choice that the target's noise makes in q."""

from __future__ import annotations

from collections.abc import Sequence as Seq

import torch
from torch import Tensor

from constrained_spec.coins import Role
from constrained_spec.drafters.base import Proposal
from constrained_spec.processors.pipeline import Processed
from constrained_spec.verify import gumbel_choices, inverse_cdf


def draw(processed: Processed, live: Seq[Proposal], within: Tensor | None = None) -> Tensor:
    """Row i belongs to the place where ``live[i]`` stands: [N] int64.

    A greedy row takes its most probable id, a row of the "invariant" verifier shares the target's noise, and any other
    is drawn from its q. ``within`` [R]: no other id has a positive q in any row.
    """
    tokens = processed.choices().clone()
    sampled = [i for i, p in enumerate(live) if not p.sequence.sampling.greedy]
    coupled = [i for i in sampled if live[i].verifier != "invariant"]
    shared = [i for i in sampled if live[i].verifier == "invariant"]
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
