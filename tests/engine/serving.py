"""Requests on a scheduler, on a toy model whose logits hash the whole prefix: one leaked token changes everything."""

from __future__ import annotations

import threading
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import Any

from constrained_spec.backends.toy import ToyModel
from constrained_spec.coins import Coins
from constrained_spec.config import Sampling
from constrained_spec.drafters.base import Drafter, Proposal
from constrained_spec.engine.job import Job, RoundEvent
from constrained_spec.engine.scheduler import Scheduler
from constrained_spec.grammars.compile import Constraint, compile_constraint
from constrained_spec.processors.pipeline import Pipeline
from constrained_spec.state.sequence import Sequence
from tests.engine.test_commit_boundary import CONSTRAINTS, EOS, TOKENS, logits_of

CAPACITY = 96
__all__ = ["CAPACITY", "CONSTRAINTS", "Listener", "LookAhead", "job_of", "run", "solo", "toy"]


def toy(slots: int = 4, capacity: int = CAPACITY) -> ToyModel:
    return ToyModel(TOKENS, logits_of, eos_ids=EOS, slots=slots, capacity=capacity)


@dataclass
class Listener:
    """Keeps what a request is told, and checks that nothing comes after its end."""

    events: list[RoundEvent] = field(default_factory=list)
    error: Exception | None = None
    over: threading.Event = field(default_factory=threading.Event)

    def event(self, event: RoundEvent) -> None:
        assert not self.over.is_set()
        self.events.append(event)
        if event.finished:
            self.over.set()

    def failed(self, error: Exception) -> None:
        assert not self.over.is_set()
        self.error = error
        self.over.set()

    @property
    def tokens(self) -> list[int]:
        return [t for e in self.events for t in e.commit.tokens]

    @property
    def text(self) -> str:
        return "".join(e.text for e in self.events)


class LookAhead:
    """Drafts the target's own greedy continuation, every ``wrong``-th draft exchanged for another legal token."""

    name = "look-ahead"

    def __init__(self, pipeline: Pipeline, wrong: int = 3) -> None:
        self.pipeline, self.wrong = pipeline, wrong
        self.opened: set[int] = set()
        self.made = 0

    def open(self, sequence: Sequence) -> None:
        assert id(sequence) not in self.opened
        self.opened.add(id(sequence))

    def close(self, sequence: Sequence) -> None:
        self.opened.remove(id(sequence))

    def propose(self, proposals: Seq[Proposal]) -> None:
        for p in proposals:
            while p.room > 0:
                logits = logits_of(tuple(p.sequence.history.tokens)).unsqueeze(0)
                processed = self.pipeline.process(logits, [p.tx.position], [()])
                order = processed.logits[0].argsort(descending=True, stable=True).tolist()
                legal = [t for t in order if p.tx.is_legal(t)]
                self.made += 1
                if not p.point(legal[1 if self.made % self.wrong == 0 and len(legal) > 1 else 0], self.name):
                    break


def job_of(
    model: ToyModel, constraint: Constraint | None, prompt: Seq[int], *, seed: int = 0, drafter: Drafter | None = None,
    gamma: int = 4, **more: Any,
) -> tuple[Job, Listener]:  # fmt: skip
    """A request. Options of ``Sampling`` and of ``Job`` in ``more``."""
    options: dict[str, Any] = {"max_tokens": 24, "presence_penalty": 0.5, "stop": ("zz",)}
    options |= {k: more.pop(k) for k in list(more) if k in Sampling.__dataclass_fields__}
    grammar = None if constraint is None else compile_constraint(constraint, model.vocabulary)
    listener = Listener()
    job = Job(
        prompt=list(prompt), sampling=Sampling(**options), coins=Coins(seed), sink=listener,
        matcher=None if grammar is None else grammar.matcher(), drafter=drafter, gamma=gamma, **more,
    )  # fmt: skip
    return job, listener


def run(scheduler: Scheduler, *jobs: Job, limit: int = 2000) -> None:
    """Until nothing is left to do."""
    for job in jobs:
        scheduler.add(job)
    for _ in range(limit):
        if scheduler.idle:
            return
        scheduler.step()
    raise AssertionError("the scheduler does not come to an end")


def solo(constraint: Constraint | None, prompt: Seq[int], **options: Any) -> Listener:
    """The same request alone, target-only, on a model of its own."""
    model = toy(1, options.pop("capacity", CAPACITY))
    job, listener = job_of(model, constraint, prompt, **options | {"drafter": None, "mode": "off"})
    run(Scheduler(model, Pipeline(model.vocabulary)), job)
    assert listener.error is None
    return listener
