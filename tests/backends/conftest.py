"""Tiny random models of every checked architecture, and a tokenizer that needs no download."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

WINDOW = 5
_COMMON = {
    "vocab_size": 300,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "initializer_range": 0.08,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_MIXED = {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"], "num_hidden_layers": 3}
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {},
    "qwen2-window": {
        "model_type": "qwen2", "use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1
    },
    "qwen3": {"head_dim": 8},
    "mistral": {"sliding_window": WINDOW},
    "mistral-full": {"model_type": "mistral", "sliding_window": None},
    "gemma": {"head_dim": 8},
    "gemma2": {
        **_MIXED, "sliding_window": WINDOW, "head_dim": 8, "query_pre_attn_scalar": 8, "attn_logit_softcapping": 5.0,
        "final_logit_softcapping": 3.0,
    },
    "gemma3_text": {**_MIXED, "sliding_window": WINDOW, "head_dim": 8, "query_pre_attn_scalar": 8},
    "gpt2": {},
    "gpt_neox": {},
    "phi": {"partial_rotary_factor": 0.5},
    "phi3": {"sliding_window": WINDOW},
    "smollm3": {"no_rope_layer_interval": 2},
}  # fmt: skip


def _build(name: str, seed: int = 0) -> PreTrainedModel:
    options = {**_COMMON, **CONFIGS[name]}
    kind = options.pop("model_type", name)
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **options), dtype=torch.float32).eval()
    model.generation_config.eos_token_id = [2, 3]
    return model


def _byte_tokenizer() -> PreTrainedTokenizerFast:
    """Specials 0..3, then the 256 bytes."""
    specials = ["<pad>", "<bos>", "<eos>", "<end>"]
    pieces = [*specials, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    backend = Tokenizer(models.BPE(vocab={piece: i for i, piece in enumerate(pieces)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in specials])
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<eos>", pad_token="<pad>", bos_token="<bos>")


@pytest.fixture(scope="session")
def build_tiny() -> Callable[..., PreTrainedModel]:
    """``build_tiny(name, seed=0)``: a random float32 model, two or three layers, window 5 where there is one."""
    return _build


@pytest.fixture(scope="session")
def tiny_tokenizer() -> PreTrainedTokenizerFast:
    return _byte_tokenizer()


@pytest.fixture(scope="session", params=CONFIGS)
def tiny_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)
