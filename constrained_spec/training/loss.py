"""How far a draft law is from the target's: the divergences of DistillSpec (Zhou et al. 2024)."""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType

import torch
from torch import Tensor

Loss = Callable[[Tensor, Tensor], Tensor]  # logits of the target and of the draft, [M, R] each -> [M]


def forward_kl(target: Tensor, draft: Tensor) -> Tensor:
    """KL(p || q): covers all that the target may say."""
    p, q = target.softmax(-1), draft.log_softmax(-1)
    return (p * (_log(target) - _finite(q))).sum(-1)


def reverse_kl(target: Tensor, draft: Tensor) -> Tensor:
    """KL(q || p): stays where the target is."""
    return forward_kl(draft, target)


def total_variation(target: Tensor, draft: Tensor) -> Tensor:
    """1 - sum min(p, q): exactly the chance that a sampled draft is rejected."""
    return 1 - torch.minimum(target.softmax(-1), draft.softmax(-1)).sum(-1)


def jensen_shannon(target: Tensor, draft: Tensor) -> Tensor:
    """Mean KL of both to their mean."""
    p, q = target.softmax(-1), draft.softmax(-1)
    middle = ((p + q) / 2).clamp(min=1e-12).log()
    return ((p * (_log(target) - middle)).sum(-1) + (q * (_log(draft) - middle)).sum(-1)) / 2


def _log(logits: Tensor) -> Tensor:
    return _finite(logits.log_softmax(-1))


def _finite(log: Tensor) -> Tensor:
    """An impossible id has no part in any sum: 0 * -inf would be a NaN."""
    return log.masked_fill(log == float("-inf"), -80.0)


LOSSES: MappingProxyType[str, Loss] = MappingProxyType({
    "kl": forward_kl, "reverse-kl": reverse_kl, "tv": total_variation, "jsd": jensen_shannon,
})  # fmt: skip
