"""The regex flavour against Python's ``re`` and interegular, and its edges."""

from __future__ import annotations

import contextlib
import re
import warnings

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from interegular import parse_pattern
from llguidance import LLMatcher, LLTokenizer

from constrained_spec.errors import (
    GrammarBudgetError,
    GrammarSyntaxError,
    UnsatisfiableError,
    UnsupportedSchemaError,
)
from constrained_spec.grammars.automaton import DEAD, MAX_DFA_WORK, ByteAutomaton, Effort, TooLarge, TrieAutomaton
from constrained_spec.grammars.compile import JsonSchema, Regex, compile_constraint
from constrained_spec.grammars.llg import LlgGrammar
from constrained_spec.grammars.nfa import MAX_NFA_STATES, build_automaton
from constrained_spec.grammars.regex_syntax import parse
from constrained_spec.grammars.regex_tree import render_interegular, render_rust, simplify
from constrained_spec.grammars.utf8 import byte_sequences, complement, normalise
from constrained_spec.types import Vocabulary


def automaton(pattern: str) -> ByteAutomaton:
    return build_automaton(simplify(parse(pattern)))


def accepts(machine: ByteAutomaton, data: bytes) -> bool:
    state = machine.initial
    for byte in data:
        state = machine.step(state, byte)
        if state == DEAD:
            return False
    return bool(machine.accepting[state])


ATOMS = st.sampled_from(
    [
        "a",
        "b",
        "c",
        ".",
        r"\d",
        r"\w",
        r"\s",
        r"\D",
        "[ab]",
        "[^a]",
        "[a-c]",
        r"[^\d\n]",
        "é",
        "[à-ü]",
        "😀",
        r"\.",
        "-",
    ]
)


def _extend(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    repeats = st.sampled_from(["*", "+", "?", "{2}", "{1,3}", "{0,2}", "{2,}", "*?"])
    return st.one_of(
        st.lists(inner, min_size=2, max_size=3).map("".join),
        st.lists(inner, min_size=2, max_size=3).map("|".join).map(lambda s: f"(?:{s})"),
        st.tuples(inner, repeats).map(lambda t: f"({t[0]}){t[1]}"),
    )


PATTERNS = st.recursive(ATOMS, _extend, max_leaves=6)
TEXTS = st.text(alphabet="abcd01 .-\néü😀_Z", max_size=7)


@settings(max_examples=250, deadline=None, derandomize=True)
@given(PATTERNS, st.lists(TEXTS, min_size=1, max_size=12))
def test_agrees_with_python_re_and_interegular(pattern: str, texts: list[str]) -> None:
    machine = automaton(pattern)
    reference = re.compile(pattern, re.ASCII)
    fsm = parse_pattern(render_interegular(simplify(parse(pattern)))).to_fsm()
    for text in texts:
        expected = reference.fullmatch(text) is not None
        assert accepts(machine, text.encode()) == expected
        assert fsm.accepts(text) == expected


LOOKS = st.tuples(st.sampled_from(["(?=", "(?!"]), PATTERNS, st.sampled_from([")", "$)"])).map("".join)


@settings(max_examples=120, deadline=None, derandomize=True)
@given(st.one_of(st.just(""), ATOMS), LOOKS, PATTERNS, st.lists(TEXTS, min_size=1, max_size=12))
def test_lookaheads_agree_with_python_re(head: str, look: str, tail: str, texts: list[str]) -> None:
    pattern = f"{head}{look}(?:{tail})"
    # "$" of Python also matches before a final newline, ours only at the end.
    reference = re.compile(pattern.replace("$", r"\Z"), re.ASCII)
    texts = [t for t in texts if len(t) < 7]
    try:
        machine = automaton(pattern)
    except UnsatisfiableError:
        assert not any(reference.fullmatch(t) for t in texts)
        return
    for text in texts:
        assert accepts(machine, text.encode()) == (reference.fullmatch(text) is not None), text


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        (r"^\d{3}$", ["123"], ["12", "١٢٣"]),
        (r"(^a|b)$", ["a", "b"], ["ab"]),
        (r"\Aab\Z", ["ab"], ["a"]),
        (r"a.c", ["abc", "aéc", "a😀c"], ["a\nc"]),
        (r"(?s)a.c", ["a\nc"], ["ac"]),
        (r"(?i)straße", ["STRAßE", "straße"], ["STRASSE"]),
        (r"(?i:a)b", ["Ab", "ab"], ["AB"]),
        (r"(?i)[^k]", ["x"], ["k", "K"]),
        (r"[]a]+", ["]a]"], ["b"]),
        (r"[a\-z]", ["-"], ["b"]),
        (r"[a-]", ["-", "a"], ["b"]),
        (r"x{", ["x{"], ["x"]),
        (r"x{,2}", ["", "xx"], ["xxx"]),
        (r"\u00e9\x41\x{1F600}\u{1F600}\U0001F600", ["éA😀😀😀"], ["e"]),
        (r"\ud83d\ude00", ["😀"], []),
        (r"\p{Lu}\P{L}", ["É1", "A "], ["é1", "AA"]),
        (r"(?P<year>\d+)(?<m>x)(?#no)", ["1x"], ["1"]),
        (r"(?=.*\d)(?=.*[a-z])[a-z\d]{3,5}", ["ab1", "1bcde"], ["abc", "123"]),
        (r"(?!foo$|bar$)[a-z]{3}", ["fox", "baz"], ["foo", "bar"]),
        (r"(?:(?!a)\w|ab)c", ["bc", "abc"], ["ac"]),
        (r"[a-z]+(?!x)", ["abx"], ["1"]),
        (r"", [""], ["a"]),
    ],
)
def test_flavour(pattern: str, yes: list[str], no: list[str]) -> None:
    machine = automaton(pattern)
    assert all(accepts(machine, t.encode()) for t in yes)
    assert not any(accepts(machine, t.encode()) for t in no)


