"""Nothing of a rejected suffix survives: every cut, every participant, against a fresh target-only replay."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence as Seq

import pytest
import torch
from torch import Tensor

from constrained_spec.backends.base import Block
from constrained_spec.backends.toy import ToyModel
from constrained_spec.coins import Coins
from constrained_spec.config import Sampling
from constrained_spec.drafters.base import Drafter, Proposal
from constrained_spec.drafters.ngram import NgramDrafter
from constrained_spec.engine.round import Row, run_round
from constrained_spec.errors import TransactionError
from constrained_spec.grammars.compile import Choice, Constraint, JsonSchema, Lark, Regex, compile_constraint
from constrained_spec.processors.pipeline import Pipeline
from constrained_spec.state.sequence import Sequence
from constrained_spec.state.transaction import Commit, Transaction
from tests.engine.plain import Stateless

TOKENS: tuple[bytes | None, ...] = (
    None,  # EOS
    None,  # a second EOS
    *(bytes([b]) for b in range(32, 127)),
    b"ab",
    b'": ',
    b'{"',
    b"\xf0\x9f",
    b"\x98\x80",
)
EOS = (0, 1)
CONSTRAINTS: dict[str, Constraint | None] = {
    "none": None,
    "regex": Regex(r"[ab]{3,12}(-[0-9]{2})?"),
    "choice": Choice(("abab", "ababab", "abacus", "ba")),
    "schema": JsonSchema({"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}),
    "lark": Lark('start: "a" start "b" | "ab"'),
}


def logits_of(prefix: tuple[int, ...]) -> Tensor:
    """Any function of the whole prefix: here a hash of it, so that one leaked token changes everything."""
    digest = hashlib.blake2b(repr(prefix).encode(), digest_size=8).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest, "little") >> 1)
    logits = torch.randn(len(TOKENS), generator=generator)
    logits[list(EOS)] -= 2.0
    return logits


class RiggedDrafter(Stateless):
    """Proposes the target's own greedy continuation with a wrong but legal token at place ``cut``."""

    name = "rigged"

    def __init__(self, pipeline: Pipeline, gamma: int, cut: int) -> None:
        self.pipeline, self.gamma, self.cut = pipeline, gamma, cut

    def propose(self, proposals: Seq[Proposal]) -> None:
        for p in proposals:
            for i in range(self.gamma):
                if p.room <= 0:
                    break
                logits = logits_of(tuple(p.sequence.history.tokens)).unsqueeze(0)
                processed = self.pipeline.process(logits, [p.tx.position], [p.sequence.processors])
                order = processed.logits[0].argsort(descending=True, stable=True).tolist()
                legal = [t for t in order if p.tx.is_legal(t)]
                token = legal[1 if i == self.cut and len(legal) > 1 else 0]
                if not p.point(token, self.name):
                    break


def toy() -> ToyModel:
    return ToyModel(TOKENS, logits_of, eos_ids=EOS, slots=2, capacity=64)


def open_sequence(
    model: ToyModel, constraint: Constraint | None, sampling: Sampling, slot: int, prompt: Seq[int]
) -> Sequence:
    grammar = None if constraint is None else compile_constraint(constraint, model.vocabulary)
    model.set_length(slot, 0)
    sequence = Sequence(
        prompt=prompt,
        sampling=sampling,
        coins=Coins(sampling.seed or 0),
        vocabulary=model.vocabulary,
        target=model,
        slot=slot,
        capacity=model.capacity,
        matcher=grammar.matcher() if grammar else None,
    )
    NgramDrafter().open(sequence)
    return sequence


def replay(model: ToyModel, original: Sequence, constraint: Constraint | None) -> Sequence:
    """A fresh sequence that committed the same tokens one by one, target-only."""
    prompt = original.history.tokens[: original.history.prompt_length]
    fresh = open_sequence(model, constraint, original.sampling, 1, prompt)
    for token in original.output:
        with Transaction(fresh) as tx:
            model.score([Block(1, fresh.pending, want=1)])
            tx.commit(0, token)
    return fresh


def next_law(model: ToyModel, pipeline: Pipeline, s: Sequence) -> Tensor:
    with Transaction(s) as tx:
        logits = model.score([Block(s.slot, s.pending, want=1)])
        return pipeline.process(logits, [tx.position], [s.processors]).probabilities()


@pytest.mark.parametrize("gamma", [1, 2, 4, 8])
@pytest.mark.parametrize("name", CONSTRAINTS)
def test_every_cut_leaves_the_state_of_a_replay(name: str, gamma: int) -> None:
    model, constraint = toy(), CONSTRAINTS[name]
    pipeline = Pipeline(model.vocabulary)
    sampling = Sampling(
        max_tokens=24, stop=("bab-", "zz"), presence_penalty=0.7, frequency_penalty=0.3, repetition_penalty=1.3
    )
    cuts_seen = set()
    for cut in range(gamma + 1):
        s = open_sequence(model, constraint, sampling, 0, [40, 41, 40])
        drafter: Drafter = RiggedDrafter(pipeline, gamma, cut)
        while not s.finished:
            [outcome] = run_round(model, pipeline, [Row(s, drafter, gamma, "coupling")]).outcomes
            assert isinstance(outcome, Commit)
            cuts_seen.add(len(outcome.tokens) - 1)
            fresh = replay(model, s, constraint)
            assert fresh.fingerprints() == s.fingerprints()
            assert fresh.finish_reason == s.finish_reason
            assert fresh.visible_text() == s.visible_text()
            if not s.finished:
                assert torch.equal(next_law(model, pipeline, s), next_law(model, pipeline, fresh))
        assert s.counts.accepted + s.counts.recovered + s.counts.bonus == len(s.output)
    if name == "none":
        assert cuts_seen >= set(range(gamma + 1))


