"""The performance ledger: the audited engine against the same engine target-only, on the same requests.

Both run the same weights, dtype, cache, kernels, scheduler, prompts, limits and pipeline; only the drafter differs.
Every figure is a ratio within one run, the contenders alternate, and each repetition starts with the other one.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from constrained_spec.api import Engine, Result
from constrained_spec.audit.costs import block_cost, memory, step_costs
from constrained_spec.audit.subject import TARGET_ONLY, Subject, Task, in_parallel, run_task
from constrained_spec.audit.thresholds import FASTER, NEVER_SLOWER
from constrained_spec.verify import estimated_speedup

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Timed:
    """One request and its wall-clock seconds, waiting included."""

    task: Task
    result: Result[Any]
    seconds: float


@dataclass(frozen=True, slots=True)
class Pass:
    """All requests of one suite by one contender, ``concurrency`` at a time."""

    runs: tuple[Timed, ...]
    seconds: float

    @property
    def tokens(self) -> int:
        return sum(run.result.usage.completion_tokens for run in self.runs)

    @property
    def throughput(self) -> float:
        return self.tokens / self.seconds


def performance(subject: Subject, progress: Progress) -> dict[str, Any]:
    """The whole ledger."""
    suites: dict[str, list[Task]] = {}
    for task in subject.chosen_tasks():
        suites.setdefault(task.suite, []).append(task)
    levels = [c for c in subject.effort.concurrency if c <= subject.model.slots]
    costs = step_costs(subject)
    fast_options = {**subject.speculation, "speculation": "auto"}
    cells: list[dict[str, Any]] = []
    alone: dict[str, tuple[list[Pass], list[Pass]]] = {}
    total, done = len(suites) * len(levels) + 1, 0
    with subject.engine() as engine:
        warm_up(subject, engine)
        for suite, tasks in suites.items():
            for level in levels:
                plain, fast = contest(engine, subject, tasks, level, fast_options)
                cells.append(cell(suite, level, plain, fast))
                if level == 1:
                    alone[suite] = plain, fast
                done += 1
                progress(done, total)
        sweep = gamma_sweep(engine, subject, next(iter(suites.values()))[:2])
        progress(total, total)
    suite_profiles = {name: profile(costs, *passes) for name, passes in alone.items()}
    return {
        "baseline": "the same engine with speculation off: same weights, dtype, cache, kernels, scheduler and requests",
        "mode": "auto", "thresholds": {"median": FASTER, "worst": NEVER_SLOWER},
        "costs": costs, "memory": memory(subject), "cells": cells, "gamma_sweep": sweep,
        "suites": suite_profiles, "model": speed_model(next(iter(suite_profiles.values()), None)),
    }  # fmt: skip


def speed_model(found: dict[str, Any] | None) -> dict[str, float] | None:
    """What the first suite, one request at a time, gave for the speed model, in the names of the lab; costs in ms."""
    if found is None:
        return None
    judged = sum(j for j, _ in found["acceptance_by_position"])
    accepted = sum(a for _, a in found["acceptance_by_position"])
    return {
        "alpha": accepted / judged if judged else 0.0, "gamma": found["gamma"], "B": found["step_ms"],
        "D": found["draft_ms"], "V": found["verify_ms"], "H": found["overhead_ms"],
        "measured_speedup": found["measured_speedup"],
    }  # fmt: skip


def warm_up(subject: Subject, engine: Engine) -> None:
    """One short request of each kind: nobody pays for compilations and caches of the first."""
    task = subject.tasks[0]
    run_task(engine, task, max_tokens=4, **TARGET_ONLY)
    run_task(engine, task, max_tokens=4, **subject.speculation)


def contest(
    engine: Engine, subject: Subject, tasks: Sequence[Task], level: int, fast: dict[str, Any]
) -> tuple[list[Pass], list[Pass]]:
    """(target-only, speculative) passes, one of each per repetition."""
    requests = list(tasks) * math.ceil(2 * level / len(tasks)) if level > 1 else list(tasks)
    passes: tuple[list[Pass], list[Pass]] = ([], [])
    contenders = ((0, TARGET_ONLY), (1, fast))
    for repeat in range(subject.effort.repeats):
        for which, options in contenders if repeat % 2 == 0 else contenders[::-1]:
            passes[which].append(one_pass(engine, requests, level, subject.effort.max_tokens, options))
    return passes


def one_pass(engine: Engine, tasks: Sequence[Task], level: int, max_tokens: int, options: dict[str, Any]) -> Pass:
    """All tasks, ``level`` at a time."""

    def one(task: Task) -> Timed:
        start = time.perf_counter()
        result = run_task(engine, task, max_tokens=max_tokens, **options)
        return Timed(task, result, time.perf_counter() - start)

    start = time.perf_counter()
    runs = in_parallel(one, tasks, level)
    return Pass(tuple(runs), time.perf_counter() - start)


def cell(suite: str, level: int, plain: Sequence[Pass], fast: Sequence[Pass]) -> dict[str, Any]:
    """One cell of the envelope. A speed-up is a ratio of throughputs of one repetition."""
    ratios = [f.throughput / p.throughput for p, f in zip(plain, fast, strict=True)]
    median, worst = statistics.median(ratios), min(ratios)
    return {
        "suite": suite, "concurrency": level, "speedup": median, "worst": worst,
        "decision": "release" if median >= FASTER and worst >= NEVER_SLOWER else "off",
        "throughput": {"target_only": statistics.median(p.throughput for p in plain),
                       "speculative": statistics.median(p.throughput for p in fast)},
        "latency_s": {"target_only": latency(plain), "speculative": latency(fast)},
    }  # fmt: skip


def latency(passes: Sequence[Pass]) -> dict[str, Any]:
    """Seconds per request over all repetitions."""
    seconds = sorted(run.seconds for p in passes for run in p.runs)
    return {
        "p50": statistics.median(seconds), "p95": seconds[math.ceil(0.95 * len(seconds)) - 1],
        "all": [round(s, 5) for s in seconds],
    }  # fmt: skip


def profile(costs: dict[str, Any], plain: Sequence[Pass], fast: Sequence[Pass]) -> dict[str, Any]:
    """One suite, one request at a time: where the time goes, what was accepted, and what the cost model says."""
    slow_runs, fast_runs = [r for p in plain for r in p.runs], [r for p in fast for r in p.runs]
    reports = [r.result.speculation for r in fast_runs]
    tokens, rounds = sum(r.result.usage.completion_tokens for r in fast_runs), sum(s.rounds for s in reports)
    proposed = sum(s.proposed for s in reports)
    step = per_token(slow_runs)
    # Drafting beside the models is in the overhead.
    drafting = sum(r.result.timing.draft_s for r in fast_runs)
    # A request's first round is its prefill, so decoding begins behind its first token.
    draft_ms = 1e3 * drafting / proposed if proposed else 0.0
    overhead_ms = 1e3 * statistics.median(r.result.timing.overhead_s for r in fast_runs)
    per_round, gamma = tokens / rounds, proposed / rounds
    verify_ms = block_cost(costs["block_ms"], gamma + 1)
    modelled = per_round * 1e3 * step / (gamma * draft_ms + verify_ms + overhead_ms)
    return {
        "prefill_share": prefill_share(slow_runs), "prefill_share_speculative": prefill_share(fast_runs),
        "step_ms": 1e3 * step, "draft_ms": draft_ms, "verify_ms": verify_ms, "overhead_ms": overhead_ms,
        "gamma": gamma, "committed_per_round": per_round, "acceptance_by_position": by_position(fast_runs),
        "committed_per_request": committed_per_request(fast_runs),
        "acceptance": sum(s.accepted for s in reports) / proposed if proposed else None,
        "model_speedup": modelled, "measured_speedup": step / per_token(fast_runs),
        "end_to_end_speedup": sum(p.seconds for p in plain) / sum(p.seconds for p in fast),
    }  # fmt: skip


def per_token(runs: Sequence[Timed]) -> float:
    """Seconds of decoding per committed token behind the first round."""
    seconds = sum(max(0.0, r.result.timing.total_s - r.result.timing.first_token_s) for r in runs)
    tokens = sum(max(0, r.result.usage.completion_tokens - 1) for r in runs)
    return max(seconds, 1e-9) / max(tokens, 1)


def prefill_share(runs: Sequence[Timed]) -> float:
    """Share of the time up to the first token."""
    return sum(r.result.timing.first_token_s for r in runs) / sum(r.result.timing.total_s for r in runs)


def by_position(runs: Sequence[Timed]) -> list[list[int]]:
    """[judged, accepted] by the place in a block."""
    out: list[list[int]] = []
    for run in runs:
        for place, (judged, accepted) in enumerate(run.result.speculation.by_position):
            if place == len(out):
                out.append([0, 0])
            out[place][0] += judged
            out[place][1] += accepted
    return out


def committed_per_request(runs: Sequence[Timed]) -> dict[str, float]:
    """Mean committed tokens per round of each request, by request."""
    return {
        f"{i}:{run.task.id}": run.result.usage.completion_tokens / run.result.speculation.rounds
        for i, run in enumerate(runs)
    }


def gamma_sweep(engine: Engine, subject: Subject, tasks: Sequence[Task]) -> list[dict[str, Any]]:
    """Measured speed-up by drafts per round, none held back, beside the model, which takes every block to be full."""
    rows = []
    limit = subject.effort.max_tokens
    plain = one_pass(engine, tasks, 1, limit, TARGET_ONLY)
    step = per_token(plain.runs)
    for gamma in subject.effort.gammas:
        fast = one_pass(engine, tasks, 1, limit, {**subject.speculation, "gamma": gamma})
        reports = [r.result.speculation for r in fast.runs]
        judged = sum(j for s in reports for j, _ in s.by_position)
        alpha = sum(a for s in reports for _, a in s.by_position) / judged if judged else 0.0
        rounds, proposed = sum(s.rounds for s in reports), sum(s.proposed for s in reports)
        forward = sum(r.result.timing.forward_s for r in fast.runs) / rounds
        draft = sum(r.result.timing.propose_s for r in fast.runs) / proposed if proposed else 0.0
        modelled = estimated_speedup(min(1.0, alpha), gamma, baseline=step, draft=draft, verify=forward)
        rows.append({
            "gamma": gamma, "alpha": alpha, "proposed_per_round": proposed / rounds,
            "measured": plain.seconds / fast.seconds, "modelled": modelled,
        })  # fmt: skip
    return rows
