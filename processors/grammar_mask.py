"""Packed grammar masks onto logits."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from constrained_spec.processors.base import Position
from constrained_spec.processors.rows import Rows, to_device

# The eight ceilings that one byte of a mask stands for: +inf keeps a logit, -inf removes it.
_CEILINGS = np.where(
    np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little") == 1, np.inf, -np.inf
).astype(np.float32)


def grammar_mask(logits: Tensor, positions: Sequence[Position]) -> None:
    """Set every id that a position's mask forbids to -inf. ``logits`` [N, V] float32, edited in place.

    Rows without a mask are left alone. A NaN stays NaN, so that a mask cannot hide a broken model.
    """
    numbers = [i for i, p in enumerate(positions) if p.mask is not None]
    if not numbers:
        return
    packed = np.stack([mask for p in positions if (mask := p.mask) is not None])  # [R, words] int32
    width = logits.shape[1]
    assert packed.shape[1] == (width + 31) // 32, "a mask covers the vocabulary"
    rows = Rows(numbers, logits.device)
    part = rows.take(logits)
    rows.put(logits, torch.minimum(part, _ceilings(packed.astype("<i4", copy=False), width, logits.device), out=part))


def _ceilings(packed: np.ndarray[tuple[int, ...], np.dtype[np.int32]], width: int, device: torch.device) -> Tensor:
    """Packed bits [R, words] -> +inf / -inf, shape [R, width]."""
    if device.type == "cpu":
        # A table look-up per byte is several times faster than masked_fill, whose branches a mask makes unpredictable.
        return torch.from_numpy(_CEILINGS.take(packed.view(np.uint8), axis=0).reshape(len(packed), -1)[:, :width])
    return _ceilings_of(to_device(packed, device), width)


def _ceilings_of(words: Tensor, width: int) -> Tensor:
    """The same from words on the device: shifts, one per bit."""
    bits = (words.unsqueeze(-1) >> torch.arange(32, device=words.device, dtype=torch.int32)) & 1
    # bit 1 -> +inf, bit 0 -> -inf
    return ((bits.float() - 0.5) * float("inf")).flatten(1)[:, :width]
