"""Counters of an engine, for metrics and for finding leaks."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from constrained_spec.engine.job import Job
from constrained_spec.engine.round import RoundTimes
from constrained_spec.state.transaction import Commit


@dataclass(frozen=True, slots=True)
class Snapshot:
    """State of an engine at one moment. The first six are gauges, all else only grows.

    ``kv_tokens`` counts tokens in the slots of running requests. ``committed`` counts tokens by origin: a source of
    drafts, recovered or bonus. ``drafts`` are rounds of one request with at least one draft; ``rolled_back`` drafts
    that were not committed. ``accepted_by_position[i]`` counts the kept drafts at place i of their block.
    ``prompt_tokens`` and ``cached_tokens`` count at admission, ``finished`` requests by how they ended, ``fallbacks``
    what made decoding go on target-only. Seconds: ``propose_seconds`` is drafting with the ``mask_seconds``,
    ``verify_seconds`` pipeline and verdict, ``scheduler_seconds`` all else: planning, the controller, commits, events.
    """

    running: int
    waiting: int
    slots: int
    free_slots: int
    kv_tokens: int
    kv_capacity: int
    rounds: int
    steps: int
    committed: dict[str, int]
    drafts: int
    proposed: int
    accepted: int
    accepted_by_position: list[int]
    rolled_back: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    finished: dict[str, int]
    fallbacks: dict[str, int]
    preemptions: int
    forward_seconds: float
    propose_seconds: float
    verify_seconds: float
    mask_seconds: float
    scheduler_seconds: float


@dataclass(slots=True)
class Totals:
    """What a scheduler counts."""

    steps: int = 0
    rounds: int = 0
    committed: Counter[str] = field(default_factory=Counter)
    drafts: int = 0
    proposed: int = 0
    accepted: int = 0
    accepted_by_position: list[int] = field(default_factory=list)
    prompt_tokens: int = 0
    cached_tokens: int = 0
    finished: Counter[str] = field(default_factory=Counter)
    fallbacks: Counter[str] = field(default_factory=Counter)
    preemptions: int = 0
    forward: float = 0.0
    propose: float = 0.0
    verify: float = 0.0
    masks: float = 0.0
    scheduler: float = 0.0
    duration: float = 1.0  # seconds of a request from admission to its end, smoothed
    reasons: dict[str, str] = field(default_factory=dict)  # fallback -> the latest reason in words

    def admitted(self, job: Job) -> None:
        self.prompt_tokens += len(job.prompt)
        self.cached_tokens += job.cached

    def ended(self, job: Job, how: str) -> None:
        self.finished[how] += 1
        if job.times.admitted is not None and job.times.finished is not None:
            self.duration += 0.1 * (job.times.finished - job.times.admitted - self.duration)

    def committed_round(self, commit: Commit, proposed: int, accepted: int) -> None:
        """One request's part in a round: its counts grew by ``proposed`` and ``accepted`` drafts."""
        self.rounds += 1
        self.committed.update(commit.origins)
        self.drafts += proposed > 0
        self.proposed += proposed
        self.accepted += accepted
        grown = accepted - len(self.accepted_by_position)
        self.accepted_by_position += [0] * max(0, grown)
        for place in range(accepted):
            self.accepted_by_position[place] += 1

    def step(self, times: RoundTimes, total: float) -> None:
        """One step of the scheduler that took ``total`` seconds."""
        self.steps += 1
        self.forward += times.forward
        self.propose += times.propose
        self.verify += times.verify
        self.masks += times.masks
        self.scheduler += max(0.0, total - times.forward - times.propose - times.verify)

    def fallback(self, kind: str, reason: str) -> None:
        self.fallbacks[kind] += 1
        self.reasons[kind] = reason
