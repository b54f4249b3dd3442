"""The specialised step: its parts, what it declines, what it takes over, and the int8 target."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from constrained_spec.backends import products, reading, transformers
from constrained_spec.backends.base import Block
from constrained_spec.backends.process import release_team, set_threads
from constrained_spec.backends.products import Dense, Int8, Maker, Packed, fastest
from constrained_spec.backends.tables import Blocks, Plain, narrowest
from constrained_spec.backends.transformers import TransformersModel
from constrained_spec.errors import ConfigError
from constrained_spec.state.tree import TreeKv, kv_state

Build = Callable[..., PreTrainedModel]
WEIGHT = torch.randn(48, 40, generator=torch.Generator().manual_seed(1))
BIAS = torch.randn(48, generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize("make", [Dense, Packed])
@pytest.mark.parametrize("bias", [None, BIAS])
@pytest.mark.parametrize("rows", [1, 2, 7, 33])
def test_float_products(make: Maker, bias: torch.Tensor | None, rows: int) -> None:
    x, other = torch.randn(rows, 40), torch.randn(rows, 48)
    want = x @ WEIGHT.t() + (0 if bias is None else bias)
    product = make(WEIGHT.clone(), bias)
    assert torch.allclose(product(x), want, atol=1e-5)
    assert torch.allclose(product.onto(x, other), want + other, atol=1e-5)
    if isinstance(product, Packed):
        assert torch.allclose(product.silu(x), nn.functional.silu(want), atol=1e-5)
        assert torch.allclose(product.times(x, other), want * other, atol=1e-4)
    held = product.tensors()
    assert torch.equal(held["weight"], WEIGHT) and ("bias" in held) == (bias is not None)
    assert product.nbytes() == sum(t.nbytes for t in held.values())


@pytest.mark.parametrize("kernel", ["fbgemm", "plain"])
def test_int8_is_what_it_says_and_every_row_stands_alone(kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if kernel == "plain":
        monkeypatch.setattr(products, "_fbgemm_is_exact", lambda: False)
    elif not products._fbgemm_is_exact():
        pytest.skip("this CPU has no exact FBGEMM kernel")
    product = Int8(WEIGHT, BIAS)
    x = torch.randn(21, 40) * torch.rand(21, 1) * 10
    levels, scale = product.tensors()["int8"], product.tensors()["scale"]
    assert levels.dtype == torch.int8 and int(levels.abs().max()) == 127
    assert float((levels * scale[:, None] - WEIGHT).abs().max()) <= float(scale.max()) / 2 + 1e-6
    inputs = x.abs().amax(1, keepdim=True) / 127
    want = ((x / inputs).round().double() @ levels.double().t()) * inputs * scale + BIAS
    got = product(x)
    assert torch.allclose(got, want.float(), atol=1e-4)
    for n in (1, 2, 5):
        assert torch.equal(got, torch.cat([product(part) for part in x.split(n)]))
    assert torch.equal(product(torch.zeros(1, 40))[0], BIAS)


def test_the_quickest_product_is_named() -> None:
    make, told = fastest(torch.randn(64, 64))
    assert make in (Dense, Packed) and "us" in told
    make, told = fastest(torch.randn(64, 64, dtype=torch.bfloat16))
    assert make is Dense and "bfloat16" in told


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_table_of_sixteen_bits_is_held_in_them(dtype: torch.dtype) -> None:
    rows = torch.randn(100, 64).to(dtype).float()
    table = narrowest(rows)
    assert table.nbytes() == rows.nbytes / 2
    ids = torch.tensor([0, 99, 5, 5])
    assert table(ids).dtype == torch.float32 and torch.equal(table(ids), rows[ids])


def test_a_table_of_int8_blocks_is_held_in_them() -> None:
    levels = torch.randint(-127, 128, (5000, 3, 32))
    levels[:, :, 0] = 127
    levels[7, 1] = 0
    rows = (levels * torch.rand(5000, 3, 1).half().float()).view(5000, 96)
    table = narrowest(rows)
    assert isinstance(table, Blocks) and table.nbytes() < rows.nbytes / 3
    assert torch.equal(table(torch.arange(5000)), rows)


@pytest.mark.parametrize("width", [64, 40])
def test_any_other_table_stays_as_it_is(width: int) -> None:
    rows = torch.randn(50, width)
    table = narrowest(rows)
    assert isinstance(table, Plain) and table.nbytes() == rows.nbytes
    assert torch.equal(table(torch.arange(50)), rows)


def test_threads_are_pinned_or_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    before = torch.get_num_threads()
    try:
        assert set_threads(1) == torch.get_num_threads() == 1
        assert set_threads(2) == torch.get_num_threads() == 2
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
        assert set_threads(None) in (1, 2)
        torch.set_num_threads(2)
        monkeypatch.setenv("OMP_NUM_THREADS", "2")
        assert set_threads(None) == 2
        with pytest.raises(ConfigError) as caught:
            set_threads(0)
        assert caught.value.param == "threads"
    finally:
        torch.set_num_threads(before)


# ---- models ---------------------------------------------------------------------------------------------------------


def specialised(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, **options: object) -> TransformersModel:
    return TransformersModel(model, tokenizer, slots=2, capacity=60, specialise=True, **options)  # type: ignore[arg-type]


def test_long_blocks_are_computed_part_by_part(
    build_tiny: Build, tiny_tokenizer: PreTrainedTokenizerFast, monkeypatch: pytest.MonkeyPatch
) -> None:
    from constrained_spec.backends import decoder

    model = build_tiny("mistral")
    whole = copy.deepcopy(model)
    ours = specialised(model, tiny_tokenizer)
    monkeypatch.setattr(decoder, "MAX_BLOCK", 7)
    rng = random.Random(0)
    first, second = ([rng.randrange(4, 300) for _ in range(n)] for n in (31, 9))
    # Wanted rows that begin in an earlier part, and a block that ends parts before its neighbour.
    got = ours.score([Block(1, first, want=12), Block(0, second, want=2)])
    with torch.no_grad():
        want = [whole(torch.tensor([ids])).logits[0][-n:] for ids, n in ((first, 12), (second, 2))]
    assert got.shape == (14, 300)
    assert float((got - torch.cat(want)).abs().max()) < 2e-5
    assert (ours.length(1), ours.length(0)) == (31, 9)
    with pytest.raises(Exception, match="at most 7"):
        ours.score([Block(1, [5] * 8, want=1, parents=[-1, *range(7)])])
    assert ours.length(1) == 31


@pytest.mark.parametrize("name", ["gpt2", "gemma2", "phi3", "smollm3"])
def test_other_architectures_say_why_they_run_as_they_are(
    name: str, build_tiny: Build, tiny_tokenizer: PreTrainedTokenizerFast
) -> None:
    ours = specialised(build_tiny(name), tiny_tokenizer)
    assert not ours.path.specialised and name in ours.path.detail and ours.model is not None
    with pytest.raises(ConfigError, match="specialised step") as caught:
        specialised(build_tiny(name), tiny_tokenizer, quantize="int8")
    assert caught.value.param == "quantize"


def test_a_family_member_with_foreign_parts_runs_as_it_is(
    build_tiny: Build, tiny_tokenizer: PreTrainedTokenizerFast
) -> None:
    class Doubled(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 2 * super().forward(x)

    model = build_tiny("llama")
    stock = model.model.layers[1].mlp.up_proj
    other = Doubled(stock.in_features, stock.out_features, bias=False)
    model.model.layers[1].mlp.up_proj = other
    ours = specialised(model, tiny_tokenizer)
    assert not ours.path.specialised and "linear layers" in ours.path.detail


def test_a_forward_that_computes_something_else_is_noticed(
    build_tiny: Build, tiny_tokenizer: PreTrainedTokenizerFast
) -> None:
    model = build_tiny("llama")
    stock = model.model.layers[0].mlp.forward
    model.model.layers[0].mlp.forward = lambda x: stock(x) * 1.5
    ours = specialised(model, tiny_tokenizer)
    assert not ours.path.specialised and "differ" in ours.path.detail
    assert ours.path.drift < 1e-4, "the stock forward is the model's own"


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("make", [Dense, Packed])
def test_the_weights_are_held_once_and_keep_their_digest(
    name: str, tied: bool, make: Maker, build_tiny: Build, tiny_tokenizer: PreTrainedTokenizerFast,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(transformers, "fastest", lambda weight: (make, "chosen by the test"))
    model = build_tiny(name)
    if tied:
        model.lm_head.weight = model.model.embed_tokens.weight
    stock = TransformersModel(copy.deepcopy(model), tiny_tokenizer, capacity=60)
    ours = specialised(model, tiny_tokenizer)
    assert ours.path.specialised and ours.model is None
    assert ours.weights_digest() == stock.weights_digest()
    table = model.config.vocab_size * model.config.hidden_size * 4
    spare = table if tied and make is Packed else 0  # random float32 has no narrower exact form
    assert stock.memory()["weights"] <= ours.memory()["weights"] + 1000 <= stock.memory()["weights"] + spare + 12_000
    left = sum(p.numel() for p in model.parameters() if p.dim() == 2)
    assert left <= model.config.vocab_size * model.config.hidden_size, "only an untied embedding stays in the model"


def test_int8_blocks_equal_single_steps_to_the_last_bit(
    build_tiny: Build, tiny_tokenizer: PreTrainedTokenizerFast
) -> None:
    ours = specialised(build_tiny("qwen3"), tiny_tokenizer, quantize="int8")
    assert ours.numerics == "int8" and ours.quantized and ours.path.drift > 0
    rng = random.Random(4)
    ids = [rng.randrange(4, 300) for _ in range(50)]
    ours.score([Block(0, ids[:20], want=1)])
    single = torch.cat([ours.score([Block(0, [token], want=1)]) for token in ids[20:]])
    keys = ours.fingerprint(0)
    for size in (2, 3, 8, 17, 30):
        ours.set_length(0, 20)
        blocks = [ids[at : at + size] for at in range(20, 50, size)]
        got = torch.cat([ours.score([Block(0, block, want=len(block))]) for block in blocks])
        assert torch.equal(got, single), size
        assert ours.fingerprint(0) == keys
    # Neither does a neighbour in the forward change a bit.
    ours.set_length(0, 20)
    got = ours.score([Block(1, ids[:13], want=1), Block(0, ids[20:25], want=5)])
    assert torch.equal(got[1:], single[:5])


def test_queries_share_a_tile_only_where_that_changes_no_bit(
    build_tiny: Build, tiny_tokenizer: PreTrainedTokenizerFast, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel whose rows depend on how many there are is noticed at load, and all tiles have one size."""
    layer = torch.empty(1, 2, 2, 192, 16)
    usual = nn.functional.scaled_dot_product_attention
    assert set(reading._exact_tiles(layer, 3)) <= {*reading.TILES, 1}

    def unsteady(query: torch.Tensor, *rest: Any, **options: Any) -> torch.Tensor:
        exact: torch.Tensor = usual(query, *rest, **options)
        return exact * (1 + query.shape[2] * 1e-6)

    monkeypatch.setattr(nn.functional, "scaled_dot_product_attention", unsteady)
    assert len(reading._exact_tiles(layer, 3)) == 1
    # Whatever the tiles, a block of any length equals its single steps.
    ours = specialised(build_tiny("llama"), tiny_tokenizer, quantize="int8")
    for n in (2, 3, 5, 9, 17):
        ids = [7 + i * 5 % 90 for i in range(n)]
        ours.set_length(0, 0)
        block = ours.score([Block(0, ids, want=n)])
        ours.set_length(0, 0)
        assert torch.equal(torch.cat([ours.score([Block(0, [i], want=1)]) for i in ids]), block)


