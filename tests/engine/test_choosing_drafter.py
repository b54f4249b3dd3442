"""A choice between ways to draft: it finds the better one, tries the other again, and changes no law."""

from __future__ import annotations

from collections.abc import Sequence as Seq

import pytest
import torch

from constrained_spec.backends.toy import ToyModel
from constrained_spec.coins import Coins
from constrained_spec.config import Sampling
from constrained_spec.drafters.base import DrafterFault, Proposal
from constrained_spec.drafters.choosing import AGAIN, TRIES, ChoosingDrafter, Way
from constrained_spec.drafters.ngram import NgramDrafter
from constrained_spec.drafters.tree import TreeDrafter
from constrained_spec.engine.round import Row, run_round
from constrained_spec.processors.pipeline import Pipeline
from constrained_spec.state.sequence import Sequence
from tests.engine.drafter_laws import assert_target_law
from tests.engine.test_round_law import table

TOKENS = (None, b"a", b"b", b"c")


def counting(prefix: tuple[int, ...]) -> torch.Tensor:
    """The target goes 1, 2, 3, 1, 2, 3, …"""
    return torch.nn.functional.one_hot(torch.tensor(len(prefix) % 3 + 1), 4).float() * 9


class Scripted:
    """Drafts ``count`` tokens, right or wrong, and notes the rounds in which it was asked."""

    def __init__(self, name: str, count: int, right: bool, fails_in: int | None = None) -> None:
        self.name, self._count, self._right, self._fails_in = name, count, right, fails_in
        self.rounds: list[int] = []

    def open(self, sequence: Sequence) -> None: ...

    def close(self, sequence: Sequence) -> None: ...

    def propose(self, proposals: Seq[Proposal]) -> None:
        for p in proposals:
            self.rounds.append(p.round)
            if p.round == self._fails_in:
                raise DrafterFault("as the test wants it")
            for _ in range(min(self._count, p.room)):
                token = int(counting(tuple(p.sequence.history.tokens)).argmax())
                p.point(token if self._right else token % 3 + 1, self.name)


def run(drafter: ChoosingDrafter, rounds: int, *, slots: int = 1) -> list[Sequence]:
    model = ToyModel(TOKENS, counting, eos_ids=(0,), slots=slots, capacity=400)
    found = []
    for slot in range(slots):
        model.set_length(slot, 0)
        s = Sequence(
            prompt=[1, 2], sampling=Sampling(max_tokens=390, ignore_eos=True), coins=Coins(slot), slot=slot,
            vocabulary=model.vocabulary, target=model, capacity=400,
        )  # fmt: skip
        drafter.open(s)
        found.append(s)
    for _ in range(rounds):
        run_round(model, Pipeline(model.vocabulary), [Row(s, drafter, 8, "coupling") for s in found])
    return found


def test_the_better_way_is_taken_and_the_other_tried_again() -> None:
    good, bad = Scripted("good", 4, True), Scripted("bad", 4, False)
    rounds = 2 * TRIES + 3 * AGAIN
    [s] = run(ChoosingDrafter([Way(bad), Way(good)], "auto"), rounds)
    assert s.output == [i % 3 + 1 for i in range(2, 2 + len(s.output))]
    assert len(bad.rounds) == TRIES + 3
    assert len(good.rounds) == rounds - len(bad.rounds)
    assert sorted(good.rounds + bad.rounds) == list(range(rounds)), "one of them in each round"


def test_what_asking_costs_counts() -> None:
    for asking, taken in ((0.0, "long"), (5.0, "short")):
        long, short = Scripted("long", 6, True), Scripted("short", 3, True)
        run(ChoosingDrafter([Way(long, asking), Way(short)], "auto"), 30)
        assert (len(long.rounds) > 20) == (taken == "long")
        assert (len(short.rounds) > 20) == (taken == "short")


def test_drafts_that_are_rejected_cost() -> None:
    few, many = Scripted("few", 1, False), Scripted("many", 8, False)
    run(ChoosingDrafter([Way(many), Way(few)], "auto"), 30)
    assert len(few.rounds) > len(many.rounds)


