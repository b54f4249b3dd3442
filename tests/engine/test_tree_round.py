"""Rounds over trees: every node as the place of rejection, the law with real coins, mixed batches, faults."""

from __future__ import annotations

import hashlib
import itertools
from collections import Counter
from collections.abc import Sequence as Seq

import pytest
import torch
from torch import Tensor

from constrained_spec.backends.base import Block
from constrained_spec.backends.toy import ToyModel
from constrained_spec.coins import Coins, Role
from constrained_spec.config import Sampling
from constrained_spec.drafters.base import Drafter, Proposal
from constrained_spec.drafters.model import ModelDrafter
from constrained_spec.drafters.ngram import NgramDrafter
from constrained_spec.drafters.tree import TreeDrafter
from constrained_spec.drafters.tree_model import TreeModelDrafter
from constrained_spec.engine.round import LONG, Row, run_round
from constrained_spec.grammars.compile import Choice, Constraint, JsonSchema, Lark, Regex, compile_constraint
from constrained_spec.processors.pipeline import Pipeline
from constrained_spec.state.sequence import Sequence
from constrained_spec.state.transaction import Commit, Transaction
from constrained_spec.verify import chi_square, inverse_cdf
from tests.engine.plain import Stateless

TEXT: tuple[bytes | None, ...] = (
    None, None, *(bytes([b]) for b in range(32, 127)), b"ab", b'": ', b'{"', b"\xf0\x9f", b"\x98\x80",
)  # fmt: skip
EOS = (0, 1)
CONSTRAINTS: dict[str, Constraint | None] = {
    "none": None,
    "regex": Regex(r"[ab]{3,12}(-[0-9]{2})?"),
    "choice": Choice(("abab", "ababab", "abacus", "ba")),
    "schema": JsonSchema({"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}),
    "lark": Lark('start: "a" start "b" | "ab"'),
}
TREE = (-1, -1, 0, 0, 1, 2, 2, 3)  # levels of 2, 3 and 3 nodes
ROUND_RUNS = 400
FALSE_ALARM = 1e-6


def logits_of(prefix: tuple[int, ...]) -> Tensor:
    """Any function of the whole prefix: one leaked token changes everything."""
    digest = hashlib.blake2b(repr(prefix).encode(), digest_size=8).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest, "little") >> 1)
    logits = torch.randn(len(TEXT), generator=generator)
    logits[list(EOS)] -= 2.0
    return logits


class Rigged(Stateless):
    """The tree ``TREE``, whose target path leads to node ``end`` and no further: all else is wrong but legal."""

    name = "rigged"

    def __init__(self, pipeline: Pipeline, end: int) -> None:
        self.pipeline = pipeline
        self.right = []
        while end >= 0:
            self.right.append(end)
            end = TREE[end]

    def propose(self, proposals: Seq[Proposal]) -> None:
        for p in proposals:
            made: dict[int, int | None] = {-1: -1}
            taken: dict[int, list[int]] = {}
            for i, above in enumerate(TREE):
                parent = made[above]
                made[i] = None
                if parent is None:
                    continue
                p.move(parent)
                if p.room <= 0:
                    continue
                row = logits_of(tuple(p.sequence.history.tokens)).unsqueeze(0)
                order = (
                    self.pipeline.process(row, [p.tx.position], [()]).logits[0].argsort(descending=True, stable=True)
                )
                legal = [t for t in order.tolist() if p.tx.is_legal(t)]
                used = taken.setdefault(above, [])
                token = legal[0] if i in self.right else next((t for t in legal[1:] if t not in used), None)
                if token is not None:
                    used.append(token)
                    made[i] = p.child(parent, token, self.name)


def open_text(
    model: ToyModel, constraint: Constraint | None, sampling: Sampling, slot: int, prompt: Seq[int]
) -> Sequence:
    grammar = None if constraint is None else compile_constraint(constraint, model.vocabulary)
    model.set_length(slot, 0)
    sequence = Sequence(
        prompt=prompt, sampling=sampling, coins=Coins(sampling.seed or 0), vocabulary=model.vocabulary, target=model,
        slot=slot, capacity=model.capacity, matcher=grammar.matcher() if grammar else None,
    )  # fmt: skip
    NgramDrafter().open(sequence)
    TreeDrafter().open(sequence)
    return sequence