def test_int8_is_another_target(build_tiny: Build, tiny_tokenizer: PreTrainedTokenizerFast) -> None:
    float_ = specialised(build_tiny("llama"), tiny_tokenizer)
    ours = specialised(build_tiny("llama"), tiny_tokenizer, quantize="int8")
    again = specialised(build_tiny("llama"), tiny_tokenizer, quantize="int8")
    assert ours.weights_digest() == again.weights_digest() != float_.weights_digest()
    assert ours.memory()["weights"] < float_.memory()["weights"] / 2
    # In a tree a token's keys lie at another place than in a chain, and are summed in another order.
    assert float_.takes_trees and isinstance(kv_state(float_, 0), TreeKv)
    assert not ours.takes_trees and not isinstance(kv_state(ours, 0), TreeKv)
    with pytest.raises(ConfigError, match="int4"):
        specialised(build_tiny("llama"), tiny_tokenizer, quantize="int4")


def test_a_thread_can_give_its_helpers_back_and_go_on() -> None:
    x = torch.randn(300, 300)
    want = x @ x
    for _ in range(3):
        given = release_team()
        assert torch.equal(x @ x, want)
    maps = Path("/proc/self/maps")
    assert given == (maps.is_file() and any(name in maps.read_text() for name in ("/libgomp", "/libomp")))
