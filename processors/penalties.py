"""Penalties on ids that already stand in the text. Only those ids are read and written."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from constrained_spec.processors.base import Position
from constrained_spec.processors.rows import to_device
from constrained_spec.types import History

Ids = NDArray[np.int64]


def repetition_penalty(logits: Tensor, positions: Sequence[Position]) -> None:
    """Divide positive and multiply other logits of every id in prompt or output by the penalty (Keskar et al. 2019).

    ``logits`` [N, V] float32, edited in place. Drafts before a position count at it.
    """
    numbers = [i for i, p in enumerate(positions) if p.sampling.repetition_penalty != 1]
    if not numbers:
        return
    rows, ids, _ = _seen(positions, numbers, logits.shape[1], prompt=True)
    factor = np.array([p.sampling.repetition_penalty for p in positions], dtype=np.float32)[rows]
    r, c, f = (to_device(a, logits.device) for a in (rows, ids, factor))
    old = logits[r, c]
    logits.index_put_((r, c), torch.where(old > 0, old / f, old * f))


def presence_frequency_penalty(logits: Tensor, positions: Sequence[Position]) -> None:
    """Subtract ``presence_penalty`` once, and ``frequency_penalty`` per occurrence, from every id in the output.

    ``logits`` [N, V] float32, edited in place. Drafts before a position count at it.
    """
    numbers = [
        i for i, p in enumerate(positions) if p.sampling.presence_penalty != 0 or p.sampling.frequency_penalty != 0
    ]
    if not numbers:
        return
    rows, ids, counts = _seen(positions, numbers, logits.shape[1], prompt=False)
    presence = np.array([p.sampling.presence_penalty for p in positions])[rows]
    frequency = np.array([p.sampling.frequency_penalty for p in positions])[rows]
    amount = (presence + frequency * counts).astype(np.float32)
    r, c, a = (to_device(array, logits.device) for array in (rows, ids, amount))
    logits.index_put_((r, c), logits[r, c] - a)


def _seen(positions: Sequence[Position], numbers: list[int], width: int, *, prompt: bool) -> tuple[Ids, Ids, Ids]:
    """(row, id, count) of every id that stands before each numbered position; each (row, id) occurs once.

    Positions of one sequence share one walk over its history. With ``prompt``, every id of the prompt counts once more.
    """
    groups: dict[int, tuple[History, list[int]]] = {}
    for i in numbers:
        history = positions[i].history
        groups.setdefault(id(history), (history, []))[1].append(i)
    parts = []
    for history, members in groups.values():
        ids, counts = _counts(history, [positions[i].index for i in members], prompt=prompt)
        # A prompt may hold placeholder ids (images) beyond the vocabulary: they have no logit.
        inside = (ids >= 0) & (ids < width)
        ids, counts = ids[inside], counts[:, inside]
        row, col = np.nonzero(counts)
        parts.append((np.array(members, dtype=np.int64)[row], ids[col], counts[row, col]))
    rows, columns, amounts = (np.concatenate(p) for p in zip(*parts, strict=True))
    return rows, columns, amounts


def _counts(history: History, indices: list[int], *, prompt: bool) -> tuple[Ids, Ids]:
    """Sorted distinct ids [D], and how often each stands before each index [len(indices), D]."""
    output = np.fromiter(history.output_counts.keys(), dtype=np.int64, count=len(history.output_counts))
    times = np.fromiter(history.output_counts.values(), dtype=np.int64, count=len(history.output_counts))
    before = np.fromiter(history.prompt_ids, dtype=np.int64) if prompt else np.empty(0, dtype=np.int64)
    ids = np.union1d(output, before)
    counts = np.zeros((len(indices), len(ids)), dtype=np.int64)
    counts[:, np.searchsorted(ids, output)] = times
    counts[:, np.searchsorted(ids, before)] += 1
    # The history already holds drafts that stand at or after some of the places: take them off again.
    first = min(indices)
    assert history.prompt_length <= first
    assert max(indices) <= len(history)
    later = np.searchsorted(ids, np.array(history.tokens[first:], dtype=np.int64))
    for row, index in enumerate(indices):
        np.subtract.at(counts[row], later[index - first :], 1)
    return ids, counts