def replay(model: ToyModel, original: Sequence, constraint: Constraint | None) -> Sequence:
    prompt = original.history.tokens[: original.history.prompt_length]
    fresh = open_text(model, constraint, original.sampling, 1, prompt)
    for token in original.output:
        with Transaction(fresh) as tx:
            model.score([Block(1, fresh.pending, want=1)])
            tx.commit(0, token)
    return fresh


def next_law(model: ToyModel, pipeline: Pipeline, s: Sequence) -> Tensor:
    with Transaction(s) as tx:
        logits = model.score([Block(s.slot, s.pending, want=1)])
        return pipeline.process(logits, [tx.position], [s.processors]).probabilities()


@pytest.mark.parametrize("name", CONSTRAINTS)
def test_every_node_as_the_last_that_stands(name: str) -> None:
    model, constraint = ToyModel(TEXT, logits_of, eos_ids=EOS, slots=2, capacity=64), CONSTRAINTS[name]
    pipeline = Pipeline(model.vocabulary)
    sampling = Sampling(
        max_tokens=24, stop=("bab-", "zz"), presence_penalty=0.7, frequency_penalty=0.3, repetition_penalty=1.3
    )
    alone = open_text(model, constraint, sampling, 0, [40, 41, 40])
    while not alone.finished:
        run_round(model, pipeline, [Row(alone, None, 0, "coupling")])
    reached = Counter[int]()
    for end in range(-1, len(TREE)):
        s = open_text(model, constraint, sampling, 0, [40, 41, 40])
        drafter = Rigged(pipeline, end)
        while not s.finished:
            before = s.counts.proposed
            [outcome] = run_round(model, pipeline, [Row(s, drafter, 16, "coupling")]).outcomes
            assert isinstance(outcome, Commit)
            assert not s.disabled
            whole = s.counts.proposed - before == len(TREE)  # not near the end, nor where few tokens are legal
            if whole and len(outcome.tokens) == len(drafter.right) + 1:
                reached[end] += 1
                assert outcome.origins[-1] == ("bonus" if end not in TREE else "recovered")
            fresh = replay(model, s, constraint)
            assert fresh.fingerprints() == s.fingerprints()
            assert fresh.finish_reason == s.finish_reason
            assert fresh.visible_text() == s.visible_text()
            if not s.finished:
                assert torch.equal(next_law(model, pipeline, s), next_law(model, pipeline, fresh))
        assert s.output == alone.output
        assert s.counts.accepted + s.counts.recovered + s.counts.bonus == len(s.output)
    if name == "none":
        assert all(reached[end] for end in range(-1, len(TREE)))


# ---- the law, on a world small enough to count ----------------------------------------------------------------------

SMALL = (None, b"a", b"b", b"c")
LENGTH = 3
SAMPLINGS = {
    "plain": Sampling(temperature=1.0, max_tokens=LENGTH),
    "processed": Sampling(
        temperature=0.8, top_p=0.9, min_p=0.05, presence_penalty=0.6, frequency_penalty=0.4,
        repetition_penalty=1.2, logit_bias={2: 0.7}, max_tokens=LENGTH,
    ),
    "ends": Sampling(temperature=1.3, top_k=3, min_tokens=2, stop=("cb",), max_tokens=LENGTH),
}  # fmt: skip


def table(seed: int, slots: int = 1) -> ToyModel:
    def logits(prefix: tuple[int, ...]) -> Tensor:
        key = sum((t + 1) * 7**i for i, t in enumerate(prefix)) + 10_007 * seed
        return torch.randn(4, generator=torch.Generator().manual_seed(key)) * 1.5

    return ToyModel(SMALL, logits, eos_ids=(0,), slots=slots, capacity=32)


class Guesses:
    """Two guesses below the root and below the first of them; a sampled child goes before or behind them elsewhere."""

    name = "guesses"

    def open(self, sequence: Sequence) -> None:
        pass

    def close(self, sequence: Sequence) -> None:
        pass

    def propose(self, proposals: Seq[Proposal]) -> None:
        for p in proposals:
            n = len(p.sequence.history)
            first = p.child(-1, 1 + n % 3, self.name)
            p.child(-1, 1 + (n + 1) % 3, self.name)
            if first is not None:
                p.child(first, 1 + n % 2, self.name)
                p.child(first, 3, self.name)


