"""The step on fixed shapes: what the ragged step computes, nothing else touched; on CUDA the same as a graph."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from constrained_spec.api import Engine
from constrained_spec.backends import graphs
from constrained_spec.backends.base import Block
from constrained_spec.backends.decoder import Decoder
from constrained_spec.backends.graphs import StaticStep, _Graphs
from constrained_spec.backends.products import Dense, Int8
from constrained_spec.backends.slots import within_tree
from constrained_spec.backends.transformers import TransformersModel

Build = Callable[..., PreTrainedModel]
SLOTS, CAPACITY = 6, 60
NEEDS_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
FAMILY = ["llama", "mistral", "qwen2-window", "qwen3"]


def decoder_of(model: TransformersModel) -> Decoder:
    assert model._decoder is not None
    return model._decoder


def made_static(model: TransformersModel) -> TransformersModel:
    decoder = decoder_of(model)
    decoder.static = decoder.static_step()
    return model


@pytest.fixture(params=FAMILY)
def model(
    request: pytest.FixtureRequest, build_tiny: Build, tiny_tokenizer: PreTrainedTokenizerFast,
    monkeypatch: pytest.MonkeyPatch,
) -> TransformersModel:  # fmt: skip
    monkeypatch.setattr(graphs, "KEYS", 16)  # several buckets of keys within the tiny models' context
    return made_static(
        TransformersModel(build_tiny(request.param), tiny_tokenizer, slots=SLOTS, capacity=CAPACITY, specialise=True)
    )


def tokens(rng: random.Random, n: int) -> list[int]:
    return [rng.randrange(4, 300) for _ in range(n)]


def fill(model: TransformersModel, rng: random.Random, lengths: Sequence[int]) -> None:
    """Random texts of these lengths, and noise behind them."""
    for layer in model._cache.slot_layers:
        layer.both.normal_()
    for slot, length in enumerate(lengths):
        model.set_length(slot, 0)
        for at in range(0, length, 20):
            model.score([Block(slot, tokens(rng, min(20, length - at)), want=1)])


def ran_static(model: TransformersModel, blocks: Sequence[Block]) -> tuple[Tensor, bool]:
    """Logits, and whether a bucket held the blocks."""
    static = decoder_of(model).static
    assert static is not None
    bucket = static.bucket(blocks, [model.length(b.slot) for b in blocks])
    return model.score(blocks), bucket is not None


def compare(model: TransformersModel, blocks: Sequence[Block]) -> None:
    """Both steps on the same slots: equal logits, equal keys and values in the blocks, and no other place changed."""
    decoder = decoder_of(model)
    starts = [model.length(slot) for slot in range(model.slots)]
    before = [layer.both.clone() for layer in model._cache.slot_layers]
    kept, decoder.static = decoder.static, None
    want = model.score(blocks)
    for block in blocks:
        model.set_length(block.slot, starts[block.slot])
    written = [layer.both.clone() for layer in model._cache.slot_layers]
    for layer, old in zip(model._cache.slot_layers, before, strict=True):
        layer.both.copy_(old)
    decoder.static = kept
    got, static = ran_static(model, blocks)
    assert static, "no bucket held them"
    near = 1e-5 if got.device.type == "cpu" else 1e-4
    assert got.shape == want.shape and float((got - want).abs().max()) < near
    for layer, old, new in zip(model._cache.slot_layers, before, written, strict=True):
        own = torch.zeros(model.slots, model.capacity, dtype=torch.bool, device=layer.both.device)
        for block in blocks:
            own[block.slot, starts[block.slot] : starts[block.slot] + len(block.tokens)] = True
        ours, theirs, was = (t.permute(0, 3, 1, 2, 4) for t in (layer.both, new, old))  # [slots, capacity, …]
        assert float((ours[own] - theirs[own]).abs().max()) < near
        assert torch.equal(ours[~own], was[~own])


# ---- against the ragged step ----------------------------------------------------------------------------------------


def test_single_tokens(model: TransformersModel) -> None:
    rng = random.Random(0)
    fill(model, rng, [20, 3, 0, 33, 14, 16])
    compare(model, [Block(slot, tokens(rng, 1), want=1) for slot in range(SLOTS)])
    compare(model, [Block(3, tokens(rng, 1), want=1)])


@pytest.mark.parametrize("n", [2, 3, 7, 16, 31, 32])
def test_a_block_beside_slots_that_take_no_part(model: TransformersModel, n: int) -> None:
    rng = random.Random(n)
    fill(model, rng, [20, 0, 17, 60, 5, 59])
    compare(model, [Block(2, tokens(rng, n), want=n)])


@pytest.mark.parametrize("seed", range(8))
def test_ragged_blocks_and_trees(model: TransformersModel, seed: int) -> None:
    rng = random.Random(seed)
    fill(model, rng, [rng.randrange(0, 50) for _ in range(SLOTS)])
    for _ in range(3):
        blocks = []
        for slot in rng.sample(range(SLOTS), rng.randrange(1, SLOTS + 1)):
            n = min(rng.choice([1, 1, 2, 5, 9]), CAPACITY - model.length(slot))
            if n == 0:
                continue
            tree = n > 1 and rng.random() < 0.5
            parents = [-1, *(rng.randrange(-1, i) for i in range(1, n))] if tree else None
            blocks.append(Block(slot, tokens(rng, n), want=rng.randrange(n + 1), parents=parents))
        if any(b.want for b in blocks):
            compare(model, blocks)


def test_a_slot_is_used_to_its_last_place(model: TransformersModel) -> None:
    """What is no token writes nowhere else, so neither a full slot nor one about to be full needs another path."""
    rng = random.Random(5)
    fill(model, rng, [CAPACITY, CAPACITY - 1, CAPACITY - 3, 0, 8, CAPACITY - 7])
    compare(model, [Block(1, tokens(rng, 1), want=1), Block(2, tokens(rng, 3), want=3)])
    compare(model, [Block(5, tokens(rng, 7), want=2), Block(3, tokens(rng, 2), want=1)])
    assert [model.length(slot) for slot in range(SLOTS)] == [60, 60, 60, 2, 8, 60]


def test_what_fits_no_bucket_runs_as_it_is(model: TransformersModel) -> None:
    rng = random.Random(6)
    fill(model, rng, [4] * SLOTS)
    blocks = [Block(0, tokens(rng, 33), want=2), Block(1, tokens(rng, 1), want=1)]
    got, static = ran_static(model, blocks)
    assert not static and got.shape == (3, 300)
    for block in blocks:
        model.set_length(block.slot, 4)
    decoder_of(model).static = None
    assert torch.equal(model.score(blocks), got)


def test_a_round_whose_rows_nobody_wants(model: TransformersModel) -> None:
    rng = random.Random(7)
    fill(model, rng, [4] * SLOTS)
    got, static = ran_static(model, [Block(1, tokens(rng, 3), want=0)])
    assert static and got.shape == (0, 300) and model.length(1) == 7


def test_nan_in_a_slot_reaches_no_other(model: TransformersModel) -> None:
    rng = random.Random(8)
    fill(model, rng, [12] * SLOTS)
    for layer in model._cache.slot_layers:
        layer.both[1] = layer.both[4] = float("nan")
    assert bool(model.score([Block(s, tokens(rng, 2), want=2) for s in (0, 2, 3, 5)]).isfinite().all())


@pytest.mark.parametrize("seed", range(4))
def test_features_of_every_token_are_kept(model: TransformersModel, seed: int) -> None:
    rng = random.Random(seed)
    model.keep_features()
    fill(model, rng, [rng.randrange(0, 40) for _ in range(SLOTS)])
    starts = [model.length(slot) for slot in range(SLOTS)]
    before = [states_of(model, slot) for slot in range(SLOTS)]
    blocks = [Block(slot, tokens(rng, rng.randrange(1, 9)), want=1) for slot in rng.sample(range(SLOTS), 4)]
    _, static = ran_static(model, blocks)
    got = [states_of(model, slot) for slot in range(SLOTS)]
    assert static and all(torch.equal(g[:n], b) for g, n, b in zip(got, starts, before, strict=True))
    for slot, start in enumerate(starts):
        model.set_length(slot, start)
    decoder_of(model).static = None
    model.score(blocks)
    for slot in range(SLOTS):
        torch.testing.assert_close(got[slot], states_of(model, slot), rtol=1e-5, atol=1e-5)


def states_of(model: TransformersModel, slot: int) -> Tensor:
    states = model.features(slot)
    assert states is not None
    return states.clone()


def test_what_early_exit_wrote_behind_a_slot_stays(model: TransformersModel) -> None:
    """``score_ahead`` drafts behind the length of one slot while a step runs in another."""
    rng = random.Random(9)
    fill(model, rng, [10] * SLOTS)
    model.score_ahead([Block(2, tokens(rng, 3), want=1)], [10], 1)
    kept = [layer.both[2].clone() for layer in model._cache.slot_layers]
    _, static = ran_static(model, [Block(4, tokens(rng, 5), want=5)])
    assert static
    assert all(torch.equal(layer.both[2], was) for layer, was in zip(model._cache.slot_layers, kept, strict=True))


@pytest.mark.parametrize("window", [None, 1, 2, 5, 40])
def test_the_bits_of_a_block(window: int | None) -> None:
    rng = random.Random(10)
    for _ in range(40):
        n = rng.randrange(1, 33)
        parents = [-1, *(rng.randrange(-1, i) for i in range(1, n))]
        for block, tree in ((Block(0, [5] * n, 1, parents), parents), (Block(0, [5] * n, 1), list(range(-1, n - 1)))):
            words = graphs._seen(block, window)
            bits = torch.tensor([[word >> j & 1 for j in range(n)] for word in words], dtype=torch.bool)
            assert torch.equal(bits, within_tree(tree, window)) and max(words) < 1 << n


# ---- shapes, and what a graph relies on -----------------------------------------------------------------------------


def tiny(build: Build, tokenizer: PreTrainedTokenizerFast, slots: int, name: str = "llama") -> TransformersModel:
    return TransformersModel(build(name), tokenizer, slots=slots, capacity=CAPACITY, specialise=True)


def test_buckets(build_tiny: Build, tiny_tokenizer: PreTrainedTokenizerFast, monkeypatch: pytest.MonkeyPatch) -> None:
    static = decoder_of(tiny(build_tiny, tiny_tokenizer, 40)).static_step()

    def bucket(starts: Sequence[int], *lengths: int) -> tuple[int, int] | None:
        return static.bucket([Block(i, [5] * n, want=1) for i, n in enumerate(lengths)], starts)

    assert bucket([9], 1) == (1, CAPACITY), "no more keys than there are"
    monkeypatch.setattr(graphs, "KEYS", 16)
    assert [bucket([0], n) for n in (1, 2, 3, 5)] == [(1, 16), (2, 16), (4, 16), None], "40 slots of 8 for 5 tokens"
    assert bucket([0] * 16, *(5 for _ in range(16))) == (8, 16), "a quarter is tokens"
    assert bucket([0] * 40, *(32 for _ in range(40))) == (32, 32)
    assert bucket([0] * 40, 33, *(32 for _ in range(39))) is None
    assert [bucket([start], 1) for start in (15, 16, 47, 48, 59)] == [(1, 16), (1, 32), (1, 48), (1, 60), (1, 60)]


class Operators(TorchDispatchMode):
    """Every operator that runs, with shapes, strides and plain arguments: what a capture would record."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        def told(value: Any) -> Any:
            if isinstance(value, Tensor):
                strided = value.layout == torch.strided
                return (value.dtype, tuple(value.shape), value.stride() if strided else None)
            return [told(v) for v in value] if isinstance(value, list | tuple) else value

        self.seen.append(f"{func} {told(args)} {told(tuple((kwargs or {}).items()))}")
        return func(*args, **(kwargs or {}))


