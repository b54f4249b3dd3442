"""A hypothesis state machine over transactions: drafts, commits, aborts and failures in any order.

After every rule the sequence equals a fresh one that committed the same tokens one by one.
"""

from __future__ import annotations

import hashlib

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from torch import Tensor

from constrained_spec.backends.base import Block
from constrained_spec.backends.toy import ToyModel
from constrained_spec.coins import Coins
from constrained_spec.config import Sampling
from constrained_spec.drafters.ngram import NgramDrafter
from constrained_spec.errors import TransactionError
from constrained_spec.grammars.compile import Choice, Constraint, JsonSchema, Lark, Regex, compile_constraint
from constrained_spec.state.sequence import Sequence
from constrained_spec.state.transaction import Transaction

TOKENS: tuple[bytes | None, ...] = (
    None, None, *(bytes([b]) for b in range(32, 127)), b"ab", b'": ', b'{"', b"\xf0\x9f", b"\x98\x80", b"\xff",
)  # fmt: skip
CONSTRAINTS: tuple[Constraint | None, ...] = (
    None,
    Regex(r"[ab]{2,9}(-[0-9]{2})?"),
    Choice(("abab", "ababab", "abacus", "ba")),
    JsonSchema({"type": "object", "properties": {"a": {"enum": ["x", "ab", 1]}}, "required": ["a"]}),
    Lark('start: "a" start "b" | "ab"'),
)
CAPACITY = 40


def logits(prefix: tuple[int, ...]) -> Tensor:
    seed = int.from_bytes(hashlib.blake2b(repr(prefix).encode(), digest_size=4).digest(), "little")
    return torch.randn(len(TOKENS), generator=torch.Generator().manual_seed(seed))


class TransactionMachine(RuleBasedStateMachine):
    @initialize(
        constraint=st.sampled_from(CONSTRAINTS),
        max_tokens=st.integers(1, 30),
        min_tokens=st.integers(0, 1),
        stop=st.sampled_from([(), ("ab-",), ("ba", "aab"), ("\U0001f600",)]),
        ignore_eos=st.booleans(),
    )
    def start(
        self, constraint: Constraint | None, max_tokens: int, min_tokens: int, stop: tuple[str, ...], ignore_eos: bool
    ) -> None:
        self.model = ToyModel(TOKENS, logits, eos_ids=(0, 1), slots=2, capacity=CAPACITY)
        self.constraint = constraint
        self.sampling = Sampling(max_tokens=max_tokens, min_tokens=min_tokens, stop=stop, ignore_eos=ignore_eos)
        self.sequence = self.fresh(0)
        self.shown = ""

    def fresh(self, slot: int) -> Sequence:
        grammar = None if self.constraint is None else compile_constraint(self.constraint, self.model.vocabulary)
        self.model.set_length(slot, 0)
        sequence = Sequence(
            prompt=[40, 41, 40], sampling=self.sampling, coins=Coins(0), vocabulary=self.model.vocabulary,
            target=self.model, slot=slot, capacity=CAPACITY, matcher=grammar.matcher() if grammar else None,
        )  # fmt: skip
        NgramDrafter().open(sequence)
        return sequence

    def draft(self, tx: Transaction, picks: list[int]) -> None:
        for pick in picks:
            legal = [t for t in range(len(TOKENS)) if tx.is_legal(t)]
            if tx.draft_room <= 0 or not legal:
                return
            before = self.sequence.fingerprint()
            illegal = next((t for t in range(len(TOKENS)) if not tx.is_legal(t)), None)
            if illegal is not None:
                assert not tx.extend(illegal, "x")
                assert self.sequence.fingerprint() == before
            assert tx.extend(legal[pick % len(legal)], "forced" if pick % 2 else "x")

    def forward(self, tx: Transaction) -> None:
        s = self.sequence
        self.model.score([Block(s.slot, s.history.tokens[s.kv.length :], want=len(tx.drafts) + 1)])

    @precondition(lambda self: not self.sequence.finished)
    @rule(picks=st.lists(st.integers(0, 500), max_size=6), cut=st.integers(0, 6), own=st.integers(0, 500))
    def commit(self, picks: list[int], cut: int, own: int) -> None:
        s = self.sequence
        length = s.history.output_length
        with Transaction(s) as tx:
            self.draft(tx, picks)
            self.forward(tx)
            accepted = min(cut, len(tx.drafts))
            mask = tx.positions[accepted].mask
            legal = [
                t for t in range(len(TOKENS)) if mask is None or (int(mask[t >> 5]) >> (t & 31)) & 1
            ]  # none only after an end, where the token is dropped
            token = legal[own % len(legal)] if legal else 0
            run = [*tx.drafts[:accepted], token]
            committed = tx.commit(accepted, token)
        assert list(committed.tokens) == run[: len(committed.tokens)]
        assert 1 <= len(committed.tokens) <= accepted + 1
        assert s.history.output_length == length + len(committed.tokens)
        assert len(committed.origins) == len(committed.tokens)

    @precondition(lambda self: not self.sequence.finished)
    @rule(picks=st.lists(st.integers(0, 500), max_size=6), forward=st.booleans())
    def abort(self, picks: list[int], forward: bool) -> None:
        before = self.sequence.fingerprint()
        with pytest.raises(RuntimeError, match="gone"), Transaction(self.sequence) as tx:
            self.draft(tx, picks)
            if forward:
                self.forward(tx)
            raise RuntimeError("gone")
        assert self.sequence.fingerprint() == before

    @precondition(lambda self: not self.sequence.finished)
    @rule(picks=st.lists(st.integers(0, 500), max_size=3))
    def misuse(self, picks: list[int]) -> None:
        before = self.sequence.fingerprint()
        with pytest.raises(TransactionError), Transaction(self.sequence) as tx:
            self.draft(tx, picks)
            tx.commit(len(tx.drafts) + 1, 50)
        assert self.sequence.fingerprint() == before

    @precondition(lambda self: self.sequence.finished)
    @rule()
    def nothing_opens_after_the_finish(self) -> None:
        before = self.sequence.fingerprint()
        with pytest.raises(TransactionError, match="finished"), Transaction(self.sequence):
            pass
        assert self.sequence.fingerprint() == before

    @invariant()
    def equals_a_replay(self) -> None:
        if not hasattr(self, "sequence"):
            return
        s = self.sequence
        fresh = self.fresh(1)
        for token in s.output:
            with Transaction(fresh) as tx:
                self.model.score([Block(1, fresh.pending, want=1)])
                tx.commit(0, token)
        assert s.fingerprints() == fresh.fingerprints()
        assert s.visible_text() == fresh.visible_text()
        assert s.counts.accepted + s.counts.recovered + s.counts.bonus == len(s.output)
        assert len(s.output) <= self.sampling.max_tokens

    @invariant()
    def streamed_text_is_never_retracted(self) -> None:
        if hasattr(self, "sequence"):
            assert self.sequence.visible_text().startswith(self.shown)
            self.shown = self.sequence.visible_text()


TransactionMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=12)
TestTransactions = TransactionMachine.TestCase
