"""What one forward costs by the number of places it scores, and what memory is left."""

from __future__ import annotations

import bisect
import os
import statistics
import time
from collections.abc import Mapping
from typing import Any

import torch

from constrained_spec.audit.subject import Subject
from constrained_spec.backends.base import Block

CONTEXT = 256
SIZES = (1, 2, 3, 5, 9, 17, 33)
_REPEATS = 7


def step_costs(subject: Subject) -> dict[str, Any]:
    """Milliseconds of a forward of k places behind a context, interleaved medians, and of the context's own prefill."""
    subject.clear()
    model = subject.model
    context = min(CONTEXT, model.capacity // 2)
    sizes = [k for k in SIZES if k <= max(2, subject.gamma + 1) and context + k <= model.capacity]
    ids = [i * 7919 % model.vocabulary.size for i in range(context + max(sizes))]
    start = time.perf_counter()
    model.score([Block(0, ids[:context], want=1)])
    _finish(model.device)
    prefill = time.perf_counter() - start
    seen: dict[int, list[float]] = {k: [] for k in sizes}
    for repeat in range(_REPEATS + 1):
        for k in sizes:
            start = time.perf_counter()
            model.score([Block(0, ids[context : context + k], want=k)])
            _finish(model.device)
            if repeat:  # the first of each size warms up
                seen[k].append(1e3 * (time.perf_counter() - start))
            model.set_length(0, context)
    subject.clear()
    medians = {str(k): statistics.median(times) for k, times in seen.items()}
    return {"context": context, "prefill_ms": 1e3 * prefill, "block_ms": medians, "step_ms": medians["1"]}


def block_cost(costs: Mapping[str, float], places: float) -> float:
    """V at a number of places between the measured ones, by straight lines; beyond the last one as it stands there."""
    known = sorted((int(k), ms) for k, ms in costs.items())
    at = bisect.bisect_left([k for k, _ in known], places)
    if at == 0:
        return known[0][1]
    if at == len(known):
        return known[-1][1]
    (a, low), (b, high) = known[at - 1], known[at]
    return low + (high - low) * (places - a) / (b - a)


def memory(subject: Subject) -> dict[str, int]:
    """Bytes held by weights and slots, and free on the device that holds them."""
    held = subject.model.memory()
    if subject.model.device.type == "cuda":
        free, total = torch.cuda.mem_get_info(subject.model.device)
    else:
        page = os.sysconf("SC_PAGE_SIZE")
        free, total = page * os.sysconf("SC_AVPHYS_PAGES"), page * os.sysconf("SC_PHYS_PAGES")
    return {**held, "free": free, "total": total}


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
