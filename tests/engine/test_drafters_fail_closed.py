"""A drafter that raises, lies or breaks is switched off with its reason; the text stays target-only's."""

from __future__ import annotations

from collections.abc import Sequence as Seq

import pytest
import torch
from torch import Tensor

from constrained_spec.backends.toy import ToyModel
from constrained_spec.coins import Coins
from constrained_spec.config import Sampling
from constrained_spec.drafters.base import Drafter, Proposal
from constrained_spec.drafters.model import ModelDrafter, require_same_vocabulary
from constrained_spec.drafters.ngram import NgramDrafter, NgramIndex
from constrained_spec.engine.round import Row, run_round
from constrained_spec.errors import DeadEndError, VocabularyMismatchError
from constrained_spec.grammars.compile import Regex, compile_constraint
from constrained_spec.processors.pipeline import Pipeline
from constrained_spec.state.sequence import Sequence
from constrained_spec.types import History
from tests.engine.plain import Stateless

TOKENS = (None, b"a", b"b", b"c", b"d")


def logits(prefix: tuple[int, ...]) -> Tensor:
    return torch.randn(5, generator=torch.Generator().manual_seed(hash(prefix) & 0xFFFF)) - torch.tensor(
        [3.0, 0, 0, 0, 0]
    )


def toy(tokens: Seq[bytes | None] = TOKENS, nan: bool = False) -> ToyModel:
    def draft(prefix: tuple[int, ...]) -> Tensor:
        row = torch.zeros(len(tokens))
        row[: min(5, len(tokens))] = logits(prefix)[: len(tokens)]
        return row * float("nan") if nan else row

    return ToyModel(tokens, draft, eos_ids=(0,), slots=1, capacity=64)


class Broken(Stateless):
    """Proposes one legal guess, then does ``how``."""

    name = "broken"

    def __init__(self, how: str) -> None:
        self.how = how

    def propose(self, proposals: Seq[Proposal]) -> None:
        for p in proposals:
            p.point(1, self.name)
            if self.how == "raise":
                raise ValueError("no idea")
            if self.how == "id":
                p.point(99, self.name)
            if self.how == "negative":
                p.point(-1, self.name)
            if self.how == "illegal":
                p.sampled(4, torch.ones(5) / 5, self.name)


def decode(drafter: Drafter | None, *, pattern: str | None = r"[abc]{12}", seed: int = 3) -> Sequence:
    model = toy()
    grammar = None if pattern is None else compile_constraint(Regex(pattern), model.vocabulary)
    s = Sequence(
        prompt=[1, 2, 1], sampling=Sampling(max_tokens=12), coins=Coins(seed), vocabulary=model.vocabulary,
        target=model, slot=0, capacity=64, matcher=grammar.matcher() if grammar else None,
    )  # fmt: skip
    if drafter is not None:
        drafter.open(s)
    while not s.finished:
        run_round(model, Pipeline(model.vocabulary), [Row(s, drafter, 4, "coupling")])
    return s


@pytest.mark.parametrize(
    ("how", "reason"), [("raise", "no idea"), ("id", "99"), ("negative", "-1"), ("illegal", "forbids")]
)
def test_a_faulty_drafter_is_disabled_and_the_text_stays(how: str, reason: str) -> None:
    s = decode(Broken(how))
    assert reason in s.disabled["broken"]
    assert s.output == decode(None).output
    assert s.counts.proposed == 1  # what it validly said before stays in its block; then it is silent


def test_nan_logits_disable_the_draft_model() -> None:
    target = toy()
    drafter = ModelDrafter(toy(nan=True), Pipeline(target.vocabulary), target.vocabulary)
    s = decode(drafter)
    assert "not finite" in s.disabled["model"]
    assert s.output == decode(None).output


