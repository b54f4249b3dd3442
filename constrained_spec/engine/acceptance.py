"""How many drafts a row would propose and keep at each draft length, learned from rounds that are over.

Two survival curves by place in the block, as Kaplan and Meier (1958) estimate them: the chance that a block gets as far
as a draft at this place, and the chance that a draft at this place is accepted. A round with ``gamma`` 4 says nothing
about place 5. Both count "nothing was proposed" as a failure, because that is what it does to the speed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from itertools import pairwise
from math import sqrt

from constrained_spec.config import MAX_GAMMA

# Draft lengths that are tried. Places between two rungs share one chance.
RUNGS: tuple[int, ...] = (0, 1, 2, 4, 8, 16, 24, 32, 48, MAX_GAMMA)
_SPANS = tuple(pairwise(RUNGS))
_PROPOSES, _ACCEPTS = 0.9, 0.6  # chances at the first place of a drafter of which nothing is known
_WHOLE = 8.0, 2.0, 0.0  # drafts, accepted ones and seconds of a whole block of which nothing is known
_OF_NOTHING, _OF_DRAFTER = 16.0, 8.0  # rounds that this counts for, and those of all requests for one
_WEIGHT = 2.0  # places at risk that a prior counts for
_ROUNDS = 32  # memory of a request, in rounds that reached the span
_ROUNDS_OF_DRAFTER = 100
_FRESH, _FRESH_OF_DRAFTER = 1.0, 8.0  # what older places at risk count for, at most, after a surprise
_UNLIKELY = 1e-4  # a chance, below which it is one


@dataclass(frozen=True, slots=True)
class Curve:
    """Expected drafts and expected accepted drafts of one row with ``RUNGS[i]`` as its draft length."""

    drafts: tuple[float, ...]
    accepted: tuple[float, ...]
    silent: float  # chance of no draft at all

    def points(self, limit: int) -> list[tuple[int, float, float]]:
        """(gamma, drafts, accepted) for the rungs above 0 up to ``limit``, and for ``limit`` itself."""
        top = bisect_left(RUNGS, limit)  # the first rung that is not below the limit
        points = list(zip(RUNGS[1:top], self.drafts[1:top], self.accepted[1:top], strict=True))
        if limit > 0:
            share = (limit - RUNGS[top - 1]) / (RUNGS[top] - RUNGS[top - 1])
            drafts, accepted = (
                values[top - 1] + share * (values[top] - values[top - 1]) for values in (self.drafts, self.accepted)
            )
            points.append((limit, drafts, accepted))
        return points


class _Survival:
    """Per span of places: how many were passed of those at risk, older rounds counting less."""

    __slots__ = ("passed", "risk")

    def __init__(self) -> None:
        self.risk = [0.0] * len(_SPANS)
        self.passed = [0.0] * len(_SPANS)

    def add(self, passed: int, risk: int, keep: float, most: float | None) -> None:
        """``passed`` places of ``risk``; what was known is kept by ``keep``, or cut to a weight of ``most``."""
        for i, (below, top) in enumerate(_SPANS):
            if risk <= below:
                return
            known = self.risk[i]
            factor = keep if most is None or known <= most else most / known
            self.risk[i] = factor * known + min(risk, top) - below
            self.passed[i] = factor * self.passed[i] + max(0, min(passed, top) - below)

    def chances(self, first: float, prior: Seq[float] | None = None) -> list[float]:
        """Per span, the chance to pass one place.

        Where a span has not shown, between what the span before it showed (``first``, before the first one) and what
        ``prior`` says of it.
        """
        chances: list[float] = []
        for i, (passed, risk) in enumerate(zip(self.passed, self.risk, strict=True)):
            guess = first if prior is None or i == 0 else sqrt(first * prior[i])
            first = (passed + _WEIGHT * guess) / (risk + _WEIGHT)
            chances.append(first)
        return chances


def _sums(chances: list[float]) -> tuple[float, ...]:
    """Expected places passed up to each rung."""
    reached, total = 1.0, 0.0
    sums = [0.0]
    for (below, top), chance in zip(_SPANS, chances, strict=True):
        places = top - below
        power = chance**places
        total += reached * (chance * (1 - power) / (1 - chance) if chance < 1 - 1e-9 else places)
        reached *= power
        sums.append(total)
    return tuple(sums)


class _Record(ABC):
    """Both survivals of one request, or of all requests of one drafter; chances and curve when they are asked for."""

    __slots__ = ("_accepts", "_curve", "_doubt", "_keep", "_most", "_proposes")

    def __init__(self, rounds: int, fresh: float) -> None:
        self._proposes, self._accepts = _Survival(), _Survival()
        self._keep, self._most = 1 - 1 / rounds, fresh
        self._curve: Curve | None = None
        self._doubt = 1.0  # chance of the failures since the last success, if what is known holds

    def add(self, proposed: int, accepted: int, gamma: int, probe: bool) -> None:
        """A round that is over: ``accepted`` of ``proposed`` drafts, of at most ``gamma``.

        ``probe``: nothing was drafted for a while; if it succeeds, what was known before counts for little now. So it
        does once so many rounds failed in a row as what was known makes very unlikely.
        """
        if accepted:
            surprised, self._doubt = probe, 1.0
        else:
            self._doubt *= max(0.0, 1 - self.curve.accepted[1])
            surprised = self._doubt < _UNLIKELY
        if surprised:
            self._doubt = 1.0
        most = self._most if surprised else None
        self._proposes.add(proposed, min(proposed + 1, gamma), self._keep, most)
        self._accepts.add(accepted, min(accepted + 1, gamma), self._keep, most)
        self._curve = None

    @property
    def curve(self) -> Curve:
        if self._curve is None:
            proposes, accepts = self.chances()
            self._curve = Curve(_sums(proposes), _sums(accepts), 1 - proposes[0])
        return self._curve

    @abstractmethod
    def chances(self) -> tuple[list[float], list[float]]:
        """Per span, the chance that a block which came to a place has a draft there, and that one is accepted there."""


class DrafterRecord(_Record):
    """What all requests of one drafter showed: the prior of each of them."""

    __slots__ = ("_chances",)

    def __init__(self) -> None:
        super().__init__(_ROUNDS_OF_DRAFTER, _FRESH_OF_DRAFTER)
        self._chances: tuple[list[float], list[float]] | None = None

    def add(self, proposed: int, accepted: int, gamma: int, probe: bool) -> None:
        super().add(proposed, accepted, gamma, probe)
        self._chances = None

    def chances(self) -> tuple[list[float], list[float]]:
        if self._chances is None:
            self._chances = self._proposes.chances(_PROPOSES), self._accepts.chances(_ACCEPTS)
        return self._chances


class RequestRecord(_Record):
    """What one request showed, drawn to its drafter's record where it showed little."""

    __slots__ = ("_drafter", "_seen")

    def __init__(self, drafter: DrafterRecord) -> None:
        super().__init__(_ROUNDS, _FRESH)
        self._drafter = drafter
        self._seen = False

    def add(self, proposed: int, accepted: int, gamma: int, probe: bool) -> None:
        super().add(proposed, accepted, gamma, probe)
        self._drafter.add(proposed, accepted, gamma, probe)
        self._seen = True

    @property
    def curve(self) -> Curve:
        return super().curve if self._seen else self._drafter.curve

    def chances(self) -> tuple[list[float], list[float]]:
        proposes, accepts = self._drafter.chances()
        return self._proposes.chances(proposes[0], proposes), self._accepts.chances(accepts[0], accepts)


