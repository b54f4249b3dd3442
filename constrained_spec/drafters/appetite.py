"""How many drafts a source offers in one block, by how its last ones fared."""

from __future__ import annotations

from constrained_spec.config import MAX_GAMMA
from constrained_spec.drafters.base import Proposal
from constrained_spec.state.sequence import Counts

START = 16
LEAST = 4  # small enough to cost little when wrong, large enough to notice a copy


class Appetite:
    """One source's limit in one sequence: halved when nothing it offered stood, doubled when all did.

    It looks at rounds that are over only, at how many drafts stood and never at a chance, so it changes no law.
    """

    __slots__ = ("_round", "_seen", "limit", "source")

    def __init__(self, source: str) -> None:
        self.source = source
        self.limit = START
        self._seen = (0, 0)  # drafts proposed and accepted when last asked
        self._round = -1

    def left(self, proposal: Proposal) -> int:
        """Drafts that the source may still add to this block."""
        counts = proposal.sequence.counts
        if counts.rounds != self._round:
            self._digest(counts)
        return max(0, min(proposal.room, self.limit - proposal.tx.sources.count(self.source)))

    def _digest(self, counts: Counts) -> None:
        self._round = counts.rounds
        proposed, accepted = counts.by_source.get(self.source, (0, 0))
        tried, stood = proposed - self._seen[0], accepted - self._seen[1]
        self._seen = proposed, accepted
        if not tried:
            return
        if not stood:
            self.limit = max(LEAST, self.limit // 2)
        elif stood == tried:
            self.limit = min(MAX_GAMMA, 2 * self.limit)
        else:
            self.limit = max(self.limit, min(MAX_GAMMA, 2 * stood))
