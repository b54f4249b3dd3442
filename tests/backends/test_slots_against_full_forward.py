"""Every checked architecture: what a slot says after any history equals a fresh full forward of the same tokens.

The Llama family runs three times: through the stock forward, and through the specialised step with either product.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from constrained_spec.backends import transformers
from constrained_spec.backends.base import Block
from constrained_spec.backends.decoder import FAMILY
from constrained_spec.backends.products import Dense, Maker, Packed
from constrained_spec.backends.transformers import TransformersModel
from constrained_spec.errors import ConfigError, RequestError
from tests.backends.conftest import CONFIGS

TOLERANCE = 2e-5
SLOTS, CAPACITY = 4, 40


class Pair:
    """A model in slots and an untouched copy of it, run without any cache by transformers' own attention."""

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, make: Maker | None) -> None:
        self.plain = copy.deepcopy(model)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(transformers, "fastest", lambda weight: (make, "chosen by the test"))
            self.slotted = TransformersModel(
                model, tokenizer, slots=SLOTS, capacity=CAPACITY, name="tiny", specialise=make is not None
            )
        assert self.slotted.path.specialised == (make is not None)
        self.width = self.slotted.vocabulary.size

    def full(self, tokens: Sequence[int]) -> Tensor:  # [n, V]
        with torch.no_grad():
            logits: Tensor = self.plain(input_ids=torch.tensor([list(tokens)]), use_cache=False).logits[0]
        return logits

    def clear(self) -> None:
        for slot in range(SLOTS):
            self.slotted.set_length(slot, 0)


_SPECIAL = [name for name, config in CONFIGS.items() if config.get("model_type", name) in FAMILY]
STOCK = [pytest.param((name, None), id=name) for name in CONFIGS]
SPECIALISED = [
    pytest.param((name, make), id=f"{name}-{make.__name__}") for name in _SPECIAL for make in (Dense, Packed)
]


@pytest.fixture(scope="module", params=[*STOCK, *SPECIALISED])
def pair(
    request: pytest.FixtureRequest, build_tiny: Callable[..., PreTrainedModel], tiny_tokenizer: PreTrainedTokenizerFast
) -> Pair:
    name, make = request.param
    return Pair(build_tiny(name), tiny_tokenizer, make)


def close(a: Tensor, b: Tensor) -> None:
    assert a.shape == b.shape
    assert bool(((a - b).abs() <= TOLERANCE).all()), (a - b).abs().max()


def ids(rng: random.Random, n: int) -> list[int]:
    return [rng.randrange(4, 300) for _ in range(n)]


def test_models_say_something(pair: Pair) -> None:
    # The comparisons below would be empty if all logits were nearly equal.
    assert float(pair.full(range(4, 12)).std()) > 1e-2


@pytest.mark.parametrize("seed", [0, 1])
def test_ragged_rounds_with_partial_accepts(pair: Pair, seed: int) -> None:
    rng = random.Random(seed)
    pair.clear()
    held: dict[int, list[int]] = {slot: [] for slot in range(SLOTS)}
    for round_ in range(9):
        live = rng.sample(range(SLOTS), rng.randint(1, SLOTS))  # any order, with and without gaps
        blocks = []
        for slot in live:
            n = rng.randint(1, min(9 if round_ else 12, CAPACITY - len(held[slot])))
            blocks.append(Block(slot, ids(rng, n), want=rng.randint(0, n)))
        got = pair.slotted.score(blocks)
        want = []
        for b in blocks:
            whole = [*held[b.slot], *b.tokens]
            want.append(pair.full(whole)[len(whole) - b.want :])
        close(got, torch.cat(want))
        for b in blocks:
            assert pair.slotted.length(b.slot) == len(held[b.slot]) + len(b.tokens)
            kept = rng.randint(0, len(b.tokens))
            held[b.slot] += b.tokens[:kept]
            # Now and then far back, across the window.
            if rng.random() < 0.3:
                del held[b.slot][rng.randint(0, len(held[b.slot])) :]
            if len(held[b.slot]) > CAPACITY - 6:
                held[b.slot].clear()
            pair.slotted.set_length(b.slot, len(held[b.slot]))