class WholeRecord:
    """What rounds brought and cost in which a drafter that sizes its blocks itself had all it asked for.

    Such a block says little about a smaller one, and blocks of one drafter differ in kind (a tree costs little a draft,
    a chain of the quantised copy much), so nothing but the sums of whole rounds is kept, older ones counting less: of
    this request, drawn to those of all requests of the drafter.
    """

    __slots__ = ("_drafter", "_keep", "_sums", "_weight", "known")

    def __init__(self, drafter: WholeRecord | None = None) -> None:
        """``drafter``: the record of all requests of the drafter; None: this is one."""
        self._drafter = drafter
        self._keep = 1 - 1 / (_ROUNDS_OF_DRAFTER if drafter is None else _ROUNDS)
        self._weight = _OF_NOTHING if drafter is None else 0.0
        drafts, kept, spent = (self._weight * value for value in _WHOLE)
        self._sums = drafts, kept, spent
        self.known: bool = drafter is not None and drafter.known  # is there more than a guess?

    def add(self, proposed: int, accepted: int, seconds: float, probe: bool) -> None:
        """``probe``: nothing was drafted for a while; if it succeeds, what was known before counts for little now."""
        fresh = _FRESH_OF_DRAFTER if self._drafter is None else _FRESH
        keep = min(1.0, fresh / max(self._weight, 1e-9)) if probe and accepted else self._keep
        self._weight = keep * self._weight + 1
        drafts, kept, spent = (keep * value for value in self._sums)
        self._sums = drafts + proposed, kept + accepted, spent + seconds
        self.known = True
        if self._drafter is not None:
            self._drafter.add(proposed, accepted, seconds, probe)

    @property
    def means(self) -> tuple[float, float, float]:
        """Drafts, accepted drafts and seconds of drafting of a round."""
        total, sums = self._weight, self._sums
        if self._drafter is not None:
            total += _OF_DRAFTER
            drafts, kept, spent = (own + _OF_DRAFTER * m for own, m in zip(sums, self._drafter.means, strict=True))
            sums = drafts, kept, spent
        return sums[0] / total, sums[1] / total, sums[2] / total
