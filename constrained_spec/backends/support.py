"""Which models can run in KV slots: those whose whole state is keys and values per token."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor
from transformers import PretrainedConfig, PreTrainedModel
from transformers.cache_utils import Cache, DynamicLayer, DynamicSlidingWindowLayer

from constrained_spec.backends.slots import FULL, SLIDING, SlotLayer
from constrained_spec.errors import ModelError

_HINT = "supported are decoder-only models whose whole state is keys and values of full or sliding-window attention"
# Checked by the tests against full forwards, sliding windows included.
CHECKED = frozenset({
    "gemma", "gemma2", "gemma3_text", "gpt2", "gpt_neox", "llama", "mistral", "phi", "phi3", "qwen2", "qwen3",
    "smollm3",
})  # fmt: skip


def layer_kinds(config: PretrainedConfig) -> tuple[str, ...]:
    """The kind of each layer, from a decoder's config."""
    declared = getattr(config, "layer_types", None)
    if declared is not None:
        return tuple(declared)
    # Mistral and Phi 3 window every layer and declare no kinds.
    kind = FULL if getattr(config, "sliding_window", None) is None else SLIDING
    return (kind,) * int(config.num_hidden_layers)


def refuse_config(config: PretrainedConfig) -> None:
    """Raise ``ModelError`` naming the kind of state, if the config alone shows that a tail cannot be dropped."""
    if getattr(config, "is_encoder_decoder", False):
        raise _refusal(config, "it is an encoder-decoder")
    if config.get_text_config(decoder=True) is not config:
        raise _refusal(config, "it is a multimodal model")
    other = sorted(set(getattr(config, "layer_types", None) or ()) - {FULL, SLIDING})
    if other:
        raise _refusal(config, f"it has layers of kind {', '.join(other)}")
    if "reuse" in (getattr(config, "kv_sharing_modes", None) or ()):
        raise _refusal(config, "its layers share keys and values")


def refuse_model(model: PreTrainedModel) -> None:
    """As ``refuse_config``, with what the class tells."""
    refuse_config(model.config)
    if getattr(model, "_is_stateful", False):
        raise _refusal(model.config, "it keeps a recurrent state")
    if model.get_output_embeddings() is None:
        raise _refusal(model.config, "it is not a causal language model")
    window = getattr(model.config, "sliding_window", None)
    if model.config.model_type not in CHECKED and window is not None and SLIDING in layer_kinds(model.config):
        raise _refusal(model.config, "its sliding windows have not been checked")


def cache_argument(model: PreTrainedModel) -> str:
    """Name of the forward's cache parameter: transformers 5.24 renamed it."""
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"


@torch.inference_mode()
def probe(model: PreTrainedModel, ids: list[int]) -> tuple[Tensor, Cache]:
    """The model's own plain forward: float32 logits [n, V] and the cache it leaves. Raises ``ModelError``."""
    output = model(input_ids=torch.tensor([ids], device=model.device), use_cache=True)
    cache = getattr(output, cache_argument(model), None)
    if not isinstance(cache, Cache):
        raise _refusal(model.config, "its forward returns no key-value cache")
    return output.logits[0].float(), cache


def slot_layers(model: PreTrainedModel, cache: Cache, slots: int, capacity: int) -> list[SlotLayer]:
    """Zeroed buffers shaped like the layers of ``cache``. Raises ``ModelError`` if one is no attention layer."""
    kinds = layer_kinds(model.config)
    if len(kinds) != len(cache.layers):
        raise _refusal(model.config, f"it has {len(kinds)} layers, but its cache has {len(cache.layers)}")
    layers = []
    for kind, layer in zip(kinds, cache.layers, strict=True):
        if type(layer) not in (DynamicLayer, DynamicSlidingWindowLayer):
            raise _refusal(model.config, f"its cache has layers of kind {type(layer).__name__}")
        k, v = layer.keys, layer.values
        if k.shape != v.shape:
            raise _refusal(model.config, "its keys and values differ in size")
        # Zeros, not empty: a masked key has weight 0, and 0 times a stray NaN would still be NaN.
        shape = (slots, 2, k.shape[1], capacity, k.shape[3])
        layers.append(SlotLayer(kind, torch.zeros(shape, dtype=k.dtype, device=k.device)))
    if len({(layer.keys.device, layer.keys.dtype) for layer in layers}) > 1:
        raise ModelError("the model is spread over several devices or dtypes", param="device")
    return layers


def context_limit(config: PretrainedConfig) -> int | None:
    """The longest context whose position encoding depends on the position alone, None if there is no limit.

    Past ``original_max_position_embeddings`` a long-rope model re-encodes *every* position by other frequencies, so
    that keys already in a slot would no longer fit.
    """
    limits = [getattr(config, "max_position_embeddings", None)]
    parameters = getattr(config, "rope_parameters", None) or {}
    for rope in (parameters, *(p for p in parameters.values() if isinstance(p, dict))):
        if rope.get("rope_type") == "longrope":
            limits.append(
                rope.get("original_max_position_embeddings")
                or getattr(config, "original_max_position_embeddings", None)
            )
    known = [int(limit) for limit in limits if limit]
    return min(known) if known else None


def _refusal(config: PretrainedConfig, reason: str) -> ModelError:
    kind: Any = getattr(config, "model_type", "") or type(config).__name__
    return ModelError(f"a {kind} model cannot run in KV slots: {reason}", param="model", hint=_HINT)
