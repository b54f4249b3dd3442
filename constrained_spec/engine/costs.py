"""What a round costs in seconds, as a function of its rows and drafts: typical values of the newest measurements.

A round of ``rows`` requests with ``drafts`` drafts in all takes V(rows, drafts) + D. V is the target's forward with all
that follows it (pipeline, verdict, commit), D the drafting. B = V(rows, 0) is the round without speculation.
"""

from __future__ import annotations

import statistics
from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from itertools import pairwise
from math import inf
from typing import NamedTuple

_NEWEST, _OLDEST = 15, 256  # measurements that count, and rounds that one counts for
_SURE = 3  # measurements, from which on their value is believed
_FAR = 1.25  # times a cost with more drafts, above which a cost is an outlier
_SLOPE = 0.05  # what a draft costs, in steps, where nothing is known
_LEAST_SLOPE = 0.005  # and at least, beyond what is known
# Greatest numbers of drafts that share a measurement; few drafts are told apart, because a step may leap there.
_EDGES = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 1024)


class Typical:
    """Lower third of the newest values, the old ones left out: an outlier does not move it."""

    __slots__ = ("_samples", "drafts", "newest", "seconds")

    def __init__(self) -> None:
        self._samples: list[tuple[int, float, float]] = []  # round, drafts, seconds
        self.newest = 0
        self.drafts = 0.0
        self.seconds = 0.0

    def add(self, number: int, drafts: float, seconds: float) -> None:
        """A measurement of round ``number``."""
        kept = [sample for sample in self._samples[1 - _NEWEST :] if number - sample[0] <= _OLDEST]
        self._samples = [*kept, (number, drafts, seconds)]
        self.newest = number
        self.drafts = statistics.median(sample[1] for sample in self._samples)
        values = sorted(sample[2] for sample in self._samples)
        # What disturbs a measurement makes it longer, so the value is taken from the lower half.
        self.seconds = values[(len(values) - 1) // 3]

    @property
    def count(self) -> int:
        return len(self._samples)

    @property
    def weight(self) -> float:
        """How far the value is believed: an outlier among few measurements must not bend a whole curve."""
        return float(self.count) if self.count >= _SURE else 0.1 * self.count


class Knot(NamedTuple):
    """A point of a cost curve, and how far it is believed."""

    drafts: float
    seconds: float
    weight: float


class CostCurve:
    """Seconds by number of drafts: rising, linear between its knots and behind the last."""

    __slots__ = ("_slopes", "_x", "_y", "base", "slope")

    def __init__(self, knots: Seq[Knot]) -> None:
        """``knots``: by rising drafts, the first at 0."""
        values = _rising(knots)
        self._x = [knot.drafts for knot in knots]
        self._y = values
        self.base = values[0]
        if len(values) > 1:
            self._slopes = [(y1 - y0) / (x1 - x0) for (x0, y0), (x1, y1) in pairwise(self.knots)]
            # Behind a cliff at the first draft the cost may be flat.
            first = 1 if len(values) > 2 else 0
            tail = (values[-1] - values[first]) / (self._x[-1] - self._x[first])
            self.slope = max(tail, _LEAST_SLOPE * self.base)  # seconds a draft costs behind the last knot
        else:
            self._slopes = []
            self.slope = _SLOPE * self.base
        self._slopes.append(self.slope)

    def __call__(self, drafts: float) -> float:
        i = bisect_right(self._x, drafts) - 1
        return self._y[i] + (drafts - self._x[i]) * self._slopes[i]

    @property
    def knots(self) -> list[tuple[float, float]]:
        """(drafts, seconds)."""
        return list(zip(self._x, self._y, strict=True))


def _rising(knots: Seq[Knot]) -> list[float]:
    """The closest values that never fall: neighbours out of order share their weighted mean.

    A value far above a later one is an outlier, and must not lift it.
    """
    values, least = [], inf
    for knot in reversed(knots):
        values.append(min(knot.seconds, _FAR * least))
        least = min(least, knot.seconds)
    blocks: list[tuple[float, float, int]] = []  # value, weight, knots
    for knot, seconds in zip(knots, reversed(values), strict=True):
        value, weight, n = seconds, knot.weight, 1
        while blocks and blocks[-1][0] >= value:
            above, mass, m = blocks.pop()
            value = (value * weight + above * mass) / (weight + mass)
            weight, n = weight + mass, n + m
        blocks.append((value, weight, n))
    return [value for value, _, n in blocks for _ in range(n)]


class StepCosts:
    """V, a table per number of rows. What one table lacks it takes from the nearest one, as cost above its base."""

    def __init__(self) -> None:
        self._tables: dict[int, dict[int, Typical]] = {}  # rows -> index into _EDGES -> measurements
        self._curves: dict[int, CostCurve] = {}
        self._widest = 0.0

    @property
    def rows(self) -> list[int]:
        """The numbers of rows that were measured."""
        return sorted(self._tables)

    @property
    def reach(self) -> float:
        """Drafts of a round beyond which no measurement tells what it costs: twice the most measured so far."""
        return max(4.0, 2 * self._widest)

    def add(self, number: int, rows: int, drafts: int, seconds: float) -> None:
        """Round ``number`` took ``seconds`` beside drafting."""
        table = self._tables.setdefault(rows, {})
        i = min(bisect_left(_EDGES, drafts), len(_EDGES) - 1)
        table.setdefault(i, Typical()).add(number, drafts, seconds)
        self._widest = max(self._widest, drafts)
        self._curves.clear()

    def base_age(self, number: int, rows: int) -> tuple[int, int]:
        """How many measurements of B there are, and how many rounds ago the newest was."""
        cell = self._tables.get(rows, {}).get(0)
        return (0, number) if cell is None else (cell.count, number - cell.newest)

    def curve(self, rows: int) -> CostCurve:
        """V for this number of rows. The scale is arbitrary before the first measurement."""
        found = self._curves.get(rows)
        if found is None:
            found = self._curves[rows] = CostCurve(self._knots(rows))
        return found

    def _knots(self, rows: int) -> list[Knot]:
        order = sorted(self._tables, key=lambda r: (abs(r - rows), r))
        cells: dict[int, tuple[Typical, float]] = {}  # with the seconds that lie below it in its own table
        bases = {r: self._tables[r][0].seconds for r in order if 0 in self._tables[r]}
        base = next(iter(bases.values()), None)
        if base is None:
            return self._without_base(order)
        for r in order:
            # A table without its own base can lend nothing; the asked one stands for itself.
            below = base if r == rows else bases.get(r)
            if below is not None:
                for i, cell in self._tables[r].items():
                    cells.setdefault(i, (cell, below))
        knots = [Knot(0.0, base, cells[0][0].weight)]
        for i in sorted(cells.keys() - {0}):
            cell, below = cells[i]
            seconds = base + cell.seconds - below
            if cell.count < _SURE:
                # A first measurement may be a warm-up.
                last = knots[-1]
                slope = (last.seconds - base) / last.drafts if last.drafts else _SLOPE * base
                seconds = min(seconds, 2 * (base + max(slope, _SLOPE * base) * cell.drafts))
            knots.append(Knot(cell.drafts, seconds, cell.weight))
        return knots

    def _without_base(self, order: Seq[int]) -> list[Knot]:
        if not order:
            return [Knot(0.0, 1.0, 1)]
        _, cell = min(self._tables[order[0]].items())
        return [Knot(0.0, cell.seconds / (1 + _SLOPE * cell.drafts), 1), Knot(cell.drafts, cell.seconds, cell.weight)]


class DraftCosts:
    """D by drafter: seconds of asking it, and seconds of each draft."""

    def __init__(self) -> None:
        self._asking: dict[str, Typical] = {}
        self._drafting: dict[str, Typical] = {}

    @property
    def names(self) -> list[str]:
        return sorted(self._asking.keys() | self._drafting.keys())

    def of(self, name: str) -> tuple[float, float]:
        """Seconds of asking, seconds per draft; 0 while unknown."""
        asking, drafting = self._asking.get(name), self._drafting.get(name)
        return (0.0 if asking is None else asking.seconds), (0.0 if drafting is None else drafting.seconds)

    def add(self, number: int, asked: Mapping[str, tuple[int, int]], seconds: float) -> None:
        """Round ``number`` spent ``seconds`` on drafting. ``asked``: drafter -> rows it was asked for, its drafts.

        What several drafters took together is divided as their known costs are; a new one gets the rest.
        """
        expected = {name: rows * self.of(name)[0] + n * self.of(name)[1] for name, (rows, n) in asked.items()}
        whole = sum(expected.values())
        unknown = sum(cost == 0 for cost in expected.values())
        for name, (rows, drafts) in asked.items():
            if unknown == 0:
                share = seconds * expected[name] / whole
            else:
                share = expected[name] or max(0.0, seconds - whole) / unknown
            if drafts == 0:
                self._asking.setdefault(name, Typical()).add(number, 0, share / rows)
            else:
                rest = max(0.0, share - rows * self.of(name)[0])
                self._drafting.setdefault(name, Typical()).add(number, drafts, rest / drafts)
