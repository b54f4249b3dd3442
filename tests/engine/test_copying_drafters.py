"""What the two drafters that need no model propose, place by place."""

from __future__ import annotations

import pytest
import torch

from constrained_spec.backends.toy import ToyModel
from constrained_spec.coins import Coins
from constrained_spec.config import Sampling
from constrained_spec.drafters.appetite import LEAST, START, Appetite
from constrained_spec.drafters.base import Drafter, Proposal
from constrained_spec.drafters.forced import ForcedDrafter
from constrained_spec.drafters.ngram import NgramDrafter, _continuation
from constrained_spec.grammars.compile import Regex, compile_constraint
from constrained_spec.state.sequence import Sequence
from constrained_spec.state.transaction import Transaction

TOKENS = [None, b"a", b"d", b"ad", b" ad", b" ", b"n", b"na", b",", b"x"]
END, A, D, AD, SPACE_AD, SPACE, N, NA, COMMA, X = range(10)


def sequence(prompt: list[int], regex: str | None = None) -> Sequence:
    model = ToyModel(TOKENS, lambda _: torch.zeros(len(TOKENS)), eos_ids=(END,), capacity=64)
    grammar = None if regex is None else compile_constraint(Regex(regex), model.vocabulary)
    return Sequence(
        prompt=prompt, sampling=Sampling(max_tokens=40), coins=Coins(0), slot=0, capacity=64,
        vocabulary=model.vocabulary, target=model, matcher=None if grammar is None else grammar.matcher(),
    )  # fmt: skip


def drafts(s: Sequence, drafter: Drafter, budget: int = 8) -> list[int]:
    drafter.open(s)
    with Transaction(s) as tx:
        proposal = Proposal(tx, budget, "coupling")
        drafter.propose([proposal])
        assert set(tx.sources) <= {drafter.name}
        return list(proposal.tokens)


def commit(s: Sequence, *tokens: int) -> None:
    for token in tokens:
        with Transaction(s) as tx:
            tx.commit(0, token)


def test_a_shorter_match_is_asked_where_the_longest_continues_illegally() -> None:
    s = sequence([X, A, N, X, D, A, COMMA, X, A], "(d|,)*")
    # After (x, a) came n, which the grammar forbids; after the latest a came the comma, which it allows.
    assert drafts(s, NgramDrafter()) == [COMMA]


def test_text_is_copied_where_its_tokens_differ() -> None:
    s = sequence([SPACE_AD, NA, COMMA, X, A])
    commit(s, D)
    # " ad" was one token, "a" "d" are two: no n-gram of tokens is known, the text is. Behind it stood "na,x" "a".
    assert drafts(s, NgramDrafter(), 3) == [NA, COMMA, X]


def test_text_is_never_copied_over_what_has_no_text() -> None:
    s = sequence([SPACE_AD, NA, END, X, A])
    commit(s, D)
    assert drafts(s, NgramDrafter()) == [NA]


def test_forced_text_is_drafted_as_it_was_spelled_before() -> None:
    s = sequence([X], "ad,ad,ad")
    drafter = ForcedDrafter(NgramDrafter())
    assert drafts(s, drafter) == [AD, COMMA, AD, COMMA, AD]
    s = sequence([X], "(ad,)+x")
    drafter = ForcedDrafter(NgramDrafter())
    drafter.open(s)
    commit(s, A, D, COMMA, A)
    # The canonical rest is the same here; what follows the comma is not forced.
    assert drafts(s, drafter) == [D, COMMA]
    s = sequence([X], "na,(ad,na,)+")
    drafter = ForcedDrafter(NgramDrafter())
    drafter.open(s)
    commit(s, N, A, COMMA, A, D, COMMA, N)
    assert drafts(s, drafter) == [A, COMMA]
    commit(s, A, COMMA, A)
    # Canonically "na" is one token; the sequence spelled it "n" "a" after "d" ",".
    assert drafts(s, drafter) == [D, COMMA, N, A, COMMA]


@pytest.mark.parametrize(
    ("text", "end"),
    [(b"", None), (b"ab", None), (b"aaaa", 3), (b"abcab", 2), (b"xabyab", 3), (b"abcxbcyabc", 3), (b"a" * 50, 49)],
)
def test_the_latest_longest_ending(text: bytes, end: int | None) -> None:
    assert _continuation(text) == end


def test_a_source_offers_less_after_it_was_wrong_and_more_after_it_was_right() -> None:
    s = sequence([X])
    appetite = Appetite("ngram")

    def after(proposed: int, accepted: int) -> int:
        row = s.counts.by_source.setdefault("ngram", [0, 0])
        row[0] += proposed
        row[1] += accepted
        s.counts.rounds += 1
        with Transaction(s) as tx:
            return appetite.left(Proposal(tx, 64, "coupling"))

    assert after(0, 0) == START  # nothing was offered: nothing is known
    assert [after(START, 0), after(8, 0), after(4, 0), after(4, 0)] == [8, 4, LEAST, LEAST]
    assert [after(4, 4), after(8, 8), after(16, 16)] == [8, 16, 32]
    assert after(32, 3) == 32, "a long copy that ended is no reason to offer less"
    assert after(32, 0) == 16
    with Transaction(s) as tx:
        assert appetite.left(Proposal(tx, 5, "coupling")) == 5, "the block's budget is kept"
