"""Draft lengths for the rows of one round, such that the batch commits most tokens per second.

Rows share the forward, so only the total of the drafts costs; each row's accepted drafts grow ever slower with its
draft length. So the drafts are given out in order of what they bring per second, and the best point on the way is
taken. The way does not end at the first step that does not pay: a step of the cost may lie before a plateau.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from itertools import pairwise
from operator import itemgetter

from constrained_spec.engine.acceptance import Curve, WholeRecord
from constrained_spec.engine.costs import CostCurve

PAYS = 1.01  # tokens per second that speculation must bring, relative to none


Point = tuple[int, float, float]  # gamma, expected drafts, expected accepted drafts
NOTHING: Point = (0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Option:
    """What one row may draft: points by rising gamma, and what drafting costs."""

    points: Seq[Point]
    silent: float  # chance of no draft at all
    asking: float  # seconds of asking the drafter
    drafting: float  # seconds of each draft

    @classmethod
    def of(cls, curve: Curve, limit: int, costs: tuple[float, float]) -> Option:
        return cls(curve.points(limit), curve.silent, *costs)

    def whole(self, reach: float, record: WholeRecord) -> Option:
        """All that may be drafted within ``reach``, or nothing. ``record``: what rounds with all brought.

        The curve is one of chains: a tree with half of its nodes keeps less than the curve has at half of them.
        """
        fitting = [point for point in self.points if point[1] <= self.most(reach)]
        if fitting[-1:] != list(self.points[-1:]) or not record.known:
            return replace(self, points=fitting[-1:] or self.points[:1])
        drafts, accepted, seconds = record.means
        return Option([(self.points[-1][0], drafts, accepted)], 0.0, 0.0, seconds / drafts)

    def most(self, reach: float) -> float:
        """Expected drafts that lie within ``reach`` where the row drafts at all."""
        return reach * (1 - self.silent) + 1e-9


@dataclass(frozen=True, slots=True)
class Load:
    """Expected totals of a round: drafts, committed tokens, seconds of drafting, the chance that no row drafts."""

    drafts: float
    commits: float
    drafting: float
    silent: float

    def seconds(self, step: CostCurve) -> float:
        return _expected_step(step, self.drafts, self.silent) + self.drafting

    def rate(self, step: CostCurve) -> float:
        """Tokens per second."""
        return self.commits / self.seconds(step)

    def more(self, option: Option, before: Point, after: Point) -> Load:
        """One row goes from one gamma to a greater one."""
        first = before[0] == 0
        drafts = after[1] - before[1]
        return Load(
            self.drafts + drafts,
            self.commits + after[2] - before[2],
            self.drafting + option.drafting * drafts + (option.asking if first else 0.0),
            self.silent * option.silent if first else self.silent,
        )


def idle(rows: int) -> Load:
    """A round without drafts: a token for each row."""
    return Load(0.0, float(rows), 0.0, 1.0)


@dataclass(frozen=True, slots=True)
class Allocation:
    """Per option the gamma, 0 included, and the expected totals."""

    gammas: list[int]
    load: Load


def allocate(options: Seq[Option], start: Load, step: CostCurve, reach: float) -> tuple[Allocation, Allocation]:
    """The best allocation, and the fullest one, with at most ``reach`` drafts in the round.

    ``start`` are the totals of the rows that have no choice, and count in both.
    """
    load = best = start
    best_rate = PAYS * start.rate(step)
    chosen: list[tuple[int, int]] = []
    kept = 0
    for _, row, before, after in _steps(options, step.slope, reach):
        more = load.more(options[row], before, after)
        if more.drafts > reach * (1 - more.silent) + 1e-9:
            break
        load = more
        chosen.append((row, after[0]))
        rate = load.rate(step)
        if rate > best_rate:
            best, best_rate, kept = load, rate, len(chosen)
    return Allocation(_gammas(options, chosen[:kept]), best), Allocation(_gammas(options, chosen), load)


def _gammas(options: Seq[Option], chosen: Seq[tuple[int, int]]) -> list[int]:
    gammas = [0] * len(options)
    for row, gamma in chosen:
        gammas[row] = gamma
    return gammas


_Step = tuple[float, int, Point, Point]


def _steps(options: Seq[Option], slope: float, reach: float) -> list[_Step]:
    """Steps from one gamma to a greater one, best first: accepted drafts per second (negative), row, from, to.

    Of each row only the gammas on the upper hull: the others are never the best for any price of a second.
    """
    steps: list[_Step] = []
    for row, option in enumerate(options):
        price = max(slope + option.drafting, 1e-12)
        most = option.most(reach)
        hull: list[tuple[float, Point]] = [(0.0, NOTHING)]  # seconds, point
        for point in option.points:
            if point[1] > most and len(hull) > 1:
                break
            seconds = point[1] * price + option.asking
            while len(hull) > 1 and _below(hull[-2], hull[-1], (seconds, point)):
                hull.pop()
            hull.append((seconds, point))
        for (start, before), (end, after) in pairwise(hull):
            steps.append(((before[2] - after[2]) / max(end - start, 1e-15), row, before, after))
    steps.sort(key=itemgetter(0))
    return steps


def _below(a: tuple[float, Point], b: tuple[float, Point], c: tuple[float, Point]) -> bool:
    """Does ``b`` lie on or below the line from ``a`` to ``c``?"""
    return (b[1][2] - a[1][2]) * (c[0] - a[0]) <= (c[1][2] - a[1][2]) * (b[0] - a[0])


def _expected_step(step: CostCurve, drafts: float, silent: float) -> float:
    """Seconds of a step in which nobody drafts with chance ``silent``, and otherwise all that is expected comes."""
    some = 1 - silent
    if some < 1e-9:
        return step.base
    return silent * step.base + some * step(drafts / some)