@pytest.mark.parametrize("cut", [1, 4, 5, 6, 12])
def test_rollback_across_the_window(pair: Pair, cut: int) -> None:
    rng = random.Random(cut)
    pair.clear()
    tokens = ids(rng, 20)
    for at in range(0, 20, 4):
        pair.slotted.score([Block(1, tokens[at : at + 4], want=1)])
    pair.slotted.set_length(1, cut)
    after = ids(rng, 3)
    close(pair.slotted.score([Block(1, after, want=3)]), pair.full([*tokens[:cut], *after])[-3:])
    one = ids(rng, 1)
    close(pair.slotted.score([Block(1, one, want=1)]), pair.full([*tokens[:cut], *after, *one])[-1:])


def test_fingerprint_sees_length_and_content_and_nothing_behind(pair: Pair) -> None:
    rng = random.Random(5)
    pair.clear()
    pair.slotted.score([Block(0, ids(rng, 11), want=0), Block(2, ids(rng, 3), want=0)])
    before, other = pair.slotted.fingerprint(0), pair.slotted.fingerprint(2)
    pair.slotted.score([Block(0, ids(rng, 7), want=1)])
    assert pair.slotted.fingerprint(0) != before
    assert pair.slotted.fingerprint(2) == other
    pair.slotted.set_length(0, 11)
    assert pair.slotted.fingerprint(0) == before
    # A neighbour's longer block pads this row; the padding writes nothing.
    pair.slotted.score([Block(0, ids(rng, 1), want=1), Block(2, ids(rng, 9), want=1)])
    pair.slotted.set_length(0, 11)
    pair.slotted.set_length(2, 3)
    assert (pair.slotted.fingerprint(0), pair.slotted.fingerprint(2)) == (before, other)
    pair.slotted.set_length(0, 10)
    assert pair.slotted.fingerprint(0) != before


TREE = (-1, -1, 0, 0, 1, 2, 4, 6, 7)  # two roots; depths 0 0 1 1 1 2 2 3 4


def paths(parents: Sequence[int]) -> list[list[int]]:
    out: list[list[int]] = []
    for i, parent in enumerate(parents):
        out.append([*(out[parent] if parent >= 0 else []), i])
    return out


@pytest.mark.parametrize("beside", [(), (3,), (1, 12)])
def test_a_tree_scores_each_of_its_paths(pair: Pair, beside: tuple[int, ...]) -> None:
    """Alone, beside a shorter chain, between longer ones; then one path is kept and decoding goes on."""
    rng = random.Random(len(beside))
    for path in paths(TREE):
        pair.clear()
        prefix, block = ids(rng, 8), ids(rng, len(TREE))
        pair.slotted.score([Block(1, prefix, want=0)])
        chains = [Block(slot, ids(rng, n), want=1) for slot, n in zip((0, 3), beside, strict=False)]
        got = pair.slotted.score([Block(1, block, want=len(TREE), parents=TREE), *chains])
        want = [pair.full([*prefix, *(block[i] for i in p)])[-1:] for p in paths(TREE)]
        close(got, torch.cat([*want, *(pair.full(c.tokens)[-1:] for c in chains)]))
        pair.slotted.compact(1, len(prefix), path)
        kept = [*prefix, *(block[i] for i in path)]
        assert pair.slotted.length(1) == len(kept)
        after = ids(rng, 2)
        close(pair.slotted.score([Block(1, after, want=2)]), pair.full([*kept, *after])[-2:])
        if not beside:
            pair.slotted.compact(1, len(kept), [0])  # drops one of the two again
            last = ids(rng, 1)
            close(pair.slotted.score([Block(1, last, want=1)]), pair.full([*kept, after[0], *last])[-1:])


def test_a_tree_at_the_very_start(pair: Pair) -> None:
    rng = random.Random(3)
    pair.clear()
    block = ids(rng, len(TREE))
    got = pair.slotted.score([Block(2, block, want=len(TREE), parents=TREE)])
    close(got, torch.cat([pair.full([block[i] for i in p])[-1:] for p in paths(TREE)]))


