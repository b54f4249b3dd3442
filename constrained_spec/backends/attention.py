"""Attention over slot views, registered with transformers under ``NAME``.

A verification block has few queries, a mask, and many cached keys. The stock function then repeats every key and value
head to the number of query heads, which copies the whole prefix once per layer and round. Here the query heads of a
group become extra queries of their one key head, so the prefix is read in place.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

NAME = "constrained_spec"


def slot_attention(
    module: nn.Module,
    query: Tensor,  # [B, Hq, Q, D]
    key: Tensor,  # [B, Hkv, K, D]
    value: Tensor,  # [B, Hkv, K, D]
    attention_mask: Tensor | None,  # additive or boolean, [B or 1, 1, Q, K]
    *,
    dropout: float = 0.0,
    scaling: float | None = None,
    softcap: float | None = None,
    is_causal: bool | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Scaled dot-product attention. Returns [B, Q, Hq, D].

    Without a mask it means what transformers means: causal for several queries, everything for one.
    """
    batch, heads, queries, _ = query.shape
    groups = heads // key.shape[1]
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    if attention_mask is None and queries > 1 and causal:
        if softcap is None:
            result: tuple[Tensor, None] = sdpa_attention_forward(
                module, query, key, value, None, dropout=dropout, scaling=scaling, is_causal=is_causal
            )
            return result
        attention_mask = torch.ones(queries, key.shape[2], dtype=torch.bool, device=query.device).tril()[None, None]
    # Query head h belongs to key head h // groups, so a plain reshape groups them.
    folded = query.reshape(batch, key.shape[1], groups * queries, query.shape[-1])
    mask = attention_mask
    if mask is not None and groups > 1:
        mask = mask.unsqueeze(2).expand(-1, -1, groups, -1, -1).reshape(mask.shape[0], 1, groups * queries, -1)
    if softcap is None:
        out = nn.functional.scaled_dot_product_attention(
            folded, key, value, attn_mask=mask, dropout_p=dropout, scale=scaling
        )
    else:
        out = _capped(folded, key, value, mask, scaling, softcap)
    return out.reshape(batch, heads, queries, value.shape[-1]).transpose(1, 2).contiguous(), None


def _capped(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float | None, softcap: float
) -> Tensor:
    """Attention with ``softcap * tanh(score / softcap)`` (Gemma 2), which no fused kernel offers."""
    scale = 1.0 / math.sqrt(query.shape[-1]) if scaling is None else scaling
    scores = torch.tanh(query @ key.transpose(-1, -2) * (scale / softcap)) * softcap
    if mask is not None and mask.dtype == torch.bool:
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    elif mask is not None:
        scores = scores + mask
    return torch.softmax(scores, dim=-1, dtype=torch.float32).to(query.dtype) @ value


def register() -> None:
    """Make the function known to transformers; doing it twice changes nothing.

    The stock mask builder is registered with it, so that the same model object stays right in ``model.generate``.
    """
    AttentionInterface.register(NAME, slot_attention)
    AttentionMaskInterface.register(NAME, sdpa_mask)
