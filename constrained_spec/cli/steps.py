"""The cost of one forward by block size, ours beside transformers' own."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile
from transformers import DynamicCache

from constrained_spec.backends.base import Block
from constrained_spec.backends.support import cache_argument
from constrained_spec.backends.transformers import TransformersModel
from constrained_spec.cli.baseline import stock_attention

CONTEXT = 256
SIZES = (1, 2, 4, 8, 16, 32)
# What a matrix product is called in a profile, by whichever kernel it runs.
_PRODUCTS = ("linear", "::_int_mm", "::mm", "::addmm", "::bmm")


def step_table(ours: TransformersModel, stock: TransformersModel, repeats: int) -> dict[str, Any]:
    """``ours`` and ``stock``: milliseconds by block size; ``non_matmul_share`` of our single step; the ratios of both.

    Ours writes k tokens into a slot that holds 256 and gives k rows of logits; transformers does so with its own cache.
    """
    ids = [i * 7919 % ours.vocabulary.size for i in range(CONTEXT + max(SIZES))]
    with stock_attention(_model(stock)):
        single, plain = _ours(ours, ids), _transformers(stock, ids)
        times: dict[str, dict[str, float]] = {"ours": {}, "stock": {}}
        for size in SIZES:
            rows: dict[str, list[float]] = {"ours": [], "stock": []}
            for repeat in range(repeats + 2):
                for name, run in (("ours", single), ("stock", plain)):
                    start = time.perf_counter()
                    run(size)
                    # The first two of each size warm caches and allocators up.
                    if repeat >= 2:
                        rows[name].append((time.perf_counter() - start) * 1e3)
            for name, found in rows.items():
                times[name][str(size)] = statistics.median(found)
    own, theirs = times["ours"], times["stock"]
    return {
        **times,
        "non_matmul_share": _other_share(single),
        "single_vs_stock": own["1"] / theirs["1"],
        "block_of_4_vs_stock": own["4"] / theirs["4"],
        "block_of_8_vs_single": own["8"] / own["1"],
        "block_of_16_vs_single": own["16"] / own["1"],
    }


def _model(stock: TransformersModel) -> Any:
    assert stock.model is not None
    return stock.model


def _ours(model: TransformersModel, ids: list[int]) -> Callable[[int], None]:
    model.set_length(0, 0)
    model.score([Block(0, ids[:CONTEXT], want=1)])

    def run(size: int) -> None:
        model.score([Block(0, ids[CONTEXT : CONTEXT + size], want=size)])
        model.set_length(0, CONTEXT)

    return run


def _transformers(stock: TransformersModel, ids: list[int]) -> Callable[[int], None]:
    model = _model(stock)
    cache = DynamicCache(config=model.config)
    name = cache_argument(model)
    tokens = torch.tensor([ids], device=stock.device)
    with torch.inference_mode():
        model(input_ids=tokens[:, :CONTEXT], use_cache=True, **{name: cache})

    def run(size: int) -> None:
        with torch.inference_mode():
            model(input_ids=tokens[:, CONTEXT : CONTEXT + size], use_cache=True, **{name: cache})
            cache.crop(-size)

    return run


def _other_share(single: Callable[[int], None]) -> float:
    """Part of a single step's time on the CPU that is not in matrix products."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "5")  # the profiler announces its start and stop
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        for _ in range(5):
            single(1)
    own = {event.key: event.self_cpu_time_total for event in seen.key_averages()}
    products: float = sum(time for key, time in own.items() if key.endswith(_PRODUCTS) or "linear_" in key)
    return 1.0 - products / float(sum(own.values()))