def test_the_last_place_of_a_slot_can_be_used_and_no_more(pair: Pair) -> None:
    rng = random.Random(9)
    pair.clear()
    tokens = ids(rng, CAPACITY)
    # The short row fills its slot exactly while the long one pads it.
    pair.slotted.score([Block(0, tokens[:-1], want=0)])
    other = ids(rng, 6)
    got = pair.slotted.score([Block(0, tokens[-1:], want=1), Block(1, other, want=1)])
    close(got, torch.cat([pair.full(tokens)[-1:], pair.full(other)[-1:]]))
    assert pair.slotted.length(0) == CAPACITY == pair.slotted.capacity
    print_before = pair.slotted.fingerprint(0), pair.slotted.fingerprint(1)
    with pytest.raises(RequestError, match="do not fit"):
        pair.slotted.score([Block(1, other, want=1), Block(0, other[:1], want=1)])
    assert print_before == (pair.slotted.fingerprint(0), pair.slotted.fingerprint(1))
    pair.slotted.set_length(0, CAPACITY - 4)
    close(pair.slotted.score([Block(0, tokens[-4:], want=4)]), pair.full(tokens)[-4:])


def test_the_result_belongs_to_the_caller(pair: Pair) -> None:
    pair.clear()
    logits = pair.slotted.score([Block(0, [5, 6, 7], want=2)])
    assert logits.dtype == torch.float32 and not logits.is_inference()
    again = pair.full([5, 6, 7])[-2:]
    logits[0, :] = 0.0
    close(pair.slotted.score([Block(1, [5, 6, 7], want=2)]), again)
    assert pair.slotted.score([Block(2, [5, 6], want=0)]).shape == (0, pair.width)


@pytest.mark.parametrize("pair", STOCK, indirect=True)
def test_the_model_still_generates_by_itself(pair: Pair) -> None:
    """The attention function put into the model obeys transformers' own conventions, padding included."""
    assert pair.slotted.model is not None
    prompts = torch.tensor([[0, 0, 0, 5, 9, 11, 7, 8], [21, 22, 23, 24, 25, 26, 27, 28]])
    seen = (prompts != 0).long()
    with torch.no_grad():
        runs = [
            m.generate(
                prompts, attention_mask=seen, max_new_tokens=6, min_new_tokens=6, do_sample=False, pad_token_id=0
            )
            for m in (pair.slotted.model, pair.plain)
        ]
    assert torch.equal(*runs)


@pytest.mark.parametrize("pair", STOCK, indirect=True)
def test_memory_and_digest(
    pair: Pair, build_tiny: Callable[..., PreTrainedModel], request: pytest.FixtureRequest
) -> None:
    tiny_name = request.node.callspec.params["pair"][0]
    model = pair.slotted
    before = model.memory()
    layers = model.config.num_hidden_layers
    assert before["kv"] >= 2 * layers * SLOTS * CAPACITY * 4 and before["weights"] > 0
    model.score([Block(0, [5] * 8, want=1)])
    pair.clear()
    assert model.memory() == before, "the buffers never grow"
    digest = model.weights_digest()
    assert digest == model.weights_digest()
    same = TransformersModel(build_tiny(tiny_name), model.tokenizer, capacity=8)
    assert same.weights_digest() == digest
    other = TransformersModel(build_tiny(tiny_name, seed=1), model.tokenizer, capacity=8)
    assert other.weights_digest() != digest


def test_half_precision(
    tiny_name: str, build_tiny: Callable[..., PreTrainedModel], tiny_tokenizer: PreTrainedTokenizerFast
) -> None:
    model = TransformersModel(build_tiny(tiny_name).to(torch.bfloat16), tiny_tokenizer, slots=2, capacity=24)
    logits = model.score([Block(0, range(10, 20), want=2), Block(1, [5], want=1)])
    logits = torch.cat([logits, model.score([Block(0, [5, 6], want=2), Block(1, [7], want=1)])])
    assert logits.dtype == torch.float32 and bool(logits.isfinite().all())


def test_options_are_checked(
    build_tiny: Callable[..., PreTrainedModel], tiny_tokenizer: PreTrainedTokenizerFast
) -> None:
    for options, param in (({"slots": 0}, "slots"), ({"capacity": 0}, "capacity"), ({"capacity": 65}, "capacity")):
        with pytest.raises(ConfigError) as caught:
            TransformersModel(build_tiny("llama"), tiny_tokenizer, **options)  # type: ignore[arg-type]
        assert caught.value.param == param
    assert TransformersModel(build_tiny("llama"), tiny_tokenizer).capacity == 64
    tiny = TransformersModel(build_tiny("llama"), tiny_tokenizer, capacity=1)
    assert tiny.score([Block(0, [5], want=1)]).shape == (1, 300)
