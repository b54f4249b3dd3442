"""Several sources in one block: each place goes to the best that has something, hand-over in mid-block included."""

from __future__ import annotations

import math
from collections.abc import Mapping
from collections.abc import Sequence as Seq

from constrained_spec.drafters.base import Drafter, Proposal
from constrained_spec.errors import RequestError
from constrained_spec.state.sequence import Counts, Sequence

_PRIOR, _WEIGHT = 0.6, 3  # acceptance of a source that was never judged, and the judgements that belief counts for
_WORTH = 0.4  # chance that everything before a place stands, below which no costly source is asked there


class MixtureDrafter:
    """Asks its sources one after another; after any of them added drafts, starts again at the first.

    The first ``pinned`` sources keep their order. The others are asked by how many of their judged drafts stood so far
    in this sequence, less what a draft of theirs costs. A source that costs is not asked behind drafts that will
    hardly stand, and none behind a block that has become a tree. All of this looks at rounds that are over and at the
    tokens before the place, never at the chance of a sampled token, so the mixture is as exact as its parts.
    """

    def __init__(
        self, sources: Seq[Drafter], name: str = "mixture", *, pinned: int = 0, costs: Mapping[str, float] | None = None
    ) -> None:
        """``costs``: of one draft of a source by name, in target steps; a source that is not named costs nothing."""
        self.name = name
        self.sources = tuple(sources)
        self._pinned = pinned
        self.sizes_itself = all(getattr(source, "sizes_itself", False) for source in sources)
        self._costs = dict(costs or {})

    def open(self, sequence: Sequence) -> None:
        """A source that cannot open is disabled with its reason; the others go on. A ``RequestError`` is raised."""
        for source in self.sources:
            open_guarded(source, sequence)

    def close(self, sequence: Sequence) -> None:
        for source in self.sources:
            source.close(sequence)

    def propose(self, proposals: Seq[Proposal]) -> None:
        orders = {id(p): self._order(p.sequence.counts) for p in proposals}
        live = list(proposals)
        while live:
            before = {id(p): len(p.tx.drafts) for p in live}
            asking = live
            for rank in range(len(self.sources)):
                asking = [p for p in asking if p.room > 0]
                for source in self.sources:
                    group = [p for p in asking if orders[id(p)][rank] is source and self._may_ask(source, p)]
                    if group:
                        propose_guarded(source, group)
                # The ones this rank could not extend go to the next.
                asking = [p for p in asking if len(p.tx.drafts) == before[id(p)]]
            live = [p for p in live if p.room > 0 and len(p.tx.drafts) > before[id(p)] and not p.tx.is_tree]

    def _order(self, counts: Counts) -> list[Drafter]:
        free = self.sources[self._pinned :]
        worth = [standing(counts, source.name) - self._costs.get(source.name, 0.0) for source in free]
        ranked = sorted(range(len(free)), key=lambda i: (-worth[i], i))
        return [*self.sources[: self._pinned], *(free[i] for i in ranked)]

    def _may_ask(self, source: Drafter, p: Proposal) -> bool:
        if source.name in p.sequence.disabled:
            return False
        if not self._costs.get(source.name):
            return True
        return chance_so_far(p, but=source.name) >= _WORTH


def standing(counts: Counts, source: str) -> float:
    """Share of the source's judged drafts that stood, with a prior."""
    return counts.standing(source, _PRIOR, _WEIGHT)


def chance_so_far(p: Proposal, but: str = "") -> float:
    """How likely what other sources have drafted is to stand: once per source, whose drafts stand or fall together."""
    return math.prod(standing(p.sequence.counts, name) for name in set(p.tx.sources) - {but})


def open_guarded(drafter: Drafter, sequence: Sequence) -> None:
    """Open ``drafter``; if it cannot, disable it for the sequence. What the request itself got wrong is raised."""
    try:
        drafter.open(sequence)
    except RequestError:
        raise
    except Exception as error:  # fail closed, as in ``propose_guarded``
        sequence.disabled.setdefault(drafter.name, f"{type(error).__name__}: {error}")


def propose_guarded(drafter: Drafter, proposals: Seq[Proposal]) -> None:
    """Let ``drafter`` propose; if it fails, disable it for the sequence at fault and keep what it validly appended.

    Whose fault a failure in a group was is not known, so from then on each of the group is asked alone, until it
    succeeds or fails alone. Drafts sampled before a failure stay: removing a sampled token because of what happened
    after it was drawn would make its survival depend on its value, and that biases the output.
    """
    name = drafter.name
    together = [p for p in proposals if name not in p.sequence.suspects]
    for group in (together, *([p] for p in proposals if name in p.sequence.suspects)):
        if not group:
            continue
        try:
            drafter.propose(group)
        except Exception as error:  # fail closed: a drafter may break in any way, the request goes on target-only
            if len(group) > 1:
                for p in group:
                    p.sequence.suspects.add(name)
            else:
                group[0].sequence.disabled.setdefault(name, f"{type(error).__name__}: {error}")
        else:
            if len(group) == 1:
                group[0].sequence.suspects.discard(name)
