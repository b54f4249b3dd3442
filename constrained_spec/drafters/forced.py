"""Drafts where the grammar leaves one continuation.

Forced text is drafted and verified, never injected: the tokeniser's own spelling is only one of the legal spellings,
and its last token may merge with what follows; the target decides.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

from constrained_spec.drafters.base import Proposal
from constrained_spec.state.sequence import Sequence


class ForcedDrafter:
    """Proposes the canonical tokenisation of ``matcher.forced()``."""

    name = "forced"

    def open(self, sequence: Sequence) -> None:
        """Nothing to keep: the matcher is the state."""

    def close(self, sequence: Sequence) -> None:
        """Nothing to release."""

    def propose(self, proposals: Seq[Proposal]) -> None:
        for proposal in proposals:
            matcher = proposal.sequence.matcher
            if matcher is None or proposal.room <= 0:
                continue
            for token in matcher.forced_tokens():
                if proposal.room <= 0 or not proposal.point(token, self.name):
                    break
