"""Trees that trained heads grow: the law, entries that know their own branch alone, every node, failures."""

from __future__ import annotations

import itertools
from collections.abc import Sequence as Seq

import pytest
import torch
from torch import Tensor

from constrained_spec.backends.base import Block
from constrained_spec.coins import Coins
from constrained_spec.config import Sampling
from constrained_spec.drafters.base import Drafter, Proposal
from constrained_spec.drafters.eagle import EagleDrafter
from constrained_spec.drafters.heads import HeadDrafter, Law, Place, ReducedHead
from constrained_spec.drafters.mixture import MixtureDrafter, chance_so_far
from constrained_spec.drafters.tree import Standing, TreeDrafter
from constrained_spec.engine.round import Row, run_round
from constrained_spec.errors import ConfigError
from constrained_spec.processors.pipeline import Pipeline
from constrained_spec.state.sequence import Sequence
from constrained_spec.state.transaction import Transaction
from constrained_spec.state.tree import tree_block
from tests.engine.test_trained_heads import (
    KINDS,
    SAMPLINGS,
    Behind,
    StateToy,
    answers_follow_the_law,
    heads,
    new_sequence,
    random_part,
)
from tests.engine.test_tree_round import NoTrees, answer

RUNS = 500


def tree_of(
    kind: str, model: StateToy, memory: bool, *, costs: tuple[float, float] = (0.0, 0.0), least: float = 0.0
) -> TreeDrafter:
    return TreeDrafter(heads=heads(kind, model), memory=memory, least=least, fan=3, beam=3, depth=3, costs=costs)


@pytest.mark.parametrize(("kind", "memory", "verifier", "sampling", "pattern"), [
    ("eagle", False, "tree", "plain", None), ("eagle", True, "tree", "processed", r"(a|b)+c?"),
    ("eagle", False, "coupling", "processed", None), ("eagle", True, "invariant", "processed", r"(a|b)+c?"),
    ("eagle", False, "invariant", "plain", None), ("medusa", False, "tree", "processed", r"(a|b)+c?"),
    ("medusa", True, "invariant", "plain", None), ("medusa", False, "block", "plain", None),
])  # fmt: skip
def test_the_committed_law_is_the_targets(
    kind: str, memory: bool, verifier: str, sampling: str, pattern: str | None
) -> None:
    model = StateToy()
    drafter = tree_of(kind, model, memory)
    counts = answers_follow_the_law(model, drafter, 7, verifier, SAMPLINGS[sampling], pattern, RUNS)
    assert sum(c.proposed > c.rounds for c in counts) > RUNS / 2
    assert sum(c.accepted for c in counts) > 0


@pytest.mark.parametrize("verifier", ["tree", "invariant"])
def test_what_costs_leave_out_changes_no_law(verifier: str) -> None:
    model = StateToy()
    drafter = tree_of("eagle", model, True, costs=(0.3, 0.3), least=0.1)
    counts = answers_follow_the_law(model, drafter, 7, verifier, SAMPLINGS["processed"], r"(a|b)+c?", RUNS)
    free = tree_of("eagle", model, True)
    assert sum(c.accepted for c in counts) > 0
    everything = answers_follow_the_law(model, free, 7, verifier, SAMPLINGS["processed"], r"(a|b)+c?", RUNS)
    assert sum(c.proposed for c in counts) < sum(c.proposed for c in everything)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_one_text_whatever_the_tree(kind: str, temperature: float) -> None:
    model = StateToy()
    for seed in range(12):
        texts = set()
        for use, gamma in ((None, 1), (tree_of(kind, model, False), 3), (tree_of(kind, model, True), 8)):
            s = new_sequence(model, Sampling(temperature=temperature, max_tokens=10), seed)
            if use is not None:
                use.open(s)
            while not s.finished:
                run_round(model, Pipeline(model.vocabulary), [Row(s, use, gamma, "invariant")])
            assert not s.disabled
            texts.add(tuple(s.output))
        assert len(texts) == 1, (seed, texts)


