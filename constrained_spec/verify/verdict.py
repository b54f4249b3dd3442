"""What a verifier decides about a batch of drafted blocks."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Verdict:
    """Per sequence: how many leading drafts stand, and the one token that follows them.

    ``token`` is *recovered* where ``accepted`` is below the draft length, *bonus* where they are equal.
    """

    accepted: Tensor  # [B] int64
    token: Tensor  # [B] int64


def leading(kept: Tensor) -> Tensor:  # [B, G] bool -> [B] int64
    """Number of places kept before the first one that is not. ``G`` may be 0."""
    return kept.long().cumprod(1).sum(1)
