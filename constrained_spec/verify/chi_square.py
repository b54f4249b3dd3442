"""Pearson's goodness-of-fit test, for agreement of draws with a law known exactly."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def chi_square(observed: Sequence[int], law: Sequence[float], least: float = 5.0) -> float:
    """Chance that draws from ``law`` differ from it at least as much as the counts ``observed`` do.

    Cells whose expected count is below ``least`` are pooled, so that the chi-square limit applies. A count in a cell
    of chance zero yields 0. Rejecting below t has a false-alarm rate of about t.
    """
    total = sum(observed)
    if any(n and not p for n, p in zip(observed, law, strict=True)):
        return 0.0
    cells = [(n, total * p) for n, p in zip(observed, law, strict=True) if p > 0]
    rare = [c for c in cells if c[1] < least]
    cells = [c for c in cells if c[1] >= least]
    if rare:
        cells.append((sum(n for n, _ in rare), sum(e for _, e in rare)))
    if len(cells) < 2:
        return 1.0
    statistic = sum((n - e) ** 2 / e for n, e in cells)
    half = torch.tensor([(len(cells) - 1) / 2, statistic / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))
