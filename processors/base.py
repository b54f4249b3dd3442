"""What a processor may look at, and what it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from constrained_spec.config import Sampling
from constrained_spec.types import History


@dataclass(frozen=True, slots=True, eq=False)
class Position:
    """One place in one sequence where a next token will be drawn: all that a processor may look at.

    ``index`` is the number of tokens before the place (prompt included); drafts before it count, later ones do not,
    even though ``history`` may already hold them. ``mask`` is the packed row of grammar-legal tokens, EOS bits
    included, or None without a grammar. The same object serves draft and target, so both see the same mask and counts.
    """

    history: History
    index: int
    sampling: Sampling
    mask: NDArray[np.int32] | None = None

    @property
    def output_index(self) -> int:
        """Number of output tokens before this place."""
        return self.index - self.history.prompt_length

    @property
    def prefix(self) -> list[int]:
        """Ids before this place (a copy)."""
        return self.history.tokens[: self.index]

    def output_counts(self) -> dict[int, int]:
        """How often each id stands in the output before this place. O(distinct ids + tokens after the place)."""
        counts = dict(self.history.output_counts)
        for token in self.history.tokens[self.index :]:
            counts[token] -= 1
            if not counts[token]:
                del counts[token]
        return counts


class Processor(Protocol):
    """A pure function of its arguments, vectorised over N positions of any number of sequences.

    It must not remember anything between calls: how often it is called depends on what was drafted and rejected.
    It may edit ``logits`` in place (the pipeline owns that buffer) and returns the result.
    """

    def __call__(self, logits: Tensor, positions: Sequence[Position]) -> Tensor:  # [N, V] float32 -> [N, V]
        ...
