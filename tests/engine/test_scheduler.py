"""The scheduler: who shares a forward, who waits, and that nobody's text depends on it."""

from __future__ import annotations

import time
from collections.abc import Sequence as Seq
from typing import Any

import pytest
import torch
from torch import Tensor

from constrained_spec.backends.base import Block
from constrained_spec.backends.toy import ToyModel
from constrained_spec.drafters.base import Proposal
from constrained_spec.drafters.forced import ForcedDrafter
from constrained_spec.drafters.mixture import MixtureDrafter
from constrained_spec.drafters.ngram import NgramDrafter
from constrained_spec.drafters.prediction import PredictionDrafter
from constrained_spec.engine.scheduler import Scheduler
from constrained_spec.errors import DeadEndError, DeadlineError, EngineError, RequestCancelled, RequestError
from constrained_spec.processors.base import Position
from constrained_spec.processors.pipeline import Pipeline
from constrained_spec.state.sequence import Sequence
from tests.engine.serving import CONSTRAINTS, LookAhead, job_of, run, solo, toy

PROMPT = [10, 20, 30]


def scheduler_of(model: ToyModel, **options: Any) -> Scheduler:
    return Scheduler(model, Pipeline(model.vocabulary), **options)


class Recording(ToyModel):
    """Keeps the blocks of every forward."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.forwards: list[list[Block]] = []

    def score(self, blocks: Seq[Block]) -> Tensor:
        self.forwards.append(list(blocks))
        return super().score(blocks)


def recording(slots: int, capacity: int = 96) -> Recording:
    plain = toy(1, capacity)
    return Recording(plain.vocabulary.tokens, plain._logits, eos_ids=(0, 1), slots=slots, capacity=capacity)


# ---- batching ------------------------------------------------------------------------------------------------------


def test_requests_share_every_forward() -> None:
    model = recording(4)
    jobs = [job_of(model, c, [10 + i], mode="off") for i, c in enumerate(CONSTRAINTS.values()) if i < 4]
    scheduler = scheduler_of(model)
    run(scheduler, *(job for job, _ in jobs))
    longest = max(len(listener.events) for _, listener in jobs)
    assert len(model.forwards) == longest
    assert len(model.forwards[0]) == 4
    for i, (_, listener) in enumerate(jobs):
        assert listener.tokens == solo(list(CONSTRAINTS.values())[i], [10 + i]).tokens


def test_speculation_does_not_change_a_text_and_saves_rounds() -> None:
    model = toy(3)
    pipeline = Pipeline(model.vocabulary)
    drafter = LookAhead(pipeline)
    jobs = [
        job_of(model, c, PROMPT, drafter=drafter, gamma=g)
        for c, g in zip(CONSTRAINTS.values(), (2, 4, 8, 8, 16), strict=True)
    ]
    run(Scheduler(model, pipeline), *(job for job, _ in jobs))
    rounds = [0, 0]
    for (job, listener), constraint in zip(jobs, CONSTRAINTS.values(), strict=True):
        alone = solo(constraint, PROMPT)
        assert listener.tokens == alone.tokens
        assert listener.text == alone.text
        rounds[0] += len(listener.events)
        rounds[1] += len(alone.events)
        assert job.sequence is not None and job.sequence.finished
    assert rounds[0] < rounds[1] / 2
    assert not drafter.opened


def test_those_that_wait_go_by_priority_and_then_by_age() -> None:
    model = toy(1)
    order: list[int] = []

    class Told:
        def __init__(self, name: int) -> None:
            self.name = name

        def event(self, event: object) -> None:
            if not order or order[-1] != self.name:
                order.append(self.name)

        def failed(self, error: Exception) -> None:
            raise error

    jobs = []
    for name, priority in enumerate((0, 1, 0, 2, 1)):
        job, _ = job_of(model, None, [10 + name], max_tokens=3, ignore_eos=True, priority=priority)
        job.sink = Told(name)
        jobs.append(job)
    run(scheduler_of(model), *jobs)
    assert order == [3, 1, 4, 0, 2]


# ---- prompts in chunks ---------------------------------------------------------------------------------------------


def test_a_long_prompt_does_not_hold_up_the_others() -> None:
    model = recording(2, 300)
    scheduler = scheduler_of(model, prefill_chunk=16)
    quick, heard = job_of(model, None, PROMPT, max_tokens=40, ignore_eos=True, mode="off", stop=())
    long, told = job_of(model, None, [10 + i % 50 for i in range(200)], max_tokens=4, ignore_eos=True, stop=())
    scheduler.add(quick)
    scheduler.step()
    scheduler.add(long)
    run(scheduler)
    assert len(heard.events) == 40  # a token in every round, the long prompt's included
    assert max(sum(len(b.tokens) for b in f) for f in model.forwards) <= 17
    assert told.tokens == solo(None, long.prompt, max_tokens=4, ignore_eos=True, stop=(), capacity=300).tokens


def test_alone_a_prompt_is_one_block() -> None:
    model = recording(2, 300)
    job, _ = job_of(model, None, [10 + i % 50 for i in range(200)], max_tokens=2, ignore_eos=True)
    run(scheduler_of(model, prefill_chunk=16), job)
    assert [len(f[0].tokens) for f in model.forwards] == [200, 1]


def test_two_prompts_share_the_chunk() -> None:
    model = recording(2, 300)
    jobs = [job_of(model, None, [10 + k + i % 50 for i in range(60)], max_tokens=2, ignore_eos=True) for k in (0, 7)]
    run(scheduler_of(model, prefill_chunk=24), *(job for job, _ in jobs))
    for forward in model.forwards:
        assert sum(len(b.tokens) for b in forward) <= 26
    for job, listener in jobs:
        assert listener.tokens == solo(None, job.prompt, max_tokens=2, ignore_eos=True, capacity=300).tokens


# ---- common beginnings ---------------------------------------------------------------------------------------------


LONG = [10 + i % 60 for i in range(50)]


def test_a_prompt_that_begins_as_a_finished_one_is_not_written_again() -> None:
    model = recording(2, 200)
    scheduler = scheduler_of(model, prefix_reuse=True)
    first, _ = job_of(model, None, LONG, max_tokens=5, ignore_eos=True)
    run(scheduler, first)
    model.forwards.clear()
    second, heard = job_of(model, None, [*LONG, 70, 71], max_tokens=5, ignore_eos=True)
    run(scheduler, second)
    assert second.cached == len(LONG)
    assert len(model.forwards[0][0].tokens) == 2
    assert heard.tokens == solo(None, second.prompt, max_tokens=5, ignore_eos=True, capacity=200).tokens
    assert scheduler.snapshot().cached_tokens == len(LONG)


def test_a_running_request_lends_its_beginning() -> None:
    model = recording(3, 200)
    scheduler = scheduler_of(model, prefix_reuse=True)
    jobs = [job_of(model, None, LONG, seed=i, max_tokens=6, ignore_eos=True, temperature=1.0) for i in range(3)]
    run(scheduler, *(job for job, _ in jobs))
    assert [job.cached for job, _ in jobs] == [0, 49, 49]  # the second waits for the first to write it
    for i, (_, listener) in enumerate(jobs):
        alone = solo(None, LONG, seed=i, max_tokens=6, ignore_eos=True, temperature=1.0, capacity=200)
        assert listener.tokens == alone.tokens


def test_nothing_is_shared_across_namespaces_nor_without_the_option() -> None:
    for options, namespaces in (({"prefix_reuse": True}, ("a", "b")), ({}, ("a", "a"))):
        model = recording(2, 200)
        scheduler = scheduler_of(model, **options)
        for namespace in namespaces:
            job, _ = job_of(model, None, LONG, max_tokens=3, ignore_eos=True, namespace=namespace)
            run(scheduler, job)
            assert job.cached == 0
        assert scheduler.snapshot().cached_tokens == 0


# ---- leaving early -------------------------------------------------------------------------------------------------


def test_a_cancelled_request_frees_its_slot_at_once() -> None:
    model = toy(1)
    scheduler = scheduler_of(model)
    drafter = LookAhead(Pipeline(model.vocabulary))
    first, heard = job_of(model, None, PROMPT, max_tokens=60, ignore_eos=True, drafter=drafter)
    second, told = job_of(model, CONSTRAINTS["regex"], PROMPT)
    scheduler.add(first)
    scheduler.add(second)
    scheduler.step()
    scheduler.cancel(first)
    assert isinstance(heard.error, RequestCancelled)
    assert not drafter.opened
    run(scheduler)
    scheduler.cancel(first)
    assert told.tokens == solo(CONSTRAINTS["regex"], PROMPT).tokens
    assert scheduler.snapshot().finished == {"cancelled": 1, "stop": 1}
    assert scheduler.free_slots == 1


def test_a_deadline_ends_a_running_and_a_waiting_request() -> None:
    model = toy(1)
    scheduler = scheduler_of(model)
    running, heard = job_of(model, None, PROMPT, max_tokens=60, ignore_eos=True, deadline=time.monotonic() + 1e6)
    waiting, told = job_of(model, None, PROMPT, deadline=time.monotonic() - 1)
    scheduler.add(running)
    scheduler.step()
    running.deadline = time.monotonic() - 1
    scheduler.add(waiting)
    scheduler.step()
    assert isinstance(heard.error, DeadlineError)
    assert isinstance(told.error, DeadlineError)
    assert scheduler.idle


@pytest.mark.parametrize("constraint", CONSTRAINTS)
@pytest.mark.parametrize("verifier", ["coupling", "invariant"])
def test_a_preempted_request_goes_on_without_repeating_anything(constraint: str, verifier: str) -> None:
    model = toy(1)
    pipeline = Pipeline(model.vocabulary)
    scheduler = Scheduler(model, pipeline)
    sampled: dict[str, Any] = (
        {"temperature": 0.9, "seed": 3, "verifier": "invariant"} if verifier == "invariant" else {}
    )
    ngram = NgramDrafter()
    drafter = MixtureDrafter([PredictionDrafter(b"abab"), ForcedDrafter(ngram), ngram, LookAhead(pipeline)])
    low, heard = job_of(model, CONSTRAINTS[constraint], PROMPT, drafter=drafter, gamma=2, **sampled)
    alone = solo(CONSTRAINTS[constraint], PROMPT, **sampled)
    scheduler.add(low)
    rounds = followers = 0
    while not heard.over.is_set():
        scheduler.step()
        rounds += 1
        assert low.sequence is not None
        followers = followers or len(low.sequence.lagging)
        assert len(low.sequence.lagging) in (2, followers)  # those of a closed drafter are gone
        if not heard.over.is_set():
            high, told = job_of(model, None, [40 + rounds], max_tokens=2, ignore_eos=True, priority=1)
            scheduler.add(high)
            scheduler.step()
            assert low.preemptions == rounds
            scheduler.step()
            assert told.over.is_set() and told.error is None
    assert heard.tokens == alone.tokens
    assert heard.text == alone.text
    assert scheduler.snapshot().preemptions == low.preemptions


# ---- one fails, the others do not ----------------------------------------------------------------------------------


class Raises:
    name = "raises"

    def __init__(self, after: int) -> None:
        self.after = after

    def __call__(self, logits: Tensor, positions: Seq[Position]) -> Tensor:
        if any(p.output_index >= self.after for p in positions):
            raise ValueError("no")
        return logits


def test_a_processor_that_raises_fails_its_own_request() -> None:
    model = toy(3)
    scheduler = scheduler_of(model)
    bad, heard = job_of(model, None, [40], ignore_eos=True, processors=(Raises(2),), stop=())
    good = [job_of(model, c, PROMPT, drafter=LookAhead(Pipeline(model.vocabulary))) for c in CONSTRAINTS.values()]
    run(scheduler, bad, *(job for job, _ in good))
    assert isinstance(heard.error, RequestError)
    assert len(heard.tokens) == 2
    for (_, listener), constraint in zip(good, CONSTRAINTS.values(), strict=True):
        assert listener.tokens == solo(constraint, PROMPT).tokens
    assert scheduler.snapshot().finished["error"] == 1


def test_a_failed_step_takes_back_the_pieces_of_prompts_that_it_wrote() -> None:
    model = toy(2, 300)
    scheduler = scheduler_of(model, prefill_chunk=16)
    bad, heard = job_of(model, None, [40], ignore_eos=True, processors=(Raises(2),), stop=())
    long, told = job_of(model, None, [10 + i % 50 for i in range(150)], max_tokens=6, ignore_eos=True, stop=())
    run(scheduler, bad, long)
    assert isinstance(heard.error, RequestError)
    assert told.tokens == solo(None, long.prompt, max_tokens=6, ignore_eos=True, stop=(), capacity=300).tokens


class BreaksAtCommit(NgramDrafter):
    """Follows its sequence with something that cannot."""

    name = "breaks-at-commit"

    def open(self, sequence: Sequence) -> None:
        class Follower:
            def mark(self) -> int:
                return 0

            def advance(self, token: int) -> None:
                raise ArithmeticError("cannot follow")

            def rollback(self, mark: int) -> None:
                pass

            def fingerprint(self) -> bytes:
                return b""

        super().open(sequence)
        sequence.follow(Follower())


def test_a_commit_that_breaks_fails_its_own_row_and_no_committed_one() -> None:
    model = toy(3)
    jobs = [
        job_of(model, CONSTRAINTS["regex"], [10 + i], drafter=BreaksAtCommit() if i == 1 else None) for i in range(3)
    ]
    run(scheduler_of(model), *(job for job, _ in jobs))
    for i, (_, listener) in enumerate(jobs):
        if i == 1:
            assert isinstance(listener.error, EngineError)
            assert not listener.events
        else:
            assert listener.tokens == solo(CONSTRAINTS["regex"], [10 + i]).tokens
    assert scheduler_of(model).free_slots == 3


def test_a_prediction_is_followed_on_after_a_preemption() -> None:
    model = toy(1)
    options: dict[str, Any] = {"max_tokens": 60, "ignore_eos": True, "stop": (), "presence_penalty": 0.0}
    alone = solo(None, PROMPT, **options)
    spelled = model.vocabulary.bytes_of(alone.tokens)
    rounds = []
    for preempted in (False, True):
        drafter = PredictionDrafter(spelled)
        job, heard = job_of(model, None, PROMPT, drafter=drafter, gamma=16, **options)
        scheduler = scheduler_of(model)
        scheduler.add(job)
        for step in range(100):
            if heard.over.is_set():
                break
            if preempted and step == 3:
                scheduler.preempt(job)
                assert job.sequence is not None
                drafter.open(job.sequence)
                place = drafter._alignments[id(job.sequence)].place
                assert place.at == len(model.vocabulary.bytes_of(job.sequence.output))
                drafter.close(job.sequence)
                job.sequence.forget_followers()
            scheduler.step()
        assert heard.tokens == alone.tokens
        rounds.append(len(heard.events))
    assert rounds[1] <= rounds[0] + 2


class Poisoned(ToyModel):
    """Logits of a prefix that begins with ``POISON`` are NaN."""

    POISON = 50

    def score(self, blocks: Seq[Block]) -> Tensor:
        logits = super().score(blocks)
        at = 0
        for block in blocks:
            if self._slots[block.slot][0] == self.POISON:
                logits[at : at + block.want] = float("nan")
            at += block.want
        return logits


def test_a_row_of_nans_fails_alone() -> None:
    plain = toy(1)
    model = Poisoned(plain.vocabulary.tokens, plain._logits, eos_ids=(0, 1), slots=3, capacity=96)
    bad, heard = job_of(model, None, [Poisoned.POISON, 10])
    good, told = job_of(model, CONSTRAINTS["schema"], PROMPT)
    run(scheduler_of(model), bad, good)
    assert isinstance(heard.error, DeadEndError)
    assert told.tokens == solo(CONSTRAINTS["schema"], PROMPT).tokens


class BrokenDrafter(LookAhead):
    """Fails for sequences whose prompt ends in 77, in whatever group they come."""

    def propose(self, proposals: Seq[Proposal]) -> None:
        if any(p.sequence.history.tokens[p.sequence.history.prompt_length - 1] == 77 for p in proposals):
            raise RuntimeError("boom")
        super().propose(proposals)


def test_a_drafter_that_fails_for_one_request_goes_on_for_the_others() -> None:
    model = toy(2)
    drafter = BrokenDrafter(Pipeline(model.vocabulary), wrong=10**9)
    bad, heard = job_of(model, None, [10, 77], drafter=drafter, max_tokens=20, ignore_eos=True, stop=())
    good, told = job_of(model, None, PROMPT, drafter=drafter, max_tokens=20, ignore_eos=True, stop=())
    scheduler = scheduler_of(model)
    run(scheduler, bad, good)
    for listener, prompt in ((heard, [10, 77]), (told, PROMPT)):
        assert listener.tokens == solo(None, prompt, max_tokens=20, ignore_eos=True, stop=()).tokens
    assert bad.sequence is not None and good.sequence is not None
    assert "boom" in bad.sequence.disabled["look-ahead"]
    assert not good.sequence.disabled
    assert len(told.events) < 8
    assert scheduler.snapshot().fallbacks == {"drafter-failed": 1}


class Unopenable(LookAhead):
    def open(self, sequence: Sequence) -> None:
        raise RuntimeError("no room")

    def close(self, sequence: Sequence) -> None:
        raise RuntimeError("was never open")


def test_a_drafter_that_cannot_open_means_target_only() -> None:
    model = toy(1)
    job, heard = job_of(model, CONSTRAINTS["regex"], PROMPT, drafter=Unopenable(Pipeline(model.vocabulary)))
    scheduler = scheduler_of(model)
    run(scheduler, job)
    assert heard.tokens == solo(CONSTRAINTS["regex"], PROMPT).tokens
    assert job.sequence is not None and "no room" in job.sequence.disabled["look-ahead"]
    assert scheduler.snapshot().fallbacks["drafter-open"] == 1


class FailsOnce(ToyModel):
    """Runs out of memory in its third forward, unless ``freed``."""

    freed = False
    forwards = 0

    def score(self, blocks: Seq[Block]) -> Tensor:
        self.forwards += 1
        if self.forwards >= 3 and not self.freed:
            super().score(blocks[:1])  # part of the work was done
            raise torch.OutOfMemoryError("out of memory")
        return super().score(blocks)


@pytest.mark.parametrize("helps", [True, False])
def test_memory_is_freed_before_anybody_fails(helps: bool) -> None:
    plain = toy(1)
    model = FailsOnce(plain.vocabulary.tokens, plain._logits, eos_ids=(0, 1), slots=2, capacity=96)

    def free() -> bool:
        model.freed = helps
        return helps

    jobs = [job_of(model, None, [p], max_tokens=8, ignore_eos=True, stop=()) for p in (10, 11)]
    scheduler = scheduler_of(model, on_memory=free)
    run(scheduler, *(job for job, _ in jobs))
    for job, listener in jobs:
        if helps:
            assert listener.tokens == solo(None, job.prompt, max_tokens=8, ignore_eos=True, stop=()).tokens
        else:
            assert isinstance(listener.error, EngineError)
    assert scheduler.snapshot().fallbacks == ({"memory": 1} if helps else {})
    assert scheduler.free_slots == 2


# ---- counters ------------------------------------------------------------------------------------------------------


def test_the_counters_add_up() -> None:
    model = toy(2)
    pipeline = Pipeline(model.vocabulary)
    scheduler = Scheduler(model, pipeline)
    jobs = [job_of(model, c, PROMPT, drafter=LookAhead(pipeline)) for c in CONSTRAINTS.values()]
    run(scheduler, *(job for job, _ in jobs))
    seen = scheduler.snapshot()
    counts = [job.sequence.counts for job, _ in jobs if job.sequence is not None]
    assert seen.completion_tokens == sum(len(listener.tokens) for _, listener in jobs)
    assert seen.accepted == sum(c.accepted for c in counts) == sum(seen.accepted_by_position)
    assert seen.proposed == sum(c.proposed for c in counts)
    assert seen.rolled_back == seen.proposed - seen.accepted
    assert seen.committed["look-ahead"] == seen.accepted
    assert seen.rounds == sum(c.rounds for c in counts)
    assert seen.prompt_tokens == len(PROMPT) * len(jobs)
    assert (seen.running, seen.waiting, seen.free_slots, seen.kv_tokens) == (0, 0, 2, 0)
