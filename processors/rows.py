"""Which rows of a batch a step touches, and how small host arrays reach the device."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def to_device(array: NDArray[np.generic], device: torch.device) -> Tensor:
    """``array`` as a tensor on ``device``. Never waits for work that the device still has to do."""
    tensor = torch.from_numpy(np.ascontiguousarray(array))
    if device.type == "cuda":
        # A copy from pageable memory would wait for the whole stream, the model's forward included.
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


class Rows:
    """A strictly increasing selection of rows of a [N, V] tensor; adjacent rows are read and written without a copy."""

    __slots__ = ("_select", "numbers")

    def __init__(self, numbers: Sequence[int], device: torch.device) -> None:
        assert len(numbers) > 0
        self.numbers = list(numbers)
        first, stop = self.numbers[0], self.numbers[-1] + 1
        self._select: slice | Tensor
        if stop - first == len(self.numbers):
            self._select = slice(first, stop)
        else:
            self._select = to_device(np.array(self.numbers, dtype=np.int64), device)

    def take(self, logits: Tensor) -> Tensor:
        """The selected rows [R, V]: a view if they are adjacent, else a copy."""
        if isinstance(self._select, slice):
            return logits[self._select]
        return logits.index_select(0, self._select)

    def put(self, logits: Tensor, rows: Tensor) -> None:
        """Write ``rows`` [R, V] back into ``logits`` [N, V]."""
        if isinstance(self._select, slice):
            logits[self._select].copy_(rows)
        else:
            logits.index_copy_(0, self._select, rows)


def column(values: Sequence[float], device: torch.device, dtype: torch.dtype = torch.float32) -> Tensor:
    """One parameter per row, shape [R, 1]."""
    kind = {torch.float32: np.float32, torch.float64: np.float64, torch.int64: np.int64}[dtype]
    return to_device(np.array(values, dtype=kind), device).unsqueeze(1)