@pytest.mark.parametrize(
    ("pattern", "position"),
    [
        ("(", 0), ("ab)", 2), ("[a", 0), ("a**", 2), ("*a", 0), ("[z-a]", 1), ("a{3,1}", 0), (r"a\b", 1),
        (r"(?<=a)b", 0), (r"(a)\1", 3), ("a$b", 1), ("a++", 2), ("(?>a)", 0), (r"\q", 0), ("[[:alpha:]]", 1),
        (r"\p{Nope}", 0), (r"\x4", 0), ("a\\", 2), ("(?y:a)", 0), ("{2}", 0), ("x^*", 1),
    ],
)  # fmt: skip
def test_what_is_refused_says_where(pattern: str, position: int) -> None:
    with pytest.raises(GrammarSyntaxError) as caught:
        automaton(pattern)
    assert caught.value.position == position
    assert caught.value.param == "regex"


@pytest.mark.parametrize("pattern", [r"[^\s\S]", "(?=b)a", "a[^\\x00-\\U0010FFFF]", "\ud800"])
def test_the_empty_language_is_unsatisfiable(pattern: str) -> None:
    """CASES B52: a set that excludes all of Unicode matches nothing, it does not crash or match everything."""
    with pytest.raises(UnsatisfiableError):
        automaton(pattern)


