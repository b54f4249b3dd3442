"""The held-out figures of a part: acceptance by position, tokens per target pass, and what a draft costs."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import Any

from constrained_spec.backends.base import Block
from constrained_spec.backends.transformers import TransformersModel
from constrained_spec.coins import Coins
from constrained_spec.config import Sampling
from constrained_spec.drafters.base import Proposal
from constrained_spec.drafters.heads import HeadDrafter
from constrained_spec.engine.round import Row, run_round
from constrained_spec.errors import DeadEndError
from constrained_spec.grammars.compile import compile_constraint
from constrained_spec.grammars.output_types import to_constraint
from constrained_spec.processors.pipeline import Pipeline
from constrained_spec.state.sequence import Sequence
from constrained_spec.training.prompts import TURN, Task, tasks

HELD_OUT_SEED = 990_001  # no training set is made from this one


@dataclass(slots=True)
class _Tally:
    """Counts over rounds with at least one draft, and all rounds."""

    reached: list[int] = field(default_factory=list)  # by position: drafts whose forerunners were all kept
    kept: list[int] = field(default_factory=list)
    tokens: int = 0
    passes: int = 0

    def add(self, drafted: int, accepted: int, committed: int) -> None:
        for i in range(min(drafted, accepted + 1)):
            if i == len(self.reached):
                self.reached.append(0)
                self.kept.append(0)
            self.reached[i] += 1
            self.kept[i] += i < accepted
        self.tokens += committed
        self.passes += 1

    def facts(self) -> dict[str, Any]:
        return {
            "acceptance_by_position": [round(k / r, 3) for k, r in zip(self.kept, self.reached, strict=True)],
            "tokens_per_pass": round(self.tokens / max(1, self.passes), 3),
            "tokens": self.tokens,
        }


class _Counting:
    """The drafter under test with a clock, and the number of drafts that it made in the last round."""

    def __init__(self, inner: HeadDrafter) -> None:
        self.name, self.inner = inner.name, inner
        self.drafted = 0
        self.seconds = 0.0
        self.drafts = 0

    def open(self, sequence: Sequence) -> None:
        self.inner.open(sequence)

    def close(self, sequence: Sequence) -> None:
        self.inner.close(sequence)

    def propose(self, proposals: Seq[Proposal]) -> None:
        start = time.perf_counter()
        self.inner.propose(proposals)
        self.drafted = len(proposals[0].tokens)
        # A round without a draft is the first, in which the drafter only waits.
        if self.drafted:
            self.seconds += time.perf_counter() - start
            self.drafts += self.drafted


def evaluate(
    model: TransformersModel, drafter: HeadDrafter, *, gamma: int, per_kind: int = 6, seed: int = HELD_OUT_SEED
) -> dict[str, Any]:
    """Answer unseen prompts of every kind, greedy and at temperature 0.8, with this drafter alone.

    ``acceptance_by_position[i]`` is the share of drafts at place i that were kept, among those whose forerunners were.
    ``draft_ms`` is the whole of proposing by the number of drafts, ``target_ms`` one step of one row.
    """
    pipeline = Pipeline(model.vocabulary)
    counting = _Counting(drafter)
    out: dict[str, Any] = {"gamma": gamma, "by_kind": {}}
    chosen = _held_out(per_kind, seed)
    for temperature in (0.0, 0.8):
        total = _Tally()
        for kind, todo in chosen.items():
            own = _Tally()
            for number, task in enumerate(todo):
                _answer(model, pipeline, counting, task, temperature, number, gamma, (own, total))
            out["by_kind"].setdefault(kind, {})[_named(temperature)] = own.facts()
        out[_named(temperature)] = total.facts()
    target = _target_seconds(model)
    draft = counting.seconds / max(1, counting.drafts)
    out |= {"draft_ms": round(draft * 1e3, 3), "target_ms": round(target * 1e3, 3)}
    out["draft_share"] = round(draft / target, 3)
    return out


def _named(temperature: float) -> str:
    return "greedy" if temperature == 0 else f"temperature_{temperature}"


def _held_out(per_kind: int, seed: int) -> dict[str, list[Task]]:
    found: dict[str, list[Task]] = {}
    for task in tasks(seed, per_kind * TURN):
        if not task.messages:
            continue
        mine = found.setdefault(task.kind, [])
        if len(mine) < per_kind:
            mine.append(task)
    return found


def _answer(
    model: TransformersModel,
    pipeline: Pipeline,
    drafter: _Counting,
    task: Task,
    temperature: float,
    number: int,
    gamma: int,
    tallies: Seq[_Tally],
) -> None:
    prompt = model.chat_prompt(task.messages)
    if len(prompt) + task.max_tokens > model.capacity:
        return
    constraint = to_constraint(task.output_type)
    grammar = None if constraint is None else compile_constraint(constraint, model.vocabulary)
    model.set_length(0, 0)
    sequence = Sequence(
        prompt=prompt,
        sampling=Sampling(max_tokens=min(96, task.max_tokens), temperature=temperature),
        coins=Coins(number),
        vocabulary=model.vocabulary,
        target=model,
        slot=0,
        capacity=model.capacity,
        matcher=None if grammar is None else grammar.matcher(),
    )
    drafter.open(sequence)
    try:
        while not sequence.finished:
            drafter.drafted = 0
            before = sequence.counts.accepted
            [outcome] = run_round(model, pipeline, [Row(sequence, drafter, gamma, "coupling")]).outcomes
            if isinstance(outcome, DeadEndError):
                return
            if isinstance(outcome, Exception):
                raise outcome
            if sequence.counts.rounds > 1:  # the first reads the prompt
                for tally in tallies:
                    tally.add(drafter.drafted, sequence.counts.accepted - before, len(outcome.tokens))
        assert not sequence.disabled, sequence.disabled
    finally:
        drafter.close(sequence)


def _target_seconds(model: TransformersModel) -> float:
    ids = [i * 7919 % model.vocabulary.size for i in range(min(128, model.capacity // 2))]
    model.set_length(0, 0)
    model.score([Block(0, ids, want=1)])
    times = []
    for _ in range(12):
        start = time.perf_counter()
        model.score([Block(0, ids[:1], want=1)])
        times.append(time.perf_counter() - start)
        model.set_length(0, len(ids))
    model.set_length(0, 0)
    return statistics.median(times)