def test_sequences_choose_for_themselves_and_are_asked_together() -> None:
    good, bad = Scripted("good", 4, True), Scripted("bad", 4, False)
    texts = run(ChoosingDrafter([Way(bad), Way(good)], "auto"), 20, slots=3)
    alone = Scripted("good", 4, True), Scripted("bad", 4, False)
    [one] = run(ChoosingDrafter([Way(alone[1]), Way(alone[0])], "auto"), 20)
    assert all(s.output == one.output for s in texts)
    assert good.rounds == sorted([*alone[0].rounds] * 3)


@pytest.mark.parametrize("when", [0, TRIES + 1, 2 * TRIES + 2])
def test_a_way_that_fails_is_not_taken_again(when: int) -> None:
    broken, other = Scripted("broken", 6, True, fails_in=when), Scripted("other", 2, True)
    [s] = run(ChoosingDrafter([Way(broken), Way(other)], "auto"), 30)
    assert s.output == [i % 3 + 1 for i in range(2, 2 + len(s.output))]
    if when in broken.rounds:
        assert "as the test wants it" in s.disabled["broken"]
        assert broken.rounds[-1] == when
    assert "auto" not in s.disabled
    assert s.counts.rounds == 30


def test_without_any_way_left_decoding_goes_on() -> None:
    [s] = run(ChoosingDrafter([Way(Scripted(n, 2, True, fails_in=i)) for i, n in enumerate("ab")], "auto"), 12)
    assert s.disabled.keys() == {"a", "b"}
    assert len(s.output) >= 12


def test_rounds_without_drafts_in_between_are_nobodys() -> None:
    """The engine may give a request no drafts for a while: what it commits then tells nothing about a way."""
    model = ToyModel(TOKENS, counting, eos_ids=(0,), capacity=400)
    good, bad = Scripted("good", 4, True), Scripted("bad", 4, False)
    drafter = ChoosingDrafter([Way(bad), Way(good)], "auto")
    s = Sequence(
        prompt=[1, 2], sampling=Sampling(max_tokens=390, ignore_eos=True), coins=Coins(0), slot=0,
        vocabulary=model.vocabulary, target=model, capacity=400,
    )  # fmt: skip
    model.set_length(0, 0)
    drafter.open(s)
    for i in range(60):
        run_round(model, Pipeline(model.vocabulary), [Row(s, drafter, 8 if i % 3 else 0, "coupling")])
    assert len(good.rounds) > 2 * len(bad.rounds)


def test_what_rounds_without_drafts_commit_is_not_a_ways() -> None:
    """Each block of one way is followed by many such rounds: it is neither praised for them nor tried for ever."""
    model = ToyModel(TOKENS, counting, eos_ids=(0,), capacity=400)
    good, bad = Scripted("good", 4, True), Scripted("bad", 4, False)
    drafter = ChoosingDrafter([Way(bad), Way(good)], "auto")
    s = Sequence(
        prompt=[1, 2], sampling=Sampling(max_tokens=390, ignore_eos=True), coins=Coins(0), slot=0,
        vocabulary=model.vocabulary, target=model, capacity=400,
    )  # fmt: skip
    model.set_length(0, 0)
    drafter.open(s)
    for _ in range(2 * TRIES + AGAIN + 2):
        asked = len(bad.rounds)
        run_round(model, Pipeline(model.vocabulary), [Row(s, drafter, 8, "coupling")])
        if len(bad.rounds) > asked:
            for _ in range(8):
                run_round(model, Pipeline(model.vocabulary), [Row(s, drafter, 0, "coupling")])
    assert len(bad.rounds) == TRIES + 1
    assert len(good.rounds) == TRIES + AGAIN + 1


@pytest.mark.parametrize(("verifier", "sampling", "pattern"), [
    ("coupling", "plain", None), ("coupling", "processed", r"(a|b)+c?"), ("invariant", "plain", None),
])  # fmt: skip
def test_the_law_is_the_targets(verifier: str, sampling: str, pattern: str | None) -> None:
    drafter = ChoosingDrafter([Way(TreeDrafter(costs=(0.05, 0.06))), Way(NgramDrafter())], "auto")
    sources = assert_target_law(table(1), drafter, verifier, sampling, pattern)
    assert sources.total() > 0
