"""When a request tries a draft length that does not seem to pay, and what all such tries may cost together."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

from constrained_spec.engine.allocation import NOTHING, Load, Option, Point
from constrained_spec.engine.costs import CostCurve

_SHARE = 0.01  # of the rounds that probes may cost
_CREDIT, _MOST_CREDIT = 6.0, 10.0  # rounds that probes may cost at once: at the start, and ever
_MOST_DEBT = 10.0  # rounds beyond the credit, for probes that need not wait
_LEAST_WAIT, _MOST_WAIT = 8, 64  # rounds between two probes of a request
_MOST_WAIT_DEEPER = 16  # if it drafts
_PROBE = 2  # gamma of a probe of a request that does not draft
_FOLLOW = 4  # further probes at once, as long as they succeed
_CHEAP = 0.05  # rounds that any probe may cost, credit or not
_JOINS = 0.2  # cost of one more probe in a round, relative to the first, at which it need not wait


@dataclass(slots=True)
class Plan:
    """A round in the making: V for its rows, what they are expected to do, and the drafts that may be spent."""

    step: CostCurve
    load: Load
    reach: float

    def loss(self, after: Load) -> float:
        """Rounds that ``after`` would cost more than the plan does, beyond what it brings."""
        return after.seconds(self.step) / self.load.seconds(self.step) - after.commits / self.load.commits

    def fits(self, load: Load) -> bool:
        return load.drafts <= self.reach * (1 - load.silent) + 1e-9


class Pace:
    """When one request probes next. A probe that fails doubles the wait; one that succeeds is followed at once."""

    __slots__ = ("followed", "next", "probed_from", "wait")

    def __init__(self, first: int) -> None:
        """``first``: the round of the first probe."""
        self.next = first
        self.wait = _LEAST_WAIT
        self.followed = 0  # probes that followed a success
        self.probed_from: int | None = None  # in a round with a probe, the gamma without it

    def judge(self, number: int, proposed: int, accepted: int) -> None:
        """What came of the probe of round ``number``."""
        assert self.probed_from is not None, "there was no probe"
        off = self.probed_from == 0
        if accepted > self.probed_from:
            self.wait = _LEAST_WAIT
            self.followed = self.followed + 1 if off and self.followed < _FOLLOW else 0
        else:
            self.followed = 0
            if proposed:
                self.wait = min(_MOST_WAIT if off else _MOST_WAIT_DEEPER, 2 * self.wait)
        self.next = number + (1 if self.followed else self.wait)


class Probes:
    """Raises gammas now and then. Credit grows by a hundredth of a round each round; a probe costs what it loses."""

    def __init__(self) -> None:
        self._credit = _CREDIT
        self._due: dict[str, int] = {}  # drafter -> round of the next probe of a request that is new then

    def pace(self, drafter: str, number: int) -> Pace:
        """Of a new request. It may be too short to wait: the first that comes when its drafter is due probes."""
        return Pace(self._due.setdefault(drafter, number + _LEAST_WAIT))

    def earn(self) -> None:
        """A round is over."""
        self._credit = min(_MOST_CREDIT, self._credit + _SHARE)

    def pay(self, rounds: float, owe: float = 0.0) -> bool:
        """Spend credit, down to a debt of ``owe`` rounds. False: there is not enough."""
        if self._credit + owe < rounds:
            return False
        self._credit -= rounds
        return True

    def judge(self, pace: Pace, drafter: str, number: int, proposed: int, accepted: int) -> None:
        """What came of the probe of round ``number``."""
        pace.judge(number, proposed, accepted)
        self._due[drafter] = pace.next

    def plan(self, plan: Plan, rows: Seq[tuple[Pace, Option]], gammas: Seq[int], number: int) -> dict[int, int]:
        """The rows that probe in round ``number``, and their gammas. ``gammas``: without the probes.

        Once one of them pays for the step of the cost that lies before the first draft, others join it for little.
        """
        chosen: dict[int, int] = {}
        first = 0.0  # what the first one costs
        for i in sorted(range(len(rows)), key=lambda i: (-rows[i][0].followed, rows[i][0].next)):
            pace, option = rows[i]
            due = number >= pace.next
            if not due and (gammas[i] or not chosen):
                continue
            found = _choose(plan, option, gammas[i], deep=gammas[i] > 0 or pace.followed > 0)
            if found is None:
                continue
            gamma, load, loss = found
            joins = loss <= _JOINS * first
            if not due and not joins:
                continue
            waits = pace.followed == 0 and not joins and loss > _CHEAP
            if self.pay(loss, owe=0.0 if waits else _MOST_DEBT):
                first = first or loss
                pace.probed_from = gammas[i]
                plan.load = load
                chosen[i] = gamma
        return chosen


def _choose(plan: Plan, option: Option, gamma: int, *, deep: bool) -> tuple[int, Load, float] | None:
    """Gamma, totals and loss of a row's probe: the next greater gamma, or, if ``deep``, the greatest that costs little
    more than that. None: nothing greater fits.
    """
    before = next((point for point in option.points if point[0] == gamma), NOTHING)
    found: tuple[int, Load, float] | None = None
    for point in _greater(option, gamma):
        load = plan.load.more(option, before, point)
        loss = max(0.0, plan.loss(load))
        if not plan.fits(load) or (found is not None and (not deep or loss > 1.2 * found[2])):
            break
        found = point[0], load, loss if found is None else max(loss, found[2])
    return found


def _greater(option: Option, gamma: int) -> Seq[Point]:
    least = _PROBE if gamma == 0 else gamma + 1
    # A limit may lie below the least probe.
    return [point for point in option.points if point[0] >= least] or (option.points[-1:] if gamma == 0 else ())
