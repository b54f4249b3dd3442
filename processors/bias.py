"""Fixed additions to, and bans of, single ids."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from constrained_spec.processors.base import Position
from constrained_spec.processors.rows import to_device


def logit_bias(logits: Tensor, positions: Sequence[Position]) -> None:
    """Add each position's ``logit_bias``. ``logits`` [N, V] float32, edited in place."""
    numbers = [i for i, p in enumerate(positions) if p.sampling.logit_bias]
    if not numbers:
        return
    biases = [positions[i].sampling.logit_bias for i in numbers]
    rows = np.repeat(np.array(numbers, dtype=np.int64), [len(b) for b in biases])
    ids = np.array([token for b in biases for token in b], dtype=np.int64)
    values = np.array([value for b in biases for value in b.values()], dtype=np.float32)
    r, c, v = (to_device(a, logits.device) for a in (rows, ids, values))
    logits.index_put_((r, c), logits[r, c] + v)


def suppress(logits: Tensor, positions: Sequence[Position]) -> None:
    """Set each position's ``suppress_tokens`` to -inf. ``logits`` [N, V] float32, edited in place."""
    numbers = [i for i, p in enumerate(positions) if p.sampling.suppress_tokens]
    if numbers:
        ban(logits, [(i, positions[i].sampling.suppress_tokens) for i in numbers])


def ban(logits: Tensor, banned: Sequence[tuple[int, Sequence[int]]]) -> None:
    """Set the given ids of the given rows to -inf. ``logits`` [N, V], edited in place."""
    rows = np.repeat(np.array([i for i, _ in banned], dtype=np.int64), [len(ids) for _, ids in banned])
    ids = np.array([token for _, tokens in banned for token in tokens], dtype=np.int64)
    r, c = (to_device(a, logits.device) for a in (rows, ids))
    logits.index_put_((r, c), logits.new_full((), float("-inf")))
