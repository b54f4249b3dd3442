"""Drafts where the grammar leaves one continuation.

Forced text is drafted and verified, never injected: the tokeniser's own spelling is only one of the legal spellings,
and its last token may merge with what follows; the target decides.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

from constrained_spec.drafters.base import Proposal
from constrained_spec.drafters.ngram import NgramDrafter
from constrained_spec.state.sequence import Sequence

_SURE = 2  # tokens before the place that must agree with an earlier place, for its spelling to count


class ForcedDrafter:
    """Proposes ``matcher.forced()`` as the sequence itself spelled it before, else in its canonical tokenisation.

    A target that spells a key in its own way once does so again: in a list of objects, at every one of them.
    """

    name = "forced"

    def __init__(self, memory: NgramDrafter) -> None:
        self._memory = memory

    def open(self, sequence: Sequence) -> None:
        self._memory.open(sequence)

    def close(self, sequence: Sequence) -> None:
        self._memory.close(sequence)

    def propose(self, proposals: Seq[Proposal]) -> None:
        for proposal in proposals:
            if proposal.sequence.matcher is not None:
                self._spell(proposal)

    def _spell(self, proposal: Proposal) -> None:
        matcher, tokens = proposal.sequence.matcher, proposal.sequence.history.tokens
        assert matcher is not None
        plan = matcher.forced_tokens() if proposal.room > 0 else []
        while plan and proposal.room > 0:
            at = self._memory.find(proposal, _SURE)
            token = plan[0] if at is None else tokens[at]
            if not proposal.point(token, self.name):
                return
            plan = plan[1:] if token == plan[0] else matcher.forced_tokens()
