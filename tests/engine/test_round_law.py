"""The whole round with real coins on a small world: the law of the committed text is the target's, exactly counted.

Frequencies against enumerated probabilities by chi-square; seeds fixed; each test's false-alarm rate is 1e-6.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence as Seq

import pytest
import torch
from scipy.stats import chi2
from torch import Tensor

from constrained_spec.backends.base import Block
from constrained_spec.backends.toy import ToyModel
from constrained_spec.coins import Coins
from constrained_spec.config import Sampling
from constrained_spec.drafters.base import Drafter, Proposal
from constrained_spec.drafters.mixture import MixtureDrafter
from constrained_spec.drafters.model import ModelDrafter
from constrained_spec.engine.round import Row, run_round
from constrained_spec.grammars.compile import Regex, compile_constraint
from constrained_spec.processors.pipeline import Pipeline
from constrained_spec.state.sequence import Sequence
from constrained_spec.state.transaction import Commit, Transaction
from tests.engine.plain import Stateless

TOKENS = (None, b"a", b"b", b"c")
LENGTH = 3
RUNS = 1200


def table(seed: int) -> ToyModel:
    def logits(prefix: tuple[int, ...]) -> Tensor:
        key = sum((t + 1) * 7**i for i, t in enumerate(prefix)) + 10_007 * seed
        return torch.randn(4, generator=torch.Generator().manual_seed(key)) * 1.5

    return ToyModel(TOKENS, logits, eos_ids=(0,), slots=1, capacity=16)


class Parrot(Stateless):
    """Deterministic, mostly wrong drafts; after the model has spoken it adds a guess to the same block."""

    name = "parrot"

    def propose(self, proposals: Seq[Proposal]) -> None:
        for p in proposals:
            if p.room > 0:
                p.point(1 + len(p.sequence.history) % 3, self.name)


SAMPLINGS = {
    "plain": Sampling(temperature=1.0, max_tokens=LENGTH),
    "processed": Sampling(
        temperature=0.8, top_p=0.9, min_p=0.05, presence_penalty=0.6, frequency_penalty=0.4,
        repetition_penalty=1.2, logit_bias={2: 0.7}, max_tokens=LENGTH,
    ),
    "ends": Sampling(temperature=1.3, top_k=3, min_tokens=2, stop=("cb",), max_tokens=LENGTH),
}  # fmt: skip


def new_sequence(model: ToyModel, sampling: Sampling, seed: int, pattern: str | None) -> Sequence:
    grammar = None if pattern is None else compile_constraint(Regex(pattern), model.vocabulary)
    model.set_length(0, 0)
    return Sequence(
        prompt=[1, 2], sampling=sampling, coins=Coins(seed), vocabulary=model.vocabulary, target=model, slot=0,
        capacity=model.capacity, matcher=grammar.matcher() if grammar else None,
    )  # fmt: skip


def exact_law(
    model: ToyModel, pipeline: Pipeline, sampling: Sampling, pattern: str | None
) -> dict[tuple[int, ...], float]:
    """Walk every path of the commit rule, token by token."""

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


@pytest.mark.parametrize("pattern", [None, r"(a|b)+c?"])
@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize(("drafter_name", "gamma", "verifier"), [
    ("model", 1, "coupling"), ("model", 3, "coupling"), ("mixed", 3, "coupling"), ("parrot", 2, "coupling"),
    ("model", 2, "invariant"), ("mixed", 3, "invariant"), ("model", 3, "block"), ("mixed", 3, "block"),
])  # fmt: skip
def test_the_committed_law_is_the_targets(
    drafter_name: str, gamma: int, verifier: str, sampling: str, pattern: str | None
) -> None:
    model, draft = table(1), table(2)
    pipeline = Pipeline(model.vocabulary)
    by_model = ModelDrafter(draft, pipeline, model.vocabulary)
    drafters: dict[str, Drafter] = {
        "model": by_model,
        "parrot": Parrot(),
        # Mid-block hand-over: a guess, then sampled drafts, in one block.
        "mixed": MixtureDrafter([_Once(Parrot()), by_model]),
    }
    drafter = drafters[drafter_name]
    law = exact_law(model, pipeline, SAMPLINGS[sampling], pattern)
    assert sum(law.values()) == pytest.approx(1, abs=1e-6)
    seen: Counter[tuple[int, ...]] = Counter()
    for seed in range(RUNS):
        s = new_sequence(model, SAMPLINGS[sampling], seed, pattern)
        drafter.open(s)
        while not s.finished:
            [outcome] = run_round(model, pipeline, [Row(s, drafter, gamma, verifier)]).outcomes
            assert isinstance(outcome, Commit)
        assert not s.disabled
        drafter.close(s)
        seen[tuple(s.output)] += 1
    assert seen.keys() <= law.keys()
    assert _chi_square(seen, law) > 1e-6


class _Once:
    """Speaks only into an empty block."""

    name = "once"

    def __init__(self, inner: Drafter) -> None:
        self.inner = inner

    def open(self, sequence: Sequence) -> None:
        self.inner.open(sequence)

    def close(self, sequence: Sequence) -> None:
        self.inner.close(sequence)

    def propose(self, proposals: Seq[Proposal]) -> None:
        self.inner.propose([p for p in proposals if not p.tokens])


def _chi_square(seen: Counter[tuple[int, ...]], law: dict[tuple[int, ...], float]) -> float:
    """p-value; texts expected fewer than five times are pooled."""
    rare = [k for k, v in law.items() if v * RUNS < 5]
    cells = [(seen[k], v * RUNS) for k, v in law.items() if v * RUNS >= 5]
    if rare:
        pooled = (sum(seen[k] for k in rare), sum(law[k] for k in rare) * RUNS)
        if pooled[1] > 1:
            cells.append(pooled)
    statistic = sum((o - e) ** 2 / e for o, e in cells)
    return float(chi2.sf(statistic, max(1, len(cells) - 1)))


def test_invariant_text_does_not_depend_on_the_drafter() -> None:
    model, draft = table(1), table(2)
    pipeline = Pipeline(model.vocabulary)
    sampling = Sampling(temperature=1.0, max_tokens=10, presence_penalty=0.3)
    by_model = ModelDrafter(draft, pipeline, model.vocabulary)
    for seed in range(40):
        texts = set()
        for drafter, gamma in itertools.product((None, Parrot(), by_model), (1, 2, 5)):
            s = new_sequence(model, sampling, seed, None)
            if drafter is not None:
                drafter.open(s)
            while not s.finished:
                run_round(model, pipeline, [Row(s, drafter, gamma, "invariant")])
            if drafter is not None:
                drafter.close(s)
            texts.add(tuple(s.output))
        assert len(texts) == 1, (seed, texts)
