"""One request on its way through the scheduler: what was asked, its sequence once it has a slot, and what it cost."""

from __future__ import annotations

import time
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import Literal, Protocol

from constrained_spec.coins import Coins
from constrained_spec.config import Sampling
from constrained_spec.drafters.base import Drafter
from constrained_spec.engine.inspection import Inspection
from constrained_spec.engine.round import RoundTimes
from constrained_spec.grammars.base import Matcher
from constrained_spec.processors.base import Processor
from constrained_spec.state.sequence import Sequence, TokenLogprob
from constrained_spec.state.transaction import Commit

Mode = Literal["off", "fixed", "auto"]


@dataclass(slots=True)
class Times:
    """Seconds of one request. Rounds are shared: each counts in full for every request that took part."""

    submitted: float = field(default_factory=time.perf_counter)  # points in time, all four
    admitted: float | None = None
    first: float | None = None
    finished: float | None = None
    forward: float = 0.0  # target forwards, all rounds
    propose: float = 0.0  # drafting, draft forwards included
    draft: float = 0.0  # draft forwards
    overheads: list[float] = field(default_factory=list)  # per round: neither forwards nor masks

    def add(self, times: RoundTimes) -> None:
        self.forward += times.forward
        self.propose += times.propose
        self.draft += times.draft
        self.overheads.append(times.overhead)


@dataclass(frozen=True, slots=True)
class RoundEvent:
    """What one round committed, and the text it released (never retracted, never a partial character).

    ``at`` is the point of ``time.perf_counter`` when it did.
    """

    commit: Commit
    text: str
    finished: bool
    at: float
    logprobs: tuple[TokenLogprob, ...] = ()
    inspection: Inspection | None = None


class Sink(Protocol):
    """Where a request's events go. Called on the engine's thread, so it must not block."""

    def event(self, event: RoundEvent) -> None: ...

    def failed(self, error: Exception) -> None:
        """The last call; nothing of an unfinished round was ever an event."""
        ...


@dataclass(slots=True, eq=False, kw_only=True)
class Job:
    """One request. ``drafter`` None or ``mode`` "off" is target-only; ``gamma`` bounds the drafts of a round.

    ``deadline`` is a point of ``time.monotonic``. Of several waiting requests the one of highest ``priority`` goes
    first, then the oldest. ``namespace`` bounds whose slots its prompt may be found in.
    """

    prompt: Seq[int]
    sampling: Sampling
    coins: Coins
    sink: Sink
    matcher: Matcher | None = None
    processors: Seq[Processor] = ()
    drafter: Drafter | None = None
    gamma: int = 0
    mode: Mode = "fixed"
    verifier: str = "coupling"
    priority: int = 0
    deadline: float | None = None
    namespace: str = ""
    inspect: bool = False
    disabled: Mapping[str, str] = field(default_factory=dict)  # drafters it does without, and why

    number: int = -1  # given by the scheduler, in order of arrival
    sequence: Sequence | None = None
    shown: int = 0  # characters released
    cached: int = 0  # prompt tokens that needed no forward
    preemptions: int = 0
    closed_out: bool = False  # it had to do without drafts in a round, because of the load
    gave_up: bool = False  # the controller found, at least once, that its drafts do not pay
    times: Times = field(default_factory=Times)

    @property
    def order(self) -> tuple[int, int]:
        """Smaller goes first."""
        return -self.priority, self.number

    @property
    def tokens(self) -> Seq[int]:
        """Prompt, and what is committed."""
        return self.prompt if self.sequence is None else self.sequence.history.tokens

    def release(self) -> str:
        """Text that became certain since the last call."""
        assert self.sequence is not None
        piece = self.sequence.visible_text(self.shown)
        self.shown += len(piece)
        return piece
