"""The first source that has something, again and again until the block is full: hand-over in mid-block."""

from __future__ import annotations

from collections.abc import Sequence as Seq

from constrained_spec.drafters.base import Drafter, Proposal
from constrained_spec.state.sequence import Sequence


class MixtureDrafter:
    """Asks its sources in order; after any of them added drafts, starts again at the first.

    Whether and where a source speaks depends on the tokens before the place only, never on the sampled token's own
    probability, so the mixture is as exact as its parts.
    """

    def __init__(self, sources: Seq[Drafter], name: str = "mixture") -> None:
        self.name = name
        self.sources = tuple(sources)

    def open(self, sequence: Sequence) -> None:
        for source in self.sources:
            source.open(sequence)

    def close(self, sequence: Sequence) -> None:
        for source in self.sources:
            source.close(sequence)

    def propose(self, proposals: Seq[Proposal]) -> None:
        live = list(proposals)
        while live:
            before = {id(p): len(p.tokens) for p in live}
            asking = live
            for source in self.sources:
                asking = [p for p in asking if p.room > 0 and source.name not in p.sequence.disabled]
                if asking:
                    propose_guarded(source, asking)
                # The ones this source could not extend go to the next source.
                asking = [p for p in asking if len(p.tokens) == before[id(p)]]
            live = [p for p in live if p.room > 0 and len(p.tokens) > before[id(p)]]


def propose_guarded(drafter: Drafter, proposals: Seq[Proposal]) -> None:
    """Let ``drafter`` propose; if it fails, disable it for these sequences and keep what it validly appended.

    Drafts sampled before the failure stay: removing a sampled token because of what happened after it was drawn would
    make its survival depend on its value, and that biases the output.
    """
    try:
        drafter.propose(proposals)
    except Exception as error:  # fail closed: a drafter may break in any way, the request goes on target-only
        for proposal in proposals:
            proposal.sequence.disabled.setdefault(drafter.name, f"{type(error).__name__}: {error}")
