"""What a tree thinks of its paths: text and heads weighed against each other, and forced text that nobody spells."""

from __future__ import annotations

from collections.abc import Sequence as Seq

import pytest
import torch

from constrained_spec.backends.base import Block
from constrained_spec.config import Sampling
from constrained_spec.drafters.base import Proposal
from constrained_spec.drafters.heads import Branches
from constrained_spec.drafters.tree import Guess, TreeDrafter, _Growth, agreed
from constrained_spec.state.sequence import Sequence
from constrained_spec.state.transaction import Transaction
from constrained_spec.state.tree import tree_block
from tests.engine.test_trained_heads import StateToy, heads, new_sequence

TOKENS = (None, b"a", b"b", b"c", b"ab", b"abc", b"bc")
A, B, C, AB, ABC, BC = range(1, 7)
FORCED = r"(abc){3}(a|b)"


def toy() -> StateToy:
    return StateToy(capacity=48, tokens=TOKENS)


def drafter_of(model: StateToy, *, least: float = 0.0) -> TreeDrafter:
    return TreeDrafter(heads=heads("eagle", model, reduced=range(7)), least=least)


class Everywhere(Branches):
    """Heads that could be asked at any place; at the root they were."""

    def reaches(self, p: Proposal, node: int) -> bool:
        return True


def growth(tx: Transaction, drafter: TreeDrafter, s: Sequence, budget: int = 8, verifier: str = "coupling") -> _Growth:
    branches = Everywhere()
    branches.asked.add(-1)
    return _Growth(Proposal(tx, budget, verifier), drafter._indices[id(s)], drafter, branches)


def opened(
    model: StateToy, drafter: TreeDrafter, pattern: str | None, *, prompt: Seq[int] = (1, 2), temperature: float = 0.0
) -> Sequence:
    s = new_sequence(model, Sampling(temperature=temperature, max_tokens=20), 3, pattern, prompt)
    drafter.open(s)
    return s


def paths(p: Proposal) -> set[tuple[int, ...]]:
    found: list[tuple[int, ...]] = []
    for token, parent in zip(p.tokens, p.tx.parents, strict=True):
        found.append((*(found[parent] if parent >= 0 else ()), token))
    return set(found)


def test_where_no_head_can_be_asked_every_spelling_is_a_branch() -> None:
    """The first block of an answer: no final state is known yet, and the target spells forced text as it likes."""
    model = toy()
    drafter = drafter_of(model)
    s = opened(model, drafter, FORCED)
    with Transaction(s) as tx:
        p = Proposal(tx, 40, "coupling")
        drafter.propose([p])
        assert {path for path in paths(p) if len(path) == 1} == {(A,), (AB,), (ABC,)}
        assert {(A, B), (A, BC), (AB, C)} < paths(p)


def test_a_narrow_block_spells_one_way() -> None:
    model = toy()
    drafter = TreeDrafter(costs=(0.05, 0.1))
    s = opened(model, drafter, FORCED)
    with Transaction(s) as tx:
        p = Proposal(tx, 5, "coupling")
        drafter.propose([p])
        assert p.tokens
        assert not tx.is_tree


def test_spellings_that_are_hardly_likely_are_left_out() -> None:
    model = toy()
    drafter = drafter_of(model, least=0.3)
    s = opened(model, drafter, FORCED)
    with Transaction(s) as tx:
        p = Proposal(tx, 20, "coupling")
        drafter.propose([p])
        assert p.tokens
        assert len({path for path in paths(p) if len(path) == 1}) == 1


def test_the_heads_say_how_forced_text_is_spelled() -> None:
    model = toy()
    drafter = drafter_of(model, least=0.02)
    s = opened(model, drafter, FORCED)
    with Transaction(s) as tx:
        g = growth(tx, drafter, s, budget=12)
        [(first, before)] = g.known[-1].items()
        assert before > 0.5, "the tokeniser's own spelling"
        others = [t for t in (A, AB, ABC) if t != first]
        g.take(1)
        assert g.proposal.tokens == [first]
        below = g.proposal.tx.at
        [(_, further)] = g.known[below].items()
        g.take(1)
        assert len(g.proposal.tokens) == 2
        g.weigh(-1, [Guess(others[0], 0.9, "eagle"), Guess(first, 0.05, "eagle")])
        assert g.known[-1] == {first: 0.05, others[0]: 0.9}
        assert g.chance[below] == pytest.approx(0.05)
        assert g.chance[1] == pytest.approx(0.05 * further), "what stands below falls with it"
        g.take(1)
        assert (others[0],) in paths(g.proposal)


def test_a_path_that_lost_its_chance_waits_behind_the_likelier() -> None:
    model = toy()
    drafter = drafter_of(model, least=0.02)
    s = opened(model, drafter, FORCED)
    with Transaction(s) as tx:
        g = growth(tx, drafter, s, budget=2)
        [first] = g.known[-1]
        other = next(t for t in (A, AB, ABC) if t != first)
        g.take(1)
        # The child of the first was put into the heap at its old chance.
        g.weigh(-1, [Guess(first, 0.1, "eagle"), Guess(other, 0.3, "eagle")])
        g.fill()
        assert paths(g.proposal) == {(first,), (other,)}


