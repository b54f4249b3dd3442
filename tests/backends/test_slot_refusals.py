"""Models whose state is more than keys and values are refused by a typed error that names the kind."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoModelForSeq2SeqLM, PreTrainedModel
from transformers import PreTrainedTokenizerFast as Fast

from constrained_spec.backends.base import Block
from constrained_spec.backends.support import context_limit, refuse_config
from constrained_spec.backends.transformers import TransformersModel
from constrained_spec.errors import ModelError

SMALL = {"vocab_size": 300, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}


def test_recurrent(tiny_tokenizer: Fast) -> None:
    config = AutoConfig.for_model("mamba", vocab_size=300, hidden_size=16, num_hidden_layers=1, state_size=4)
    with pytest.raises(ModelError, match=r"mamba.*linear_attention"):
        TransformersModel(AutoModelForCausalLM.from_config(config), tiny_tokenizer)


def test_recurrent_without_layer_kinds(tiny_tokenizer: Fast) -> None:
    config = AutoConfig.for_model("rwkv", vocab_size=300, hidden_size=16, num_hidden_layers=2, context_length=16)
    with pytest.raises(ModelError, match=r"rwkv.*recurrent state"):
        TransformersModel(AutoModelForCausalLM.from_config(config), tiny_tokenizer)


def test_hybrid(tiny_tokenizer: Fast) -> None:
    config = AutoConfig.for_model(
        "qwen3_next",
        **SMALL,
        intermediate_size=32,
        num_key_value_heads=2,
        head_dim=8,
        linear_num_value_heads=2,
        linear_num_key_heads=2,
        linear_key_head_dim=8,
        linear_value_head_dim=8,
        num_experts=2,
        num_experts_per_tok=1,
        moe_intermediate_size=16,
        shared_expert_intermediate_size=16,
        layer_types=["linear_attention", "full_attention"],
    )
    with pytest.raises(ModelError, match="linear_attention"):
        refuse_config(config)
    with pytest.raises(ModelError, match="linear_attention"):
        TransformersModel(AutoModelForCausalLM.from_config(config), tiny_tokenizer)


def test_jamba_by_config(tiny_tokenizer: Fast) -> None:
    config = AutoConfig.for_model(
        "jamba",
        **SMALL,
        intermediate_size=32,
        num_key_value_heads=2,
        num_experts=2,
        num_experts_per_tok=1,
        attn_layer_period=2,
        attn_layer_offset=1,
        use_mamba_kernels=False,
        mamba_d_state=4,
    )
    with pytest.raises(ModelError, match="jamba"):
        TransformersModel(AutoModelForCausalLM.from_config(config), tiny_tokenizer)


def test_encoder_decoder(tiny_tokenizer: Fast) -> None:
    config = AutoConfig.for_model("t5", vocab_size=300, d_model=16, d_kv=4, d_ff=16, num_layers=1, num_heads=4)
    with pytest.raises(ModelError, match=r"t5.*encoder-decoder"):
        TransformersModel(AutoModelForSeq2SeqLM.from_config(config), tiny_tokenizer)


def test_no_language_model_head(tiny_tokenizer: Fast) -> None:
    config = AutoConfig.for_model("llama", **SMALL, intermediate_size=32)
    with pytest.raises(ModelError, match="not a causal language model"):
        TransformersModel(AutoModel.from_config(config), tiny_tokenizer)


def test_encoder_only(tiny_tokenizer: Fast) -> None:
    config = AutoConfig.for_model("bert", **SMALL, intermediate_size=32, is_decoder=False)
    with pytest.raises(ModelError, match="bert"):
        TransformersModel(AutoModelForCausalLM.from_config(config), tiny_tokenizer)


def test_positions_taken_from_a_flat_mask(tiny_tokenizer: Fast) -> None:
    # Bloom derives its position biases from a two-dimensional mask and cannot take ours.
    config = AutoConfig.for_model("bloom", vocab_size=300, hidden_size=16, n_layer=1, n_head=2)
    with pytest.raises(ModelError, match="KV slots"):
        TransformersModel(AutoModelForCausalLM.from_config(config), tiny_tokenizer)


def test_unchecked_windows(tiny_tokenizer: Fast) -> None:
    config = AutoConfig.for_model("olmo3", **SMALL, intermediate_size=32, sliding_window=5)
    with pytest.raises(ModelError, match="windows"):
        TransformersModel(AutoModelForCausalLM.from_config(config), tiny_tokenizer)


def test_an_architecture_that_only_the_check_at_load_vouches_for(tiny_tokenizer: Fast) -> None:
    config = AutoConfig.for_model("olmo2", **SMALL, intermediate_size=32, num_key_value_heads=2)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    slotted = TransformersModel(model, tiny_tokenizer, slots=2, capacity=16)
    got = slotted.score([Block(1, [5, 6, 7], want=1), Block(0, [8], want=1)])
    with torch.no_grad():
        want = torch.stack([model(torch.tensor([ids])).logits[0, -1] for ids in ([5, 6, 7], [8])])
    assert float((got - want).abs().max()) <= 2e-5


def test_a_broken_mask_is_found_at_load(
    build_tiny: Callable[..., PreTrainedModel], tiny_tokenizer: Fast, monkeypatch: pytest.MonkeyPatch
) -> None:
    from constrained_spec.backends.slots import SlotCache

    honest = SlotCache._mask
    monkeypatch.setattr(SlotCache, "_mask", lambda *args: honest(*args) * 0.0)
    with pytest.raises(ModelError, match="differ"):
        TransformersModel(build_tiny("llama"), tiny_tokenizer)


def test_nan_weights_are_found_at_load(build_tiny: Callable[..., PreTrainedModel], tiny_tokenizer: Fast) -> None:
    model = build_tiny("llama")
    with torch.no_grad():
        next(model.parameters()).fill_(float("nan"))
    with pytest.raises(ModelError, match="differ"):
        TransformersModel(model, tiny_tokenizer)


def test_long_rope_stays_below_the_switch() -> None:
    config = AutoConfig.for_model(
        "phi3",
        **SMALL,
        max_position_embeddings=64,
        original_max_position_embeddings=16,
        rope_parameters={
            "rope_type": "longrope",
            "rope_theta": 1e4,
            "short_factor": [1.0] * 4,
            "long_factor": [2.0] * 4,
            "original_max_position_embeddings": 16,
        },
    )
    assert context_limit(config) == 16
    assert context_limit(AutoConfig.for_model("llama", max_position_embeddings=64)) == 64
