"""A world of three tokens: what follows depends on the last token alone, so that tables say all of it.

The first step is the worked example: p = (.5, .3, .2), q = (.6, .1, .3). They differ by .2 in total variation, so .8 of
the drafts are kept, and all that a rejection leaves is the second token: the residual is (0, 1, 0). Later steps have
drafts that are better, off by .05.
"""

from __future__ import annotations

import torch
from torch import Tensor

from constrained_spec.verify import Distribution, Prefix, World

VOCAB = 3
LENGTH = 4  # tokens of a text
GAMMA = 3  # drafts a round

# By the last token; the empty prefix is the first step.
TARGET: dict[Prefix, Distribution] = {
    (): (0.50, 0.30, 0.20),
    (0,): (0.20, 0.50, 0.30),
    (1,): (0.30, 0.20, 0.50),
    (2,): (0.60, 0.20, 0.20),
}
DRAFT: dict[Prefix, Distribution] = {
    (): (0.60, 0.10, 0.30),
    (0,): (0.25, 0.45, 0.30),
    (1,): (0.30, 0.25, 0.45),
    (2,): (0.55, 0.20, 0.25),
}

WORLD = World(VOCAB, lambda prefix: TARGET[prefix[-1:]], lambda prefix: DRAFT[prefix[-1:]])


def rows(table: dict[Prefix, Distribution]) -> Tensor:  # -> [VOCAB + 1, VOCAB] float64
    """``table`` with the row after token t at t, and the row of the empty prefix last."""
    return torch.tensor([table[(t,)] for t in range(VOCAB)] + [table[()]], dtype=torch.float64)
