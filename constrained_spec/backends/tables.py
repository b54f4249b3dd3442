"""The token embedding, when the output product holds the same weights in another layout.

A tied table that is packed for the product would be in memory twice. Few checkpoints need float32 for it: most were
published in 16 bits, and GGUF files often keep it in blocks of int8. It is held in the narrowest form that gives back
every value exactly.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor, nn

from constrained_spec.backends.products import Int8

_BLOCK = 32  # values that share a scale in GGUF's Q8_0
_CHUNK = 4096  # rows looked at together


class Table(Protocol):
    """Rows by id."""

    def __call__(self, ids: Tensor) -> Tensor:
        """[n] ids -> [n, hidden], in the model's dtype."""
        ...

    def nbytes(self) -> int:
        """Bytes that nothing else holds."""
        ...


class Plain:
    """A tensor of any dtype that holds the values exactly."""

    def __init__(self, rows: Tensor, dtype: torch.dtype) -> None:
        self._rows, self._dtype = rows, dtype

    def __call__(self, ids: Tensor) -> Tensor:
        return nn.functional.embedding(ids, self._rows).to(self._dtype)

    def nbytes(self) -> int:
        return self._rows.nbytes


class Blocks:
    """int8 levels [V, hidden] and one float32 scale for each block of 32."""

    def __init__(self, levels: Tensor, scales: Tensor) -> None:
        self._levels, self._scales = levels, scales

    def __call__(self, ids: Tensor) -> Tensor:
        levels = self._levels[ids].view(len(ids), -1, _BLOCK)
        return (levels * self._scales[ids].unsqueeze(-1)).view(len(ids), -1)

    def nbytes(self) -> int:
        return self._levels.nbytes + self._scales.nbytes


class Quantized:
    """The rows of an int8 product: a tied embedding follows its output weights."""

    def __init__(self, product: Int8, dtype: torch.dtype) -> None:
        found = product.tensors()
        self._levels, self._scale, self._dtype = found["int8"], found["scale"], dtype

    def __call__(self, ids: Tensor) -> Tensor:
        return (self._levels[ids] * self._scale[ids, None]).to(self._dtype)

    def nbytes(self) -> int:
        return self._levels.nbytes


def narrowest(rows: Tensor) -> Table:
    """``rows`` [V, hidden] in the smallest form that holds every value exactly."""
    if rows.dtype == torch.float32:
        for dtype in (torch.bfloat16, torch.float16):
            if all(torch.equal(part.to(dtype).float(), part) for part in rows.split(_CHUNK)):
                return Plain(rows.to(dtype), rows.dtype)
        blocks = _blocks(rows)
        if blocks is not None:
            return blocks
    return Plain(rows, rows.dtype)


def _blocks(rows: Tensor) -> Blocks | None:
    if rows.shape[1] % _BLOCK:
        return None
    levels = torch.empty(rows.shape, dtype=torch.int8, device=rows.device)
    scales = torch.empty(rows.shape[0], rows.shape[1] // _BLOCK, device=rows.device)
    for at in range(0, rows.shape[0], _CHUNK):
        part = rows[at : at + _CHUNK].view(-1, rows.shape[1] // _BLOCK, _BLOCK)
        # The largest value of a block is its scale times 127; a block of zeros has any scale.
        scale = part.abs().amax(-1, keepdim=True) / 127
        level = (part / scale.clamp(min=torch.finfo(torch.float32).tiny)).round_()
        if not torch.equal(level * scale, part):
            return None
        levels[at : at + _CHUNK] = level.view(len(part), -1).to(torch.int8)
        scales[at : at + _CHUNK] = scale.squeeze(-1)
    return Blocks(levels, scales)
