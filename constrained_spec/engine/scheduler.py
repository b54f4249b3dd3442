"""Continuous batching over slots: which requests take part in the next forward, and what becomes of each.

Not safe under threads: one thread owns a scheduler and the models behind it. A step is one round: requests join and
leave between rounds. Several prompts are written in chunks beside the blocks of those that decode already, so a long
prompt delays nobody by more than a chunk. What a finished request leaves in its slot, or a running one holds in its
own, spares a request with the same beginning a part of its prompt.
"""

from __future__ import annotations

import bisect
import time
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from dataclasses import astuple, dataclass
from itertools import chain

import torch

from constrained_spec.backends.base import Block, LanguageModel
from constrained_spec.drafters.mixture import open_guarded
from constrained_spec.engine.controller import Controller, RowOutcome, RowState
from constrained_spec.engine.inspection import Inspection
from constrained_spec.engine.job import Job, RoundEvent
from constrained_spec.engine.round import Outcome, Round, RoundTimes, Row, run_round
from constrained_spec.engine.snapshot import Snapshot, Totals
from constrained_spec.errors import ConstrainedSpecError, DeadEndError, DeadlineError, EngineError, RequestCancelled
from constrained_spec.processors.pipeline import Pipeline
from constrained_spec.state.sequence import Sequence
from constrained_spec.state.transaction import Commit

PREFILL_CHUNK = 128
_WORTH = 32  # tokens of a common beginning that are worth a copy, or the wait for a prompt that is being written


@dataclass(frozen=True, slots=True)
class Plan:
    """One step: the requests that take part with a block of their own, and the chunks of prompts beside them."""

    jobs: list[Job]
    rows: list[Row]
    states: list[RowState]
    chunks: list[tuple[Job, Block]]