class Family(Guesses):
    """Below the root and below each of its children: a guess, then two tokens drawn from q without it."""

    name = "family"

    def __init__(self, draft: ToyModel, pipeline: Pipeline) -> None:
        self.draft, self.pipeline = draft, pipeline

    def propose(self, proposals: Seq[Proposal]) -> None:
        for p in proposals:
            for node in self._below(p, -1):
                self._below(p, node)

    def _below(self, p: Proposal, node: int) -> list[int]:
        p.move(node)
        if p.room <= 0:
            return []
        row = self.draft._row(tuple(p.sequence.history.tokens)).unsqueeze(0)
        q = self.pipeline.process(row, [p.tx.position], [p.sequence.processors]).probabilities()[0]
        found = [p.child(node, 1 + len(p.sequence.history) % 3, self.name)]
        left = q.clone()
        if found[0] is not None:
            left[p.tokens[found[0]]] = 0
        for k in range(min(2, int((left > 0).sum()), p.budget - len(p.tokens))):
            u = p.sequence.coins.uniform(Role.DRAFT, p.round, p.first + 100 * (node + 1) + k)
            token = int(inverse_cdf(left.unsqueeze(0), torch.tensor([u])))
            found.append(p.child(node, token, self.name, q))
            left[token] = 0
        return [i for i in found if i is not None]


def new_sequence(model: ToyModel, sampling: Sampling, seed: int, pattern: str | None, slot: int = 0) -> Sequence:
    grammar = None if pattern is None else compile_constraint(Regex(pattern), model.vocabulary)
    model.set_length(slot, 0)
    return Sequence(
        prompt=[1, 2], sampling=sampling, coins=Coins(seed), vocabulary=model.vocabulary, target=model, slot=slot,
        capacity=model.capacity, matcher=grammar.matcher() if grammar else None,
    )  # fmt: skip


def exact_law(
    model: ToyModel, pipeline: Pipeline, sampling: Sampling, pattern: str | None
) -> dict[tuple[int, ...], float]:
    def walk(path: tuple[int, ...]) -> dict[tuple[int, ...], float]:
        s = new_sequence(model, sampling, 0, pattern)
        for token in path:
            with Transaction(s) as tx:
                tx.commit(0, token)
        if s.finished:
            return {path: 1.0}
        with Transaction(s) as tx:
            logits = model.score([Block(0, s.pending, want=1)])
            p = pipeline.process(logits, [tx.position], [()]).probabilities()[0].double().tolist()
        law: dict[tuple[int, ...], float] = {}
        for token, chance in enumerate(p):
            if chance > 0:
                law.update({k: v * chance for k, v in walk((*path, token)).items()})
        return law

    return walk(())


class Both:
    """One drafter, and another behind the place where it ends."""

    name = "both"

    def __init__(self, first: Drafter, second: Drafter) -> None:
        self._parts = first, second

    def open(self, sequence: Sequence) -> None:
        for part in self._parts:
            part.open(sequence)

    def close(self, sequence: Sequence) -> None:
        for part in self._parts:
            part.close(sequence)

    def propose(self, proposals: Seq[Proposal]) -> None:
        for part in self._parts:
            part.propose([p for p in proposals if p.room > 0])


def drafter_of(name: str, pipeline: Pipeline, model: ToyModel) -> Drafter:
    by_model = TreeModelDrafter(table(2), pipeline, model.vocabulary, width=2, depth=2, beam=2)
    if name == "model":
        return by_model
    if name == "wide":
        return TreeModelDrafter(table(2), pipeline, model.vocabulary, width=4, depth=2, beam=4)
    if name == "guesses":
        return Guesses()
    if name == "family":
        return Family(table(2), pipeline)
    if name == "ngram":
        return TreeDrafter()
    # Guesses first, then sampled children below the place where they end: one tree of both kinds.
    return Both(Guesses(), by_model)