def after_first_round(model: StateToy, drafter: Drafter) -> Sequence:
    s = new_sequence(model, Sampling(temperature=1.0, max_tokens=12, ignore_eos=True), 3)
    drafter.open(s)
    run_round(model, Pipeline(model.vocabulary), [Row(s, drafter, 0, "coupling")])
    return s


def chain_law(kind: str, path: list[int]) -> Tensor:
    """The law that the heads give after a chain of drafts, fed one after another."""
    model = StateToy(capacity=32)
    drafter = heads(kind, model)
    s = after_first_round(model, drafter)
    with Transaction(s) as tx, torch.inference_mode():
        p = Proposal(tx, 8, "coupling")
        [root] = drafter.branches([p])
        assert root is not None
        for token in path:
            assert p.point(token, "test")
        law = drafter.law_at([(p, root, len(path) - 1)])
        assert bool(law.finite.all())
        return law.processed.logits[0].clone()


@pytest.mark.parametrize("kind", KINDS)
def test_a_node_knows_its_own_branch_alone(kind: str) -> None:
    """All nodes of a bushy tree, asked level by level in one batch, against a chain of just their path."""
    model = StateToy(capacity=32)
    drafter = heads(kind, model)
    s = after_first_round(model, drafter)
    deepest = 2
    with Transaction(s) as tx, torch.inference_mode():
        p = Proposal(tx, 40, "coupling")
        [root] = drafter.branches([p])
        assert root is not None
        found: dict[tuple[int, ...], Tensor] = {}
        paths: dict[tuple[int, ...], int] = {(): -1}
        level: list[tuple[int, ...]] = [()]
        for depth in range(deepest + 1):
            law = drafter.law_at([(p, root, paths[path]) for path in level])
            found |= dict(zip(level, law.processed.logits.clone(), strict=True))
            if depth == deepest:
                break
            below = []
            for path, token in itertools.product(level, (1, 2, 3)):
                node = p.child(paths[path], token, "test")
                assert node is not None
                paths[(*path, token)] = node
                below.append((*path, token))
            level = below
    assert len(found) == 13
    for path, logits in found.items():
        torch.testing.assert_close(logits, chain_law(kind, list(path)), rtol=1e-5, atol=1e-5)


def test_nodes_that_another_source_drafted_are_fed_up_to_the_bridge() -> None:
    model = StateToy(capacity=32)
    drafter = heads("eagle", model)
    assert isinstance(drafter, EagleDrafter)
    s = after_first_round(model, drafter)
    with Transaction(s) as tx, torch.inference_mode():
        p = Proposal(tx, 10, "coupling")
        [root] = drafter.branches([p])
        assert root is not None
        for token in (1, 2, 3, 1, 2):
            p.point(token, "test")
        assert root.reaches(p, 3)
        assert not root.reaches(p, 4)
        law = drafter.law_at([(p, root, 3)])
        torch.testing.assert_close(law.processed.logits[0], chain_law("eagle", [1, 2, 3, 1]), rtol=1e-5, atol=1e-5)
        assert root.reaches(p, 4), "the nodes above it are known now"


@pytest.mark.parametrize("kind", KINDS)
def test_every_node_as_the_last_that_stands(kind: str) -> None:
    """What the heads say next is what they say to a fresh replay, whichever node the target came to."""

    def grown(drafter: TreeDrafter, s: Sequence) -> tuple[Transaction, Proposal]:
        tx = Transaction(s)
        tx.__enter__()
        p = Proposal(tx, 9, "coupling")
        drafter.propose([p])
        return tx, p

    count = None
    for node in itertools.count():
        model = StateToy(capacity=32)
        drafter = tree_of(kind, model, True)
        s = after_first_round(model, drafter)
        before = s.fingerprint()
        tx, p = grown(drafter, s)
        tx.__exit__(None, None, None)
        assert s.fingerprint() == before, "a tree that is abandoned leaves nothing"
        tx, again = grown(drafter, s)
        assert (again.tokens, tx.parents) == (p.tokens, p.tx.parents)
        count = len(p.tokens)
        if node == count:
            tx.__exit__(None, None, None)
            break
        path = []
        at = node
        while at >= 0:
            path.append(at)
            at = tx.parents[at]
        model.score([written(s, tx)])
        if tx.is_tree:
            tx.commit_path(path[::-1], 3)
        else:
            tx.commit(len(path), 3)
        tx.__exit__(None, None, None)
        tx, now = grown(drafter, s)
        tx.__exit__(None, None, None)

        other = StateToy(capacity=32)
        fresh = tree_of(kind, other, True)
        r = new_sequence(other, s.sampling, 3)
        fresh.open(r)
        for token in s.output:
            with Transaction(r) as step:
                other.score([written(r, step)])
                step.commit(0, token)
        r.counts = s.counts  # how earlier drafts fared is part of what a drafter may look at
        tx, expected = grown(fresh, r)
        tx.__exit__(None, None, None)
        assert (now.tokens, now.tx.parents) == (expected.tokens, expected.tx.parents), node
    assert count is not None and count >= 6


