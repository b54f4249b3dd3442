"""Final hidden states by slot and place: the same on both paths, through rollback, trees and long prompts."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

from constrained_spec.backends.base import Block
from constrained_spec.backends.load import load_model
from constrained_spec.backends.transformers import TransformersModel
from constrained_spec.errors import ModelError


@pytest.mark.parametrize("specialise", [True, False])
def test_logits_are_a_product_of_the_states(tiny_folder: Path, specialise: bool) -> None:
    model = load_model(str(tiny_folder), slots=3, capacity=400, specialise=specialise)
    assert model.path.specialised is specialise
    model.score([Block(1, [5, 6, 7], want=1)])
    assert model.features(1) is None, "nobody asked"
    model.keep_features()
    assert model.features(1) is None, "the slot holds tokens from before"
    head = model.head_rows(torch.arange(model.vocabulary.size))
    ids = [3 + i * 37 % 250 for i in range(300)]  # more than one wave
    logits = model.score([Block(0, ids, want=300), Block(2, ids[:9], want=2)])
    states = model.features(0)
    assert states is not None and states.shape == (300, model.feature_size)
    torch.testing.assert_close(states @ head.t(), logits[:300], rtol=1e-4, atol=1e-4)
    other = model.features(2)
    assert other is not None and len(other) == 9
    torch.testing.assert_close(other, states[:9], rtol=1e-4, atol=1e-4)
    kept = states[:4].clone()
    model.set_length(0, 4)
    model.score([Block(0, [9, 10], want=1)])
    states = model.features(0)
    assert states is not None and len(states) == 6
    torch.testing.assert_close(states[:4], kept)
    model.set_length(1, 0)
    assert model.features(1) is not None, "what was not kept is gone"
    rows = model.embed(torch.tensor([7, 8]))
    torch.testing.assert_close(rows, head[7:9], msg="tied")


@pytest.mark.parametrize("specialise", [True, False])
def test_a_tree_keeps_the_states_of_its_path(tiny_folder: Path, specialise: bool) -> None:
    model = load_model(str(tiny_folder), slots=2, capacity=64, specialise=specialise)
    model.keep_features()
    model.score([Block(0, [5, 6, 7], want=1), Block(1, [5, 6, 7, 11, 13], want=1)])
    straight = model.features(1)
    assert straight is not None
    straight = straight.clone()
    model.score([Block(0, [10, 11, 12, 13], want=4, parents=[-1, -1, 0, 1])])
    model.compact(0, 3, [1, 3])
    states = model.features(0)
    assert states is not None
    torch.testing.assert_close(states, straight, rtol=1e-4, atol=1e-4)


def test_paths_agree_and_the_digest_is_one(tiny_folder: Path) -> None:
    fast, stock = (load_model(str(tiny_folder), capacity=64, specialise=s) for s in (True, False))
    found = []
    for model in (fast, stock):
        model.keep_features()
        model.score([Block(0, [5, 6, 7, 8], want=1)])
        states = model.features(0)
        assert states is not None
        found.append(states)
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-4)
    assert fast.weights_digest() == stock.weights_digest()
    names = [name for name, _ in fast.tensors()]
    assert names == [name for name, _ in stock.tensors()]


def test_int8_rows_are_the_declared_targets(tiny_folder: Path) -> None:
    model = load_model(str(tiny_folder), capacity=64, quantize="int8")
    model.keep_features()
    logits = model.score([Block(0, [5, 6, 7, 8], want=4)])
    states = model.features(0)
    assert states is not None
    ours = states @ model.head_rows(torch.arange(model.vocabulary.size)).t()
    # The product itself also rounds its input to int8; the rows are the same.
    assert float((ours - logits).abs().max()) < 0.03 * float(logits.abs().max())


def test_logits_that_are_no_plain_product_are_refused(tiny: TransformersModel) -> None:
    torch.manual_seed(0)
    config = AutoConfig.for_model(
        "gemma2", vocab_size=264, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, query_pre_attn_scalar=8, final_logit_softcapping=0.5, sliding_window=5,
        eos_token_id=2, pad_token_id=0, bos_token_id=1, max_position_embeddings=64,
    )  # fmt: skip
    tokenizer = tiny.tokenizer
    assert isinstance(tokenizer, PreTrainedTokenizerFast)
    model = TransformersModel(AutoModelForCausalLM.from_config(config).eval(), tokenizer, capacity=32)
    with pytest.raises(ModelError, match="no plain product"):
        model.keep_features()
    assert model.features(0) is None
    model.score([Block(0, [5, 6], want=1)])
