"""How much each request drafts in the next round, 0 included, so that the batch commits most tokens per second.

Why this changes no law, although it looks at clocks: a draft length is fixed before the round draws anything, from
rounds that are over. The verifiers are exact for every length, given all that came before; a length that is a function
of what came before, and of the time it took, is one more thing given. Nothing here knows the tokens or the
probabilities of the round that it plans, and a draft, once sampled, is never taken back (DESIGN 7).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from math import inf
from typing import Literal

from constrained_spec.config import MAX_GAMMA
from constrained_spec.engine.acceptance import RUNGS, DrafterRecord, RequestRecord, WholeRecord
from constrained_spec.engine.allocation import NOTHING, PAYS, Allocation, Load, Option, allocate, idle
from constrained_spec.engine.costs import DraftCosts, StepCosts, Typical
from constrained_spec.engine.probes import Pace, Plan, Probes
from constrained_spec.engine.round import RoundTimes
from constrained_spec.state.sequence import Counts

_FREE = 0.005  # share of the time that drafting may cost without a gain: a mostly silent drafter stays in use
_STRETCH = 4  # rounds between two looks beyond the measured numbers of drafts
_YOUNG, _OLD = 8, 128  # rounds after which the round without drafts is measured again: if it hardly was, and else

Reason = Literal["fixed", "off", "paying", "idle", "not paying", "probe", "calibrate"]


@dataclass(frozen=True, slots=True)
class RowState:
    """A request before a round. ``limit`` is the greatest gamma it may have now; ``fixed`` the one it must have."""

    key: int
    limit: int
    fixed: int | None = None
    prefill_tokens: int = 0  # that this round writes for it besides its newest token and its drafts
    drafter_name: str = "auto"
    sizes_itself: bool = False  # the drafter leaves out what costs more than it brings, for a request that is alone


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


@dataclass(slots=True)
class _Request:
    drafter: str
    record: RequestRecord
    whole: WholeRecord
    pace: Pace
    all_of: int | None = None  # the gamma that is all this request may have, if it gets all or nothing now
    seen: dict[str, tuple[int, int]] = field(default_factory=dict)  # source -> judged and accepted drafts


class Controller:
    """Asked before every round, told after it. Not safe under threads: the engine's own thread holds it.

    Where no draft pays it settles on gamma 0, and then tries again: each request every 8 to 64 rounds, as far as all
    tries together cost no more than 1 % of the rounds. Tries that succeed follow each other at once, up to five, so
    that a request speculates again within 64 + 5 rounds after its drafter became good, or within 100 rounds for each
    round that a try costs, if that is longer. A first try that fails by chance costs as long a wait again.
    """

    def __init__(self, *, max_gamma: int = MAX_GAMMA) -> None:
        """``max_gamma`` bounds the gammas that it chooses, not the fixed ones."""
        self._max_gamma = max_gamma
        self._steps = StepCosts()
        self._drafting = DraftCosts()
        self._rest = Typical()
        self._drafters: dict[str, DrafterRecord] = {}
        self._wholes: dict[str, WholeRecord] = {}
        self._requests: dict[int, _Request] = {}
        self._sources: dict[str, tuple[int, int]] = {}
        self._reasons: Counter[str] = Counter()
        self._number = 0
        self._round: dict[int, _Request] = {}  # of the rows of the round that was chosen for last
        self._prefills = False
        self._calibrated = -_YOUNG  # the last round that measured B
        self._probes = Probes()
        self._gammas = (0, 0)  # number and sum of the chosen ones

    # ---- before a round ---------------------------------------------------------------------------------------------

    def choose(self, rows: Seq[RowState]) -> list[Choice]:
        """The gamma of each row in the round that comes. Every call is followed by its ``observe``."""
        self._number += 1
        self._round = {row.key: self._request(row) for row in rows}
        self._prefills = any(row.prefill_tokens for row in rows)
        if not rows:
            return []
        plan = Plan(self._steps.curve(len(rows)), idle(len(rows)), self._steps.reach)
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
                alone = row.sizes_itself and len(rows) == 1
                free.append((i, request, option.whole(plan.reach, request.whole) if alone else option))
                request.all_of = limit if alone else None
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
            name = row.drafter_name
            record = RequestRecord(self._drafters.setdefault(name, DrafterRecord()))
            whole = WholeRecord(self._wholes.setdefault(name, WholeRecord()))
            request = _Request(name, record, whole, self._probes.pace(name, self._number))
            self._requests[row.key] = request
        request.pace.probed_from = request.all_of = None
        return request

    def _choose_free(self, plan: Plan, free: Seq[tuple[int, _Request, Option]]) -> list[Choice]:
        options = [option for _, _, option in free]
        without = plan.load
        best, fullest = allocate(options, without, plan.step, plan.reach)
        plan.load = best.load
        if any(best.gammas) and self._calibrates(plan, without):
            return [Choice(0, "calibrate")] * len(free)
        if self._stretches(plan, options, without, fullest):
            return [Choice(gamma, "probe" if gamma else "not paying") for gamma in fullest.gammas]
        choices = [
            Choice(gamma, "paying") if gamma else self._idle(plan, option)
            for gamma, option in zip(best.gammas, options, strict=True)
        ]
        rows = [(request.pace, option) for _, request, option in free]
        for i, gamma in self._probes.plan(plan, rows, [c.gamma for c in choices], self._number).items():
            choices[i] = Choice(gamma, "probe")
        return choices

    def _calibrates(self, plan: Plan, without: Load) -> bool:
        """Is this round to measure the one without drafts, which else nothing would?"""
        if self._prefills or without.silent < 1 or self._number < self._calibrated + _YOUNG:
            return False
        count, age = self._steps.base_age(self._number, len(self._round))
        if count and age < (_YOUNG if count < 3 else _OLD):
            return False
        lost = 1 - without.rate(plan.step) / plan.load.rate(plan.step)
        if not self._probes.pay(lost if self._steps.rows else 0.0):
            return False
        self._calibrated = self._number
        return True

    def _stretches(self, plan: Plan, options: Seq[Option], without: Load, fullest: Allocation) -> bool:
        """Is this round to draft all that the measurements reach, because what lies beyond would seem to pay more?"""
        if self._number % _STRETCH or self._prefills:
            return False
        beyond, _ = allocate(options, without, plan.step, inf)
        if beyond.load.rate(plan.step) < PAYS * plan.load.rate(plan.step):
            return False
        return self._probes.pay(max(0.0, plan.loss(fullest.load)))

    def _idle(self, plan: Plan, option: Option) -> Choice:
        """The greatest gamma that costs next to nothing: a drafter that is silent most of the time stays in use."""
        gamma, found = 0, plan.load
        for point in option.points:
            load = plan.load.more(option, NOTHING, point)
            if not plan.fits(load) or plan.loss(load) > _FREE / len(self._round):
                break
            gamma, found = point[0], load
        plan.load = found
        return Choice(gamma, "idle" if gamma else "not paying")

    # ---- after a round ----------------------------------------------------------------------------------------------

    def observe(self, rows: Seq[RowOutcome], times: RoundTimes, extra_tokens: int = 0) -> None:
        """What became of the round that ``choose`` planned. Rows that failed are left out.

        ``extra_tokens`` that the same forward wrote for requests which had no row: such a round, like one that wrote
        part of a prompt for a row, tells nothing about V.
        """
        self._probes.earn()
        if rows and len(rows) == len(self._round) and not self._prefills:
            self._measure(rows, times, plain=extra_tokens == 0)
        for row in rows:
            request = self._round[row.key]
            # A text that ended within the accepted drafts says nothing about the draft behind its end.
            if row.gamma > 0 and row.committed > row.accepted:
                pace = request.pace
                request.record.add(row.proposed, row.accepted, row.gamma, probe=pace.probed_from == 0)
                if row.gamma == request.all_of:
                    request.whole.add(row.proposed, row.accepted, times.propose, probe=pace.probed_from == 0)
                if pace.probed_from is not None:
                    self._probes.judge(pace, request.drafter, self._number, row.proposed, row.accepted)
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
