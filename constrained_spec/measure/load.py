"""Load on an engine: many clients at once, and the latencies they see.

A *saturated* run keeps ``concurrency`` requests in flight until the jobs are used up: it measures throughput. An *open*
one lets them arrive as a Poisson process, whatever is still running, of which at most ``concurrency`` run: it measures
latency, queueing included. A *static* batch waits for its slowest member before the next one starts.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from constrained_spec.api import Engine, Options, Prompt, Result


@dataclass(frozen=True, slots=True)
class Work:
    """One request of a workload."""

    prompt: Prompt
    output_type: object
    options: Options


@dataclass(frozen=True, slots=True)
class Served:
    """What one client saw; points of ``time.perf_counter``. ``arrived`` is when it wanted to be served."""

    arrived: float
    stamps: tuple[tuple[float, int], ...]  # per round: when, and how many tokens
    result: Result[Any]

    @property
    def ttft(self) -> float:
        return self.stamps[0][0] - self.arrived

    @property
    def e2e(self) -> float:
        return self.stamps[-1][0] - self.arrived

    @property
    def gaps(self) -> list[float]:
        """Seconds per token after the first round, those of one round sharing its time."""
        found: list[float] = []
        for (before, _), (now, tokens) in zip(self.stamps, self.stamps[1:], strict=False):
            found += [(now - before) / tokens] * tokens
        return found


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a workload. Seconds are sums over its ``steps``; ``waiting`` is the longest queue seen."""

    served: tuple[Served, ...]
    seconds: float
    steps: int
    scheduler_seconds: float
    mask_seconds: float
    gamma_mean: float  # drafts proposed per request and round
    lengths: Mapping[int, int] = field(default_factory=dict)  # committed tokens of a round -> rounds
    waiting: int = 0

    @property
    def tokens(self) -> int:
        return sum(s.result.usage.completion_tokens for s in self.served)

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.seconds

    def latencies(self) -> dict[str, dict[str, float]]:
        """Milliseconds, medians and 95th percentiles."""
        return {
            "ttft_ms": _quantiles([s.ttft for s in self.served]),
            "itl_ms": _quantiles([gap for s in self.served for gap in s.gaps]),
            "e2e_ms": _quantiles([s.e2e for s in self.served]),
        }


def saturated(engine: Engine, work: Seq[Work], concurrency: int) -> Run:
    """``concurrency`` clients, each asking again as soon as it is answered."""
    return _run(engine, work, concurrency, lambda start: [start] * len(work))


def poisson(engine: Engine, work: Seq[Work], concurrency: int, rate: float, seed: int = 0) -> Run:
    """Arrivals at ``rate`` a second; the same seed gives the same arrivals."""
    rng = random.Random(seed)
    offsets = [0.0]
    for _ in work[1:]:
        offsets.append(offsets[-1] + rng.expovariate(rate))
    return _run(engine, work, concurrency, lambda start: [start + offset for offset in offsets])


def static_batches(engine: Engine, work: Seq[Work], size: int) -> Run:
    """Batches of ``size``, one after another."""
    parts = [_run(engine, work[i : i + size], size, lambda start: [start] * size) for i in range(0, len(work), size)]
    steps = sum(p.steps for p in parts)
    return Run(
        tuple(s for p in parts for s in p.served),
        sum(p.seconds for p in parts),
        steps,
        sum(p.scheduler_seconds for p in parts),
        sum(p.mask_seconds for p in parts),
        sum(p.gamma_mean * p.steps for p in parts) / max(1, steps),
    )


def _run(engine: Engine, work: Seq[Work], concurrency: int, arrivals: Callable[[float], Seq[float]]) -> Run:
    before = engine.snapshot()
    start = time.perf_counter()
    times = arrivals(start)
    waiting = 0

    def client(item: Work, arrives: float) -> Served:
        nonlocal waiting
        time.sleep(max(0.0, arrives - time.perf_counter()))
        waiting = max(waiting, sum(t <= time.perf_counter() for t in times) - concurrency - done[0])
        ticket = engine.submit(item.prompt, item.output_type, **item.options)
        result = ticket.result()
        done[0] += 1
        return Served(arrives, tuple((piece.at, len(piece.tokens)) for piece in ticket), result)

    done = [0]
    with ThreadPoolExecutor(concurrency) as pool:
        served = tuple(pool.map(client, work, times))
    after = engine.snapshot()
    rounds = after.rounds - before.rounds
    return Run(
        served,
        max(s.stamps[-1][0] for s in served) - start,
        after.steps - before.steps,
        after.scheduler_seconds - before.scheduler_seconds,
        after.mask_seconds - before.mask_seconds,
        (after.proposed - before.proposed) / max(1, rounds),
        Counter(n for s in served for _, n in s.stamps),
        max(0, waiting),
    )


def _quantiles(seconds: Seq[float]) -> dict[str, float]:
    if not seconds:
        return {"p50": 0.0, "p95": 0.0}
    p50, p95 = np.quantile(np.array(seconds) * 1e3, [0.5, 0.95])
    return {"p50": float(p50), "p95": float(p95)}
