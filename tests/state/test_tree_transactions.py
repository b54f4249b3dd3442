"""A hypothesis state machine over trees of drafts: any shape, any path kept, aborts and misuse in any order.

After every rule the sequence equals a fresh one that committed the same tokens one by one, and every node of a tree
sees the mask and the counts of its own path.
"""

from __future__ import annotations

import hashlib
from collections import Counter

import numpy as np
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
from constrained_spec.drafters.tree import TreeDrafter
from constrained_spec.errors import TransactionError
from constrained_spec.grammars.compile import Choice, Constraint, JsonSchema, Lark, Regex, compile_constraint
from constrained_spec.state.participant import KvState
from constrained_spec.state.sequence import Sequence
from constrained_spec.state.transaction import Transaction
from constrained_spec.state.tree import TreeKv, tree_block

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
Picks = list[tuple[int, int]]  # (parent, token) of each draft, both modulo what there is
picks_of = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 500)), max_size=9)


def logits(prefix: tuple[int, ...]) -> Tensor:
    seed = int.from_bytes(hashlib.blake2b(repr(prefix).encode(), digest_size=4).digest(), "little")
    return torch.randn(len(TOKENS), generator=torch.Generator().manual_seed(seed))


class TreeMachine(RuleBasedStateMachine):
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
        self.model = ToyModel(TOKENS, logits, eos_ids=(0, 1), slots=4, capacity=CAPACITY)
        self.constraint = constraint
        self.sampling = Sampling(max_tokens=max_tokens, min_tokens=min_tokens, stop=stop, ignore_eos=ignore_eos)
        self.sequence = self.fresh(0)
        # A draft model that read a part of the tree, and one that followed the path only.
        self.tree_cache, self.chain_cache = TreeKv(self.model, 2), KvState(self.model, 3)
        self.sequence.caches += [self.tree_cache, self.chain_cache]
        self.shown = ""

    def fresh(self, slot: int) -> Sequence:
        grammar = None if self.constraint is None else compile_constraint(self.constraint, self.model.vocabulary)
        self.model.set_length(slot, 0)
        sequence = Sequence(
            prompt=[40, 41, 40], sampling=self.sampling, coins=Coins(0), vocabulary=self.model.vocabulary,
            target=self.model, slot=slot, capacity=CAPACITY, matcher=grammar.matcher() if grammar else None,
        )  # fmt: skip
        NgramDrafter().open(sequence)
        TreeDrafter().open(sequence)
        return sequence

    def grow(self, tx: Transaction, picks: Picks) -> None:
        s = self.sequence
        for parent, pick in picks:
            tx.move(parent % (len(tx.drafts) + 1) - 1)
            legal = [t for t in range(len(TOKENS)) if tx.is_legal(t)]
            if tx.draft_room <= 0 or not legal:
                continue
            illegal = next((t for t in range(len(TOKENS)) if not tx.is_legal(t)), None)
            if illegal is not None:
                before = s.fingerprint()
                assert not tx.extend(illegal, "x")
                assert s.fingerprint() == before
            if pick % 3 == 0:  # a drafter of chains reads the path so far
                kv = self.chain_cache
                unread = s.history.tokens[kv.length :]
                if unread:
                    self.model.score([Block(kv.slot, unread, want=1)])
            assert tx.extend(legal[pick % len(legal)], "forced" if pick % 2 else "x")

    def check_places(self, tx: Transaction) -> None:
        """Each place reads the tokens, counts and mask of its own path."""
        s = self.sequence
        committed = s.history.tokens[: tx.base]
        for node in range(-1, len(tx.drafts)):
            path, at = list[int](), node
            while at >= 0:
                path.insert(0, tx.drafts[at])
                at = tx.parents[at]
            place = tx.positions[node + 1]
            assert place.prefix == committed + path
            assert place.output_index == len(committed) - s.history.prompt_length + len(path)
            assert place.output_counts() == Counter((committed + path)[s.history.prompt_length :])
            if self.constraint is None or place.mask is None:
                continue
            grammar = compile_constraint(self.constraint, self.model.vocabulary)
            matcher = grammar.matcher()
            assert all(matcher.advance(t) for t in place.prefix[s.history.prompt_length :])
            row = np.empty(s.vocabulary.mask_words, dtype=np.int32)
            matcher.mask_into(row)
            if s.sampling.ignore_eos:
                row[0] &= ~np.int32(3)
            assert np.array_equal(place.mask, row)

    def forward(self, tx: Transaction, share: int) -> None:
        s = self.sequence
        tokens, parents = tree_block(s.history.tokens[s.kv.length : tx.base], tx.drafts, tx.parents)
        self.model.score([Block(s.slot, tokens, want=len(tx.drafts) + 1, parents=parents)])
        kv, n = self.tree_cache, min(share, len(tx.drafts))
        tokens, parents = tree_block(s.history.tokens[kv.length : tx.base], tx.drafts[:n], tx.parents[:n])
        self.model.score([Block(kv.slot, tokens, want=1, parents=parents)])

    @precondition(lambda self: not self.sequence.finished)
    @rule(picks=picks_of, end=st.integers(0, 20), own=st.integers(0, 500), share=st.integers(0, 9))
    def commit(self, picks: Picks, end: int, own: int, share: int) -> None:
        s = self.sequence
        length = s.history.output_length
        with Transaction(s) as tx:
            self.grow(tx, picks)
            self.check_places(tx)
            self.forward(tx, share)
            node, path = end % (len(tx.drafts) + 1) - 1, list[int]()
            mask = tx.positions[node + 1].mask
            leaf = node not in tx.parents
            while node >= 0:
                path.insert(0, node)
                node = tx.parents[node]
            legal = [t for t in range(len(TOKENS)) if mask is None or (int(mask[t >> 5]) >> (t & 31)) & 1]
            token = legal[own % len(legal)] if legal else 0  # none only after an end, where the token is dropped
            run = [*(tx.drafts[i] for i in path), token]
            committed = tx.commit_path(path, token)
        n = len(committed.tokens)
        assert list(committed.tokens) == run[:n]
        assert 1 <= n <= len(path) + 1
        assert s.history.output_length == length + n == len(committed.origins) + length
        if n == len(path) + 1:
            assert committed.origins[-1] == ("bonus" if leaf else "recovered")
        assert self.tree_cache.length <= len(s.history) - 1

    @precondition(lambda self: not self.sequence.finished)
    @rule(picks=picks_of, forward=st.booleans())
    def abort(self, picks: Picks, forward: bool) -> None:
        before = self.sequence.fingerprint()
        with pytest.raises(RuntimeError, match="gone"), Transaction(self.sequence) as tx:
            self.grow(tx, picks)
            if forward:
                self.forward(tx, 5)
            raise RuntimeError("gone")
        assert self.sequence.fingerprint() == before

    @precondition(lambda self: not self.sequence.finished)
    @rule(picks=picks_of, path=st.lists(st.integers(-1, 9), min_size=1, max_size=4))
    def misuse(self, picks: Picks, path: list[int]) -> None:
        before = self.sequence.fingerprint()
        with pytest.raises(TransactionError), Transaction(self.sequence) as tx:
            self.grow(tx, picks)
            above, right = -1, True
            for node in path:
                right &= 0 <= node < len(tx.drafts) and tx.parents[node] == above
                above = node
            if right:
                tx.move(len(tx.drafts))
            tx.commit_path(path, 50)
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
        prints = s.fingerprints()
        del prints["kv1"], prints["kv2"]
        assert prints == fresh.fingerprints()
        assert s.visible_text() == fresh.visible_text()
        assert s.counts.accepted + s.counts.recovered + s.counts.bonus == len(s.output)
        assert len(s.output) <= self.sampling.max_tokens

    @invariant()
    def draft_caches_hold_committed_tokens_only(self) -> None:
        if hasattr(self, "sequence"):
            for cache in (self.tree_cache, self.chain_cache):
                held = self.model._slots[cache.slot]
                assert held == self.sequence.history.tokens[: len(held)]

    @invariant()
    def streamed_text_is_never_retracted(self) -> None:
        if hasattr(self, "sequence"):
            assert self.sequence.visible_text().startswith(self.shown)
            self.shown = self.sequence.visible_text()


TreeMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=10)
TestTrees = TreeMachine.TestCase


def test_a_history_branches_where_a_second_child_begins() -> None:
    """One history per branch, not per node: a chain that becomes a tree is copied once."""
    model = ToyModel(TOKENS, logits, eos_ids=(0, 1), capacity=CAPACITY)
    s = Sequence(
        prompt=[40, 41], sampling=Sampling(max_tokens=20), coins=Coins(0), vocabulary=model.vocabulary, target=model,
        slot=0, capacity=CAPACITY,
    )  # fmt: skip
    with Transaction(s) as tx:
        for token in (50, 51, 52):
            tx.extend(token, "x")
        assert all(p.history is s.history for p in tx.positions)
        assert not tx.is_tree
        tx.move(0)
        assert s.history.tokens == [40, 41, 50]
        assert tx.draft_room == 18
        tx.extend(60, "x")
        tx.extend(61, "x")
        assert tx.is_tree
        assert tx.parents == [-1, 0, 1, 0, 3]
        first, second = tx.positions[0].history, tx.positions[5].history
        assert [p.history is first for p in tx.positions] == [True, True, True, True, False, False]
        assert tx.positions[4].history is second is not s.history
        assert (first.tokens, second.tokens) == ([40, 41, 50, 51, 52], [40, 41, 50, 60, 61])
        assert s.history.tokens == second.tokens
    assert s.history.tokens == [40, 41]


