"""No EOS before ``min_tokens`` output tokens, unless the grammar leaves nothing else."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from constrained_spec.processors.base import Position
from constrained_spec.processors.bias import ban
from constrained_spec.types import Vocabulary


class MinTokens:
    """Sets every EOS id to -inf where the output so far is shorter than ``min_tokens``.

    Where the grammar allows only EOS, the grammar wins. With ``ignore_eos`` an EOS id does not end the output, so it is
    an ordinary id here.
    """

    __slots__ = ("_eos_ids", "_others")

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._eos_ids = vocabulary.eos_ids
        words = np.zeros(vocabulary.mask_words, dtype=np.uint32)
        for token in vocabulary.eos_ids:
            words[token >> 5] |= np.uint32(1 << (token & 31))
        self._others = (~words).view(np.int32)

    def __call__(self, logits: Tensor, positions: Sequence[Position]) -> None:
        """``logits`` [N, V] float32, edited in place."""
        numbers = [i for i, p in enumerate(positions) if p.output_index < p.sampling.min_tokens and self._holds(p)]
        if numbers and self._eos_ids:
            ban(logits, [(i, self._eos_ids) for i in numbers])

    def _holds(self, position: Position) -> bool:
        if position.sampling.ignore_eos:
            return False
        return position.mask is None or bool(np.any(position.mask & self._others))