def test_a_path_that_became_unlikely_is_not_tried() -> None:
    model = toy()
    drafter = drafter_of(model, least=0.2)
    s = opened(model, drafter, FORCED)
    with Transaction(s) as tx:
        g = growth(tx, drafter, s)
        [first] = g.known[-1]
        g.take(1)
        g.weigh(-1, [Guess(first, 0.01, "eagle")])
        g.fill()
        assert g.proposal.tokens == [first]


def test_of_copies_the_text_tells_more_than_the_heads() -> None:
    for text in (0.2, 0.5, 0.8):
        shares = [agreed(text, e) for e in (0.0, 0.1, 0.5, 0.9, 1.0)]
        assert shares == sorted(shares)
        assert 0.4 * text < shares[0] < text < shares[-1] < 1
    model = toy()
    drafter = drafter_of(model)
    s = opened(model, drafter, None, prompt=(A, B, C, A, B))
    with Transaction(s) as tx:
        g = growth(tx, drafter, s)
        assert list(g.known[-1]) == [C]
        text = g.known[-1][C]
        g.weigh(-1, [Guess(A, 0.8, "eagle"), Guess(C, 0.1, "eagle")])
        assert g.known[-1][C] == pytest.approx(agreed(text, 0.1))
        assert g.known[-1][A] == pytest.approx(0.8 * (1 - agreed(text, 0.1)))


@pytest.mark.parametrize(("temperature", "verifier", "trust"), [
    (0.0, "invariant", 1.0), (1.0, "tree", 1.0), (1.0, "invariant", 0.75),
])  # fmt: skip
def test_under_the_targets_noise_the_heads_are_trusted_less(temperature: float, verifier: str, trust: float) -> None:
    model = toy()
    drafter = drafter_of(model)
    s = opened(model, drafter, None, temperature=temperature, prompt=(A,))
    with Transaction(s) as tx:
        g = growth(tx, drafter, s, verifier=verifier)
        assert g.known[-1] == {}
        g.weigh(-1, [Guess(B, 0.8, "eagle")])
        assert g.known[-1] == {B: pytest.approx(0.8 * trust)}


def test_places_where_no_head_was_asked_are_spelled_with_what_is_left_of_the_budget() -> None:
    model = toy()
    drafter = drafter_of(model)
    s = opened(model, drafter, FORCED)
    with Transaction(s) as tx:
        g = growth(tx, drafter, s, budget=30)
        [first] = g.known[-1]
        g.take(1)
        assert len(paths(g.proposal)) == 1, "the heads may still be asked here"
        g.fill()
        found = paths(g.proposal)
        assert {path[0] for path in found} == {first}, "at the root they were"
        assert len({path for path in found if len(path) == 2}) == 3


@pytest.mark.parametrize("noised", [False, True])
def test_the_heads_are_asked_what_they_think_of_the_texts_tokens_too(noised: bool) -> None:
    """Those are weighed even where they are none of the heads' best; under the target's noise, at 0.8 of its size."""
    others = 0
    for token in (A, B, C, AB, ABC):
        model = toy()
        one = heads("eagle", model, reduced=range(7))
        drafter = TreeDrafter(heads=one, fan=1, least=0.0)
        prompt = (token, A, token, B, token, C)
        s = opened(model, drafter, None, prompt=prompt, temperature=float(noised))
        with Transaction(s) as tx:
            model.score([_written(s)])
            tx.commit(0, token)
        with Transaction(s) as tx, torch.inference_mode():
            p = Proposal(tx, 8, "invariant")
            [root] = one.branches([p])
            assert root is not None
            g = _Growth(p, drafter._indices[id(s)], drafter, root)
            law = one.law_at([(p, root, -1)])
            [opinion] = drafter._opinions("eagle", [(g, -1)], law)
            scores = law.processed.logits[0].double()
            if noised:
                scores = scores + 0.8 * torch.from_numpy(s.coins.gumbel(1, len(TOKENS)))
            shares = scores.softmax(-1)
            assert {x.token for x in opinion} == {int(shares.argmax()), *g.known[-1]}
            assert g.known[-1]
            others += len(opinion) > 1
            for x in opinion:
                assert x.share == pytest.approx(float(shares[x.token]), rel=1e-4)
    assert others


def _written(s: Sequence) -> Block:
    return Block(s.slot, s.history.tokens[s.kv.length :], want=1)


def test_a_source_is_judged_once_a_place_however_many_tokens_it_offered() -> None:
    model = toy()
    drafter = drafter_of(model)
    s = opened(model, drafter, None)
    with Transaction(s) as tx:
        p = Proposal(tx, 12, "tree")
        kept = p.child(-1, A, "forced")
        assert kept is not None
        for parent, token, source in (
            (-1, B, "forced"), (-1, C, "forced"), (-1, AB, "eagle"), (kept, B, "eagle"), (kept, C, "eagle"),
        ):  # fmt: skip
            last = p.child(parent, token, source)
        assert last is not None
        p.child(last, A, "ngram")  # below what falls: never reached
        tokens, parents = tree_block(s.history.tokens[s.kv.length : tx.base], tx.drafts, tx.parents)
        model.score([Block(s.slot, tokens, want=1, parents=parents)])
        tx.commit_path([kept], A)
    assert s.counts.judged == {"forced": 1, "eagle": 2}
    assert s.counts.by_source == {"forced": [3, 1], "eagle": [3, 0], "ngram": [1, 0]}
    assert s.counts.standing("forced", 0.5, 2) == pytest.approx(2 / 3)