def written(s: Sequence, tx: Transaction) -> Block:
    """What the round's forward would write."""
    pending = s.history.tokens[s.kv.length : tx.base]
    if not tx.is_tree:
        return Block(s.slot, [*pending, *tx.drafts], want=len(tx.drafts) + 1)
    tokens, parents = tree_block(pending, tx.drafts, tx.parents)
    return Block(s.slot, tokens, want=len(tx.drafts) + 1, parents=parents)


def test_a_batch_grows_the_trees_that_each_grows_alone() -> None:
    sampling = Sampling(temperature=1.0, max_tokens=10, ignore_eos=True)
    prompts = ((1, 2), (3, 1, 2, 2), (2,))
    for kind, verifier in itertools.product(KINDS, ("tree", "invariant")):
        outputs = []
        for together in (False, True):
            model = StateToy(slots=3)
            drafter = tree_of(kind, model, True)
            rows = []
            for slot, prompt in enumerate(prompts):
                s = Sequence(
                    prompt=prompt, sampling=sampling, coins=Coins(slot), vocabulary=model.vocabulary, target=model,
                    slot=slot, capacity=model.capacity,
                )  # fmt: skip
                drafter.open(s)
                rows.append(Row(s, drafter, 6, verifier))
            for group in [rows] if together else [[row] for row in rows]:
                while live := [row for row in group if not row.sequence.finished]:
                    run_round(model, Pipeline(model.vocabulary), live)
            outputs.append([(row.sequence.output, row.sequence.counts.by_source) for row in rows])
        assert outputs[0] == outputs[1], (kind, verifier)


def test_the_tree_goes_on_behind_drafts_of_another() -> None:
    model = StateToy(capacity=32)
    inner = tree_of("eagle", model, False)
    drafter = Behind(inner)  # type: ignore[arg-type]
    s = after_first_round(model, drafter)
    with Transaction(s) as tx:
        p = Proposal(tx, 8, "coupling")
        drafter.propose([p])
        assert p.tokens[0] == 1
        assert len(p.tokens) > 3
        assert all(parent >= 0 for parent in tx.parents[1:]), "everything stands behind the first draft"


def test_a_mixture_asks_for_one_tree_a_block() -> None:
    """Behind a tree that is a chain the mixture asks again: what was left out there is left out on purpose."""
    model = StateToy(capacity=32)
    alone, inside = (TreeDrafter(heads=heads("eagle", model), memory=False, fan=1, depth=1) for _ in range(2))
    for use in (alone, MixtureDrafter([inside])):
        s = after_first_round(model, use)
        for _ in range(2):
            with Transaction(s) as tx:
                p = Proposal(tx, 8, "coupling")
                use.propose([p])
                assert len(p.tokens) == 1
        use.close(s)


