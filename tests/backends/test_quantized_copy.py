"""The quantised copy that drafts in the target's own slots: what it computes, and that it leaves no trace."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable

import pytest
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from constrained_spec.backends import products, transformers
from constrained_spec.backends.base import Block
from constrained_spec.backends.products import Dense, Int8, Maker, Packed, Rounded, rounder
from constrained_spec.backends.transformers import TransformersModel
from constrained_spec.errors import ConfigError, ModelError

Build = Callable[..., PreTrainedModel]
CPU = torch.device("cpu")
WEIGHT = torch.randn(48, 32, generator=torch.Generator().manual_seed(1))
BIAS = torch.randn(48, generator=torch.Generator().manual_seed(2))


def specialised(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, **options: object) -> TransformersModel:
    return TransformersModel(model, tokenizer, slots=2, capacity=60, specialise=True, **options)  # type: ignore[arg-type]


# ---- the product ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bias", [None, BIAS])
@pytest.mark.parametrize("rows", [1, 2, 7, 33])
def test_rounded_weights(bias: torch.Tensor | None, rows: int) -> None:
    product = Rounded(WEIGHT, bias)
    held = product.tensors()
    assert held["int8"].dtype == torch.int8 and int(held["int8"].abs().max()) == 127
    x, residual = torch.randn(rows, 32), torch.randn(rows, 48)
    weight = held["int8"].double() * held["scale"].double()[:, None]
    assert float((weight - WEIGHT).abs().max()) <= float(WEIGHT.abs().max()) * (1 / 254 + 1 / 256)
    want = x.bfloat16().double() @ weight.t()
    # The sum leaves the kernel in bfloat16.
    near = float(want.abs().max()) / 128
    added = 0.0 if bias is None else bias.double()
    assert torch.allclose(product(x).double(), want + added, atol=near, rtol=0)
    assert torch.allclose(product.onto(x, residual).double(), want + added + residual, atol=near, rtol=0)
    assert product(x).dtype == torch.float32
    assert product.nbytes() == sum(t.nbytes for t in held.values()) < WEIGHT.nbytes / 2


def test_the_kernel_reads_whole_vectors() -> None:
    """It checks nothing, and reads behind a row of another length: such a weight gets another product."""
    with pytest.raises(AssertionError):
        Rounded(torch.randn(48, 40))
    make = rounder(CPU)
    assert isinstance(make(torch.randn(48, 40), None), Int8)
    if products.has_quick_kernel(CPU):
        assert isinstance(make(WEIGHT, None), Rounded)


def test_where_there_is_no_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="CPU") as caught:
        rounder(torch.device("cuda"))
    assert caught.value.param == "drafter"
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "DEFAULT")
    assert rounder(CPU) is Int8
    assert not products.has_quick_kernel(CPU)


# ---- the copy -------------------------------------------------------------------------------------------------------


def rounded_stock(model: PreTrainedModel) -> PreTrainedModel:
    """The same network with the weights of its products as a copy has them."""
    rounded = copy.deepcopy(model)
    linear = [m for m in rounded.modules() if isinstance(m, torch.nn.Linear)]
    with torch.no_grad():
        for module in linear:
            held = Rounded(module.weight.detach()).tensors()
            # Not in place: a tied embedding stays as it is, and so it does in the copy.
            module.weight = torch.nn.Parameter(held["int8"].float() * held["scale"].float()[:, None])
    return rounded


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3", "mistral"])
@pytest.mark.parametrize("make", [Dense, Packed])
def test_it_computes_the_model_with_rounded_weights(
    name: str, make: Maker, build_tiny: Build, tiny_tokenizer: PreTrainedTokenizerFast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transformers, "fastest", lambda weight: (make, "chosen by the test"))
    if not products.has_quick_kernel(CPU):
        pytest.skip("this CPU has no quick kernel")
    model = build_tiny(name)
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if key.endswith("bias"):
                parameter.normal_()
    reference = rounded_stock(model)
    plain = copy.deepcopy(model)
    ours = specialised(model, tiny_tokenizer)
    ours.quantize_ahead()
    rng = random.Random(3)
    ids = [rng.randrange(4, 300) for _ in range(24)]
    first = ours.score_ahead_quantized([Block(1, ids[:10], want=10)], [0])
    rest = ours.score_ahead_quantized([Block(1, ids[10:], want=14)], [10])
    with torch.no_grad():
        want, exact = (m(torch.tensor([ids])).logits[0] for m in (reference, plain))
    spread = float(want.std())
    assert float((torch.cat((first, rest)) - want).std()) < 0.03 * spread, "inputs and sums are rounded too, by less"
    assert float((want - exact).abs().max()) > 0.01 * spread, "the rounding of the weights shows"
    assert ours.length(1) == 0, "no length changes"


def test_drafting_leaves_no_trace(build_tiny: Build, tiny_tokenizer: PreTrainedTokenizerFast) -> None:
    """Slots, states and the next logits of the target are what they are without it, to the last bit."""
    rng = random.Random(5)
    ids = [rng.randrange(4, 300) for _ in range(30)]
    models = [specialised(build_tiny("llama"), tiny_tokenizer) for _ in range(2)]
    for model in models:
        model.keep_features()
        model.score([Block(0, ids[:12], want=1), Block(1, ids[3:20], want=1)])
    drafting, silent = models
    digest = drafting.weights_digest()
    drafting.quantize_ahead()
    for at in range(12, 28, 4):
        drafting.score_ahead_quantized([Block(0, ids[at : at + 6], want=1), Block(1, ids[:3], want=1)], [at, 17])
        logits = [model.score([Block(0, ids[at : at + 4], want=4)]) for model in models]
        assert torch.equal(*logits)
    for slot in (0, 1):
        assert drafting.fingerprint(slot) == silent.fingerprint(slot)
        states = [model.features(slot) for model in models]
        assert states[0] is not None and states[1] is not None and torch.equal(states[0], states[1])
    assert drafting.weights_digest() == digest


def test_its_memory_is_counted_and_can_be_given_back(
    build_tiny: Build, tiny_tokenizer: PreTrainedTokenizerFast
) -> None:
    model = specialised(build_tiny("llama"), tiny_tokenizer)
    before = model.memory()["weights"]
    assert not model.drop_quantized()
    model.quantize_ahead()
    held = model.memory()["weights"] - before
    assert before / 8 < held < before / 3, "the embedding is shared"
    copied = model._rough
    model.quantize_ahead()
    assert model._rough is copied, "made once"
    assert model.drop_quantized() and model.memory()["weights"] == before
    with pytest.raises(ModelError, match="int8"):
        model.score_ahead_quantized([Block(0, [5], want=1)], [0])
    model.quantize_ahead()
    model.release()
    assert not model.drop_quantized()


def test_what_cannot_be_copied_is_refused(build_tiny: Build, tiny_tokenizer: PreTrainedTokenizerFast) -> None:
    for model in (
        specialised(build_tiny("gpt2"), tiny_tokenizer),
        specialised(build_tiny("llama"), tiny_tokenizer, quantize="int8"),
    ):
        with pytest.raises(ConfigError) as caught:
            model.quantize_ahead()
        assert caught.value.param == "drafter"
        assert not model.quantizes_well


def test_a_block_behind_the_end_of_its_slot_is_refused(
    build_tiny: Build, tiny_tokenizer: PreTrainedTokenizerFast
) -> None:
    model = specialised(build_tiny("llama"), tiny_tokenizer)
    model.quantize_ahead()
    model.score_ahead_quantized([Block(0, [5] * 60, want=1)], [0])
    with pytest.raises(Exception, match="no room"):
        model.score_ahead_quantized([Block(0, [5], want=1)], [60])
