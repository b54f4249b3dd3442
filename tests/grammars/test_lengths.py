"""Ends within a number of tokens: exact on token automata, always finished where grammars are searched."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest

from constrained_spec.errors import RequestError, UnsatisfiableError
from constrained_spec.grammars import distances
from constrained_spec.grammars.base import Matcher
from constrained_spec.grammars.compile import All, Choice, Constraint, JsonSchema, Lark, Regex, compile_constraint
from constrained_spec.grammars.dfa import DfaGrammar
from constrained_spec.grammars.distances import FAR
from constrained_spec.grammars.lengths import CloseOnLength
from constrained_spec.grammars.tokens import is_set
from constrained_spec.grammars.tracking import TrackingMatcher
from constrained_spec.types import Vocabulary

REGULAR: list[Constraint] = [
    Regex("[ab]{3,12}(-[0-9]{2})?"),
    Regex("(abab|c{5})+x"),
    Choice(("abab", "abacus", "ba", "maybe", "2024-0")),
    Regex("(true|a{9}|null!)*\\."),
]


def mask(matcher: Matcher, vocabulary: Vocabulary) -> list[int]:
    row = np.full(vocabulary.mask_words, -1, np.int32)
    matcher.mask_into(row)
    return [i for i in range(vocabulary.size) if is_set(row, i)]


def fresh(constraint: Constraint, vocabulary: Vocabulary, tokenization: str = "any") -> TrackingMatcher:
    matcher = compile_constraint(constraint, vocabulary, tokenization=tokenization).matcher()
    assert isinstance(matcher, TrackingMatcher)
    return matcher


def brute_force(matcher: Matcher, vocabulary: Vocabulary, limit: int) -> int:
    """Tokens of the shortest completion, by trying all: one matcher per distinct text after each token."""
    level, seen = [matcher.fork()], set[bytes]()
    for distance in range(limit + 1):
        if any(m.is_complete for m in level):
            return distance
        following = []
        for m in level:
            for token in mask(m, vocabulary):
                twin = m.fork()
                assert twin.advance(token)
                key = repr((twin.state, mask(twin, vocabulary))).encode()  # type: ignore[attr-defined]
                if key not in seen:
                    seen.add(key)
                    following.append(twin)
        level = following
    return limit + 1


@pytest.mark.parametrize("constraint", REGULAR)
@pytest.mark.parametrize("tokenization", ["any", "canonical"])
@pytest.mark.parametrize("table", [True, False])
def test_distances_are_those_of_brute_force(
    constraint: Constraint, tokenization: str, table: bool, vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    matcher = fresh(constraint, vocabulary, tokenization)
    grammar = compile_constraint(constraint, vocabulary, tokenization=tokenization)
    assert isinstance(grammar, DfaGrammar)
    if not table:
        monkeypatch.setattr(distances, "MAX_TABLE_STATES", 0)
    measured = distances.TokenDistances(grammar)
    rng = random.Random(repr(constraint))
    for _ in range(4):
        assert measured.shortest(matcher.state) == brute_force(matcher, vocabulary, 12)  # type: ignore[attr-defined]
        legal = [t for t in mask(matcher, vocabulary) if t > 1]
        if not legal:
            break
        assert matcher.advance(rng.choice(legal))


@pytest.mark.parametrize("constraint", REGULAR)
@pytest.mark.parametrize("tokenization", ["any", "canonical"])
def test_a_token_is_legal_exactly_if_an_end_fits_behind_it(
    constraint: Constraint, tokenization: str, vocabulary: Vocabulary
) -> None:
    plain = fresh(constraint, vocabulary, tokenization)
    need = brute_force(plain, vocabulary, 12) + 1
    with pytest.raises(UnsatisfiableError):
        CloseOnLength(fresh(constraint, vocabulary, tokenization), need - 1)
    rng = random.Random(repr(constraint))
    for budget in (need, need + 1, need + 3):
        plain = fresh(constraint, vocabulary, tokenization)
        closing = CloseOnLength(fresh(constraint, vocabulary, tokenization), budget)
        for used in range(budget + 1):
            left = budget - used
            wanted = []
            for token in mask(plain, vocabulary):
                twin = plain.fork()
                assert twin.advance(token)
                rest = 0 if token in (0, 1) else brute_force(twin, vocabulary, left) + 1
                if rest + 1 <= left:
                    wanted.append(token)
            legal = mask(closing, vocabulary)
            assert legal == wanted
            assert closing.is_complete == (0 in legal)
            if not [t for t in legal if t > 1]:
                break
            token = rng.choice([t for t in legal if t > 1])
            assert plain.advance(token) and closing.advance(token)
        assert closing.is_complete


SEARCHED: list[Constraint] = [
    JsonSchema({"type": "object", "properties": {"s": {"type": "string"}, "n": {"type": "null"}}, "required": ["n"]}),
    JsonSchema({"type": "array", "items": {"enum": ["yes", "no", [1, [2]]]}, "minItems": 1}),
    JsonSchema({"type": "array", "items": {"type": "array", "items": {"$ref": "#"}}}),
    Lark('start: "a" start "b" | "ab"'),
    All(JsonSchema({"type": "string"}), Regex('"[a-z ]*"')),
]  # fmt: skip


@pytest.mark.parametrize("constraint", SEARCHED)
@pytest.mark.parametrize("budget", [24, 40])
def test_searched_grammars_end_in_a_complete_value(constraint: Constraint, budget: int, vocabulary: Vocabulary) -> None:
    for seed in range(3):
        rng = random.Random(seed)
        matcher = CloseOnLength(fresh(constraint, vocabulary), budget)
        ids: list[int] = []
        while len(ids) < budget:
            legal = mask(matcher, vocabulary)
            assert legal, (ids, vocabulary.bytes_of(ids))
            text = [t for t in legal if t > 1]
            if not text:
                break
            ids.append(rng.choice(text))
            assert matcher.advance(ids[-1])
        assert matcher.is_complete and len(ids) < budget
        assert matcher.advance(0) and mask(matcher, vocabulary) == []
        if isinstance(constraint, JsonSchema):
            json.loads(vocabulary.bytes_of(ids))


@pytest.mark.parametrize("constraint", [REGULAR[0], SEARCHED[0], SEARCHED[3], SEARCHED[4]])
def test_the_mask_is_a_function_of_the_consumed_tokens(constraint: Constraint, vocabulary: Vocabulary) -> None:
    rng = random.Random(7)
    budget = 22
    matcher, prefix = CloseOnLength(fresh(constraint, vocabulary), budget), list[int]()
    for step in range(24):
        legal = mask(matcher, vocabulary)
        before = matcher.fingerprint()
        for token in [*rng.sample(range(vocabulary.size), 40), *legal[:20], -1, vocabulary.size]:
            mark = matcher.mark()
            assert matcher.advance(token) == (token in legal)
            matcher.rollback(mark)
        assert matcher.fingerprint() == before
        twin = matcher.fork()
        if legal and rng.random() < 0.75:
            prefix.append(rng.choice(legal))
            assert matcher.advance(prefix[-1])
        elif prefix:
            keep = rng.randrange(len(prefix))
            matcher.rollback(keep)
            del prefix[keep:]
        assert twin.fingerprint() == before
        again = CloseOnLength(fresh(constraint, vocabulary), budget)
        assert all(again.advance(t) for t in prefix), step
        assert again.fingerprint() == matcher.fingerprint()
        assert again.is_finished == matcher.is_finished
        spelled = matcher.forced_tokens()
        probe = matcher.fork()
        assert all(probe.advance(t) for t in spelled)
        rows = np.empty((len(spelled) + 1, vocabulary.mask_words), np.int32)
        assert matcher.draft_masks(spelled, rows) == len(spelled)


@pytest.mark.parametrize("constraint", [JsonSchema({"enum": ["x" * 300]}), Lark('start: "' + "ab-" * 300 + '"')])
def test_what_cannot_end_in_time_is_refused(constraint: Constraint, vocabulary: Vocabulary) -> None:
    with pytest.raises(RequestError) as caught:
        CloseOnLength(fresh(constraint, vocabulary), 50)
    assert caught.value.param == "max_tokens" and caught.value.hint


def test_a_large_automaton_is_bounded_by_bytes(vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distances, "MAX_TABLE_STATES", 5)
    monkeypatch.setattr(distances, "MAX_SEARCH_STATES", 3)
    grammar = compile_constraint(Regex("(ab){10,700}-"), vocabulary)
    assert isinstance(grammar, DfaGrammar)
    measured = distances.TokenDistances(grammar)
    assert 6 <= measured.shortest(0) <= 21 < FAR
    row = measured.closing_row(0, measured.shortest(0) + 1)
    assert row.any()
