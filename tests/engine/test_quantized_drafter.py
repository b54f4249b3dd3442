"""Drafts of the target's quantised copy: law on a small world, the end of a chain, state, failures; and of early exit,
which shares the target's slots in the same way.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from collections.abc import Sequence as Seq

import pytest
import torch
from torch import Tensor

from constrained_spec.api import Engine, Options
from constrained_spec.backends.base import Block
from constrained_spec.backends.toy import ToyModel
from constrained_spec.coins import Coins
from constrained_spec.config import Sampling
from constrained_spec.drafters import quantized
from constrained_spec.drafters.base import Proposal
from constrained_spec.drafters.early_exit import EarlyExitDrafter
from constrained_spec.drafters.own_slots import OwnDrafter
from constrained_spec.drafters.quantized import QuantizedDrafter
from constrained_spec.engine.round import Row, run_round
from constrained_spec.errors import ConfigError, ModelError
from constrained_spec.processors.pipeline import Pipeline
from constrained_spec.state.sequence import Sequence
from constrained_spec.state.transaction import Commit, Transaction
from tests.engine.drafter_laws import assert_target_law
from tests.engine.plain import commit_singly
from tests.engine.test_round_law import TOKENS

Logits = Callable[[tuple[int, ...]], Tensor]


class CopiedToy(ToyModel):
    """A world with a cheaper pass that is wrong by ``noise``, in the same slots.

    What a pass has written at a place stays there until another one writes it, as keys and values do: a draft that
    outlived its block would show in the logits behind it.
    """

    def __init__(self, *, noise: float = 0.5, seed: int = 1, slots: int = 1, capacity: int = 32) -> None:
        self._noise, self._seed = noise, seed
        self._written: list[dict[int, int]] = [{} for _ in range(slots)]
        self.passes: list[list[int]] = []  # lengths of the blocks of each cheap pass
        self.copied, self.broken = False, ""
        super().__init__(TOKENS, lambda prefix: self.law(prefix, 0.0), eos_ids=(0,), slots=slots, capacity=capacity)

    def law(self, prefix: tuple[int, ...], noise: float) -> Tensor:
        key = sum((t + 1) * 7**i for i, t in enumerate(prefix[-6:])) + 10_007 * self._seed + 99 * len(prefix)
        generator = torch.Generator().manual_seed(key)
        return torch.randn(4, generator=generator) * 1.5 + noise * torch.randn(4, generator=generator)

    @property
    def depth(self) -> int:
        return 8

    def score(self, blocks: Seq[Block]) -> Tensor:
        for block in blocks:
            start = self.length(block.slot)
            self._written[block.slot] |= dict(enumerate(block.tokens, start))
        return super().score(blocks)

    def score_ahead(self, blocks: Seq[Block], starts: Seq[int], layers: int) -> Tensor:
        return self._ahead(blocks, starts)

    def quantize_ahead(self) -> None:
        self.copied = True

    def score_ahead_quantized(self, blocks: Seq[Block], starts: Seq[int]) -> Tensor:
        if not self.copied:
            raise ModelError("there is no copy", param="drafter")
        return self._ahead(blocks, starts)

    def _ahead(self, blocks: Seq[Block], starts: Seq[int]) -> Tensor:
        self.passes.append([len(b.tokens) for b in blocks])
        rows = []
        for block, start in zip(blocks, starts, strict=True):
            held = self._written[block.slot]
            held |= dict(enumerate(block.tokens, start))
            n = len(block.tokens)
            for i in range(n - block.want, n):
                rows.append(self.law(tuple(held[at] for at in range(start + i + 1)), self._noise))
        found = torch.stack(rows)
        return found * float("nan") if self.broken == "nan" else found


KINDS: dict[str, Callable[[CopiedToy], OwnDrafter]] = {
    "quantized": lambda model: QuantizedDrafter(model, Pipeline(model.vocabulary)),
    "early-exit": lambda model: EarlyExitDrafter(model, Pipeline(model.vocabulary)),
}


def new_sequence(
    model: ToyModel, sampling: Sampling, seed: int = 0, prompt: Seq[int] = (1, 2), slot: int = 0
) -> Sequence:
    model.set_length(slot, 0)
    return Sequence(
        prompt=prompt, sampling=sampling, coins=Coins(seed), vocabulary=model.vocabulary, target=model, slot=slot,
        capacity=model.capacity,
    )  # fmt: skip


def block_of(model: ToyModel, drafter: OwnDrafter, s: Sequence, gamma: int, verifier: str = "coupling") -> list[int]:
    """The drafts of one block that is abandoned."""
    with Transaction(s) as tx:
        proposal = Proposal(tx, gamma, verifier)
        drafter.propose([proposal])
        return list(proposal.tokens)


# ---- law ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("sampling", "pattern"), [("plain", None), ("processed", r"(a|b)+c?"), ("ends", None)])
@pytest.mark.parametrize("verifier", ["coupling", "block", "tree", "invariant"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_committed_law_is_the_targets(kind: str, verifier: str, sampling: str, pattern: str | None) -> None:
    model = CopiedToy()
    sources = assert_target_law(model, KINDS[kind](model), verifier, sampling, pattern)
    assert sources[kind] > 500


# ---- the end of a chain ---------------------------------------------------------------------------------------------


def test_a_sampled_chain_ends_whatever_it_drew() -> None:
    """Else its length would tell of the drafts, and the accepted ones would not follow q."""
    model = CopiedToy(capacity=200)
    drafter = KINDS["quantized"](model)
    lengths = set()
    for seed in range(30):
        s = new_sequence(model, Sampling(temperature=1.0, max_tokens=100, ignore_eos=True), seed)
        drafter.open(s)
        lengths.add(len(block_of(model, drafter, s, 64)))
        drafter.close(s)
    assert len(lengths) == 1 and 3 <= lengths.pop() <= 12


@pytest.mark.parametrize("shared", [False, True])
def test_a_chain_ends_behind_a_close_choice(shared: bool) -> None:
    """Greedy, and with the target's noise: as far as the best token was clearly ahead, and one draft further."""
    model = CopiedToy(capacity=200)
    drafter = KINDS["quantized"](model)
    sampling = Sampling(temperature=0.7 if shared else 0.0, max_tokens=100, ignore_eos=True)
    ended = 0
    for seed in range(40):
        s = new_sequence(model, sampling, seed, prompt=(1, 1 + seed % 3, 1 + seed // 3 % 3, 1 + seed // 9))
        drafter.open(s)
        tokens = block_of(model, drafter, s, 16, "invariant")
        drafter.close(s)
        kept = [1.0]  # chance of the chain, as the gaps told so far
        for i, token in enumerate(tokens):
            scores = model.law((*s.history.tokens, *tokens[:i]), 0.5)
            if shared:
                scores = scores / 0.7 + torch.from_numpy(s.coins.gumbel(i, 4)).float()
            assert int(scores.argmax()) == token
            best, second = scores.topk(2).values.tolist()
            gap = (best - second) * (0.7 if shared else 1.0)
            kept.append(kept[-1] / (1 + math.exp(-(quantized._EVEN + quantized._AHEAD * gap))))
        assert all(chance >= quantized._LEAST for chance in kept[:-1])
        if len(tokens) < 16:
            ended += 1
            assert kept[-1] < quantized._LEAST
    assert ended > 10


# ---- state ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_it_reads_no_prompt(kind: str) -> None:
    model = CopiedToy(capacity=200)
    drafter = KINDS[kind](model)
    s = new_sequence(model, Sampling(max_tokens=40, ignore_eos=True), prompt=[1, 2, 3] * 20)
    drafter.open(s)
    for _ in range(2):
        run_round(model, Pipeline(model.vocabulary), [Row(s, drafter, 4, "coupling")])
    assert model.passes and max(itertools.chain(*model.passes)) <= 2, "the first round drafts nothing"
    assert s.counts.proposed > 0


@pytest.mark.parametrize("kind", KINDS)
def test_every_cut_leaves_the_state_of_a_fresh_replay(kind: str) -> None:
    sampling = Sampling(temperature=1.0, max_tokens=20, ignore_eos=True)
    for seed, cut in itertools.product(range(4), range(4)):
        model = CopiedToy(capacity=40)
        drafter = KINDS[kind](model)
        s = new_sequence(model, sampling, seed)
        drafter.open(s)
        run_round(model, Pipeline(model.vocabulary), [Row(s, drafter, 3, "coupling")])
        before = s.fingerprint()
        drafts = block_of(model, drafter, s, 3)
        assert len(drafts) == 3
        assert s.fingerprint() == before, "a block that is abandoned leaves nothing"
        assert block_of(model, drafter, s, 3) == drafts
        with Transaction(s) as tx:
            proposal = Proposal(tx, 3, "coupling")
            drafter.propose([proposal])
            model.score([Block(0, s.history.tokens[s.kv.length :], want=1)])
            tx.commit(cut, 3)
        now = block_of(model, drafter, s, 3)

        other = CopiedToy(capacity=40)
        fresh = KINDS[kind](other)
        r = new_sequence(other, sampling, seed)
        fresh.open(r)
        commit_singly(other, r, s.output)
        r.counts.rounds = s.counts.rounds
        assert block_of(other, fresh, r, 3) == now
        assert s.history.tokens == r.history.tokens and model.fingerprint(0) == other.fingerprint(0)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_a_batch_draft_as_if_alone(kind: str) -> None:
    model = CopiedToy(slots=3, capacity=64)
    drafter = KINDS[kind](model)
    sampling = Sampling(max_tokens=30, ignore_eos=True)
    prompts = ((1, 2), (3, 1, 2), (2,))
    rows = [new_sequence(model, sampling, i, prompt, slot=i) for i, prompt in enumerate(prompts)]
    for s in rows:
        drafter.open(s)
    while not all(s.finished for s in rows):
        live = [s for s in rows if not s.finished]
        run_round(model, Pipeline(model.vocabulary), [Row(s, drafter, 4, "coupling") for s in live])
    for s, prompt in zip(rows, prompts, strict=True):
        assert not s.disabled
        single = CopiedToy(capacity=64)
        own = KINDS[kind](single)
        alone = new_sequence(single, sampling, s.coins.seed, prompt)
        own.open(alone)
        while not alone.finished:
            run_round(single, Pipeline(single.vocabulary), [Row(alone, own, 4, "coupling")])
        assert alone.output == s.output and alone.counts == s.counts


# ---- failures -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["nan", "gone"])
def test_a_copy_that_fails_is_switched_off(fault: str) -> None:
    model = CopiedToy(capacity=64)
    drafter = KINDS["quantized"](model)
    sampling = Sampling(max_tokens=20, ignore_eos=True)
    plain = new_sequence(model, sampling)
    while not plain.finished:
        run_round(model, Pipeline(model.vocabulary), [Row(plain, None, 0, "coupling")])
    s = new_sequence(model, sampling)
    drafter.open(s)
    for number in itertools.count():
        if number == 2:
            model.broken, model.copied = fault, fault != "gone"
        [outcome] = run_round(model, Pipeline(model.vocabulary), [Row(s, drafter, 4, "coupling")]).outcomes
        assert isinstance(outcome, Commit)
        if s.finished:
            break
    assert s.output == plain.output
    assert ("finite" if fault == "nan" else "there is no copy") in s.disabled["quantized"]


@pytest.mark.model
def test_memory_of_the_copy_goes_first(smollm2: Engine) -> None:
    engine = Engine(smollm2.model)
    prompt = [{"role": "user", "content": "Say hello."}]
    options: Options = {"max_tokens": 24, "drafter": "quantized"}
    plain = engine.generate(prompt, max_tokens=24, speculation=False)
    first = engine.generate(prompt, **options)
    assert first.tokens == plain.tokens and first.speculation.accepted > 12
    assert engine._drafters.release() and not engine._drafters.release()
    after = engine.generate(prompt, **options)
    assert after.tokens == plain.tokens
    assert "int8" in (after.speculation.disabled_reason or "")
    engine.model.quantize_ahead()  # the model is shared with other tests


@pytest.mark.model
def test_an_int8_target_has_no_copy(int8_with_draft: Engine) -> None:
    with pytest.raises(ConfigError, match="int8 itself") as caught:
        int8_with_draft.generate("x", drafter="quantized", max_tokens=2)
    assert caught.value.param == "drafter"
    assert int8_with_draft.generate("x", drafter="auto", max_tokens=2).speculation.disabled_reason is None