@pytest.mark.parametrize(
    ("low", "high"), [(0, 0x10FFFF), (0x430, 0x44F), (0x4E00, 0x9FA5), (0x7F, 0x800), (0xFFFE, 0x10001)]
)
def test_utf8_ranges_are_exact(low: int, high: int) -> None:
    """CASES B51, B52: every code point and no other byte string of its length."""
    ranges = normalise([(low, high)])
    sequences = byte_sequences(ranges)
    for code in [low, high, *range(max(low - 2, 0), min(high + 3, 0x110000), 997), 0x7F, 0x80, 0x7FF, 0x800, 0xD7FF]:
        if 0xD800 <= code <= 0xDFFF:
            continue
        data = chr(code).encode()
        inside = [
            s for s in sequences if len(s) == len(data) and all(a <= b <= c for (a, c), b in zip(s, data, strict=True))
        ]
        assert len(inside) == (1 if low <= code <= high else 0)
    for bad in (b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xc1\xbf", b"\xe0\x80\x80", b"\xff"):
        assert not any(
            len(s) == len(bad) and all(a <= b <= c for (a, c), b in zip(s, bad, strict=True)) for s in sequences
        )


def test_complement_covers_unicode_without_surrogates() -> None:
    ranges = normalise([(10, 20), (15, 40), (0xD000, 0xE000)])
    both = normalise([*ranges, *complement(ranges)])
    assert both == ((0, 0xD7FF), (0xE000, 0x10FFFF))


def test_outsized_patterns_go_to_llguidance(vocabulary: Vocabulary) -> None:
    for pattern in (r"(a|b)*a(a|b){20}", "((a{0,100}){0,100}){0,100}"):
        assert isinstance(compile_constraint(Regex(pattern), vocabulary), LlgGrammar)
    assert not isinstance(compile_constraint(Regex("a{0,5000}"), vocabulary), LlgGrammar)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(PATTERNS, st.lists(TEXTS, min_size=1, max_size=8))
def test_the_tree_written_for_llguidance_is_the_same_language(pattern: str, texts: list[str]) -> None:
    text = render_rust(simplify(parse(pattern)))
    assert text is not None
    matcher = LLMatcher(_bytes_tokenizer(), f"start: /{text}/", log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    machine = automaton(pattern)
    for candidate in texts:
        data = list(candidate.encode())
        taken = matcher.try_consume_tokens(data)
        assert (taken == len(data) and matcher.is_accepting()) == accepts(machine, bytes(data))
        matcher.rollback(taken)


def _bytes_tokenizer() -> LLTokenizer:
    class Bytes:
        is_tokenizer_wrapper = True
        eos_token_id, bos_token_id = 256, None

        def __init__(self) -> None:
            self.tokens = [*(bytes([b]) for b in range(256)), b"<eos>"]
            self.special_token_ids = [256]

        def __call__(self, text: str) -> list[int]:
            return list(text.encode())

    return LLTokenizer(Bytes(), eos_token=256)  # type: ignore[arg-type]


def test_budgets_are_typed() -> None:
    for pattern in ("x" * 200_001, "(" * 200 + ")" * 200):
        with pytest.raises(GrammarBudgetError):
            automaton(pattern)


# Intersections whose operands, or themselves, are exponential or quadratic in the repeats that are written in them.
COSTLY = {
    r"(?!.*(?:a|b){0,9}a(?:a|b){9})[ab]{1,30}": "max_dfa_states",
    r"(?=.*\d.{0,40})(?=.*[a-z].{0,40})(?=.*[A-Z].{0,40}).{8,60}": "max_dfa_states",
    r"(?!.*(?:(?:ab?){1,30}c){1,30})[abc]{1,500}": "max_dfa_states",
    r"(?=(?:(?:a?b?){0,40}c?){0,40}d)[a-d]{1,90}": "max_dfa_work",
    r"(?!(?:\p{L}{1,9}\p{N}?){1,30}x).*": "max_nfa_states",
}


@pytest.mark.parametrize("pattern", COSTLY)
def test_nested_repeats_in_lookaheads_end_within_the_budget(pattern: str, vocabulary: Vocabulary) -> None:
    effort = Effort()
    with pytest.raises(TooLarge) as stopped:
        build_automaton(simplify(parse(pattern)), effort)
    assert stopped.value.limit == COSTLY[pattern]
    # Work is counted, in steps of at most one state's edges and targets: it ends where the budget does on any machine.
    assert -MAX_NFA_STATES <= effort.work <= MAX_DFA_WORK
    with pytest.raises(GrammarBudgetError) as caught:
        compile_constraint(Regex(pattern), vocabulary)
    assert caught.value.limit == COSTLY[pattern] and caught.value.param == "regex"
    for schema in ({"pattern": pattern}, {"not": {"type": "string", "pattern": pattern}}):
        with pytest.raises(UnsupportedSchemaError):
            compile_constraint(JsonSchema({"type": "string", **schema}), vocabulary)


def test_the_work_on_every_part_of_a_regex_counts_together() -> None:
    pattern = r"(?=.*a.{3})(?!.*b.{3}).{0,40}"
    whole = Effort()
    machine = build_automaton(simplify(parse(pattern)), whole)
    spent = MAX_DFA_WORK - whole.work
    assert accepts(machine, b"caccc") and not accepts(machine, b"cabccc")
    assert build_automaton(simplify(parse(pattern)), Effort(work=spent)).size == machine.size
    with pytest.raises(TooLarge) as caught:
        build_automaton(simplify(parse(pattern)), Effort(work=spent - 1))
    assert caught.value.limit == "max_dfa_work"


def test_optional_parts_in_a_long_repeat_do_not_cost_their_square(vocabulary: Vocabulary) -> None:
    effort = Effort()
    with pytest.raises(TooLarge):
        build_automaton(simplify(parse("(?:a?b?c?){0,5000}")), effort)
    assert effort.work >= -MAX_NFA_STATES
    assert isinstance(compile_constraint(Regex("(?:a?b?c?){0,5000}"), vocabulary), LlgGrammar)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.text(alphabet="ab()[]{}|*+?.^$\\-,:=!<>Pdwsxu01 é", max_size=14))
def test_any_text_compiles_or_fails_with_a_typed_error(pattern: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with contextlib.suppress(GrammarSyntaxError, UnsatisfiableError, GrammarBudgetError):
            automaton(pattern)


@given(st.lists(st.text(alphabet="abé", max_size=5), min_size=1, max_size=12), TEXTS)
@settings(max_examples=80, deadline=None, derandomize=True)
def test_a_trie_accepts_its_strings_alone(options: list[str], other: str) -> None:
    machine = TrieAutomaton(sorted({o.encode() for o in options}))
    assert all(accepts(machine, o.encode()) for o in options)
    assert accepts(machine, other.encode()) == (other in options)