def levels(
    drafter: TreeDrafter, one: HeadDrafter, prompt: Seq[int], monkeypatch: pytest.MonkeyPatch, budget: int = 12
) -> int:
    """How often the heads are asked in one block behind a prompt."""
    asked = 0
    law_at = one.law_at

    def counting(places: Seq[Place]) -> Law:
        nonlocal asked
        asked += 1
        return law_at(places)

    monkeypatch.setattr(one, "law_at", counting)
    model = one._model
    assert isinstance(model, StateToy)
    s = Sequence(
        prompt=prompt, sampling=Sampling(max_tokens=12, ignore_eos=True), coins=Coins(1), slot=0,
        vocabulary=model.vocabulary, target=model, capacity=model.capacity,
    )  # fmt: skip
    model.set_length(0, 0)
    drafter.open(s)
    with Transaction(s) as tx:
        model.score([written(s, tx)])
        tx.commit(0, 3)
    with Transaction(s) as tx:
        drafter.propose([Proposal(tx, budget, "coupling")])
    return asked


def test_the_heads_are_asked_where_it_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    model = StateToy(capacity=64)
    one = heads("eagle", model)
    unknown, repeated = [1, 2], [1, 2, 3, 1, 2, 2, 3] * 4 + [1, 2, 3, 1, 2, 2]
    free, dear = TreeDrafter(heads=one, depth=3), TreeDrafter(heads=one, depth=3, costs=(0.0, 9.0))
    assert levels(free, one, unknown, monkeypatch) == 3
    assert levels(dear, one, unknown, monkeypatch) == 1, "the first level alone, whatever it costs"
    assert levels(dear, one, repeated, monkeypatch) == 0, "the text itself is sure how it goes on"
    assert levels(dear, one, unknown, monkeypatch, budget=4) == 0, "four drafts are not worth a level that costs"
    assert levels(free, one, unknown, monkeypatch, budget=4) > 0


def test_a_block_of_few_drafts_is_a_chain_where_drafts_cost() -> None:
    history = [2, 1, 2, 3, 1]  # behind 1 comes 2, and behind 2 both 1 and 3
    for costs, chain in (((0.05, 0.12), True), ((0.0, 0.0), False)):
        model = StateToy(capacity=64)
        s = Sequence(
            prompt=history, sampling=Sampling(max_tokens=30, ignore_eos=True), coins=Coins(1), slot=0,
            vocabulary=model.vocabulary, target=model, capacity=64,
        )  # fmt: skip
        drafter = TreeDrafter(costs=costs, least=0.0)
        drafter.open(s)
        with Transaction(s) as tx:
            drafter.propose([Proposal(tx, 7, "coupling")])
            assert tx.drafts
            assert tx.is_tree != chain


def test_every_id_that_is_scored_is_within_reach_once() -> None:
    head = ReducedHead(StateToy(), torch.tensor([1, 2]))
    few, one = torch.tensor([2, 3]), torch.tensor([0])
    for candidates, expected in (
        ([None], [1, 2]), ([None, few, one, None], [0, 1, 2, 3]), ([few, one, few], [0, 2, 3]), ([one[:0]], []),
    ):  # fmt: skip
        assert sorted(head.reach(candidates).tolist()) == expected


def behind(sources: dict[str, tuple[int, int]]) -> float:
    """Chance that a tree starts with, behind one draft of each source whose (judged, accepted) drafts are given."""
    model = StateToy(capacity=32)
    drafter = tree_of("eagle", model, False)
    s = after_first_round(model, drafter)
    for name, (judged, accepted) in sources.items():
        s.counts.judged[name], s.counts.by_source[name] = judged, [judged, accepted]
    with Transaction(s) as tx:
        p = Proposal(tx, 8, "coupling")
        for name in sources:
            p.point(1, name)
        return chance_so_far(p)


def grown_behind(suffix: tuple[int, int]) -> int:
    """Nodes of a tree behind a draft of a source whose (judged, accepted) drafts are given."""
    model = StateToy(capacity=32)
    drafter = tree_of("eagle", model, False, least=0.1)
    s = after_first_round(model, drafter)
    s.counts.judged["suffix"], s.counts.by_source["suffix"] = suffix[0], [*suffix]
    with Transaction(s) as tx:
        p = Proposal(tx, 12, "coupling")
        p.point(1, "suffix")
        drafter.propose([p])
        return len(p.tokens) - 1


