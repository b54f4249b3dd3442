"""Combined constraints: the same texts as Python says, the laws of every matcher, and typed refusals."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Callable

import numpy as np
import pytest

from constrained_spec.errors import GrammarBudgetError, RequestError, UnsatisfiableError, UnsupportedSchemaError
from constrained_spec.grammars.base import Grammar, Matcher
from constrained_spec.grammars.compile import (
    All,
    AnyOf,
    Choice,
    Constraint,
    JsonSchema,
    Lark,
    Lazy,
    Optional,
    Regex,
    Tag,
    Tagged,
    Then,
    Without,
    compile_constraint,
)
from constrained_spec.grammars.dfa import DfaGrammar
from constrained_spec.grammars.llg import LlgGrammar
from constrained_spec.grammars.product import ProductGrammar
from constrained_spec.grammars.tokens import is_set
from constrained_spec.types import Vocabulary

OBJECT = JsonSchema(
    {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"], "additionalProperties": False}
)
TRUE = '{"a": true}'


def mask(matcher: Matcher, vocabulary: Vocabulary) -> list[int]:
    row = np.full(vocabulary.mask_words, -1, np.int32)
    matcher.mask_into(row)
    return [i for i in range(vocabulary.size) if is_set(row, i)]


def accepts(grammar: Grammar, text: str, vocabulary: Vocabulary) -> bool:
    """Byte by byte, in single-byte tokens."""
    matcher = grammar.matcher()
    return all(matcher.advance(5 + b) for b in text.encode()) and matcher.is_complete


def words(alphabet: str, longest: int) -> list[str]:
    return ["".join(w) for n in range(longest + 1) for w in itertools.product(alphabet, repeat=n)]


def full(pattern: str) -> Callable[[str], bool]:
    return lambda text: re.fullmatch(pattern, text, re.DOTALL) is not None


REGULAR: list[tuple[Constraint, Callable[[str], bool]]] = [
    (All(Regex("[ab]{2,4}"), Regex(".*b")), full("[ab]{1,3}b")),
    (All(Choice(("ab", "ba", "", "abc")), Regex("a.*")), lambda t: t in ("ab", "abc")),
    (All(Regex("a*b*"), Regex("(..)*"), Regex("[^b]*b?")), lambda t: full("a*b?")(t) and len(t) % 2 == 0),
    (Without(Regex("[abc]*"), "ab|cc"), lambda t: full("[abc]*")(t) and "ab" not in t and "cc" not in t),
    (Without(Choice(("abc", "cab", "bca", "")), Choice(("ab",))), lambda t: t in ("bca", "")),
    (Without(All(Regex("[abc]*"), Regex("a.*")), "a{2}"), lambda t: full("a[abc]*")(t) and "aa" not in t),
    (Then(Regex("a*"), Regex("ab"), Optional(Choice(("c", "ca")))), full("a*ab(c|ca)?")),
    (Then(Optional(Regex("a+")), Regex("a*b")), full("a*b")),
    (Lazy("ab", Regex("c+")), lambda t: "ab" not in t or full("c+")(t.partition("ab")[2])),
    (Lazy("aba", Optional(Choice(("c",)))), lambda t: "aba" not in t or t.partition("aba")[2] in ("", "c")),
]


@pytest.mark.parametrize(("constraint", "oracle"), REGULAR)
def test_regular_combinations_are_exactly_what_python_says(
    constraint: Constraint, oracle: Callable[[str], bool], vocabulary: Vocabulary
) -> None:
    grammar = compile_constraint(constraint, vocabulary)
    assert isinstance(grammar, DfaGrammar)
    for text in words("abc", 6):
        assert accepts(grammar, text, vocabulary) == oracle(text), text


def tagged(text: str) -> bool:
    """Free text with ``<..>`` around a or b runs; a "<" begins, the first ">" ends."""
    while "<" in text:
        inner, end, text = text.partition("<")[2].partition(">")
        if not end or not re.fullmatch("[ab]+", inner):
            return False
    return True


@pytest.mark.parametrize("at_least_one", [False, True])
@pytest.mark.parametrize("stop", [False, True])
def test_tagged_text(at_least_one: bool, stop: bool, vocabulary: Vocabulary) -> None:
    constraint = Tagged((("<", Regex("[ab]+"), ">"),), at_least_one=at_least_one, stop_after_first=stop)  # type: ignore[arg-type]
    grammar = compile_constraint(constraint, vocabulary)
    for text in words("a<>", 7):
        expected = tagged(text) and ("<" in text or not at_least_one)
        if stop and "<" in text:
            expected = (
                expected
                and text.count("<") == 1
                and text.endswith(">")
                and text.index(">", text.index("<")) == len(text) - 1
            )
        assert accepts(grammar, text, vocabulary) == expected, text


def test_the_first_end_ends_a_tag(vocabulary: Vocabulary) -> None:
    grammar = compile_constraint(Tagged((Tag("<", Regex(".*"), ">>"),)), vocabulary)
    for text in words("a<>", 6):
        rest, expected = text, True
        while "<" in rest:
            _, end, rest = rest.partition("<")[2].partition(">>")
            expected &= bool(end)
        assert accepts(grammar, text, vocabulary) == expected, text


MIXED: list[tuple[Constraint, dict[str, bool]]] = [
    (Then(Regex("a*"), OBJECT), {"aa" + TRUE: True, TRUE: True, "aa": False, "b" + TRUE: False}),
    (Then(OBJECT, Regex("[a-z]*"), OBJECT), {TRUE + TRUE: True, TRUE + "xy" + TRUE: True, TRUE: False}),
    (Then(Optional(OBJECT), Choice(("x", "yy"))), {"x": True, TRUE + "yy": True, TRUE: False}),
    (Lazy("<j>", OBJECT), {"": True, "hi": True, "<<j>" + TRUE: True, "<j>": False, "<j>x": False}),
    (
        Tagged((Tag("<a>", Regex(".*"), "</a>"), Tag("<b>", OBJECT, "</b>"))),
        {"x": True, "<a>q</a>y": True, f"z<b>{TRUE}</b><a></a>": True, "<a></b>": False, "<b>x</b>": False},
    ),
    (Then(JsonSchema({"type": "integer"}), Regex("x+"), Optional(OBJECT)), {"12x": True, "12": False, "x": False}),
    (Then(Lark('start: "a" start "b" | "ab"'), Choice((";",)), OBJECT), {"aabb;" + TRUE: True, "aab;" + TRUE: False}),
    (All(JsonSchema({"type": "string"}), Regex('"[a-z]{3}"')), {'"abc"': True, '"ab"': False, '"ABC"': False}),
    (Without(JsonSchema({"type": "string"}), "b+ad"), {'"abc"': True, '"bbad"': False, '"ba d"': True}),
    (All(Lazy("<j>", OBJECT), Regex("[a-z]*.*")), {"abc": True, "x<j>" + TRUE: True, "<j>": False}),
    (Then(Regex("(a|b)*a(a|b){18}"), Regex("c")), {"a" * 19 + "c": True, "b" * 19 + "c": False, "a" * 19: False}),
    (All(Regex("(a|b)*a(a|b){18}"), Regex("[ab]{19}")), {"a" * 19: True, "a" * 20: False, "b" + "a" * 18: False}),
    (Without(Regex("(a|b)*a(a|b){18}"), "bb"), {"a" * 19: True, "bba" + "a" * 18: False}),
    (Then(Regex("(?!ab)[a-c]{1,3}"), OBJECT), {"ac" + TRUE: True, "ab" + TRUE: False, "abc" + TRUE: False}),
]  # fmt: skip


@pytest.mark.parametrize(("constraint", "cases"), MIXED)
def test_mixed_combinations(constraint: Constraint, cases: dict[str, bool], vocabulary: Vocabulary) -> None:
    grammar = compile_constraint(constraint, vocabulary)
    assert isinstance(grammar, LlgGrammar | ProductGrammar)
    assert {text: accepts(grammar, text, vocabulary) for text in cases} == cases


@pytest.mark.parametrize(
    "constraint",
    [
        Lazy("ab", OBJECT),
        Lazy("<|tool|>", OBJECT),
        Tagged((Tag("abc", OBJECT, "no"), Tag("b1", Regex("[0-9]+"), "-")), at_least_one=True),
        All(JsonSchema({"type": "string"}), Regex('"[a-c]{2,5}"')),
        Without(OBJECT, "false"),
        Then(Regex("(ab)*"), OBJECT),
        All(Regex("[ab]{3,9}"), Regex("(...)*")),
        Lazy("aba", Regex("[0-9]{2,4}")),
    ],
    ids=lambda c: type(c).__name__,
)
@pytest.mark.parametrize("tokenization", ["any", "canonical"])
def test_the_laws_of_a_matcher(constraint: Constraint, tokenization: str, vocabulary: Vocabulary) -> None:
    """A mask bit is set exactly when advance succeeds; rollback, refusal and fork leave no trace."""
    grammar = compile_constraint(constraint, vocabulary, tokenization=tokenization)
    rng = random.Random(repr(constraint))
    for _ in range(3):
        matcher, prefix = grammar.matcher(), list[int]()
        for _ in range(12):
            legal = mask(matcher, vocabulary)
            before = matcher.fingerprint()
            for token in (*range(vocabulary.size), -1, vocabulary.size):
                mark = matcher.mark()
                assert matcher.advance(token) == (token in legal), token
                matcher.rollback(mark)
            assert matcher.fingerprint() == before
            assert all((e in legal) == matcher.is_complete for e in (0, 1))
            forced = matcher.forced()
            for token in legal:
                piece = vocabulary.tokens[token] or b""
                assert not forced or not piece or piece.startswith(forced) or forced.startswith(piece)
            twin = matcher.fork()
            text = [t for t in legal if t not in (0, 1)]
            if not text:
                break
            prefix.append(rng.choice(text))
            assert matcher.advance(prefix[-1])
            assert twin.fingerprint() == before
            if rng.random() < 0.3:
                keep = rng.randrange(len(prefix) + 1)
                matcher.rollback(keep)
                del prefix[keep:]
            fresh = grammar.matcher()
            assert all(fresh.advance(t) for t in prefix)
            assert fresh.fingerprint() == matcher.fingerprint()


def test_the_constraint_holds_from_the_middle_of_a_token(vocabulary: Vocabulary) -> None:
    """The token ``aba`` ends the trigger ``xab`` and begins what must be an a."""
    tokens = vocabulary.tokens
    matcher = compile_constraint(Lazy("xab", Choice(("a1", "b1"))), vocabulary).matcher()
    assert matcher.advance(5 + ord("x"))
    legal = {tokens[t] for t in mask(matcher, vocabulary)}
    assert b"aba" in legal and b"abab" not in legal and b"abc" not in legal and b"ab" in legal
    json = compile_constraint(Lazy("x", OBJECT), vocabulary).matcher()
    assert json.advance(5 + ord("x"))
    assert {tokens[t] for t in mask(json, vocabulary)} == {b"{", b'{"', b'{"a": true}'}


def test_a_special_token_triggers_as_its_text_does(vocabulary: Vocabulary) -> None:
    grammar = compile_constraint(Lazy("<|tool|>", OBJECT), vocabulary)
    for begin in ([2], [5 + b for b in b"x<|tool|>"]):
        matcher = grammar.matcher()
        assert all(matcher.advance(t) for t in begin)
        assert not matcher.is_complete and not matcher.advance(5 + ord("x")) and not matcher.advance(2)
        assert all(matcher.advance(5 + b) for b in TRUE.encode()) and matcher.is_finished


@pytest.mark.parametrize(
    ("constraint", "named"),
    [
        (All(Regex("a+"), Regex("b+")), ["a+", "b+"]),
        (All(Choice(("abcd", "bcde")), Regex(".{0,3}")), ["abcd", ".{0,3}"]),
        (Without(Regex("a+b"), "a"), ["a+b", "'a'"]),
        (Without(Choice(("ab", "ba")), "a|zz"), ["ab", "a|zz"]),
        (Without(Regex("x"), ""), ["x"]),
        (All(JsonSchema({"type": "boolean"}), Regex("[a-d]+")), ["boolean", "[a-d]+"]),
        (Tagged((Tag("<", Regex("a>+"), ">>a"),)), ["a>+"]),
    ],
)
def test_emptiness_is_found_before_generation(constraint: Constraint, named: list[str], vocabulary: Vocabulary) -> None:
    if isinstance(constraint, Tagged):
        compile_constraint(constraint, vocabulary)  # a text without the tag is left
        constraint = Tagged((Tag("<", Regex("a>>b"), ">>"),), at_least_one=True)
        named = ["a>>b"]
    with pytest.raises(UnsatisfiableError) as caught:
        compile_constraint(constraint, vocabulary)
    assert all(name in str(caught.value) for name in named), str(caught.value)


@pytest.mark.parametrize(
    "constraint",
    [
        Then(JsonSchema({"type": "integer"}), Regex("[0-9]")),
        Then(Regex("a*"), JsonSchema({"enum": ["x"]}), Regex('"?')),
        Then(Optional(OBJECT), OBJECT),
        Tagged((Tag("<a>", Regex("[0-9]+")), Tag("<b>", OBJECT, "</b>"))),
        Optional(All(OBJECT, Regex(".*"))),
        Without(Regex("a"), OBJECT),
    ],
)
def test_what_cannot_be_exact_is_refused(constraint: Constraint, vocabulary: Vocabulary) -> None:
    if isinstance(constraint, Then) and constraint.parts[0] == Regex("a*"):
        assert accepts(compile_constraint(constraint, vocabulary), 'aa"x""', vocabulary)  # a string ends by itself
        return
    with pytest.raises(RequestError) as caught:
        compile_constraint(constraint, vocabulary)
    assert caught.value.hint or "outermost" in str(caught.value)


@pytest.mark.parametrize(
    "make",
    [
        lambda: All(),
        lambda: Then(Regex("a"), "b"),  # type: ignore[arg-type]
        lambda: Lazy("", Regex("a")),
        lambda: Lazy("\ud800", Regex("a")),
        lambda: Tagged(()),
        lambda: Tagged((Tag("ab", Regex("x")), Tag("xaby", Regex("x")))),
        lambda: Optional(None),  # type: ignore[arg-type]
    ],
)
def test_values_that_make_no_sense(make: Callable[[], Constraint]) -> None:
    with pytest.raises(RequestError):
        make()


def test_nesting_is_bounded(vocabulary: Vocabulary) -> None:
    deep: Constraint = Regex("a")
    for _ in range(200):
        deep = Optional(deep)
    with pytest.raises(GrammarBudgetError) as caught:
        compile_constraint(deep, vocabulary)
    assert caught.value.limit == "max_combination_depth"


def test_a_long_choice_is_filtered(vocabulary: Vocabulary) -> None:
    options = tuple(f"{i}" for i in range(30_000))
    grammar = compile_constraint(All(Choice(options), Regex("[0-9]{2}")), vocabulary)
    assert isinstance(grammar, DfaGrammar) and int(grammar.automaton.accepting.sum()) == 90
    without = compile_constraint(Without(Choice(options), "[1-9]"), vocabulary)
    assert isinstance(without, DfaGrammar) and int(without.automaton.accepting.sum()) == 1


def test_a_product_that_ends_nowhere_shows_an_empty_mask(vocabulary: Vocabulary) -> None:
    """Both parts go on after ``"c``, but no text of both begins so; only ``"a`` has one."""
    grammar = compile_constraint(All(JsonSchema({"enum": ["ab", "cd"]}), Regex('"(ab|ce)"')), vocabulary)
    matcher = grammar.matcher()
    assert all(matcher.advance(5 + b) for b in b'"c')
    assert mask(matcher, vocabulary) == [] and not matcher.is_complete and not matcher.is_finished
    assert accepts(grammar, '"ab"', vocabulary)


@pytest.mark.parametrize("whitespace", ["one-space", "compact", "flexible"])
def test_json_keeps_its_whitespace_inside_others(whitespace: str, vocabulary: Vocabulary) -> None:
    part = JsonSchema({"type": "array", "items": {"type": "boolean"}, "maxItems": 2}, whitespace=whitespace)  # type: ignore[arg-type]
    alone = compile_constraint(part, vocabulary)
    lazy = compile_constraint(Lazy("<", part), vocabulary)
    tagged = compile_constraint(Tagged((Tag("<", part, ">"),)), vocabulary)
    endless = compile_constraint(Tagged((Tag("<", part),)), vocabulary)
    for text in ("[]", "[ ]", "[true, false]", "[true,false]", "[true,\n  false]", " []", "[] ", "[true , false]"):
        legal = accepts(alone, text, vocabulary)
        assert accepts(lazy, "x<" + text, vocabulary) == legal, text
        assert accepts(tagged, f"x<{text}> [<{text}>", vocabulary) == legal, text
        bare = text.strip()  # without an end, spaces behind the value are free text
        assert accepts(endless, f"x<{text} ]x<{bare}", vocabulary) == ((text == bare and legal) or text == "[] "), text


def test_alternatives(vocabulary: Vocabulary) -> None:
    regular = AnyOf(Regex("a+"), Choice(("b", "abc")))
    assert isinstance(compile_constraint(regular, vocabulary), DfaGrammar)
    for constraint in (regular, All(regular, Regex("(?s).*"))):
        grammar = compile_constraint(constraint, vocabulary)
        assert [t for t in words("abc", 3) if accepts(grammar, t, vocabulary)] == ["a", "b", "aa", "aaa", "abc"]
    mixed = compile_constraint(AnyOf(JsonSchema({"enum": [1, "x"]}), Lark('start: "<" /a+/')), vocabulary)
    texts = ("1", '"x"', "<aa", "<", "1<a", "2")
    assert [accepts(mixed, t, vocabulary) for t in texts] == [True, True, True, False, False, False]


def test_schemas_are_rewritten_inside_others_too(vocabulary: Vocabulary) -> None:
    part = JsonSchema({"type": "integer", "not": {"const": 3}, "minimum": 2, "maximum": 4})
    grammar = compile_constraint(Then(Choice(("n=",)), part, Choice((";",))), vocabulary)
    assert [n for n in range(6) if accepts(grammar, f"n={n};", vocabulary)] == [2, 4]


def test_a_relaxed_schema_is_refused_inside_others(vocabulary: Vocabulary) -> None:
    part = JsonSchema({"type": "string", "format": "no such format"}, on_unsupported="validate")
    compile_constraint(part, vocabulary)
    for combined in (Lazy("<", part), All(part, Regex('"a*"'))):
        with pytest.raises(UnsupportedSchemaError):
            compile_constraint(combined, vocabulary)