class Scheduler:
    """The requests of one model.

    ``prefill_chunk`` bounds the prompt tokens that one step writes beside other requests' blocks. With
    ``prefix_reuse`` the beginning of a prompt may come from a slot of the same namespace: its logits then stem from
    forwards of other shapes, which differ in the last bits of a float. ``controller`` decides how much requests of mode
    "auto" draft; without one they draft up to their gamma.
    """

    def __init__(
        self,
        model: LanguageModel,
        pipeline: Pipeline,
        *,
        prefill_chunk: int = PREFILL_CHUNK,
        prefix_reuse: bool = False,
        controller: Controller | None = None,
        on_memory: Callable[[], bool] | None = None,
        speculates: Callable[[int], bool] | None = None,
        totals: Totals | None = None,
    ) -> None:
        """``on_memory`` is asked to free memory when a step ran out of it; False: there is nothing left to free.
        ``speculates`` says whether anyone may draft while so many requests run; None: always.
        """
        self._model = model
        self._pipeline = pipeline
        self._prefill_chunk = prefill_chunk
        self._prefix_reuse = prefix_reuse
        self._controller = controller
        self._on_memory = on_memory
        self._speculates = speculates
        self._waiting: list[Job] = []  # by ``Job.order``
        self._running: dict[int, Job] = {}  # by slot, in order of admission
        self._free = list(range(model.slots))  # the least recently used first
        self._held: dict[int, tuple[str, list[int]]] = {}  # free slot -> namespace and tokens of what it still holds
        self._arrivals = 0
        self.totals = totals or Totals()
        for slot in self._free:
            model.set_length(slot, 0)

    # ---- requests -------------------------------------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def running(self) -> list[Job]:
        return list(self._running.values())

    @property
    def free_slots(self) -> int:
        return len(self._free)

    def expected_wait(self, waiting: int) -> float:
        """Seconds until the last of ``waiting`` requests has a slot, roughly."""
        return self.totals.duration * (1 + waiting / self._model.slots)

    @property
    def idle(self) -> bool:
        return not self._waiting and not self._running

    def add(self, job: Job) -> None:
        job.number = self._arrivals
        self._arrivals += 1
        bisect.insort(self._waiting, job, key=lambda j: j.order)

    def cancel(self, job: Job) -> None:
        """Give ``job`` up. Nothing happens if it is over already."""
        if self._is_mine(job):
            self._fail(job, RequestCancelled("the request was cancelled"), "cancelled")

    def abort(self, error: Exception, how: str = "error") -> None:
        """Fail every request, in whatever state this scheduler is."""
        for job in [*self._running.values(), *self._waiting]:
            try:
                self._fail(job, error, how)
            except Exception:  # a broken scheduler must still tell every caller
                job.sink.failed(error)

    def preempt(self, job: Job) -> None:
        """Take a running request's slot away. It waits with its committed tokens, and goes on without repeating any."""
        self._leave_slot(job)
        job.preemptions += 1
        self.totals.preemptions += 1
        bisect.insort(self._waiting, job, key=lambda j: j.order)

    def _is_mine(self, job: Job) -> bool:
        return any(job is j for j in chain(self._waiting, self._running.values()))

    # ---- a step ---------------------------------------------------------------------------------------------------

    def step(self) -> None:
        """One round of everything that can take part."""
        start = time.perf_counter()
        self._expire()
        self._admit()
        plan = self._plan()
        if not plan.rows and not plan.chunks:
            return
        times = self._run(plan)
        self.totals.step(times, time.perf_counter() - start)

    def _expire(self) -> None:
        now = time.monotonic()
        for job in [*self._running.values(), *self._waiting]:
            if job.deadline is not None and job.deadline <= now:
                n = 0 if job.sequence is None else job.sequence.history.output_length
                error = DeadlineError(f"the deadline passed after {n} output tokens", param="deadline")
                self._fail(job, error, "deadline")

    def _plan(self) -> Plan:
        running = sorted(self._running.values(), key=lambda j: j.order)
        alone = len(running) == 1
        left = self._prefill_chunk  # prompt tokens that this step may still write
        jobs, chunks = [], []
        for job in running:
            s = _sequence(job)
            pending = len(s.history) - s.kv.length
            if alone or pending == 1 or pending <= left:
                # The newest committed token is never in the slot, so one pending token is no prompt.
                jobs.append(job)
                left -= pending - 1
            elif left > 0:
                chunks.append((job, Block(s.slot, s.history.tokens[s.kv.length : s.kv.length + left], want=0)))
                left = 0
        closed = self._speculates is not None and not self._speculates(len(running))
        states = [self._state(job, closed) for job in jobs]
        gammas = [state.limit for state in states]
        if self._controller is not None:
            for i, choice in enumerate(self._controller.choose(states)):
                gammas[i] = choice.gamma
                if choice.reason == "not paying" and not jobs[i].gave_up:
                    jobs[i].gave_up = True
                    self.totals.fallback("not-paying", f"{states[i].drafter_name} costs more time than it saves")
        rows = [
            Row(
                _sequence(job), None if job.mode == "off" else job.drafter, gamma, job.verifier, job.inspect,
                self._adapts(job),
            )
            for job, gamma in zip(jobs, gammas, strict=True)
        ]  # fmt: skip
        return Plan(jobs, rows, states, chunks)

    def _adapts(self, job: Job) -> bool:
        """May what a request drafts depend on whether others share the step? Its seed gives the same text with and
        without them, unless its text depends on the clock already, or on no draft at all.
        """
        s = _sequence(job)
        free = s.sampling.greedy or job.verifier == "invariant"
        return self._model.slots == 1 or free or job.mode == "auto"

    def _state(self, job: Job, closed: bool) -> RowState:
        """What the controller may know of a row. ``closed``: nobody may draft in this round."""
        s = _sequence(job)
        speaks = job.drafter is not None and job.mode != "off" and job.drafter.name not in s.disabled
        if speaks and closed:
            speaks = False
            if not job.closed_out:
                job.closed_out = True
                self.totals.fallback("envelope", "more requests at once than speculation is released for")
        limit = max(0, min(job.gamma, s.room - 1)) if speaks else 0
        return RowState(
            key=job.number,
            limit=limit,
            fixed=limit if job.mode == "fixed" or not speaks else None,
            prefill_tokens=len(s.history) - s.kv.length - 1,
            drafter_name="none" if job.drafter is None else job.drafter.name,
            sizes_itself=getattr(job.drafter, "sizes_itself", False),
        )

    def _run(self, plan: Plan) -> RoundTimes:
        before = [(c.proposed, c.accepted) for c in (row.sequence.counts for row in plan.rows)]
        done = self._round(plan)
        outcomes: list[RowOutcome] = []
        for job, row, outcome, seen, (proposed, accepted) in zip(
            plan.jobs, plan.rows, done.outcomes, done.inspections, before, strict=True
        ):
            job.times.add(done.times)
            if isinstance(outcome, Exception):
                self._fail(job, _typed(outcome), "error")
                continue
            counts = row.sequence.counts
            proposed, accepted = counts.proposed - proposed, counts.accepted - accepted
            self.totals.committed_round(outcome, proposed, accepted)
            outcomes.append(
                RowOutcome(
                    key=job.number, gamma=row.gamma, proposed=proposed, accepted=accepted,
                    committed=len(outcome.tokens), counts=counts,
                )
            )  # fmt: skip
            self._emit(job, outcome, seen)
        if self._controller is not None:
            extra = sum(len(block.tokens) for _, block in plan.chunks)
            self._controller.observe(outcomes, done.times, extra_tokens=extra)
        for job, _ in plan.chunks:
            job.times.add(done.times)
        return done.times

    def _emit(self, job: Job, commit: Commit, seen: Inspection | None) -> None:
        s = _sequence(job)
        now = time.perf_counter()
        if job.times.first is None:
            job.times.first = now
        text = job.release()
        logprobs = tuple(s.logprobs[-len(commit.tokens) :]) if s.logprobs else ()
        if s.finished:
            assert s.finish_reason is not None
            job.times.finished = now
            self._close(job, s.finish_reason)
        job.sink.event(RoundEvent(commit, text, s.finished, now, logprobs, seen))

    # ---- isolation ------------------------------------------------------------------------------------------------

    def _round(self, plan: Plan) -> Round:
        """The round. If it fails as a whole, every part runs alone, so that only the one at fault fails."""
        lengths = [(block.slot, self._model.length(block.slot)) for _, block in plan.chunks]
        try:
            return run_round(self._model, self._pipeline, plan.rows, [block for _, block in plan.chunks])
        except Exception as error:
            for slot, length in lengths:
                self._model.set_length(slot, length)
            if _is_memory(error) and self._on_memory is not None and self._on_memory():
                self.totals.fallback("memory", str(error))
                return self._round(plan)
            if len(plan.rows) + len(plan.chunks) == 1:
                return self._failed_alone(plan, error)
        rounds = [self._round(part) for part in _parts(plan)]
        times = [r.times for r in rounds]
        return Round(
            tuple(outcome for r in rounds for outcome in r.outcomes),
            RoundTimes(*(sum(column) for column in zip(*map(astuple, times), strict=True))),
            tuple(seen for r in rounds for seen in r.inspections),
        )

    def _failed_alone(self, plan: Plan, error: Exception) -> Round:
        for job, _ in plan.chunks:
            self._fail(job, _typed(error), "error")
        outcomes: tuple[Outcome, ...] = (error,) if plan.rows else ()
        return Round(outcomes, RoundTimes(0.0, 0.0, 0.0, 0.0, 0.0, 0.0), (None,) if plan.rows else ())

    # ---- slots ----------------------------------------------------------------------------------------------------

    def _admit(self) -> None:
        for job in list(self._waiting):
            if self._prefix_reuse and self._comes_soon(job):
                continue
            if not self._free:
                victim = max(self._running.values(), key=lambda j: j.order)
                if victim.priority >= job.priority:
                    return  # all that wait behind are of no higher priority
                self.preempt(victim)
            self._waiting.remove(job)
            try:
                self._enter_slot(job)
            except Exception as error:  # a request that cannot start fails alone
                self._fail(job, _typed(error), "error")

    def _enter_slot(self, job: Job) -> None:
        slot, known = self._take_slot(job)
        first = job.sequence is None
        if job.sequence is None:
            job.sequence = Sequence(
                prompt=job.prompt, sampling=job.sampling, coins=job.coins, vocabulary=self._model.vocabulary,
                target=self._model, slot=slot, capacity=self._model.capacity, matcher=job.matcher,
                processors=job.processors,
            )  # fmt: skip
            job.sequence.disabled.update(job.disabled)
        else:
            job.sequence.move(self._model, slot)
        self._running[slot] = job
        if first:
            job.times.admitted = time.perf_counter()
            job.cached = known
            self.totals.admitted(job)
        if job.drafter is not None and job.mode != "off":
            open_guarded(job.drafter, job.sequence)
            for name in job.sequence.disabled:
                self.totals.fallback("drafter-open", f"{name}: {job.sequence.disabled[name]}")

    def _take_slot(self, job: Job) -> tuple[int, int]:
        """A free slot, and how many of the job's first tokens it holds."""
        found, known = None, 0
        if self._prefix_reuse:
            for slot in self._free:
                namespace, tokens = self._held.get(slot, ("", []))
                shared = _common(tokens, job.tokens) if namespace == job.namespace else 0
                if shared > known:
                    found, known = slot, shared
            donor, more = self._donor(job)
            if donor is not None and more >= known + _WORTH:
                slot = self._free.pop(0)
                self._held.pop(slot, None)
                self._model.copy(donor, slot, more)
                return slot, more
        slot = self._free[0] if found is None else found
        self._free.remove(slot)
        self._held.pop(slot, None)
        self._model.set_length(slot, known)
        return slot, known

    def _donor(self, job: Job) -> tuple[int | None, int]:
        """The running slot that shares the longest beginning, and its length."""
        best: tuple[int | None, int] = None, 0
        for slot, other in self._running.items():
            if other.namespace == job.namespace:
                shared = _common(other.tokens[: self._model.length(slot)], job.tokens)
                if shared > best[1]:
                    best = slot, shared
        return best

    def _comes_soon(self, job: Job) -> bool:
        """Whether a running request is writing a beginning that ``job`` has too: then it waits for that."""
        for slot, other in self._running.items():
            written = self._model.length(slot)
            if other.namespace == job.namespace and written < len(other.prompt) - 1:
                shared = _common(other.prompt, job.tokens)
                if shared >= written + _WORTH:
                    return True
        return False

    def _leave_slot(self, job: Job) -> None:
        """Free the slot; what it holds of committed tokens stays findable."""
        s = _sequence(job)
        if job.drafter is not None:
            try:
                job.drafter.close(s)
            except Exception as error:  # it keeps its own state; the request is not harmed
                self.totals.fallback("drafter-close", f"{type(error).__name__}: {error}")
        s.forget_followers()
        slot = s.slot
        del self._running[slot]
        self._free.append(slot)
        self._held[slot] = job.namespace, list(s.history.tokens[: s.kv.length])
        if self._controller is not None:
            self._controller.forget(job.number)

    # ---- ends -----------------------------------------------------------------------------------------------------

    def _close(self, job: Job, how: str) -> None:
        s = _sequence(job)
        for name, reason in s.disabled.items():
            self.totals.fallback("drafter-failed", f"{name}: {reason}")
        self._leave_slot(job)
        self.totals.ended(job, how)

    def _fail(self, job: Job, error: Exception, how: str) -> None:
        job.times.finished = time.perf_counter()
        if job.sequence is not None and self._running.get(job.sequence.slot) is job:
            self._close(job, how)
            if isinstance(error, DeadEndError):  # its logits may have been NaN, and so what the slot holds
                self._held.pop(job.sequence.slot, None)
                self._model.clear(job.sequence.slot)
        else:
            self._waiting = [j for j in self._waiting if j is not job]
            self.totals.ended(job, how)
        job.sink.failed(error)

    def snapshot(self) -> Snapshot:
        """May be taken by another thread: each figure is right by itself, all of them to within a round."""
        t = self.totals
        running = list(self._running.values())
        kv = sum(self._model.length(j.sequence.slot) for j in running if j.sequence is not None)
        return Snapshot(
            running=len(running), waiting=len(self._waiting), slots=self._model.slots, free_slots=len(self._free),
            kv_tokens=kv, kv_capacity=self._model.slots * self._model.capacity, rounds=t.rounds, steps=t.steps,
            committed=dict(t.committed), drafts=t.drafts, proposed=t.proposed, accepted=t.accepted,
            accepted_by_position=list(t.accepted_by_position), rolled_back=t.proposed - t.accepted,
            prompt_tokens=t.prompt_tokens, cached_tokens=t.cached_tokens,
            completion_tokens=sum(dict(t.committed).values()), finished=dict(t.finished), fallbacks=dict(t.fallbacks),
            preemptions=t.preemptions, forward_seconds=t.forward, propose_seconds=t.propose, verify_seconds=t.verify,
            mask_seconds=t.masks, scheduler_seconds=t.scheduler,
        )  # fmt: skip


def _sequence(job: Job) -> Sequence:
    assert job.sequence is not None, "a running request has a sequence"
    return job.sequence


def _parts(plan: Plan) -> Iterator[Plan]:
    """Each row and each chunk by itself, rows first and in order."""
    for job, row, state in zip(plan.jobs, plan.rows, plan.states, strict=True):
        yield Plan([job], [row], [state], [])
    for part in plan.chunks:
        yield Plan([], [], [], [part])


def _common(held: Seq[int], wanted: Seq[int]) -> int:
    """Length of the common beginning, short of the last wanted token: that one is never in a slot."""
    high = min(len(held), len(wanted) - 1)
    low = 0
    while low < high:  # slices are compared in C
        middle = (low + high + 1) // 2
        if held[low:middle] == wanted[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _is_memory(error: Exception) -> bool:
    return isinstance(error, (MemoryError, torch.OutOfMemoryError))


def _typed(error: Exception) -> Exception:
    if isinstance(error, ConstrainedSpecError):
        return error
    wrapped = EngineError(f"this request made a step fail: {type(error).__name__}: {error}")
    wrapped.__cause__ = error
    return wrapped
