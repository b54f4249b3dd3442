"""Which of two sources a block gets: the usual ones, or the chain of the quantised copy, by what each brought."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Seq
from itertools import pairwise
from typing import Any

import pytest

from constrained_spec.api import Engine, Options
from constrained_spec.config import Sampling
from constrained_spec.drafters import switching
from constrained_spec.drafters.base import DrafterFault, Proposal
from constrained_spec.drafters.quantized import QuantizedDrafter, steps_taken
from constrained_spec.drafters.switching import SwitchingDrafter
from constrained_spec.drafters.tree import TreeDrafter
from constrained_spec.engine.round import Row, run_round
from constrained_spec.grammars.compile import Regex, compile_constraint
from constrained_spec.processors.pipeline import Pipeline
from constrained_spec.state.sequence import Sequence
from constrained_spec.state.transaction import Commit
from tests.engine.drafter_laws import assert_target_law
from tests.engine.plain import Stateless
from tests.engine.test_quantized_drafter import CopiedToy, new_sequence

LONG = Sampling(max_tokens=1500, ignore_eos=True)


class Usual(Stateless):
    """Drafts ``right`` tokens that stand and one that falls, as far as it is told."""

    name = "usual"
    right = 0

    def __init__(self, model: CopiedToy) -> None:
        self._model = model

    def propose(self, proposals: Seq[Proposal]) -> None:
        for p in proposals:
            for i in range(self.right + 1):
                law = self._model.law(tuple(p.sequence.history.tokens), 0.0)
                best = 1 + int(law[1:].argmax()) if p.sequence.matcher is not None else int(law.argmax())
                if p.room <= 0 or not p.point(best if i < self.right else 1 + best % 3, self.name):
                    break


class Foresight(TreeDrafter):
    """A tree that is as sure as it is told."""

    sure = 0.0
    few = False

    def foresees(self, proposal: Proposal) -> float:
        return self.sure

    def is_narrow(self, proposal: Proposal) -> bool:
        return self.few


class World:
    """A request that runs round by round; its copy is always right."""

    def __init__(self, *, formal: bool = False, predicted: bool = False) -> None:
        self.model = CopiedToy(noise=0.0, slots=2, capacity=1600)
        self.pipeline = Pipeline(self.model.vocabulary)
        self.usual, self.tree = Usual(self.model), Foresight()
        self.chain = QuantizedDrafter(self.model, self.pipeline)
        self.drafter = SwitchingDrafter(self.usual, self.chain, self.tree, predicted=predicted)
        self.s = new_sequence(self.model, LONG)
        if formal:
            grammar = compile_constraint(Regex(r"(a|b|c){1500}"), self.model.vocabulary)
            self.s = Sequence(
                prompt=(1, 2), sampling=LONG, coins=self.s.coins,
                vocabulary=self.model.vocabulary, target=self.model, slot=0, capacity=1600, matcher=grammar.matcher(),
            )  # fmt: skip
        self.drafter.open(self.s)

    def rounds(self, n: int, gamma: int = 16) -> Iterator[str]:
        """Who drafted in each of the next rounds."""
        for _ in range(n):
            before = {name: counts[0] for name, counts in self.s.counts.by_source.items()}
            [outcome] = run_round(self.model, self.pipeline, [Row(self.s, self.drafter, gamma, "coupling")]).outcomes
            assert isinstance(outcome, Commit)
            now = {name for name, counts in self.s.counts.by_source.items() if counts[0] > before.get(name, 0)}
            assert len(now) <= 1, "a block has one source"
            yield now.pop() if now else ""


def test_free_text_is_the_copys_and_the_others_are_tried_now_and_then() -> None:
    world = World()
    spells = [*world.rounds(100)][switching._SPELL :]
    tried = [i for i, name in enumerate(spells) if name == "usual"]
    assert spells.count("quantized") > 0.8 * len(spells)
    assert tried, "what brought little may bring much later"
    assert max(b - a for a, b in pairwise(tried)) <= switching._AGAIN * switching._SPELL + 1


def test_formal_text_is_the_trees_until_it_brings_little() -> None:
    world = World(formal=True)
    world.usual.right = 3
    assert set(world.rounds(20)) == {"usual"}
    world.usual.right = 0
    found = [*world.rounds(60)]
    assert "quantized" in found[:40] and found[40:].count("quantized") > 10


def test_text_that_is_foreseen_again_goes_back() -> None:
    world = World()
    assert "quantized" in [*world.rounds(20)]
    world.usual.right = 12
    found = [*world.rounds(80)]
    assert set(found[-20:]) == {"usual"}, "a try showed that the other one is better now"


def test_a_prediction_has_a_short_trial() -> None:
    world = World(predicted=True)
    found = [*world.rounds(20)]
    assert found[0] == "usual" and set(found[10:]) == {"quantized"}
    world = World(predicted=True)
    world.usual.right = 8
    assert set(world.rounds(40)) == {"usual"}


def test_where_the_text_is_sure_a_block_begins_as_usual() -> None:
    world = World()
    assert "quantized" in [*world.rounds(10)]
    world.tree.sure = 1.0
    assert set(world.rounds(10)) == {"usual"}
    world.tree.sure = 0.1
    assert "quantized" in [*world.rounds(10)]


def test_where_requests_share_a_step_there_is_no_chain() -> None:
    world = World()
    assert "quantized" in [*world.rounds(10)]
    other = new_sequence(world.model, LONG, slot=1)
    before = world.s.counts.by_source["quantized"][0]
    for _ in range(10):
        rows = [Row(world.s, world.drafter, 16, "coupling"), Row(other, None, 0, "coupling")]
        run_round(world.model, world.pipeline, rows)
    assert world.s.counts.by_source["quantized"][0] == before
    assert "quantized" in [*world.rounds(10)]


def test_a_request_that_may_not_adapt_has_no_chain() -> None:
    world = World()
    for _ in range(10):
        run_round(world.model, world.pipeline, [Row(world.s, world.drafter, 16, "coupling", adapts=False)])
    assert "quantized" not in world.s.counts.by_source


@pytest.mark.model
def test_a_seed_gives_one_text_alone_and_in_company() -> None:
    """Sampled with drafts of fixed number: in an engine of several slots no request is told whether it is alone."""
    engine = Engine.load("smollm2-135m", slots=2, capacity=256)
    asks = [[{"role": "user", "content": f"Write a sentence about {what}."}] for what in ("rain", "iron")]
    options: dict[str, Any] = {"max_tokens": 24, "temperature": 0.9, "seed": 3}
    alone = [engine.generate(ask, **options, choice=i) for i, ask in enumerate(asks)]
    together = engine.batch(asks, **options)
    assert [r.tokens for r in alone] == [r.tokens for r in together]
    assert all("quantized" not in r.speculation.by_source for r in alone)
    options |= {"speculation": "auto"}
    assert "quantized" in engine.generate(asks[0], **options).speculation.by_source
    greedy = engine.generate(asks[0], max_tokens=24)
    assert "quantized" in greedy.speculation.by_source
    engine.close()


def test_few_drafts_are_never_a_chain() -> None:
    world = World()
    world.tree.few = True
    assert set(world.rounds(30)) == {"usual"}


def test_a_copy_that_fails_leaves_the_usual_sources() -> None:
    world = World()
    assert "quantized" in [*world.rounds(10)]
    world.model.broken = "nan"
    found = [*world.rounds(10)]
    assert set(found[2:]) == {"usual"} and "finite" in world.s.disabled["quantized"]


def test_rounds_without_drafts_in_between_are_not_counted() -> None:
    """What the controller switched off for a while says nothing about either source."""
    world = World(formal=True)
    world.usual.right = 3
    [*world.rounds(4)]
    text = world.drafter._texts[id(world.s)]
    before = text.usual.rate
    [*world.rounds(30, gamma=0)]
    [*world.rounds(1)]
    assert text.usual.rate == before


def test_a_chain_is_paid_by_its_drafts() -> None:
    world = World()
    [*world.rounds(12)]
    proposed = world.s.counts.by_source["quantized"][0]
    assert steps_taken(world.s.counts) == pytest.approx(0.5 * proposed)
    chain = world.drafter._texts[id(world.s)].chain
    assert 1.0 < chain.rate < 2.0, "a draft costs half a step, so no chain brings two tokens a step"


def test_a_source_that_raises_is_not_the_others_fault() -> None:
    world = World()

    def broken(proposals: Seq[Proposal]) -> None:
        raise DrafterFault("no")

    world.chain.propose = broken  # type: ignore[method-assign]
    assert set(world.rounds(8)) == {"usual"}
    assert "quantized" in world.s.disabled and "usual" not in world.s.disabled


@pytest.mark.parametrize("verifier", ["coupling", "invariant"])
def test_the_committed_law_is_the_targets(verifier: str) -> None:
    model = CopiedToy()
    chain = QuantizedDrafter(model, Pipeline(model.vocabulary))
    tree = TreeDrafter()
    sources = assert_target_law(model, SwitchingDrafter(tree, chain, tree), verifier, "processed", r"(a|b)+c?")
    assert sources["quantized"] + sources["ngram"] + sources["forced"] > 100


@pytest.mark.model
def test_chat_is_the_copys_on_the_real_model(smollm2: Engine) -> None:
    prompt = [{"role": "user", "content": "Write two sentences about the sea."}]
    plain = smollm2.generate(prompt, max_tokens=64, speculation=False)
    result = smollm2.generate(prompt, max_tokens=64, drafter="auto")
    assert result.tokens == plain.tokens
    proposed, accepted = result.speculation.by_source["quantized"]
    assert accepted > 24 and accepted > 0.8 * proposed
    options: Options = {"max_tokens": 64, "drafter": "auto", "temperature": 0.8, "seed": 4}
    first, again = (smollm2.generate(prompt, **options) for _ in range(2))
    assert first.tokens == again.tokens, "no clock takes part"
    assert first.speculation.by_source["quantized"][1] > 20