@pytest.mark.parametrize(("drafter_name", "verifier", "sampling", "pattern"), [
    ("model", "tree", "plain", None), ("model", "coupling", "processed", r"(a|b)+c?"),
    ("wide", "tree", "processed", None), ("wide", "tree", "ends", r"(a|b)+c?"),
    ("guesses", "coupling", "plain", None), ("guesses", "coupling", "ends", r"(a|b)+c?"),
    ("mixed", "tree", "plain", r"(a|b)+c?"), ("mixed", "block", "plain", None),
    ("family", "tree", "plain", None), ("family", "coupling", "processed", None), ("family", "tree", "ends", "[ab]+c?"),
    ("model", "invariant", "processed", None), ("guesses", "invariant", "ends", None), ("ngram", "tree", "plain", None),
])  # fmt: skip
def test_the_committed_law_is_the_targets(drafter_name: str, verifier: str, sampling: str, pattern: str | None) -> None:
    model = table(1)
    pipeline = Pipeline(model.vocabulary)
    drafter = drafter_of(drafter_name, pipeline, model)
    law = exact_law(model, pipeline, SAMPLINGS[sampling], pattern)
    seen: Counter[tuple[int, ...]] = Counter()
    proposed = accepted = 0
    for seed in range(ROUND_RUNS):
        s = new_sequence(model, SAMPLINGS[sampling], seed, pattern)
        drafter.open(s)
        while not s.finished:
            [outcome] = run_round(model, pipeline, [Row(s, drafter, 8, verifier)]).outcomes
            assert isinstance(outcome, Commit)
        assert not s.disabled
        drafter.close(s)
        proposed, accepted = proposed + s.counts.proposed, accepted + s.counts.accepted
        seen[tuple(s.output)] += 1
    assert seen.keys() <= law.keys()
    assert chi_square([seen[k] for k in law], list(law.values())) > FALSE_ALARM
    assert 0 < accepted < proposed


def test_invariant_text_does_not_depend_on_the_tree() -> None:
    model = table(1)
    pipeline = Pipeline(model.vocabulary)
    sampling = Sampling(temperature=1.0, max_tokens=12, presence_penalty=0.3)
    drafters: list[Drafter | None] = [
        None,
        *(drafter_of(n, pipeline, model) for n in ("model", "wide", "guesses", "ngram")),
    ]
    for seed in range(25):
        texts = set()
        for drafter, gamma in itertools.product(drafters, (2, 7)):
            s = new_sequence(model, sampling, seed, None)
            if drafter is not None:
                drafter.open(s)
            while not s.finished:
                run_round(model, pipeline, [Row(s, drafter, gamma, "invariant")])
            assert not s.disabled
            if drafter is not None:
                drafter.close(s)
            texts.add(tuple(s.output))
        assert len(texts) == 1, (seed, texts)


def test_a_draft_model_that_is_the_target_is_always_followed() -> None:
    """With q = p the first child of every node stands, whatever its siblings are; the draft's slot follows."""
    model, draft = table(1), table(1)
    pipeline = Pipeline(model.vocabulary)
    drafter = TreeModelDrafter(draft, pipeline, model.vocabulary, width=2, depth=3, beam=9)
    for seed in range(40):
        s = new_sequence(model, Sampling(temperature=1.0, max_tokens=14, ignore_eos=True), seed, None)
        drafter.open(s)
        while not s.finished:
            run_round(model, pipeline, [Row(s, drafter, 14, "tree")])
            held = draft._slots[0]
            assert held == s.history.tokens[: len(held)]
            if not s.finished:
                assert len(held) >= len(s.history) - 2  # all but the last level, which the draft has not read
        assert s.counts.accepted >= 3 * (s.counts.rounds - 1)
        drafter.close(s)