def test_no_operator_depends_on_a_value(model: TransformersModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds of one bucket run the very same operators on the same shapes, and none reads a value on the host."""
    decoder, rng = decoder_of(model), random.Random(11)
    fill(model, rng, [20, 3, 0, 33, 14, 25])
    static = decoder.static
    assert static is not None
    compute, recorded = static._compute, []

    def watched(*arguments: Any) -> None:
        with Operators() as operators:
            compute(*arguments)
        recorded.append(operators.seen)

    monkeypatch.setattr(static, "_compute", watched)
    for blocks in (
        [Block(0, tokens(rng, 4), want=4)],
        [Block(3, tokens(rng, 3), want=1), Block(1, tokens(rng, 4), want=2, parents=[-1, -1, 0, 1])],
        [Block(5, tokens(rng, 1), want=1), Block(4, tokens(rng, 3), want=3), Block(3, tokens(rng, 1), want=1)],
    ):
        model.set_length(3, 25)
        starts = [model.length(b.slot) for b in blocks]
        assert static.bucket(blocks, starts) == (4, 32)
        model.score(blocks)
        for block, start in zip(blocks, starts, strict=True):
            model.set_length(block.slot, start)
    assert len(recorded) == 3 and recorded[0] == recorded[1] == recorded[2]
    told = "\n".join(recorded[0])
    assert not any(name in told for name in ("_local_scalar_dense", "nonzero", "lift_fresh"))
    assert told.count("index_put") == len(decoder.layers)


class Replayed(_Graphs):
    """A graph as this package sees one: what the first round of a bucket ran, run again."""

    def __init__(self, fails: Callable[[int], bool] = lambda count: False) -> None:
        self.found, self.failure = {}, None
        self.count, self._fails = 0, fails

    def _capture(self, compute: Callable[[], None]) -> Any:
        self.count += 1
        compute()
        if self._fails(self.count):
            raise RuntimeError("CUDA error: operation not permitted when stream is capturing\nand more")

        class Graph:
            def replay(self) -> None:
                compute()

        return Graph()


def test_a_bucket_is_captured_once_and_replayed(model: TransformersModel) -> None:
    """The function of the first round serves every later one: nothing of a round is in it."""
    decoder, rng = decoder_of(model), random.Random(12)
    static = decoder.static
    assert static is not None
    replayed = Replayed()
    static._graphs = replayed
    for _ in range(3):
        fill(model, rng, [20, 3, 0, 33, 14, 25])
        compare(model, [Block(0, tokens(rng, 4), want=4)])
        compare(model, [Block(1, tokens(rng, 3), want=1), Block(3, tokens(rng, 4), want=2, parents=[-1, -1, 0, 1])])
    assert replayed.count == len(static.captured) == len(set(static.captured))
    assert {(4, 32), (4, 48)} <= set(static.captured)
    assert model.path.detail.endswith("; CUDA graphs")


def test_a_capture_that_fails_is_told_and_costs_nothing_else(model: TransformersModel) -> None:
    decoder, rng = decoder_of(model), random.Random(13)
    fill(model, rng, [20, 3, 0, 33, 14, 25])
    static = decoder.static
    assert static is not None
    replayed = Replayed(fails=lambda count: count == 2)
    static._graphs = replayed
    for _ in range(2):
        compare(model, [Block(0, tokens(rng, 1), want=1)])
        compare(model, [Block(1, tokens(rng, 7), want=7)])
        compare(model, [Block(3, tokens(rng, 2), want=2)])
    assert static.captured == ((1, 32),) and replayed.count == 2, "no second attempt, and what is there still serves"
    for _ in range(2):
        assert "a capture failed: CUDA error: operation not permitted" in model.path.detail
        assert "more" not in model.path.detail and "(8, 16)" in model.path.detail
        model.release()


# ---- policy and memory ----------------------------------------------------------------------------------------------


def test_a_cpu_keeps_the_ragged_step_and_memory_counts_the_buffers(
    build_tiny: Build, tiny_tokenizer: PreTrainedTokenizerFast
) -> None:
    ours = tiny(build_tiny, tiny_tokenizer, 3)
    decoder = decoder_of(ours)
    plain = ours.memory()["weights"]
    assert decoder.static is None and "fixed" not in ours.path.detail and "CUDA" not in ours.path.detail
    made_static(ours)
    assert ours.path.detail.endswith("; fixed shapes") and ours.path.specialised
    static = decoder.static
    assert static is not None and static.nbytes() > 3 * 32 * 32 * 4
    assert ours.memory()["weights"] == plain + static.nbytes()
    before = static.nbytes()
    for n in (1, 4, 9, 32):
        ours.set_length(0, 0)
        ours.score([Block(0, [5] * n, want=1)])
    assert static.nbytes() == before


def test_neither_a_trial_nor_int8_is_static(build_tiny: Build, tiny_tokenizer: PreTrainedTokenizerFast) -> None:
    stock = TransformersModel(build_tiny("llama"), tiny_tokenizer, slots=2, capacity=CAPACITY)
    assert stock.model is not None
    assert Decoder(stock.model, stock._cache, static=True).static is None
    assert Decoder(stock.model, stock._cache, Int8, static=True).static is None
    stock = TransformersModel(build_tiny("llama"), tiny_tokenizer, slots=2, capacity=CAPACITY)
    assert stock.model is not None
    assert isinstance(Decoder(stock.model, stock._cache, Dense, static=True).static, StaticStep)


# ---- whole requests -------------------------------------------------------------------------------------------------


def check_greedy_identity(model: TransformersModel) -> None:
    """Four requests at once, the text of each the same with every drafter as alone and without."""
    prompts = ["abcabcabcab", "xyzzy", "11, 12, 13, 11, 12,", "hello hello hel"]
    engine = Engine(model, prefill_chunk=20)
    alone = [engine.generate(p, max_tokens=24, drafter="none", temperature=0).tokens for p in prompts]
    for drafter in ("none", "ngram"):
        for gamma in (1, 4):
            got = engine.batch(prompts, max_tokens=24, drafter=drafter, gamma=gamma, temperature=0)
            assert [r.tokens for r in got] == alone
            assert all(r.speculation.disabled_reason is None for r in got)


def test_greedy_identity(
    build_tiny: Build, tiny_tokenizer: PreTrainedTokenizerFast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graphs, "KEYS", 16)
    ours = made_static(tiny(build_tiny, tiny_tokenizer, 4, "qwen3"))
    static = decoder_of(ours).static
    assert static is not None
    replayed = Replayed()
    static._graphs = replayed
    check_greedy_identity(ours)
    assert {width for width, _ in captured(ours)} >= {1, 2, 8} and {keys for _, keys in captured(ours)} >= {16, 32, 48}


# ---- on a GPU -------------------------------------------------------------------------------------------------------


@pytest.fixture(params=FAMILY)
def on_gpu(
    request: pytest.FixtureRequest, build_tiny: Build, tiny_tokenizer: PreTrainedTokenizerFast,
    monkeypatch: pytest.MonkeyPatch,
) -> TransformersModel:  # fmt: skip
    monkeypatch.setattr(graphs, "KEYS", 16)
    model = build_tiny(request.param).to("cuda")
    return TransformersModel(model, tiny_tokenizer, slots=SLOTS, capacity=CAPACITY, specialise=True)


def captured(model: TransformersModel) -> tuple[tuple[int, int], ...]:
    static = decoder_of(model).static
    assert static is not None
    return static.captured


@NEEDS_GPU
def test_gpu_a_replay_equals_the_ragged_step(on_gpu: TransformersModel) -> None:
    rng = random.Random(14)
    assert on_gpu.path.detail.endswith("; CUDA graphs"), "the check at load has run one"
    for _ in range(3):
        fill(on_gpu, rng, [20, 3, 0, 33, CAPACITY, 25])
        compare(on_gpu, [Block(0, tokens(rng, 4), want=4)])
        compare(on_gpu, [Block(s, tokens(rng, 1), want=1) for s in (0, 1, 2, 3, 5)])
        compare(on_gpu, [Block(1, tokens(rng, 3), want=1), Block(3, tokens(rng, 4), want=2, parents=[-1, -1, 0, 1])])
        compare(on_gpu, [Block(5, tokens(rng, 31), want=31)])
    assert {width for width, _ in captured(on_gpu)} >= {1, 4, 32}


@NEEDS_GPU
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_gpu_sixteen_bits(dtype: torch.dtype, build_tiny: Build, tiny_tokenizer: PreTrainedTokenizerFast) -> None:
    ours = TransformersModel(
        build_tiny("llama").to("cuda", dtype), tiny_tokenizer, slots=SLOTS, capacity=CAPACITY, specialise=True
    )
    decoder, rng = decoder_of(ours), random.Random(15)
    fill(ours, rng, [20, 3, 7, 33, 14, 25])
    blocks = [Block(s, tokens(rng, 1 + s % 3), want=1) for s in range(SLOTS)]
    got, static = ran_static(ours, blocks)
    assert static and captured(ours)
    for block in blocks:
        ours.set_length(block.slot, ours.length(block.slot) - len(block.tokens))
    decoder.static = None
    want = ours.score(blocks)
    assert float((got - want).abs().max()) <= 5e-2 * max(1.0, float(want.abs().max()))


@NEEDS_GPU
def test_gpu_greedy_identity(build_tiny: Build, tiny_tokenizer: PreTrainedTokenizerFast) -> None:
    ours = TransformersModel(
        build_tiny("qwen3").to("cuda"), tiny_tokenizer, slots=4, capacity=CAPACITY, specialise=True
    )
    check_greedy_identity(ours)
    assert {width for width, _ in captured(ours)} >= {1, 2, 8} and ours.path.detail.endswith("; CUDA graphs")


@NEEDS_GPU
def test_gpu_rounds_hold_no_more_memory(on_gpu: TransformersModel) -> None:
    rng = random.Random(16)
    fill(on_gpu, rng, [10] * SLOTS)

    def round_() -> int:
        logits = on_gpu.score([Block(s, tokens(rng, 4), want=4) for s in range(SLOTS)])
        logits.argmax(-1).tolist()
        del logits
        for slot in range(SLOTS):
            on_gpu.set_length(slot, 10)
        return torch.cuda.memory_allocated()

    held = [round_() for _ in range(53)][3:]
    assert len(held) == 50 and len(set(held)) == 1
    assert len(captured(on_gpu)) == len(set(captured(on_gpu)))


@NEEDS_GPU
def test_gpu_a_round_waits_for_nothing(on_gpu: TransformersModel) -> None:
    """A round's one sync is the caller's, who reads the logits."""
    rng = random.Random(17)
    on_gpu.keep_features()
    fill(on_gpu, rng, [10] * SLOTS)
    rounds = [[Block(s, tokens(rng, n), want=n) for s, n in ((0, 4), (2, 1), (5, 3))] for _ in range(8)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch announces a prototype
        for i, blocks in enumerate(rounds):
            try:
                torch.cuda.set_sync_debug_mode("error" if i > 0 else "default")  # the first one captures
                logits = on_gpu.score(blocks)
            finally:
                torch.cuda.set_sync_debug_mode("default")
            assert bool(logits.isfinite().all())
            for block in blocks:
                on_gpu.set_length(block.slot, 10)


@NEEDS_GPU
def test_gpu_a_failed_capture_leaves_a_working_model(
    build_tiny: Build, tiny_tokenizer: PreTrainedTokenizerFast, monkeypatch: pytest.MonkeyPatch
) -> None:
    stock = Decoder._states

    def reads_a_value(self: Decoder, *arguments: Any) -> Tensor:
        out = stock(self, *arguments)
        return out + 0 * out.sum().item()

    ours = TransformersModel(
        build_tiny("llama").to("cuda"), tiny_tokenizer, slots=2, capacity=CAPACITY, specialise=True
    )
    stream = torch.cuda.current_stream()
    monkeypatch.setattr(Decoder, "_states", reads_a_value)
    rng = random.Random(18)
    blocks = [Block(0, tokens(rng, 7), want=7)]
    got = ours.score(blocks)
    assert "a capture failed" in ours.path.detail and torch.cuda.current_stream() == stream
    ours.set_length(0, 0)
    decoder_of(ours).static = None
    torch.testing.assert_close(ours.score(blocks), got, rtol=1e-4, atol=1e-4)
