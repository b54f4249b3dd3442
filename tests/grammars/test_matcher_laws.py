"""Laws that every matcher obeys, whatever its language and engine: brute force and random walks."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from constrained_spec.grammars.base import Grammar, Matcher
from constrained_spec.grammars.compile import Choice, Constraint, JsonSchema, Lark, Regex, compile_constraint
from constrained_spec.grammars.tokens import is_set
from constrained_spec.types import Vocabulary

EOS = (0, 1)
OBJECT = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"], "additionalProperties": False}
CONSTRAINTS: dict[str, Constraint] = {
    "regex": Regex(r"[ab]{3,12}(-[0-9]{2})?"),
    "emoji": Regex("[😀-🙏é]+"),
    "lookahead": Regex(r"(?!ab)[a-c]{1,6}"),
    "regex-on-llguidance": Regex(r"(a|b)*a(a|b){18}"),
    "choice": Choice(("abab", "ababab", "abacus", "ba", "ab")),
    "choice-with-empty": Choice(("", "ab", "abc", "ab")),
    "boolean-schema": JsonSchema({"type": "boolean"}),
    "object": JsonSchema(OBJECT),
    "flexible": JsonSchema(
        {"type": "array", "items": {"enum": ["yes", "no", None, 1.5]}, "maxItems": 3}, whitespace="flexible"
    ),
    "bounded": JsonSchema({"type": ["array", "boolean"], "items": {"$ref": "#"}}, max_depth=2),
    "recursive-lark": Lark('start: "a" start "b" | "ab"'),
    "special-lark": Lark('start: "a" <|tool|> /[0-9]+/'),
}
NAMES = sorted(CONSTRAINTS)
RELAXED = settings(
    max_examples=12, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def mask(matcher: Matcher, vocabulary: Vocabulary) -> list[int]:
    row = np.full(vocabulary.mask_words, -1, np.int32)
    matcher.mask_into(row)
    assert not any(is_set(row, i) for i in range(vocabulary.size, vocabulary.mask_words * 32))
    return [i for i in range(vocabulary.size) if is_set(row, i)]


def replay(grammar: Grammar, tokens: list[int]) -> Matcher:
    matcher = grammar.matcher()
    assert all(matcher.advance(t) for t in tokens)
    return matcher


@pytest.fixture(params=["any", "canonical"])
def tokenization(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("name", NAMES)
def test_a_mask_bit_is_set_exactly_when_advance_succeeds(name: str, vocabulary: Vocabulary, tokenization: str) -> None:
    grammar = compile_constraint(CONSTRAINTS[name], vocabulary, tokenization=tokenization)
    rng = random.Random(name)
    for _ in range(4):
        matcher = grammar.matcher()
        for _ in range(12):
            legal = mask(matcher, vocabulary)
            before = matcher.fingerprint()
            for token in (*range(vocabulary.size), -1, vocabulary.size, 10**9):
                mark = matcher.mark()
                taken = matcher.advance(token)
                assert taken == (token in legal), (token, taken)
                matcher.rollback(mark)
            assert matcher.fingerprint() == before
            # EOS exactly where stopping is allowed; finished exactly where nothing else is.
            assert all((e in legal) == matcher.is_complete for e in EOS)
            assert matcher.is_finished == (matcher.is_complete and not set(legal) - set(EOS))
            text = [t for t in legal if t not in EOS]
            if not text:
                break
            assert matcher.advance(rng.choice(text))


@pytest.mark.parametrize("name", NAMES)
def test_nothing_follows_eos_and_rollback_crosses_it(name: str, vocabulary: Vocabulary, tokenization: str) -> None:
    grammar = compile_constraint(CONSTRAINTS[name], vocabulary, tokenization=tokenization)
    rng = random.Random(name)
    for eos in EOS:
        matcher, prefix = grammar.matcher(), list[int]()
        for _ in range(400):
            if matcher.is_complete:
                break
            assert not matcher.advance(eos)
            prefix.append(rng.choice([t for t in mask(matcher, vocabulary) if t not in EOS]))
            assert matcher.advance(prefix[-1])
        if not matcher.is_complete:
            continue  # a recursive language may not end by chance
        mark, before = matcher.mark(), matcher.fingerprint()
        assert matcher.advance(eos)
        assert matcher.is_finished and matcher.is_complete
        assert mask(matcher, vocabulary) == []
        assert matcher.forced() == b"" and matcher.forced_tokens() == []
        assert not any(matcher.advance(t) for t in range(vocabulary.size))
        assert matcher.fingerprint() != before
        matcher.rollback(mark)
        assert matcher.fingerprint() == before
        if mark:
            matcher.advance(eos)
            matcher.rollback(mark - 1)  # over EOS and one real token
            assert matcher.fingerprint() == replay(grammar, prefix[:-1]).fingerprint()


@pytest.mark.parametrize("name", NAMES)
@RELAXED
@given(data=st.data())
def test_rollback_undoes_any_run_at_every_cut(name: str, vocabulary: Vocabulary, data: st.DataObject) -> None:
    grammar = compile_constraint(
        CONSTRAINTS[name], vocabulary, tokenization=data.draw(st.sampled_from(["any", "canonical"]))
    )
    matcher = grammar.matcher()
    marks, prints = [matcher.mark()], [matcher.fingerprint()]
    for _ in range(data.draw(st.integers(0, 14))):
        legal = mask(matcher, vocabulary)
        if not legal:
            break
        # EOS now and then: runs go up to and past it.
        assert matcher.advance(data.draw(st.sampled_from(legal)))
        marks.append(matcher.mark())
        prints.append(matcher.fingerprint())
    for cut in data.draw(st.lists(st.integers(0, len(marks) - 1), max_size=4).map(lambda x: sorted(x, reverse=True))):
        matcher.rollback(marks[cut])
        assert matcher.fingerprint() == prints[cut]


@pytest.mark.parametrize("name", NAMES)
@RELAXED
@given(data=st.data())
def test_the_mask_is_a_function_of_the_prefix(name: str, vocabulary: Vocabulary, data: st.DataObject) -> None:
    """Steps, refusals, rollbacks, forks and drafts in any order, against a fresh matcher."""
    grammar = compile_constraint(
        CONSTRAINTS[name], vocabulary, tokenization=data.draw(st.sampled_from(["any", "canonical"]))
    )
    matcher, prefix = grammar.matcher(), list[int]()
    forks: list[tuple[Matcher, bytes]] = []
    for _ in range(data.draw(st.integers(1, 16))):
        legal = mask(matcher, vocabulary)
        move = data.draw(st.sampled_from(["step", "step", "step", "refused", "rollback", "fork", "draft", "forced"]))
        if move == "step" and legal:
            prefix.append(data.draw(st.sampled_from(legal)))
            assert matcher.advance(prefix[-1])
        elif move == "refused":
            token = data.draw(st.integers(0, vocabulary.size - 1))
            if token not in legal:
                assert not matcher.advance(token)
        elif move == "rollback":
            keep = data.draw(st.integers(0, len(prefix)))
            matcher.rollback(keep)
            del prefix[keep:]
        elif move == "fork":
            forks.append((matcher, matcher.fingerprint()))
            matcher = matcher.fork()
        elif move == "draft":
            draft = data.draw(st.lists(st.integers(0, vocabulary.size - 1), max_size=4))
            matcher.draft_masks(draft, np.empty((len(draft) + 1, vocabulary.mask_words), np.int32))
        else:
            matcher.forced_tokens()
        fresh = replay(grammar, prefix)
        assert matcher.fingerprint() == fresh.fingerprint()
        assert matcher.is_finished == fresh.is_finished
        assert matcher.forced() == fresh.forced()
    for twin, left in forks:
        assert twin.fingerprint() == left  # the other one's moves did not reach it


@pytest.mark.parametrize("name", NAMES)
def test_draft_masks_equal_sequential_masks(name: str, vocabulary: Vocabulary, tokenization: str) -> None:
    grammar = compile_constraint(CONSTRAINTS[name], vocabulary, tokenization=tokenization)
    rng = random.Random(name)
    for length in (0, 1, 4, 8):
        walker, draft = grammar.matcher(), list[int]()
        for i in range(length):
            legal = mask(walker, vocabulary)
            wrong = i == 6 or not legal
            draft.append(rng.randrange(vocabulary.size) if wrong else rng.choice(legal))
            walker.advance(draft[-1])
        matcher = grammar.matcher()
        before = matcher.fingerprint()
        rows = np.full((length + 1, vocabulary.mask_words), -1, np.int32)
        legal_count = matcher.draft_masks(draft, rows)
        assert matcher.fingerprint() == before
        expected = np.zeros_like(rows)
        walker = grammar.matcher()
        walker.mask_into(expected[0])
        count = 0
        while count < length and walker.advance(draft[count]):
            count += 1
            walker.mask_into(expected[count])
        assert legal_count == count
        assert np.array_equal(rows, expected)


@pytest.mark.parametrize("name", NAMES)
def test_forced_bytes_are_the_only_continuation(name: str, vocabulary: Vocabulary) -> None:
    """Every legal token spells a beginning of the forced bytes, or all of them and more."""
    grammar = compile_constraint(CONSTRAINTS[name], vocabulary)
    rng = random.Random(name)
    for _ in range(6):
        matcher = grammar.matcher()
        for _ in range(10):
            forced = matcher.forced()
            legal = mask(matcher, vocabulary)
            if forced:
                assert not matcher.is_complete
                for token in legal:
                    piece = vocabulary.tokens[token]
                    assert piece is not None and (piece.startswith(forced) or forced.startswith(piece))
            spelled = matcher.forced_tokens()
            assert forced.startswith(vocabulary.bytes_of(spelled)) and not set(spelled) & {0, 1, 2, 3}
            assert replay(grammar, []).draft_masks([], np.empty((1, vocabulary.mask_words), np.int32)) == 0
            probe = matcher.fork()
            assert all(probe.advance(t) for t in spelled)
            legal = [t for t in legal if t not in EOS]
            if not legal:
                break
            assert matcher.advance(rng.choice(legal))
