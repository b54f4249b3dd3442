"""Random combinations against membership worked out in Python, on automata and on llguidance."""

from __future__ import annotations

import itertools
import random
import re

import pytest

from constrained_spec.errors import RequestError, UnsatisfiableError
from constrained_spec.grammars import automaton, combine
from constrained_spec.grammars.base import Grammar
from constrained_spec.grammars.compile import (
    All,
    Choice,
    Constraint,
    JsonSchema,
    Lazy,
    Optional,
    Regex,
    Tag,
    Tagged,
    Then,
    Without,
    compile_constraint,
)
from constrained_spec.grammars.constraints import children
from constrained_spec.grammars.dfa import DfaGrammar
from constrained_spec.grammars.llg import LlgGrammar
from constrained_spec.grammars.tokens import token_index
from constrained_spec.types import Vocabulary

PATTERNS = ("a*", "a|b", "(ab)+", "[ab]{1,3}", "b?a", "c", ".*", "a.*", "(?!b)[abc]{0,2}")
TEXTS = ["".join(w) for n in range(6) for w in itertools.product("abc", repeat=n)]


def draw(rng: random.Random, depth: int) -> Constraint:
    kind = rng.randrange(9) if depth else 0
    if kind <= 1:
        return Regex(rng.choice(PATTERNS)) if rng.random() < 0.7 else Choice(tuple(rng.sample(TEXTS[:40], 4)))
    if kind == 2:
        return All(draw(rng, depth - 1), draw(rng, depth - 1))
    if kind == 3:
        return Without(draw(rng, depth - 1), rng.choice(("aa", "b", "ca|ab", "c$")))
    if kind <= 5:
        return Then(*(draw(rng, depth - 1) for _ in range(rng.randrange(2, 4))))
    if kind == 6:
        return Optional(draw(rng, depth - 1))
    if kind == 7:
        return Lazy(rng.choice(("a", "ab", "aba", "cc")), draw(rng, depth - 1))
    ends = rng.choice(
        ((Tag("ab", draw(rng, depth - 1), "c"),), (Tag("b", draw(rng, 0), "b"), Tag("cc", Regex("a*"), "ba")))
    )
    return Tagged(ends, rng.random() < 0.3, rng.random() < 0.3)


def member(constraint: Constraint, text: str) -> bool:
    if isinstance(constraint, Regex):
        return re.fullmatch(constraint.pattern, text) is not None
    if isinstance(constraint, Choice):
        return text in constraint.options
    if isinstance(constraint, All):
        return all(member(p, text) for p in constraint.parts)
    if isinstance(constraint, Without):
        assert isinstance(constraint.banned, str)
        pattern = constraint.banned.removesuffix("$")  # an anchor at the end of a whole match says nothing
        return member(constraint.base, text) and re.search(pattern, text) is None
    if isinstance(constraint, Optional):
        return not text or member(constraint.part, text)
    if isinstance(constraint, Then):
        first, *rest = constraint.parts
        if not rest:
            return member(first, text)
        return any(member(first, text[:i]) and member(Then(*rest), text[i:]) for i in range(len(text) + 1))
    if isinstance(constraint, Lazy):
        _, found, after = text.partition(constraint.trigger)
        return not found or member(constraint.constraint, after)
    assert isinstance(constraint, Tagged)
    return tagged(constraint, text, constraint.at_least_one)


def tagged(constraint: Tagged, text: str, needed: bool) -> bool:
    hits = [(text.find(tag.begin) + len(tag.begin), tag) for tag in constraint.tags if tag.begin in text]
    if not hits:
        return not needed
    at, tag = min(hits, key=lambda hit: hit[0])
    inner, found, rest = text[at:].partition(tag.end)
    if not found or not member(tag.constraint, inner):
        # The end may also overlap what the constraint allows: its first appearance in text and end counts.
        return False
    return not rest if constraint.stop_after_first else tagged(constraint, rest, False)


def has_empty_part(constraint: Constraint) -> bool:
    """A part without a text is refused wherever it stands: nobody means it."""
    if isinstance(constraint, Tagged):
        for tag in constraint.tags:
            inner = [word for word in TEXTS if member(tag.constraint, word)]
            if not any((word + tag.end).find(tag.end) == len(word) for word in inner):
                return True
    return not any(member(constraint, text) for text in TEXTS) or any(map(has_empty_part, children(constraint)))


def accepts(grammar: Grammar, text: str) -> bool:
    matcher = grammar.matcher()
    return all(matcher.advance(5 + b) for b in text.encode()) and matcher.is_complete


@pytest.mark.parametrize("seed", range(60))
def test_regular_combinations(seed: int, vocabulary: Vocabulary) -> None:
    constraint = draw(random.Random(seed), 3)
    legal = {text for text in TEXTS if member(constraint, text)}
    try:
        grammar = compile_constraint(constraint, vocabulary)
    except UnsatisfiableError:
        assert has_empty_part(constraint)
        return
    assert isinstance(grammar, DfaGrammar)
    assert {text for text in TEXTS if accepts(grammar, text)} == legal, constraint


@pytest.mark.parametrize("seed", range(60))
def test_the_same_before_a_json_value(seed: int, vocabulary: Vocabulary) -> None:
    """On llguidance: the combination, then ``[]``."""
    constraint = draw(random.Random(seed), 2)
    legal = {text for text in TEXTS if member(constraint, text)}
    try:
        grammar = compile_constraint(Then(constraint, JsonSchema({"const": []}), Choice((";",))), vocabulary)
    except UnsatisfiableError:
        assert has_empty_part(constraint)
        return
    except RequestError:
        # Only free text can go on with what the value begins with.
        assert any(sign in repr(constraint) for sign in ("Lazy", "Tagged", ".*"))
        return
    assert isinstance(grammar, LlgGrammar)
    assert {text for text in TEXTS if accepts(grammar, text + "[];")} == legal, constraint
    assert not any(accepts(grammar, text) for text in TEXTS)


@pytest.mark.parametrize("seed", range(40))
def test_the_same_beyond_the_automaton_budget(
    seed: int, vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With room for three states only, most is llguidance's terminals: the same texts, or a typed refusal."""
    constraint = draw(random.Random(seed), 2)
    legal = {text for text in TEXTS if member(constraint, text)}
    monkeypatch.setattr(combine, "build_automaton", too_large)
    try:
        grammar = combine.compile_combination(Then(constraint, Choice((";",))), token_index(vocabulary), "k", "any")
    except UnsatisfiableError:
        assert has_empty_part(constraint)
        return
    except RequestError:
        return
    assert {text for text in TEXTS if accepts(grammar, text + ";")} == legal, constraint


def too_large(tree: object) -> None:
    raise automaton.TooLarge("max_dfa_states")
