"""Several short blocks in one call of attention: what each would get alone, and nothing of its neighbours."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable

import pytest
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from constrained_spec.backends import reading
from constrained_spec.backends.base import Block
from constrained_spec.backends.transformers import TransformersModel

Build = Callable[..., PreTrainedModel]
SLOTS = 6


@pytest.fixture(params=["llama", "mistral", "qwen3"])
def model(
    request: pytest.FixtureRequest, build_tiny: Build, tiny_tokenizer: PreTrainedTokenizerFast
) -> TransformersModel:
    own = copy.deepcopy(build_tiny(request.param))
    ours = TransformersModel(own, tiny_tokenizer, slots=SLOTS, capacity=60, specialise=True)
    assert ours.path.specialised
    return ours


def scored(model: TransformersModel, blocks: list[Block], monkeypatch: pytest.MonkeyPatch, few: int) -> torch.Tensor:
    """Logits of ``blocks`` when at least ``few`` of them are read together; the slots are as before."""
    lengths = [model.length(slot) for slot in range(SLOTS)]
    with monkeypatch.context() as patch:
        patch.setattr(reading, "FEW", few)
        logits = model.score(blocks)
    for slot, length in enumerate(lengths):
        if model.length(slot) > length:
            model.set_length(slot, length)
    return logits


@pytest.mark.parametrize("seed", range(6))
def test_ragged_blocks_and_trees(model: TransformersModel, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    for slot in range(SLOTS):
        prompt = [rng.randrange(4, 300) for _ in range(rng.randrange(12, 30))]
        model.score([Block(slot, prompt, want=1)])
    slots = rng.sample(range(SLOTS), rng.randrange(3, SLOTS + 1))
    blocks = []
    for slot in slots:
        tokens = [rng.randrange(4, 300) for _ in range(rng.choice([1, 1, 2, 7]))]
        tree = len(tokens) > 2 and rng.random() < 0.6
        parents = [-1, *(rng.randrange(-1, i) for i in range(1, len(tokens)))] if tree else None
        blocks.append(Block(slot, tokens, want=rng.randrange(1, len(tokens) + 1), parents=parents))
    alone = scored(model, blocks, monkeypatch, few=100)
    together = scored(model, blocks, monkeypatch, few=2)
    assert alone.shape == together.shape
    assert float((alone - together).abs().max()) < 1e-5


def test_what_is_written_together_is_what_is_written_alone(
    model: TransformersModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = []
    for few in (100, 2):
        with monkeypatch.context() as patch:
            patch.setattr(reading, "FEW", few)
            for slot in range(SLOTS):
                model.set_length(slot, 0)
                model.score([Block(slot, [10 + slot, 20, 30], want=1)])
            model.score([Block(slot, [40 + slot, 50], want=1) for slot in range(4)])
            kept.append([layer.both[:, :, :, :5].clone() for layer in model._cache.slot_layers])
    for alone, together in zip(*kept, strict=True):
        assert float((alone - together).abs().max()) < 1e-5


def test_a_prompt_beside_short_blocks(model: TransformersModel, monkeypatch: pytest.MonkeyPatch) -> None:
    for slot in range(4):
        model.score([Block(slot, [5 + slot] * (6 + slot), want=1)])
    long = Block(4, list(range(10, 50)), want=2)
    blocks = [Block(0, [9], want=1), long, Block(1, [8, 7], want=2), Block(2, [6], want=1)]
    assert float((scored(model, blocks, monkeypatch, 2) - scored(model, blocks, monkeypatch, 100)).abs().max()) < 1e-5


def test_slots_far_apart_and_unequal_lengths_are_read_alone(model: TransformersModel) -> None:
    attention = model._decoder._attention  # type: ignore[union-attr]
    near = [Block(s, [1], want=1) for s in (0, 1, 2)]
    assert attention.plan(near, [20, 21, 22]).together is not None
    assert attention.plan(near, [50, 2, 2]).together is None
    assert attention.plan([Block(s, [1], want=1) for s in (0, 2, 4)], [20, 21, 22]).together is not None
    assert attention.plan([Block(s, [1], want=1) for s in (0, 1, 5)], [9, 9, 22]).together is None


def test_a_slot_with_nan_behind_its_end_is_cleared(model: TransformersModel) -> None:
    """A masked place has weight 0, and 0 times NaN is NaN: who finds NaN in a slot must clear it."""
    for slot in range(3):
        model.score([Block(slot, [5 + slot] * 12, want=1)])
    blocks = [Block(slot, [9], want=1) for slot in range(3)]
    fine = model.score(blocks)
    for slot in range(3):
        model.set_length(slot, 12)
    for layer in model._cache.slot_layers:
        layer.both[1, :, :, 4:12] = float("nan")
    model.clear(1)
    assert model.length(1) == 0
    model.score([Block(1, [6] * 12, want=1)])
    model.set_length(1, 3)
    model.score([Block(1, [6] * 9, want=1)])
    assert torch.allclose(model.score(blocks), fine, atol=1e-5)