def test_a_padded_tail_is_tolerated_and_other_text_is_not() -> None:
    target = toy().vocabulary
    padded = toy((*TOKENS, None, None))
    require_same_vocabulary(target, padded.vocabulary)
    s = decode(ModelDrafter(padded, Pipeline(target), target))
    assert not s.disabled
    assert s.output == decode(None).output
    assert s.counts.accepted > 0
    with pytest.raises(VocabularyMismatchError, match="id 2"):
        require_same_vocabulary(target, toy((None, b"a", b"x", b"c", b"d")).vocabulary)
    with pytest.raises(VocabularyMismatchError, match="not padding"):
        require_same_vocabulary(target, toy((*TOKENS, b"e")).vocabulary)


def test_a_dead_end_is_a_typed_error_and_leaves_the_state() -> None:
    model = toy()
    grammar = compile_constraint(Regex("[ab]{4}"), model.vocabulary)
    s = Sequence(
        prompt=[1], sampling=Sampling(max_tokens=9, suppress_tokens=(1, 2)), coins=Coins(0), slot=0, capacity=64,
        vocabulary=model.vocabulary, target=model, matcher=grammar.matcher(),
    )  # fmt: skip
    before = s.fingerprint()
    [outcome] = run_round(model, Pipeline(model.vocabulary), [Row(s, None, 0, "coupling")]).outcomes
    assert isinstance(outcome, DeadEndError)
    assert s.fingerprint() == before


def test_context_room_caps_the_block() -> None:
    model = ToyModel(TOKENS, logits, eos_ids=(0,), slots=1, capacity=6)
    s = Sequence(
        prompt=[1, 2, 1], sampling=Sampling(max_tokens=50), coins=Coins(0), slot=0, capacity=6,
        vocabulary=model.vocabulary, target=model,
    )  # fmt: skip
    drafter = NgramDrafter()
    drafter.open(s)
    while not s.finished:
        run_round(model, Pipeline(model.vocabulary), [Row(s, drafter, 8, "coupling")])
    assert len(s.history) <= 6
    assert s.finish_reason == ("stop" if s.output[-1] == 0 else "length")


def test_the_ngram_index_is_incremental_and_rolls_back() -> None:
    history = History([5, 6, 7, 5, 6])
    index = NgramIndex(history, 3)
    assert [*index.matches([5, 6])] == [2, 2]  # after the first (5, 6), and the first 6, came the 7 at index 2
    assert [*index.matches([5, 6], shortest=2)] == [2]
    assert [*index.matches([9, 5])] == [4]  # the latest 5 was followed by the 6 at index 4
    assert [*index.matches([9])] == []
    before, mark = index.fingerprint(), index.mark()
    for token in (7, 8, 5):
        index.advance(token)
        history.append(token)
    assert index.fingerprint() == NgramIndex(History([5, 6, 7, 5, 6, 7, 8, 5]), 3).fingerprint()
    assert next(index.matches([5, 6, 7])) == 6
    index.rollback(mark)
    history.truncate(5)
    assert index.fingerprint() == before


def test_two_open_requests_never_share_a_slot_of_the_draft_model() -> None:
    target = ToyModel(TOKENS, logits, eos_ids=(0,), slots=2, capacity=64)
    draft = ToyModel(TOKENS, logits, eos_ids=(0,), slots=2, capacity=64)
    drafter = ModelDrafter(draft, Pipeline(target.vocabulary), target.vocabulary)
    rows = []
    for slot, (prompt, verifier) in enumerate((([1, 2, 1], "coupling"), ([3, 4], "invariant"))):
        s = Sequence(
            prompt=prompt, sampling=Sampling(max_tokens=12, temperature=1.0), coins=Coins(slot), slot=slot,
            capacity=64, vocabulary=target.vocabulary, target=target,
        )  # fmt: skip
        drafter.open(s)
        rows.append(Row(s, drafter, 4, verifier))
    assert rows[0].sequence.caches[1].slot != rows[1].sequence.caches[1].slot
    while rows:
        run_round(target, Pipeline(target.vocabulary), rows)
        for row in rows:
            assert not row.sequence.disabled
            # The draft is the target itself, so whatever it drafts is kept unless the request ends first.
            assert row.sequence.finished or row.sequence.counts.accepted == row.sequence.counts.proposed
        rows = [row for row in rows if not row.sequence.finished]