def test_drafts_of_others_in_front_of_a_tree_make_it_less_likely() -> None:
    assert behind({}) == 1.0
    assert behind({"suffix": (40, 4)}) < 0.2 < behind({"suffix": (40, 20)}) < 0.6 < behind({"suffix": (40, 40)}) < 1.0
    assert grown_behind((40, 0)) < grown_behind((40, 40))
    both = behind({"suffix": (40, 20), "prediction": (40, 20)})
    assert both == pytest.approx(behind({"suffix": (40, 20)}) ** 2)


def test_how_a_source_fared_moves_its_shares_both_ways() -> None:
    """Forced text and copies: what fails gets less of the block, what stands gets more."""
    model = StateToy(capacity=32)
    shares: dict[str, list[float]] = {}
    for name, accepted in itertools.product(("forced", "ngram"), (0, 10, 20, 30, 40)):
        s = after_first_round(model, tree_of("eagle", model, False))
        s.counts.judged[name], s.counts.by_source[name] = 40, [40, accepted]
        standing = Standing(s.counts, name)
        first, second = standing.share(0.7, 0), standing.share(0.2, 1)
        assert 0 <= second <= first <= 1
        shares.setdefault(name, []).append(first)
        if accepted == 40:
            assert first > 0.9
            assert second < 0.1, "where the first always stands, no other does"
    for name, found in shares.items():
        assert found == sorted(found), name
        assert found[0] < 0.15
    fresh = Standing(after_first_round(model, tree_of("eagle", model, False)).counts, "ngram")
    assert fresh.share(0.7, 0) == pytest.approx(0.7)


def test_a_budget_of_one_is_kept_and_no_level_is_asked_in_vain() -> None:
    model = StateToy(capacity=32)
    drafter = tree_of("eagle", model, False)
    s = after_first_round(model, drafter)
    for budget in (1, 2, 3, 5):
        with Transaction(s) as tx:
            p = Proposal(tx, budget, "coupling")
            drafter.propose([p])
            assert len(p.tokens) == budget


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("memory", [False, True])
def test_a_target_without_trees_gets_chains(kind: str, memory: bool) -> None:
    model = StateToy(capacity=32)
    s = answer(NoTrees(model), tree_of(kind, model, memory))
    assert not s.disabled
    assert s.output == answer(model, None).output
    assert s.counts.proposed > 3


class Broken(EagleDrafter):
    def _states_at(self, places: Seq[Place]) -> Tensor:
        return super()._states_at(places) * float("nan")


@pytest.mark.parametrize("verifier", ["tree", "invariant"])
def test_states_that_are_not_finite_disable_the_tree_and_change_no_text(verifier: str) -> None:
    model = StateToy()
    pipeline = Pipeline(model.vocabulary)
    broken = Broken(model, pipeline, random_part("eagle", model))
    drafter = MixtureDrafter([TreeDrafter(heads=broken, memory=False)])
    s = new_sequence(model, Sampling(temperature=0.0, max_tokens=8), 1)
    drafter.open(s)
    while not s.finished:
        run_round(model, pipeline, [Row(s, drafter, 6, verifier)])
    assert "not finite" in s.disabled["eagle"]
    plain = new_sequence(model, Sampling(temperature=0.0, max_tokens=8), 1)
    while not plain.finished:
        run_round(model, pipeline, [Row(plain, None, 0, verifier)])
    assert s.output == plain.output


def test_what_a_tree_cannot_be_is_refused() -> None:
    with pytest.raises(ConfigError, match="source"):
        TreeDrafter(memory=False)
    for bad in ({"width": 0}, {"fan": 9}, {"beam": 0}):
        with pytest.raises(ConfigError) as error:
            TreeDrafter(**bad)  # type: ignore[arg-type]
        assert error.value.param == next(iter(bad))


def test_names() -> None:
    model = StateToy()
    for kind in KINDS:
        one: HeadDrafter = heads(kind, model)
        assert TreeDrafter(heads=one, memory=False).name == kind
        assert TreeDrafter(heads=one).name == "tree"
