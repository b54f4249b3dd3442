"""Tests of frequencies against a law that is known exactly, with what they could and could not have seen.

The statistic is G = 2 sum O ln(O / E) (the likelihood ratio of a multinomial), which under the law has nearly a
chi-square distribution with (cells - 1) degrees of freedom once every cell expects a few counts. Its power is that of
the noncentral chi-square with noncentrality n w^2, where w^2 = sum (p' - p)^2 / p (Cohen 1988). Cauchy and Schwarz
give TV <= w / 2, so a bias of total variation t has w >= 2 t: whatever its shape, it is seen at least as often as the
figure for w = 2 t says.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from scipy.optimize import brentq
from scipy.stats import chi2, ncx2, power_divergence

from constrained_spec.audit.thresholds import POWER

Output = TypeVar("Output", bound=Hashable)
_LEAST = 5.0  # expected counts of a cell; rarer outputs are pooled


@dataclass(frozen=True, slots=True)
class Fit:
    """One goodness-of-fit test. ``impossible`` counts outputs of probability zero: one alone refutes the law."""

    samples: int
    cells: int
    statistic: float
    p_value: float
    impossible: int
    tv: float  # between frequencies and law, all outputs apart
    tv_low: float  # 95 % interval of the total variation between the sampled law and the exact one
    tv_high: float


def goodness_of_fit(observed: Mapping[Output, int], law: Mapping[Output, float]) -> Fit:
    """G-test of counts against ``law`` (probabilities, summing to 1 up to rounding)."""
    n = sum(observed.values())
    assert n > 0 and law
    total = math.fsum(law.values())
    impossible = sum(count for key, count in observed.items() if law.get(key, 0.0) <= 0)
    tv = 0.5 * sum(abs(observed.get(k, 0) / n - law.get(k, 0.0) / total) for k in observed.keys() | law.keys())
    low, high = tv_interval(tv, n, len(law))
    seen, expected = _cells(observed, law, n, total)
    if impossible:
        return Fit(n, len(seen), math.inf, 0.0, impossible, tv, low, high)
    if len(seen) < 2:
        return Fit(n, len(seen), 0.0, 1.0, 0, tv, low, high)
    statistic, p = power_divergence(seen, expected, lambda_="log-likelihood")
    return Fit(n, len(seen), float(statistic), float(p), 0, tv, low, high)


def _cells(
    observed: Mapping[Output, int], law: Mapping[Output, float], n: int, total: float
) -> tuple[list[float], list[float]]:
    """Observed and expected counts; outputs that expect too few are one cell, which joins the rarest if still small."""
    pairs = sorted(((p / total * n, float(observed.get(k, 0))) for k, p in law.items() if p > 0), reverse=True)
    cells = [pair for pair in pairs if pair[0] >= _LEAST]
    rare = [pair for pair in pairs if pair[0] < _LEAST]
    if rare:
        pooled = (math.fsum(e for e, _ in rare), sum(o for _, o in rare))
        if pooled[0] < _LEAST and cells:
            last = cells.pop()
            pooled = (last[0] + pooled[0], last[1] + pooled[1])
        cells.append(pooled)
    return [o for _, o in cells], [e for e, _ in cells]


def tv_interval(tv: float, n: int, outputs: int, confidence: float = 0.95) -> tuple[float, float]:
    """Bounds on the true total variation from an observed one.

    The frequencies of n draws from any law on k outputs are, in the mean, at most sqrt((k - 1) / n) / 2 from it, and
    McDiarmid's inequality bounds the rest: no shape and no limit theorem is assumed, so the interval is wide.
    """
    radius = 0.5 * math.sqrt((outputs - 1) / n) + math.sqrt(math.log(2 / (1 - confidence)) / (2 * n))
    return max(0.0, tv - radius), min(1.0, tv + radius)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down adjusted p-values, in the given order (Holm 1979)."""
    m = len(p_values)
    adjusted = [0.0] * m
    running = 0.0
    for rank, i in enumerate(sorted(range(m), key=lambda i: p_values[i])):
        running = max(running, min(1.0, (m - rank) * p_values[i]))
        adjusted[i] = running
    return adjusted


def detectable_tv(samples: int, cells: int, alpha: float, power: float = POWER) -> float:
    """The smallest total variation of which *every* bias over the cells is seen with at least ``power``.

    1 where there is nothing to see: a single cell.
    """
    df = cells - 1
    if df < 1:
        return 1.0
    critical = chi2.isf(alpha, df)
    upper = 10.0
    while ncx2.sf(critical, df, upper) < power:
        upper *= 2
    noncentrality = float(brentq(lambda nc: ncx2.sf(critical, df, nc) - power, 1e-6, upper))
    return min(1.0, 0.5 * math.sqrt(noncentrality / samples))
