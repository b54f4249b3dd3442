"""A choice between ways to draft a whole block, by what each brought so far in the same sequence."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

from constrained_spec.drafters.base import Drafter, Proposal
from constrained_spec.drafters.mixture import open_guarded, propose_guarded
from constrained_spec.state.sequence import Sequence

TRIES = 2  # rounds that each way gets first, in turn
AGAIN = 10  # rounds after which the way that is not taken is tried once more
_DRAFT = 0.035  # cost of a draft in the target's forward, in steps of one token, roughly


@dataclass(frozen=True, slots=True)
class Way:
    """``asking``: cost of a block of this drafter before it is judged, in target steps."""

    drafter: Drafter
    asking: float = 0.0


@dataclass(slots=True)
class _Record:
    """One sequence: what the rounds of each way committed and cost."""

    tokens: list[float]
    cost: list[float]
    rounds: list[int]
    last: int = -1  # the way of the newest round, -1 before the first
    seen: tuple[int, int] = (0, 0)  # rounds and accepted drafts when it was taken
    drafts: int = 0  # that it made
    since: int = 0  # rounds since the other ways were tried


class ChoosingDrafter:
    """Each block is drafted by one of ``ways``: in turn at first, then by the one that committed most tokens for its
    cost, with a try of another now and then.

    Costs are fixed numbers, never clocks, and everything that is looked at lies in rounds that are over, so the choice
    changes no law, and a seed gives the same text again. A way that failed in a sequence is not taken in it again.
    """

    def __init__(self, ways: Seq[Way], name: str) -> None:
        self.name = name
        self._ways = tuple(ways)
        self._records: dict[int, _Record] = {}  # by id of an open sequence

    def open(self, sequence: Sequence) -> None:
        n = len(self._ways)
        self._records[id(sequence)] = _Record([0.0] * n, [0.0] * n, [0] * n)
        for way in self._ways:
            open_guarded(way.drafter, sequence)

    def close(self, sequence: Sequence) -> None:
        self._records.pop(id(sequence), None)
        for way in self._ways:
            way.drafter.close(sequence)

    def propose(self, proposals: Seq[Proposal]) -> None:
        groups: dict[int, list[Proposal]] = {}
        for p in proposals:
            way = self._take(p)
            if way is not None:
                groups.setdefault(way, []).append(p)
        for way, group in sorted(groups.items()):
            before = [len(p.tokens) for p in group]
            propose_guarded(self._ways[way].drafter, group)
            for p, count in zip(group, before, strict=True):
                self._records[id(p.sequence)].drafts += len(p.tokens) - count

    def _take(self, p: Proposal) -> int | None:
        """The way of this block; None where it has been asked already, or none is left."""
        s, record = p.sequence, self._records[id(p.sequence)]
        now = (s.counts.rounds, s.counts.accepted)
        if record.last >= 0:
            if now[0] == record.seen[0]:
                return None
            self._account(record, now)
        able = [i for i, way in enumerate(self._ways) if way.drafter.name not in s.disabled]
        if not able:
            return None
        record.last = self._choose(record, able)
        record.seen, record.drafts = now, 0
        return record.last

    def _account(self, record: _Record, now: tuple[int, int]) -> None:
        way = record.last
        # Rounds without drafts may lie in between: they accept nothing, and what they commit is nobody's.
        record.tokens[way] += now[1] - record.seen[1] + 1
        record.cost[way] += 1 + self._ways[way].asking + _DRAFT * record.drafts
        record.rounds[way] += 1

    def _choose(self, record: _Record, able: Seq[int]) -> int:
        young = min(able, key=lambda i: (record.rounds[i], i))
        if record.rounds[young] < TRIES:
            return young
        best = max(able, key=lambda i: (record.tokens[i] / record.cost[i], -i))
        record.since += 1
        if record.since < AGAIN:
            return best
        record.since = 0
        return min((i for i in able if i != best), key=lambda i: record.rounds[i], default=best)
