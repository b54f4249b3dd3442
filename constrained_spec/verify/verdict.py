"""What a verifier says about one block per sequence."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Verdict(NamedTuple):
    """``accepted`` drafts are kept; ``token`` follows them: recovered, or bonus when the whole block was accepted."""

    accepted: Tensor  # [B] int64
    token: Tensor  # [B] int64


def leading(kept: Tensor) -> Tensor:  # [B, G] bool -> [B] int64
    """Length of the run of True at the start of each row."""
    return kept.long().cumprod(dim=1).sum(dim=1)
