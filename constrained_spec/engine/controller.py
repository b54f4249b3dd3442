"""How much each request drafts in the next round, 0 included, so that the batch commits most tokens per second.

Why this changes no law, although it looks at clocks: a draft length is fixed before the round draws anything, from
rounds that are over. The verifiers are exact for every length, given all that came before; a length that is a function
of what came before, and of the time it took, is one more thing given. Nothing here knows the tokens or the
probabilities of the round that it plans, and a draft, once sampled, is never taken back (DESIGN 7).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from math import inf
from typing import Literal

from constrained_spec.config import MAX_GAMMA
from constrained_spec.engine.acceptance import RUNGS, DrafterRecord, RequestRecord
from constrained_spec.engine.allocation import NOTHING, PAYS, Allocation, Load, Option, Point, allocate, idle
from constrained_spec.engine.costs import CostCurve, DraftCosts, StepCosts, Typical
from constrained_spec.engine.round import RoundTimes
from constrained_spec.state.sequence import Counts

_FREE = 0.005  # share of the time that drafting may cost without a gain: a mostly silent drafter stays in use
_SHARE = 0.01  # of the rounds that probes may cost
_CREDIT, _MOST_CREDIT = 6.0, 10.0  # rounds that probes may cost at once: at the start, and ever
_LEAST_WAIT, _MOST_WAIT = 8, 64  # rounds between two probes of a request
_MOST_WAIT_DEEPER = 16  # if it drafts
_PROBE = 2  # gamma of a probe of a request that does not draft
_FOLLOW = 4  # further probes at once, as long as they succeed
_MOST_DEBT = 10.0  # rounds that they may cost beyond the credit
_CHEAP = 0.05  # rounds that any probe may cost, credit or not
_JOINS = 0.2  # cost of one more probe in a round, relative to the first, at which it need not wait
_STRETCH = 4  # rounds between two looks beyond the measured numbers of drafts
_BASE_AGE = 128  # rounds after which the round without drafts is measured again

Reason = Literal["fixed", "off", "paying", "idle", "not paying", "probe", "calibrate"]


@dataclass(frozen=True, slots=True)
class RowState:
    """A request before a round. ``limit`` is the greatest gamma it may have now; ``fixed`` the one it must have."""

    key: int
    limit: int
    fixed: int | None = None
    prefill_tokens: int = 0  # that this round writes for it besides its newest token and its drafts
    drafter_name: str = "auto"


@dataclass(frozen=True, slots=True)
class Choice:
    """``reason``: the request's own gamma ("fixed", "off"); it brings tokens per second ("paying"), costs next to
    nothing ("idle") or neither ("not paying"); a try of a greater one ("probe"), or of the round without any
    ("calibrate").
    """

    gamma: int
    reason: Reason


@dataclass(frozen=True, slots=True)
class RowOutcome:
    """A request after a round: drafts ``proposed`` and ``accepted``, tokens ``committed``, its counts so far."""

    key: int
    gamma: int
    proposed: int
    accepted: int
    committed: int
    counts: Counts


@dataclass(frozen=True, slots=True)
class ControllerReport:
    """What was measured, in seconds: ``base`` is B by rows, ``step`` V by rows as (drafts, seconds), ``drafting`` D by
    drafter as (asking it, each draft), ``rest`` H: what V holds besides the target's forward.

    ``accepted`` holds by drafter the expected accepted drafts of a round by gamma; ``sources`` judged and accepted
    drafts by source; ``reasons`` counts choices.
    """

    rounds: int
    requests: int
    base: dict[int, float]
    step: dict[int, list[tuple[float, float]]]
    drafting: dict[str, tuple[float, float]]
    rest: float
    accepted: dict[str, dict[int, float]]
    sources: dict[str, tuple[int, int]]
    probes: int
    reasons: dict[str, int]
    gamma_mean: float  # over the choices that were not the request's own


class _Request:
    """What is known of one request, and what was chosen for it last."""

    __slots__ = ("drafter", "followed", "next_probe", "probed_from", "record", "seen", "wait")

    def __init__(self, drafter: str, record: RequestRecord, next_probe: int) -> None:
        self.drafter = drafter
        self.record = record
        self.wait = _LEAST_WAIT
        self.next_probe = next_probe
        self.followed = 0  # probes that follow a success at once
        self.probed_from: int | None = None  # the gamma without the probe
        self.seen: dict[str, tuple[int, int]] = {}  # source -> judged and accepted drafts


class Controller:
    """Asked before every round, told after it. Not safe under threads: the engine's own thread holds it.

    Where no draft pays it settles on gamma 0, and then tries again: each request every 8 to 64 rounds, as far as all
    tries together cost no more than 1 % of the rounds. A try that succeeds is followed by up to four more, so that
    a request speculates again within 64 + 5 rounds after its drafter became good, or within 100 rounds for each round
    that a try costs, if that is longer.
    """

    def __init__(self, *, max_gamma: int = MAX_GAMMA) -> None:
        """``max_gamma`` bounds the gammas that it chooses, not the fixed ones."""
        self._max_gamma = max_gamma
        self._steps = StepCosts()
        self._drafting = DraftCosts()
        self._rest = Typical()
        self._drafters: dict[str, DrafterRecord] = {}
        self._requests: dict[int, _Request] = {}
        self._due: dict[str, int] = {}  # drafter -> round of the next probe of a request that is new then
        self._sources: dict[str, tuple[int, int]] = {}
        self._reasons: Counter[str] = Counter()
        self._number = 0
        self._round: dict[int, _Request] = {}  # of the rows of the round that was chosen for last
        self._prefills = False
        self._credit = _CREDIT
        self._gammas = (0, 0)  # number and sum of the chosen ones

    # ---- before a round ---------------------------------------------------------------------------------------------

    def choose(self, rows: Seq[RowState]) -> list[Choice]:
        """The gamma of each row in the round that comes. Every call is followed by its ``observe``."""
        self._number += 1
        self._round = {row.key: self._request(row) for row in rows}
        self._prefills = any(row.prefill_tokens for row in rows)
        if not rows:
            return []
        plan = _Plan(self._steps.curve(len(rows)), idle(len(rows)))
        free: list[tuple[int, _Request, Option]] = []
        choices = [Choice(0, "off")] * len(rows)
        for i, row in enumerate(rows):
            request = self._round[row.key]
            limit = row.limit if row.fixed is not None else min(row.limit, self._max_gamma)
            gamma = limit if row.fixed is None else min(row.fixed, limit)
            if gamma <= 0:
                continue
            option = Option.of(request.record.curve, gamma, self._drafting.of(row.drafter_name))
            if row.fixed is None:
                free.append((i, request, option))
            else:
                choices[i] = Choice(gamma, "fixed")
                plan.load = plan.load.more(option, NOTHING, option.points[-1])
        for (i, _, _), choice in zip(free, self._choose_free(plan, free), strict=True):
            choices[i] = choice
            self._gammas = self._gammas[0] + 1, self._gammas[1] + choice.gamma
        self._reasons.update(choice.reason for choice in choices)
        return choices

    def _request(self, row: RowState) -> _Request:
        request = self._requests.get(row.key)
        if request is None:
            drafter = self._drafters.setdefault(row.drafter_name, DrafterRecord())
            # Requests may be too short to wait: the first of them that comes when their drafter is due tries.
            next_probe = self._due.setdefault(row.drafter_name, self._number + _LEAST_WAIT)
            request = _Request(row.drafter_name, RequestRecord(drafter), next_probe)
            self._requests[row.key] = request
        request.probed_from = None
        return request

    def _choose_free(self, plan: _Plan, free: Seq[tuple[int, _Request, Option]]) -> list[Choice]:
        options = [option for _, _, option in free]
        without = plan.load
        best, fullest = allocate(options, without, plan.step, self._steps.reach)
        plan.load = best.load
        if any(best.gammas) and self._calibrates(plan, without):
            return [Choice(0, "calibrate")] * len(free)
        if self._stretches(plan, options, without, fullest):
            return [Choice(gamma, "probe" if gamma else "not paying") for gamma in fullest.gammas]
        gammas = best.gammas
        choices = [Choice(gamma, "paying" if gamma else "not paying") for gamma in gammas]
        for i, option in enumerate(options):
            if not gammas[i]:
                choices[i] = self._idle(plan, option)
        self._probe(plan, free, choices)
        return choices

    def _calibrates(self, plan: _Plan, without: Load) -> bool:
        """Is this round to measure the one without drafts, which else nothing would?"""
        if self._prefills or without.silent < 1:
            return False
        count, age = self._steps.base_age(self._number, len(self._round))
        if count and age < (_LEAST_WAIT if count < 3 else _BASE_AGE):
            return False
        rate, best = without.rate(plan.step), plan.load.rate(plan.step)
        return self._pay(1 - rate / best if count else 0.0)

    def _stretches(self, plan: _Plan, options: Seq[Option], without: Load, fullest: Allocation) -> bool:
        """Is this round to draft all that the measurements reach, because what lies beyond would seem to pay more?"""
        if self._number % _STRETCH or self._prefills:
            return False
        beyond, _ = allocate(options, without, plan.step, inf)
        if beyond.load.rate(plan.step) < PAYS * plan.load.rate(plan.step):
            return False
        return self._pay(max(0.0, plan.loss(plan.load, fullest.load)))

    def _idle(self, plan: _Plan, option: Option) -> Choice:
        """The greatest gamma that costs next to nothing: a drafter that is silent most of the time stays in use."""
        chosen = Choice(0, "not paying")
        before = plan.load
        for point in option.points:
            load = before.more(option, NOTHING, point)
            if load.drafts > self._steps.reach * (1 - load.silent) or plan.loss(before, load) > _FREE / len(
                self._round
            ):
                break
            chosen, plan.load = Choice(point[0], "idle"), load
        return chosen

    def _probe(self, plan: _Plan, free: Seq[tuple[int, _Request, Option]], choices: list[Choice]) -> None:
        """Raise the gamma of those whose time has come, as far as there is credit.

        Once one of them pays for the step of the cost that lies before the first draft, others join it for little.
        """
        first = inf
        order = sorted(range(len(free)), key=lambda i: (-free[i][1].followed, free[i][1].next_probe))
        for i in order:
            _, request, option = free[i]
            gamma = choices[i].gamma
            due = self._number >= request.next_probe
            if not due and (gamma or first == inf):
                continue
            higher = [p for p in option.points if p[0] > gamma and (gamma or p[0] >= _PROBE)] or list(
                option.points[-1:]
            )
            if higher[0][0] <= gamma:
                continue
            if not gamma and not request.followed:
                del higher[1:]
            now = next((p for p in option.points if p[0] == gamma), NOTHING)
            found = self._probe_point(plan, option, now, higher)
            if found is None or not (due or found[2] <= _JOINS * first):
                continue
            cheap = found[2] <= max(_CHEAP, _JOINS * first if first < inf else 0.0)
            if self._pay(found[2], owe=_MOST_DEBT if request.followed or cheap else 0.0):
                first = min(first, found[2])
                request.probed_from = gamma
                choices[i], plan.load = Choice(found[0], "probe"), found[1]

    def _probe_point(
        self, plan: _Plan, option: Option, now: Point, higher: Seq[Point]
    ) -> tuple[int, Load, float] | None:
        """Gamma, totals and loss of the probe: the next rung, or one above it that costs little more and tells more."""
        found: tuple[int, Load, float] | None = None
        most = inf
        for point in higher:
            load = plan.load.more(option, now, point)
            loss = max(0.0, plan.loss(plan.load, load))
            if load.drafts > self._steps.reach * max(1 - load.silent, 0.1) or loss > most:
                break
            found, most = (point[0], load, loss), min(most, 1.2 * loss)
        return found

    def _pay(self, rounds: float, owe: float = 0.0) -> bool:
        """Spend credit, down to a debt of ``owe`` rounds. False: there is not enough."""
        if self._credit + owe < rounds:
            return False
        self._credit -= rounds
        return True

    # ---- after a round ----------------------------------------------------------------------------------------------

    def observe(self, rows: Seq[RowOutcome], times: RoundTimes, extra_tokens: int = 0) -> None:
        """What became of the round that ``choose`` planned. Rows that failed are left out.

        ``extra_tokens`` that the same forward wrote for requests which had no row: such a round, like one that wrote
        part of a prompt for a row, tells nothing about V.
        """
        self._credit = min(_MOST_CREDIT, self._credit + _SHARE)
        if rows and len(rows) == len(self._round) and not self._prefills:
            self._measure(rows, times, plain=extra_tokens == 0)
        for row in rows:
            request = self._round[row.key]
            # A text that ended within the accepted drafts says nothing about the draft behind its end.
            if row.gamma > 0 and row.committed > row.accepted:
                request.record.add(row.proposed, row.accepted, row.gamma, probe=request.probed_from == 0)
                self._after_probe(request, row)
            self._count_sources(request, row.counts)

    def _measure(self, rows: Seq[RowOutcome], times: RoundTimes, *, plain: bool) -> None:
        if plain and times.total > 0:
            seconds = times.total - times.propose
            drafts = sum(row.proposed for row in rows)
            self._steps.add(self._number, len(rows), drafts, seconds)
            self._rest.add(self._number, drafts, seconds - times.forward)
        asked: dict[str, tuple[int, int]] = {}
        for row in rows:
            if row.gamma > 0:
                name = self._round[row.key].drafter
                n, drafts = asked.get(name, (0, 0))
                asked[name] = n + 1, drafts + row.proposed
        self._drafting.add(self._number, asked, times.propose)

    def _after_probe(self, request: _Request, row: RowOutcome) -> None:
        if request.probed_from is None:
            return
        if row.accepted > request.probed_from:
            request.wait = _LEAST_WAIT
            follows = request.probed_from == 0 and request.followed < _FOLLOW
            request.followed = request.followed + 1 if follows else 0
        else:
            request.followed = 0
            if row.proposed:
                request.wait = min(_MOST_WAIT if request.probed_from == 0 else _MOST_WAIT_DEEPER, 2 * request.wait)
        request.next_probe = self._number + (1 if request.followed else request.wait)
        self._due[request.drafter] = request.next_probe

    def _count_sources(self, request: _Request, counts: Counts) -> None:
        for source, (_, accepted) in counts.by_source.items():
            judged = counts.judged.get(source, 0)
            before = request.seen.get(source, (0, 0))
            if (judged, accepted) != before:
                known = self._sources.get(source, (0, 0))
                self._sources[source] = known[0] + judged - before[0], known[1] + accepted - before[1]
                request.seen[source] = judged, accepted

    def forget(self, key: int) -> None:
        """The request is over, or leaves its slot. Its last round may still be observed. An unknown key is fine."""
        self._requests.pop(key, None)

    def report(self) -> ControllerReport:
        """Everything measured so far."""
        curves = {rows: self._steps.curve(rows) for rows in self._steps.rows}
        chosen, total = self._gammas
        return ControllerReport(
            rounds=self._number,
            requests=len(self._requests),
            base={rows: curve.base for rows, curve in curves.items()},
            step={rows: curve.knots for rows, curve in curves.items()},
            drafting={name: self._drafting.of(name) for name in self._drafting.names},
            rest=self._rest.seconds,
            accepted={
                name: dict(zip(RUNGS[1:], record.curve.accepted[1:], strict=True))
                for name, record in self._drafters.items()
            },
            sources=dict(self._sources),
            probes=self._reasons["probe"],
            reasons=dict(self._reasons),
            gamma_mean=total / chosen if chosen else 0.0,
        )


@dataclass(slots=True)
class _Plan:
    """A round in the making."""

    step: CostCurve
    load: Load

    def loss(self, before: Load, after: Load) -> float:
        """Rounds that ``after`` costs more than ``before``, beyond what it brings."""
        return after.seconds(self.step) / before.seconds(self.step) - after.commits / before.commits