def test_a_mixed_batch_is_its_rows() -> None:
    """Chains, sampled trees, guessed trees, greedy and invariant rows in one round: each as it is alone."""
    kinds = [
        ("model", "tree", 1.0), ("chain", "coupling", 1.0), ("guesses", "coupling", 1.0), ("ngram", "tree", 0.0),
        ("model", "invariant", 1.0), ("chain", "invariant", 1.0), ("model", "coupling", 0.0), ("none", "block", 0.8),
        ("mixed", "tree", 1.0), ("guesses", "typical", 1.0),
    ]  # fmt: skip
    texts: list[list[list[int]]] = []
    for together in (True, False):
        model = table(1, slots=len(kinds))
        pipeline = Pipeline(model.vocabulary)
        rows = []
        for slot, (name, verifier, temperature) in enumerate(kinds):
            sampling = Sampling(temperature=temperature, max_tokens=14, presence_penalty=0.4, logprobs=1)
            s = new_sequence(model, sampling, 5 + slot, r"(a|b|c)+", slot)
            drafter: Drafter | None = None
            if name == "chain":
                drafter = ModelDrafter(table(2), pipeline, model.vocabulary)
            elif name != "none":
                drafter = drafter_of(name, pipeline, model)
            if drafter is not None:
                drafter.open(s)
            rows.append(Row(s, drafter, 6, verifier))
        all_rows = list(rows)
        while rows:
            for batch in [rows] if together else [[row] for row in rows]:
                for outcome in run_round(model, pipeline, batch).outcomes:
                    assert isinstance(outcome, Commit)
            rows = [row for row in rows if not row.sequence.finished]
        assert not any(row.sequence.disabled for row in all_rows)
        texts.append([row.sequence.output for row in all_rows])
        for row in all_rows:
            assert [entry.token for entry in row.sequence.logprobs] == row.sequence.output
    assert texts[0] == texts[1]


# ---- faults and limits ----------------------------------------------------------------------------------------------


class Broken(Guesses):
    def __init__(self, how: str) -> None:
        self.how = how

    def propose(self, proposals: Seq[Proposal]) -> None:
        for p in proposals:
            first = p.child(-1, 1, self.name)
            p.child(-1, 2, self.name)
            assert first == 0
            if self.how == "raise":
                raise ValueError("no idea")
            if self.how == "id":
                p.child(first, 99, self.name)
            if self.how == "parent":
                p.child(17, 1, self.name)
            if self.how == "twice":
                p.child(-1, 2, self.name, torch.ones(4) / 4)


@pytest.mark.parametrize(("how", "reason"), [("raise", "idea"), ("id", "99"), ("parent", "17"), ("twice", "twice")])
def test_a_faulty_tree_drafter_is_disabled_and_the_text_stays(how: str, reason: str) -> None:
    texts = []
    for drafter in (None, Broken(how)):
        model = table(1)
        s = new_sequence(model, Sampling(max_tokens=9, ignore_eos=True), 0, None)
        while not s.finished:
            run_round(model, Pipeline(model.vocabulary), [Row(s, drafter, 6, "tree")])
        texts.append(s.output)
    assert reason in s.disabled["guesses"]
    assert s.counts.proposed == 2  # what it validly said before stays in its tree
    assert texts[0] == texts[1]


class NoTrees:
    """A model that scores chains only."""

    def __init__(self, inner: ToyModel) -> None:
        self._inner = inner
        self.set_length, self.length, self.fingerprint = inner.set_length, inner.length, inner.fingerprint
        self.copy, self.clear = inner.copy, inner.clear
        self.vocabulary, self.capacity, self.slots, self.name = inner.vocabulary, inner.capacity, 1, "chains"
        self.device = inner.device

    def score(self, blocks: Seq[Block]) -> Tensor:
        assert all(b.parents is None for b in blocks)
        return self._inner.score(blocks)


def answer(target: ToyModel | NoTrees, drafter: Drafter | None) -> Sequence:
    """A text of twelve tokens behind a prompt that repeats itself."""
    s = Sequence(
        prompt=[1, 2, 1, 3, 1, 2], sampling=Sampling(max_tokens=12, ignore_eos=True), coins=Coins(0), slot=0,
        capacity=32, vocabulary=target.vocabulary, target=target,
    )  # fmt: skip
    target.set_length(0, 0)
    if drafter is not None:
        drafter.open(s)
    while not s.finished:
        run_round(target, Pipeline(target.vocabulary), [Row(s, drafter, 6, "tree")])
    return s


def test_a_target_without_trees_gets_chains() -> None:
    pipeline = Pipeline(table(1).vocabulary)
    plain = answer(table(1), None).output
    for drafter in (TreeDrafter(), TreeModelDrafter(table(2), pipeline, table(1).vocabulary)):
        s = answer(NoTrees(table(1)), drafter)
        assert s.output == plain
        assert not s.disabled
        assert s.counts.proposed > 0
    s = answer(NoTrees(table(1)), Guesses())
    assert s.output == plain
    assert "no trees" in s.disabled["guesses"]


