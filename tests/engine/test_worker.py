"""The engine's thread, as callers of many kinds meet it: threads, event loops, and its end."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from torch import Tensor

from constrained_spec.backends.base import Block
from constrained_spec.backends.toy import ToyModel
from constrained_spec.engine.scheduler import Scheduler
from constrained_spec.engine.worker import Worker
from constrained_spec.errors import EngineError, OverloadedError, RequestCancelled
from constrained_spec.processors.pipeline import Pipeline
from tests.engine.serving import CONSTRAINTS, Listener, LookAhead, job_of, solo, toy

PROMPT = [10, 20, 30]
WAIT = 60.0  # seconds that a test waits before it fails


class Gate(ToyModel):
    """A forward waits until the gate is open."""

    def __init__(self, slots: int = 1) -> None:
        plain = toy(1)
        super().__init__(plain.vocabulary.tokens, plain._logits, eos_ids=(0, 1), slots=slots, capacity=96)
        self.open = threading.Event()
        self.inside = threading.Event()

    def score(self, blocks: Sequence[Block]) -> Tensor:
        self.inside.set()
        assert self.open.wait(WAIT)
        return super().score(blocks)


def worker_of(model: ToyModel, **options: Any) -> Worker:
    return Worker(lambda: Scheduler(model, Pipeline(model.vocabulary)), **options)


@pytest.fixture
def gate() -> Iterator[tuple[Gate, Worker]]:
    model = Gate()
    worker = worker_of(model, queue=1)
    yield model, worker
    model.open.set()
    worker.close()


def wait(listener: Listener) -> Listener:
    assert listener.over.wait(WAIT)
    return listener


def test_many_threads_submit_at_once() -> None:
    model = toy(3)
    worker = worker_of(model)
    drafter = LookAhead(Pipeline(model.vocabulary))
    names = [name for name in CONSTRAINTS for _ in range(6)]
    jobs = [job_of(model, CONSTRAINTS[name], [10 + i], drafter=drafter) for i, name in enumerate(names)]
    threads = [threading.Thread(target=worker.submit, args=(job,)) for job, _ in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i, (name, (_, listener)) in enumerate(zip(names, jobs, strict=True)):
        assert wait(listener).tokens == solo(CONSTRAINTS[name], [10 + i]).tokens
    worker.close()
    assert not drafter.opened
    assert worker.snapshot().free_slots == 3


def test_a_full_queue_says_when_to_come_again(gate: tuple[Gate, Worker]) -> None:
    model, worker = gate
    first, heard = job_of(model, None, PROMPT)
    worker.submit(first)
    assert model.inside.wait(WAIT)
    second, told = job_of(model, None, PROMPT)
    worker.submit(second)
    third, _ = job_of(model, None, PROMPT)
    with pytest.raises(OverloadedError) as refused:
        worker.submit(third)
    assert refused.value.retry_after >= 1
    model.open.set()
    assert wait(heard).error is None
    assert wait(told).error is None


def test_a_request_is_cancelled_within_a_round(gate: tuple[Gate, Worker]) -> None:
    model, worker = gate
    job, heard = job_of(model, None, PROMPT, max_tokens=80, ignore_eos=True, stop=())
    worker.submit(job)
    assert model.inside.wait(WAIT)
    worker.cancel(job)
    model.open.set()
    assert isinstance(wait(heard).error, RequestCancelled)
    assert len(heard.events) == 1  # of the round that was under way


class Breaks(Scheduler):
    """Its own code fails in the first step after ``armed``."""

    armed = threading.Event()

    def step(self) -> None:
        if self.armed.is_set():
            self.armed.clear()
            raise ZeroDivisionError("a fault of ours")
        super().step()


def test_a_broken_thread_fails_what_is_pending_and_restarts_once() -> None:
    model = Gate(2)
    pipeline = Pipeline(model.vocabulary)
    drafter = LookAhead(pipeline)
    worker = Worker(lambda: Breaks(model, pipeline))
    assert worker.health().status == "ready"

    def crash() -> None:
        model.open.clear()
        model.inside.clear()
        pending = [job_of(model, None, PROMPT, max_tokens=60, ignore_eos=True, drafter=drafter) for _ in range(3)]
        for job, _ in pending:
            worker.submit(job)
        assert model.inside.wait(WAIT)
        Breaks.armed.set()
        model.open.set()
        for _, listener in pending:
            error = wait(listener).error
            assert isinstance(error, EngineError)
            assert "a fault of ours" in str(error)
        assert not drafter.opened

    crash()
    short, heard = job_of(model, CONSTRAINTS["lark"], PROMPT)
    worker.submit(short)
    assert wait(heard).tokens == solo(CONSTRAINTS["lark"], PROMPT).tokens
    health = worker.health()
    assert (health.status, health.restarts) == ("ready", 1)
    assert health.reason is not None
    assert "a fault of ours" in health.reason

    crash()
    assert worker.health().status == "failed"
    with pytest.raises(EngineError, match="has failed"):
        worker.submit(job_of(model, None, PROMPT)[0])
    worker.close()


def test_a_restart_that_fails_is_told() -> None:
    model = Gate(1)
    made: list[Scheduler] = []

    def build() -> Scheduler:
        if made:
            raise MemoryError("no room for a second one")
        made.append(Breaks(model, Pipeline(model.vocabulary)))
        return made[0]

    worker = Worker(build)
    job, heard = job_of(model, None, PROMPT, max_tokens=60, ignore_eos=True)
    worker.submit(job)
    assert model.inside.wait(WAIT)
    Breaks.armed.set()
    model.open.set()
    assert isinstance(wait(heard).error, EngineError)
    health = worker.health()
    assert (health.status, health.restarts) == ("failed", 0)
    assert health.reason is not None
    assert "no room for a second one" in health.reason
    with pytest.raises(EngineError, match="has failed"):
        worker.submit(job_of(model, None, PROMPT)[0])


def test_closing_drains() -> None:
    model = toy(1)
    worker = worker_of(model)
    jobs = [job_of(model, None, [10 + i], max_tokens=8, ignore_eos=True, stop=()) for i in range(4)]
    for job, _ in jobs:
        worker.submit(job)
    worker.close()
    assert all(len(listener.tokens) == 8 for _, listener in jobs)
    assert worker.health().status == "closed"
    with pytest.raises(EngineError, match="closed"):
        worker.submit(job_of(model, None, PROMPT)[0])


def test_closing_without_draining_cancels(gate: tuple[Gate, Worker]) -> None:
    model, worker = gate
    job, heard = job_of(model, None, PROMPT, max_tokens=80, ignore_eos=True)
    worker.submit(job)
    assert model.inside.wait(WAIT)
    closing = threading.Thread(target=worker.close, kwargs={"drain": False})
    closing.start()
    model.open.set()
    closing.join(WAIT)
    assert isinstance(wait(heard).error, RequestCancelled)


def test_closing_waits_no_longer_than_it_may() -> None:
    model = Gate()
    worker = worker_of(model)
    job, heard = job_of(model, None, PROMPT, max_tokens=80, ignore_eos=True)
    worker.submit(job)
    assert model.inside.wait(WAIT)
    threading.Timer(0.2, model.open.set).start()
    worker.close(drain=True, timeout=0.05)
    assert isinstance(wait(heard).error, RequestCancelled)


def test_a_call_runs_between_rounds(gate: tuple[Gate, Worker]) -> None:
    model, worker = gate
    model.open.set()
    name = worker.call(lambda: threading.current_thread().name)
    assert name == "constrained-spec-engine"
    with pytest.raises(KeyError):
        worker.call(lambda: os.environ["NO_SUCH_VARIABLE_HERE"])
