"""Temperature, top-k, top-p, min-p: what makes a sampled row's law out of its masked logits.

All work on the rows that use them and on what the steps before have left: the grammar's mask comes first, so no
truncation can leave an empty set, and every threshold is relative to the legal tokens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from constrained_spec.processors.base import Position
from constrained_spec.processors.rows import Rows, column

_NEVER = float("-inf")
_TINY = 2.0**-126  # least normal float32: a smaller temperature would be 0 there


def temperature(logits: Tensor, positions: Sequence[Position]) -> None:
    """Divide by the temperature. ``logits`` [N, V] float32, edited in place.

    The row's maximum is subtracted first, which changes no probability and lets no temperature overflow.
    """
    numbers = [i for i, p in enumerate(positions) if p.sampling.temperature not in (0, 1)]
    if not numbers:
        return
    rows = Rows(numbers, logits.device)
    part = rows.take(logits)
    part -= part.amax(-1, keepdim=True)
    part /= column([max(positions[i].sampling.temperature, _TINY) for i in numbers], logits.device)
    rows.put(logits, part)


def top_k(logits: Tensor, positions: Sequence[Position]) -> None:
    """Keep the k most probable ids, and every id that ties with the k-th. ``logits`` [N, V], edited in place."""
    width = logits.shape[1]
    numbers = [i for i, p in enumerate(positions) if _sampled(p) and 0 < p.sampling.top_k < width]
    if not numbers:
        return
    rows = Rows(numbers, logits.device)
    part = rows.take(logits)
    k = [positions[i].sampling.top_k for i in numbers]
    best = part.topk(max(k), dim=-1).values
    least = best.gather(1, column(k, logits.device, torch.int64) - 1)
    rows.put(logits, part.masked_fill_(part < least, _NEVER))


def top_p(logits: Tensor, positions: Sequence[Position]) -> None:
    """Keep the smallest set of most probable ids whose mass is at least ``top_p``; the most probable always stays.

    Among equally probable ids at the border the lower ids stay. ``logits`` [N, V] float32, edited in place.
    """
    numbers = [i for i, p in enumerate(positions) if _sampled(p) and p.sampling.top_p < 1]
    if not numbers:
        return
    rows = Rows(numbers, logits.device)
    part = rows.take(logits)
    mass = column([positions[i].sampling.top_p for i in numbers], logits.device, torch.float64)
    p = part.softmax(-1)
    best = _descending(p, mass)  # [R, K]
    before = best[:, :-1].cumsum(-1, dtype=torch.float64)  # the mass of the ids ahead of the second, the third, ...
    kept = 1 + (before < mass).sum(-1, keepdim=True)
    least = best.gather(1, kept - 1)
    drop = p < least
    surplus = (~drop).sum(-1, keepdim=True) - kept  # ids too many because they tie with the last one kept
    if p.device.type != "cpu" or bool((surplus > 0).any()):
        tied = p == least
        drop |= tied & (tied.cumsum(-1) > tied.sum(-1, keepdim=True) - surplus)
    rows.put(logits, part.masked_fill_(drop, _NEVER))


def min_p(logits: Tensor, positions: Sequence[Position]) -> None:
    """Keep ids with at least ``min_p`` times the probability of the most probable legal id (Nguyen et al. 2024).

    ``logits`` [N, V] float32, edited in place.
    """
    numbers = [i for i, p in enumerate(positions) if _sampled(p) and p.sampling.min_p > 0]
    if not numbers:
        return
    rows = Rows(numbers, logits.device)
    part = rows.take(logits)
    least = part.amax(-1, keepdim=True) + column([math.log(positions[i].sampling.min_p) for i in numbers], part.device)
    rows.put(logits, part.masked_fill_(part < least, _NEVER))


def _sampled(position: Position) -> bool:
    return not position.sampling.greedy


def _descending(p: Tensor, mass: Tensor) -> Tensor:  # [R, V], [R, 1] -> [R, K]
    """The largest probabilities in falling order, as many as it takes for each row to hold ``mass`` (or all)."""
    width = p.shape[1]
    if p.device.type == "cpu":
        # Most rows hold their mass in a few ids; a full sort of a large vocabulary costs ten times as much.
        for k in (128, 4096):
            if k < width:
                best = p.topk(k, dim=-1).values
                if bool((best.sum(-1, keepdim=True, dtype=torch.float64) > mass).all()):
                    return best
    return p.sort(dim=-1, descending=True).values