def test_an_end_closes_its_own_branch_only() -> None:
    model = ToyModel(TOKENS, logits, eos_ids=(0, 1), capacity=CAPACITY)
    s = Sequence(
        prompt=[40], sampling=Sampling(max_tokens=20), coins=Coins(0), vocabulary=model.vocabulary, target=model,
        slot=0, capacity=CAPACITY,
    )  # fmt: skip
    with Transaction(s) as tx:
        tx.extend(50, "x")
        tx.extend(0, "x")
        assert tx.closed
        assert tx.draft_room == 0
        tx.move(0)
        assert not tx.closed
        tx.extend(51, "x")
        tx.move(1)
        with pytest.raises(TransactionError, match="ends"):
            tx.extend(52, "x")
        tokens, parents = tree_block([40], tx.drafts, tx.parents)
        assert (tokens, parents) == ([40, 50, 0, 51], [-1, 0, 1, 1])
        model.score([Block(0, tokens, want=4, parents=parents)])
        commit = tx.commit_path([0, 2], 52)
    assert commit.tokens == (50, 51, 52)
    assert s.finish_reason is None
    assert model._slots[0] == [40, 50, 51]


def test_all_drafts_of_a_tree_fit_into_the_slot() -> None:
    model = ToyModel(TOKENS, logits, eos_ids=(0, 1), capacity=6)
    s = Sequence(
        prompt=[40, 41], sampling=Sampling(max_tokens=20), coins=Coins(0), vocabulary=model.vocabulary, target=model,
        slot=0, capacity=6,
    )  # fmt: skip
    with Transaction(s) as tx:
        for token in range(50, 60):
            tx.move(-1)
            if tx.draft_room:
                tx.extend(token, "x")
        tokens, parents = tree_block(s.history.tokens[: tx.base], tx.drafts, tx.parents)
        model.score([Block(0, tokens, want=1, parents=parents)])
        assert model.length(0) == 6 == len(tokens)
        tx.commit_path([3], 70)
    assert s.output == [53, 70]
