"""Final hidden states kept by slot and place, as keys and values are: what trained draft heads read."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class FeatureStore:
    """Row i of a slot is the state behind the last norm after the token at place i: the input of the output product.

    A forward writes the rows of its block; what lies at or beyond the slot's length means nothing, so a rollback is
    arithmetic. A slot that held tokens before the store existed has no rows for them, until it is cut below that place.
    """

    __slots__ = ("_first", "_rows")

    def __init__(self, lengths: Sequence[int], capacity: int, width: int, dtype: torch.dtype, device: torch.device):
        """``lengths[s]`` tokens are in slot s already, without their rows."""
        self._rows = torch.empty(len(lengths), capacity, width, dtype=dtype, device=device)
        self._first = list(lengths)  # per slot: the rows from here on are known

    def write(self, slot: int, start: int, rows: Tensor) -> None:  # rows [n, width]
        self._rows[slot, start : start + len(rows)] = rows

    def cut(self, slot: int, length: int) -> None:
        self._first[slot] = min(self._first[slot], length)

    def compact(self, slot: int, base: int, path: Sequence[int]) -> None:
        """Keep one path of the tree block written from ``base`` on, as ``SlotCache.compact`` does."""
        if path:
            source = torch.tensor([base + index for index in path], device=self._rows.device)
            self._rows[slot, base : base + len(path)] = self._rows[slot].index_select(0, source)
        self.cut(slot, base + len(path))

    def copy(self, source: int, target: int, length: int) -> None:
        """Take over the first ``length`` rows of another slot, and how many of them are known."""
        self._rows[target, :length] = self._rows[source, :length]
        self._first[target] = min(self._first[source], length)

    def read(self, slot: int, length: int) -> Tensor | None:
        """The first ``length`` rows [length, width], a view that the next forward may overwrite; None if one lacks."""
        return None if self._first[slot] > 0 else self._rows[slot, :length]

    def nbytes(self) -> int:
        return self._rows.nbytes