def test_nan_disables_the_draft_model() -> None:
    model = table(1)
    broken = ToyModel(SMALL, lambda _: torch.full((4,), float("nan")), eos_ids=(0,), capacity=32)
    drafter = TreeModelDrafter(broken, Pipeline(model.vocabulary), model.vocabulary)
    for verifier, temperature in (("tree", 1.0), ("invariant", 1.0), ("tree", 0.0)):
        s = new_sequence(model, Sampling(max_tokens=6, temperature=temperature), 1, None)
        drafter.open(s)
        while not s.finished:
            run_round(model, Pipeline(model.vocabulary), [Row(s, drafter, 6, verifier)])
        assert "not finite" in s.disabled["tree-model"]
        drafter.close(s)


@pytest.mark.parametrize("room", [1, 2, 3, 5, 9])
def test_context_and_length_bound_the_tree(room: int) -> None:
    for capacity, max_tokens in ((LONG + 8 + room, 50), (64, room)):
        model = ToyModel(SMALL, lambda p: torch.tensor([-9.0, 1, 2, 3]).roll(len(p)), eos_ids=(0,), capacity=capacity)
        pipeline = Pipeline(model.vocabulary)
        prompt = [1, 2, 3, 1, 3, 2, 1, 1] * (1 + LONG // 8)  # long enough to be written ahead of the tree
        by_model = TreeModelDrafter(table_like(model), pipeline, model.vocabulary, width=3, depth=5, beam=3)
        for drafter in (TreeDrafter(width=3), by_model):
            model.set_length(0, 0)
            s = Sequence(
                prompt=prompt, sampling=Sampling(max_tokens=max_tokens, ignore_eos=True), coins=Coins(0), slot=0,
                capacity=capacity, vocabulary=model.vocabulary, target=model,
            )  # fmt: skip
            drafter.open(s)
            while not s.finished:
                run_round(model, pipeline, [Row(s, drafter, 16, "tree")])
            assert not s.disabled
            assert s.finish_reason == "length"
            assert len(s.history) <= capacity
            assert len(s.output) == min(max_tokens, capacity - len(prompt))
            drafter.close(s)


def table_like(model: ToyModel) -> ToyModel:
    return ToyModel(SMALL, lambda p: torch.tensor([-9.0, 3, 2, 1]).roll(len(p)), eos_ids=(0,), capacity=model.capacity)


# ---- what the n-gram tree holds -------------------------------------------------------------------------------------


def paths(s: Sequence, drafter: Drafter, budget: int) -> set[tuple[int, ...]]:
    drafter.open(s)
    with Transaction(s) as tx:
        p = Proposal(tx, budget, "coupling")
        drafter.propose([p])
        found = [tuple[int, ...]()] * len(p.tokens)
        for i, parent in enumerate(tx.parents):
            found[i] = (*(found[parent] if parent >= 0 else ()), p.tokens[i])
        return set(found)


def test_the_two_latest_continuations_are_both_there() -> None:
    model = ToyModel(TEXT, logits_of, eos_ids=EOS, capacity=64)
    s = open_text(model, None, Sampling(max_tokens=40), 0, [60, 61, 70, 71, 60, 61, 80, 81, 60, 61])
    found = paths(s, TreeDrafter(), 14)
    assert {(80,), (70,), (80, 81), (70, 71)} <= found
    assert not any(path[0] not in (70, 80) for path in found)


def test_forced_text_in_the_spelling_used_before_and_in_the_tokenisers_own() -> None:
    tokens = [None, b"a", b"d", b"ad", b"x", b",", b"-"]
    model = ToyModel(tokens, lambda _: torch.zeros(7), eos_ids=(0,), capacity=64)
    s = new_sequence(model, Sampling(max_tokens=40), 0, "x,ad-(x,ad-)*")
    s = Sequence(
        prompt=[4, 5, 1, 2, 6], sampling=Sampling(max_tokens=40), coins=Coins(0), slot=0, capacity=64,
        vocabulary=model.vocabulary, target=model,
        matcher=compile_constraint(Regex("x,ad-(x,ad-)*"), model.vocabulary).matcher(),
    )  # fmt: skip
    found = paths(s, TreeDrafter(), 9)
    assert {(4, 5), (4, 5, 1, 2, 6), (4, 5, 3)} <= found  # "a" "d" as in the prompt, and "ad"