def test_leaving_without_commit_leaves_no_trace() -> None:
    model = toy()
    pipeline = Pipeline(model.vocabulary)
    s = open_sequence(model, CONSTRAINTS["lark"], Sampling(max_tokens=30, presence_penalty=1.0), 0, [40, 41])
    run_round(model, pipeline, [Row(s, None, 0, "coupling")])
    before = s.fingerprint()
    with pytest.raises(KeyboardInterrupt), Transaction(s) as tx:
        while tx.extend(next(t for t in range(2, 99) if tx.is_legal(t)), "x") and len(tx.drafts) < 3:
            pass
        model.score([Block(0, s.history.tokens[s.kv.length :], want=1)])
        assert s.fingerprint() != before
        raise KeyboardInterrupt
    assert s.fingerprint() == before


def test_eos_and_stop_in_the_rejected_suffix_have_no_effect() -> None:
    model = toy()
    pipeline = Pipeline(model.vocabulary)
    s = open_sequence(model, None, Sampling(max_tokens=30, stop=("zz",)), 0, [40])
    z = TOKENS.index(b"z")
    with Transaction(s) as tx:
        for token in (z, z, EOS[0]):
            tx.extend(token, "x")
        model.score([Block(0, s.history.tokens[s.kv.length :], want=4)])
        commit = tx.commit(1, 50)
    assert commit.tokens == (z, 50) and commit.finish_reason is None and s.finish_reason is None
    assert s.visible_text() == "zP"[:1] + TOKENS[50].decode()  # type: ignore[union-attr]
    assert torch.equal(next_law(model, pipeline, s), next_law(model, pipeline, replay(model, s, None)))


@pytest.mark.parametrize(
    ("drafts", "accepted", "sampling", "kept", "reason"),
    [
        ((50, 51, 0, 52, 53), 5, Sampling(max_tokens=30), 3, "stop"),  # EOS in the accepted run drops bonus and rest
        ((50, 51, 1), 3, Sampling(max_tokens=30), 3, "stop"),  # the second EOS id counts too
        ((50, 51, 0, 52), 4, Sampling(max_tokens=30, ignore_eos=True), 5, None),
        ((50, 51, 52, 53, 54), 5, Sampling(max_tokens=5), 5, "length"),
        ((50, 51, 52, 53, 54), 5, Sampling(max_tokens=2), 2, "length"),
        ((50, 51, 52), 3, Sampling(max_tokens=1), 1, "length"),
        ((50, 51, 0), 3, Sampling(max_tokens=2), 2, "length"),  # an EOS beyond the cap does not make it a stop
        ((50, 0, 51), 3, Sampling(max_tokens=2), 2, "stop"),
    ],
)
def test_commit_trims_at_the_first_end(
    drafts: tuple[int, ...], accepted: int, sampling: Sampling, kept: int, reason: str | None
) -> None:
    model = toy()
    s = open_sequence(model, None, sampling, 0, [40])
    with Transaction(s) as tx:
        for token in drafts:
            if tx.closed:
                break
            tx.extend(token, "x")
        accepted = min(accepted, len(tx.drafts))
        model.score([Block(0, s.history.tokens[s.kv.length :], want=1)])
        commit = tx.commit(accepted, 60)
    assert len(commit.tokens) == kept == len(s.output) == s.history.output_length
    assert commit.finish_reason == s.finish_reason == reason
    assert s.counts.accepted + s.counts.recovered + s.counts.bonus == kept
    assert model.length(0) == len(s.history) - 1


@pytest.mark.parametrize("name", ["regex", "choice", "schema", "lark"])
def test_a_commit_that_fails_half_way_leaves_no_trace(name: str) -> None:
    model = toy()
    s = open_sequence(model, CONSTRAINTS[name], Sampling(max_tokens=30, stop=("zz",)), 0, [40, 41])
    run_round(model, Pipeline(model.vocabulary), [Row(s, None, 0, "coupling")])
    before, text = s.fingerprint(), s.visible_text()
    with pytest.raises(TransactionError), Transaction(s) as tx:
        illegal = next(t for t in range(2, len(TOKENS)) if not tx.is_legal(t))
        # Text, stop matcher and index have taken the token by the time the grammar's matcher refuses it.
        tx.commit(0, illegal)
    assert s.fingerprint() == before
    assert s.visible_text() == text
