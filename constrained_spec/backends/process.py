"""Settings of the whole process that the figures hang on: intra-op threads, and the mode of MKL.

The number of threads is measured, because what a process sees and what it gets differ.

A container that shows 64 cores and grants 2 makes every operation wait for threads that are not running. The number is
one of the whole process, so it is changed only where fewer threads are clearly quicker, or where it was asked for.
"""

from __future__ import annotations

import ctypes
import functools
import os
import statistics
import time
from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor

from constrained_spec.errors import ConfigError

# In this mode a product's result does not depend on how its operands lie in memory, without which an int8 row would not
# be the same in every block. On other makers' CPUs it is also much the quickest. It has no effect on a process in which
# MKL has already run.
os.environ.setdefault("MKL_CBWR", "AUTO")

_HARD = 2  # omp_pause_hard: the threads end
_CLEARLY = 0.9  # of the time at the present number
_SHAPE = (2048, 1024)  # a product of a few rows that reads 8 MB


def set_threads(wanted: int | None) -> int:
    """Pin the number, or with None take the quickest. Raises ``ConfigError`` for a number below 1.

    ``OMP_NUM_THREADS`` in the environment is a choice already made, and is left alone by None.
    """
    if wanted is not None:
        if wanted < 1:
            raise ConfigError(f"threads must be at least 1, got {wanted}", param="threads")
        torch.set_num_threads(wanted)
        return wanted
    present = torch.get_num_threads()
    if present == 1 or "OMP_NUM_THREADS" in os.environ:
        return present
    weight, x = torch.randn(_SHAPE), torch.randn(4, _SHAPE[1])
    candidates = [present]
    while candidates[-1] > 1:
        candidates.append(candidates[-1] // 2)
    seconds = {n: _seconds(weight, x, n) for n in candidates}
    best = min(candidates, key=lambda n: seconds[n])
    if seconds[best] > _CLEARLY * seconds[present]:
        best = present
    torch.set_num_threads(best)
    return best


def release_team() -> bool:
    """Give back the helpers that OpenMP keeps for the calling thread; its next parallel operation makes new ones.

    Helpers of two threads together are more than the cores, and then OpenMP puts them all to sleep between operations,
    which makes a step 1.5 times slower. So whoever hands work to another thread gives its own back. False: there is no
    OpenMP runtime here that can.
    """
    pause = _pause()
    return pause is not None and pause(_HARD) == 0


@functools.cache
def _pause() -> Callable[[int], int] | None:
    """``omp_pause_resource_all`` (OpenMP 5.0) of the runtime that torch has loaded."""
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
            paths = {line.split(maxsplit=5)[5].strip() for line in maps if "/libgomp" in line or "/libomp" in line}
        for path in sorted(paths):
            function = getattr(ctypes.CDLL(path), "omp_pause_resource_all", None)
            if function is not None:
                function.argtypes, function.restype = [ctypes.c_int], ctypes.c_int
                return cast("Callable[[int], int]", function)
    except OSError:  # another operating system
        pass
    return None


def _seconds(weight: Tensor, x: Tensor, threads: int) -> float:
    torch.set_num_threads(threads)
    times = []
    for _ in range(12):
        start = time.perf_counter()
        torch.mm(weight, x.t())
        times.append(time.perf_counter() - start)
    return statistics.median(times[2:])
