"""Many short requests with faults of every kind: nothing leaks, nobody is left waiting, and the usage adds up.

The long version, 2,000 requests and a flat resident memory, is `make soak`.
"""

from __future__ import annotations

import gc
import random
import time
from collections import Counter
from collections.abc import Sequence as Seq

import psutil
import pytest
from torch import Tensor

from constrained_spec.drafters.base import Drafter, Proposal
from constrained_spec.drafters.forced import ForcedDrafter
from constrained_spec.drafters.mixture import MixtureDrafter
from constrained_spec.drafters.model import ModelDrafter
from constrained_spec.drafters.ngram import NgramDrafter
from constrained_spec.engine.controller import Controller
from constrained_spec.engine.job import Job
from constrained_spec.engine.scheduler import Scheduler
from constrained_spec.engine.worker import Worker
from constrained_spec.errors import DeadEndError, DeadlineError, OverloadedError, RequestCancelled, RequestError
from constrained_spec.processors.base import Position
from constrained_spec.processors.pipeline import Pipeline
from tests.engine.serving import CONSTRAINTS, Listener, LookAhead, job_of, toy
from tests.engine.test_scheduler import Poisoned

SLOTS, QUEUE = 4, 8
WAIT = 120.0


class Flaky(LookAhead):
    """Raises every seventh time it is asked."""

    asked = 0

    def propose(self, proposals: Seq[Proposal]) -> None:
        self.asked += 1
        if self.asked % 7 == 0:
            raise OSError("flaky")
        super().propose(proposals)


class Breaks:
    """A processor that fails at its third token."""

    def __call__(self, logits: Tensor, positions: Seq[Position]) -> Tensor:
        if any(p.output_index >= 3 for p in positions):
            raise ValueError("broken processor")
        return logits


class World:
    """One worker under load, and what came of each request."""

    def __init__(self) -> None:
        plain = toy(1)
        self.model = Poisoned(plain.vocabulary.tokens, plain._logits, eos_ids=(0, 1), slots=SLOTS, capacity=96)
        self.pipeline = Pipeline(self.model.vocabulary)
        self.draft = ModelDrafter(toy(SLOTS), self.pipeline, self.model.vocabulary)
        self.flaky = Flaky(self.pipeline)
        self.worker = Worker(
            lambda: Scheduler(
                self.model, self.pipeline, prefill_chunk=16, prefix_reuse=True, controller=Controller()
            ),
            queue=QUEUE,
        )  # fmt: skip
        self.ends: Counter[str] = Counter()
        self.committed = 0
        self.refused = 0

    def serve(self, count: int, rng: random.Random) -> None:
        """``count`` requests, as fast as the queue takes them."""
        open_: list[tuple[str, Job, Listener]] = []
        for _ in range(count):
            kind, job, heard = self._request(rng)
            while True:
                try:
                    self.worker.submit(job)
                    break
                except OverloadedError:
                    self.refused += 1
                    self._wait(*open_.pop(0))
            if kind == "cancel":
                self.worker.cancel(job)
            open_.append((kind, job, heard))
        for entry in open_:
            self._wait(*entry)

    def _request(self, rng: random.Random) -> tuple[str, Job, Listener]:
        kind = rng.choice(["plain"] * 6 + ["cancel", "deadline", "processor", "nan", "priority", "flaky"])
        ngram = NgramDrafter()
        mixture = MixtureDrafter([ForcedDrafter(ngram), ngram, self.draft])
        drafter: Drafter = self.draft if rng.random() < 0.5 else mixture
        prompt = [10 + k for k in range(rng.choice([3, 3, 40]))] + [rng.randrange(2, 49)]
        job, heard = job_of(
            self.model, CONSTRAINTS[rng.choice(list(CONSTRAINTS))] if kind != "nan" else None,
            [*([Poisoned.POISON] if kind == "nan" else []), *prompt],
            drafter=self.flaky if kind == "flaky" else drafter, seed=rng.randrange(1000), gamma=rng.choice([1, 4]),
            mode=rng.choice(["auto", "fixed"]), temperature=rng.choice([0.0, 1.0]), max_tokens=rng.choice([4, 12]),
            processors=(Breaks(),) if kind == "processor" else (), priority=int(kind == "priority"),
            deadline=time.monotonic() - 1 if kind == "deadline" else None,
        )  # fmt: skip
        return kind, job, heard

    def _wait(self, kind: str, job: Job, heard: Listener) -> None:
        assert heard.over.wait(WAIT), f"a request of kind {kind} is stuck"
        self.committed += len(heard.tokens)
        error = heard.error
        if error is None:
            self.ends["finished"] += 1
            assert job.sequence is not None
            assert job.sequence.output == heard.tokens
        else:
            expected = {
                "cancel": RequestCancelled, "deadline": DeadlineError, "processor": RequestError, "nan": DeadEndError
            }  # fmt: skip
            assert kind in expected, error
            assert isinstance(error, expected[kind])
            self.ends[kind] += 1

    def assert_clean(self) -> None:
        assert self.worker.health().restarts == 0
        seen = self.worker.snapshot()
        assert (seen.running, seen.waiting, seen.free_slots, seen.kv_tokens) == (0, 0, SLOTS, 0)
        assert seen.completion_tokens == self.committed
        assert sum(seen.finished.values()) == self.ends.total()
        assert len(self.draft._free) == SLOTS
        assert not self.draft._caches
        assert not self.flaky.opened


def test_a_short_soak() -> None:
    world = World()
    world.serve(150, random.Random(1))
    world.assert_clean()
    assert set(world.ends) == {"finished", "cancel", "deadline", "processor", "nan"}
    assert world.refused > 0
    world.worker.close()


@pytest.mark.full
def test_a_long_soak_keeps_its_memory() -> None:
    world = World()
    rng = random.Random(2)
    world.serve(500, rng)  # caches fill, allocators settle
    process = psutil.Process()
    gc.collect()
    before = process.memory_info().rss
    world.serve(1500, rng)
    gc.collect()
    after = process.memory_info().rss
    world.assert_clean()
    print(f"{world.ends}, {world.refused} refused for a while, resident {before >> 20} -> {after >> 20} MiB")
    assert abs(after - before) <= 0.02 * before
    world.worker.close()
