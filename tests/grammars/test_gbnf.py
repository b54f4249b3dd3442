"""GBNF by the texts it stands for: against a reference that lists them, and against its errors."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
from llguidance.gbnf_to_lark import gbnf_to_lark as engines_gbnf_to_lark

from constrained_spec.errors import (
    ConfigError,
    GrammarBudgetError,
    GrammarSyntaxError,
    RequestError,
    UnsatisfiableError,
)
from constrained_spec.grammars.base import Matcher
from constrained_spec.grammars.bnf import Expr, Name, Options, Rule, Series, Text, Times
from constrained_spec.grammars.compile import Lark, compile_constraint
from constrained_spec.grammars.gbnf import gbnf_to_lark, parse_gbnf
from constrained_spec.grammars.notation import guess_notation, normalise_grammar
from constrained_spec.grammars.regex_syntax import Chars
from constrained_spec.types import Vocabulary

ALPHABET = "abéè"  # the last two share their first byte
LONGEST = 4


def texts(rules: dict[str, Rule], root: str) -> set[str]:
    """Every text of at most ``LONGEST`` characters out of ``ALPHABET``, by plain iteration to a fixed point."""
    found: dict[str, frozenset[str]] = {name: frozenset() for name in rules}

    def joined(left: frozenset[str], right: frozenset[str]) -> frozenset[str]:
        return frozenset(a + b for a in left for b in right if len(a + b) <= LONGEST)

    def of(expr: Expr) -> frozenset[str]:
        if isinstance(expr, Text):
            return frozenset({expr.text} if len(expr.text) <= LONGEST else ())
        if isinstance(expr, Chars):
            return frozenset(c for c in ALPHABET if any(low <= ord(c) <= high for low, high in expr.ranges))
        if isinstance(expr, Name):
            return found[expr.name]
        if isinstance(expr, Options):
            return frozenset(text for item in expr.items for text in of(item))
        if isinstance(expr, Series):
            out = frozenset({""})
            for item in expr.items:
                out = joined(out, of(item))
            return out
        assert isinstance(expr, Times)
        once = of(expr.item)
        out = power = frozenset({""})
        if expr.low:
            out = frozenset()
        for n in range(1, (expr.low + LONGEST if expr.high is None else expr.high) + 1):
            power = joined(power, once)
            if n >= expr.low:
                out |= power
        return out

    while True:
        new = {name: of(rule.body) for name, rule in rules.items()}
        if new == found:
            return set(found[root])
        found = new


def spelled(matcher: Matcher, text: str, vocabulary: Vocabulary) -> bool:
    """Reads ``text`` byte by byte; False, and nothing has changed, if it is refused."""
    mark = matcher.mark()
    for byte in text.encode():
        if not matcher.advance(vocabulary.tokens.index(bytes([byte]))):
            matcher.rollback(mark)
            return False
    return True


def accepted(lark: str, vocabulary: Vocabulary) -> set[str]:
    """Every complete text of at most ``LONGEST`` characters out of ``ALPHABET``."""
    matcher = compile_constraint(Lark(lark), vocabulary).matcher()
    found: set[str] = set()
    row = np.empty(vocabulary.mask_words, np.int32)

    def walk(text: str) -> None:
        matcher.mask_into(row)
        assert row.any(), f"a dead end after {text!r}"
        if matcher.is_complete:
            found.add(text)
        if len(text) == LONGEST:
            return
        for c in ALPHABET:
            mark = matcher.mark()
            if spelled(matcher, c, vocabulary):
                walk(text + c)
                matcher.rollback(mark)

    walk("")
    return found


def test_the_engines_own_translation_allows_nothing_more(vocabulary: Vocabulary) -> None:
    """It loses texts, since it does not look at where a lexeme may end, but it reads the notation on its own."""
    rng = random.Random(21)
    compared = 0
    for _ in range(80):
        text = random_grammar(rng)
        try:
            theirs = accepted(engines_gbnf_to_lark(text), vocabulary)
        except Exception:  # what it cannot read, or reads into dead ends
            continue
        assert theirs <= texts(parse_gbnf(text), "root"), text
        compared += bool(theirs)
    assert compared > 20


def random_grammar(rng: random.Random) -> str:
    names = ["root", "x", "y-z"][: rng.randint(1, 3)]

    def atom(depth: int) -> str:
        kind = rng.randrange(9 if depth else 7)
        if kind < 3:
            return '"' + "".join(rng.choice(ALPHABET) for _ in range(rng.choice((1, 1, 2, 2, 3)))) + '"'
        if kind < 5:
            return "[" + rng.choice(("", "", "^")) + "".join(rng.sample(ALPHABET, rng.randint(1, 3))) + "]"
        return rng.choice(names) if kind < 7 else f"({options(depth - 1)})"

    def item(depth: int) -> str:
        return atom(depth) + rng.choice(("", "", "", "", "*", "+", "?", "{1,2}", "{2}", "{2,}"))

    def sequence(depth: int) -> str:
        return " ".join(item(depth) for _ in range(rng.choice((0, 1, 1, 2, 2, 3))))

    def options(depth: int) -> str:
        return " | ".join(sequence(depth) for _ in range(rng.choice((1, 2, 2, 3))))

    return "\n".join(f"{name} ::= {options(2)}" for name in names)


def test_translated_grammars_have_exactly_the_same_texts(vocabulary: Vocabulary) -> None:
    rng = random.Random(20)
    recursive = compared = 0
    for _ in range(250):
        text = random_grammar(rng)
        expected = texts(parse_gbnf(text), "root")
        try:
            lark = gbnf_to_lark(text)
        except UnsatisfiableError:
            assert not expected, text
            continue
        assert accepted(lark, vocabulary) == expected, f"{text}\n{lark}"
        compared += 1
        recursive += "r_" in lark or lark.count("start") > 1
    assert compared > 150 and recursive > 40


@pytest.mark.parametrize(
    ("text", "yes", "no"),
    [
        ('root ::= "a" "b" | "ab" "c"', ["ab", "abc"], ["a", "abcc"]),
        ('root ::= ("if" | [a-z]+) "f"', ["iff", "if", "aff"], ["f", "fa"]),
        ('root ::= "(" root ")" | [a-z]+ "z"', ["((az))", "zzz"], ["z", "(a)", "(az"]),
        (r'root ::= "\x41\u00e9\U0001F600\n\"\\\[\]" [\]\-\\^]', ['Aé😀\n"\\[]]', 'Aé😀\n"\\[]^'], ['Aé😀\n"\\[]a']),
        ("root ::= [^\\x00-\\x1f\"]{2,3} .", ["ab\n", "éé😀😀"], ["a", '""a', "abcde"]),
        ("root ::= [a-] [-a] [a^]", ["a-^", "--a"], ["b-a"]),
        ('root::=a-b # not ::= "x"\na-b ::= # more\n  "x" |\n  "y"\n  | "z"', ["x", "y", "z"], ["", "a-b"]),
        ('root ::= ws "x" ws\nws ::= | " " ws', ["x", "   x "], [" ", "x\n"]),
        ('root ::= e\ne ::= e "+" t | t\nt ::= [0-9]+ | "(" e ")"', ["1+(2+3)+4", "((7))"], ["1+", "(1", "+1"]),
        ('root ::= ("ab" | "a"){2,3} "b"', ["aab", "ababb", "aaab"], ["ab", "aaaab"]),
        ('root ::= "a"{0} "b"{,2} "c"{0,0}', ["", "b", "bb"], ["a", "bbb", "c"]),
        ('root ::= "a" | dead\ndead ::= "b" dead', ["a"], ["b", "bb"]),
        ('root ::= ""', [""], ["a"]),
        ('root ::= "é"', ["é"], ["e"]),
        ('root ::= q\nq ::= "SELECT " c " from " t\nc ::= "col_1 " | "col_2 "\nt ::= "t_1 "',
         ["SELECT col_1  from t_1 "], ["SELECT col_1 from t_1 ", "SELECT col_1 col_2  from t_1 "]),
    ],
)  # fmt: skip
def test_texts(text: str, yes: list[str], no: list[str], vocabulary: Vocabulary) -> None:
    grammar = compile_constraint(Lark(gbnf_to_lark(text)), vocabulary)
    for expected, cases in ((True, yes), (False, no)):
        for case in cases:
            matcher = grammar.matcher()
            assert (spelled(matcher, case, vocabulary) and matcher.is_complete) is expected, case


C = r"""
root ::= (declaration)*
declaration ::= dataType identifier "(" parameter? ")" "{" statement* "}"
dataType  ::= "int" ws | "float" ws | "char" ws
identifier ::= [a-zA-Z_] [a-zA-Z_0-9]*
parameter ::= dataType identifier
statement ::=
    ( dataType identifier ws "=" ws expression ";" ) |
    ( identifier ws "=" ws expression ";" ) |
    ( "return" ws expression ";" ) |
    ( "while" "(" condition ")" "{" statement* "}" ) |
    ( multiLineComment )
condition ::= expression relationOperator expression
relationOperator ::= ("<=" | "<" | "==" | "!=" | ">=" | ">")
expression ::= term (("+" | "-") term)*
term ::= factor(("*" | "/") factor)*
factor ::= identifier | number | unaryTerm | funcCall | parenExpression
unaryTerm ::= "-" factor
funcCall ::= identifier "(" (expression ("," ws expression)*)? ")"
parenExpression ::= "(" ws expression ws ")"
multiLineComment ::= "/*" ( [^*] | ("*" [^/]) )* "*/"
number ::= [0-9]+
ws ::= ([ \t\n]+)
"""

SCHEMA = r"""
char ::= [^"\\\x7F\x00-\x1F] | [\\] (["\\bfnrt] | "u" [0-9a-fA-F]{4})
0-tags ::= "[" space (string ("," space string)*)? "]" space
0-tags-kv--x ::= "\"tags\"" space ":" space 0-tags
root ::= "{" space (0-tags-kv--x)? "}" space
space ::= | " " | "\n"{1,2} [ \t]{0,20}
string ::= "\"" char* "\"" space
"""


@pytest.mark.parametrize(
    ("text", "yes", "no"),
    [
        (
            C,
            [
                "int f(){return  x;}",
                "int f(int x){while(x<=2){x = f(1, -x)*3;}/* a * b */return returned;}float g(){}",
                "int returns(){return1 = 2;int  intx = 0;}",
            ],
            ["int f(){returnx;}", "int f(){x = ;}", "int 1f(){}", "int f(){/* a */ */}", "int f(){while(x){}}"],
        ),
        (
            SCHEMA,
            ['{"tags": ["a\\n", "\\u00e9é"]}', "{}", '{\n  "tags":[]\n}\n\n', '{ "tags":[""] } '],
            ['{"tags": ["a\n"]}', '{"tags": [1]}', '{"tag": []}', '{"tags": ["\\x"]}', "{  }", '{"tags":[]},'],
        ),
    ],
)
def test_grammars_as_people_write_them(text: str, yes: list[str], no: list[str], vocabulary: Vocabulary) -> None:
    grammar = compile_constraint(Lark(gbnf_to_lark(text)), vocabulary)
    for expected, cases in ((True, yes), (False, no)):
        for case in cases:
            matcher = grammar.matcher()
            assert (spelled(matcher, case, vocabulary) and matcher.is_complete) is expected, case


def test_what_derives_no_text_is_never_begun(vocabulary: Vocabulary) -> None:
    matcher = compile_constraint(Lark(gbnf_to_lark('root ::= "a" | dead\ndead ::= "b" dead')), vocabulary).matcher()
    assert not spelled(matcher, "b", vocabulary)


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ('root ::= "a', 9),
        ('root ::= "a" [b', 13),
        ('root ::= ("a" | "b"', 9),
        ('root ::= "a")', 12),
        ("root ::= a", 9),
        ('root = "a"', 5),
        ('root ::= "a"\nroot ::= "b"', 13),
        (r'root ::= "\q"', 10),
        (r'root ::= "\x4"', 10),
        (r'root ::= "\uD800"', 10),
        ("root ::= [z-a]", 10),
        ("root ::= []", 9),
        ('root ::= "a"{3,2}', 12),
        ('root ::= "a"{x}', 12),
        ('root ::= "a"{3 4}', 12),
        ("root ::= 'a'", 9),
        ('root ::= "a" <think> "b"', 13),
        ("root ::= <[1000]>", 9),
        ("root ::= !<[1000]>", 9),
        ('root ::= "a" (="b")', 13),
        ('x ::= "a"', 0),
        ("", 0),
        ("::=", 0),
        ('root ::= "\ud800"', 10),
    ],
)
def test_errors_say_where(text: str, position: int) -> None:
    with pytest.raises(GrammarSyntaxError) as caught:
        gbnf_to_lark(text)
    assert (caught.value.position, caught.value.param) == (position, "grammar")


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("root ::= root", UnsatisfiableError),
        ('root ::= "a" root', UnsatisfiableError),
        ('root ::= x\nx ::= y "a"\ny ::= x', UnsatisfiableError),
        ("root ::= " + "(" * 101 + '"a"' + ")" * 101, GrammarBudgetError),
        ('root ::= "a"{100001}', GrammarBudgetError),
        ('root ::= "' + "a" * 110_000 + '"', GrammarBudgetError),
        ('root ::= "' + "a" * (1 << 20) + '"', GrammarBudgetError),
        (b'root ::= "a"', RequestError),
    ],
)
def test_other_errors_are_typed(text: str, kind: type[RequestError]) -> None:
    with pytest.raises(kind):
        gbnf_to_lark(text)


def test_rules_that_double_do_not_explode(vocabulary: Vocabulary) -> None:
    rules = [f"r{i} ::= r{i + 1} r{i + 1}" for i in range(40)]
    lark = gbnf_to_lark("\n".join(["root ::= r0", *rules, 'r40 ::= "a"?']))
    assert len(lark) < 20_000
    assert compile_constraint(Lark(lark), vocabulary).matcher().is_complete


def test_deep_groups_are_read_by_the_engine(vocabulary: Vocabulary) -> None:
    text = "root ::= " + '("(" ' * 99 + 'root? "x"' + ' ")")?' * 99
    matcher = compile_constraint(Lark(gbnf_to_lark(text)), vocabulary).matcher()
    assert spelled(matcher, "(" * 98, vocabulary) and not matcher.is_complete
    assert spelled(matcher, ")" * 98, vocabulary) and matcher.is_complete


def test_stacked_repeats(vocabulary: Vocabulary) -> None:
    matcher = compile_constraint(Lark(gbnf_to_lark('root ::= "a"{2}+?')), vocabulary).matcher()
    assert matcher.is_complete and spelled(matcher, "aaaa", vocabulary) and matcher.is_complete
    assert spelled(matcher, "a", vocabulary) and not matcher.is_complete
    with pytest.raises(GrammarBudgetError):
        gbnf_to_lark('root ::= "a"' + "?" * 5000)


def test_a_long_chain_of_rules(vocabulary: Vocabulary) -> None:
    rules = [f'r{i} ::= "a" r{i + 1} | "b"' for i in range(1500)]
    lark = gbnf_to_lark("\n".join(["root ::= r0", *rules, 'r1500 ::= "c"']))
    matcher = compile_constraint(Lark(lark), vocabulary).matcher()
    assert spelled(matcher, "aaab", vocabulary) and matcher.is_finished


@pytest.mark.parametrize(
    ("text", "notation"),
    [
        ('root ::= "a"', "gbnf"),
        ("# it's a comment with - and 'quotes'\nroot ::= [^'] \"it's\"", "gbnf"),
        ('root ::= [1]\nname ::= "x"', "gbnf"),
        ("root ::= 'a'", "ebnf"),
        ('[1] document ::= "x"', "ebnf"),
        ('a = "x" ;', "ebnf"),
        ("(* note *) a = b, c; b = 'x'; c = 'y';", "ebnf"),
        ('start: "a"', "lark"),
        ('%llguidance {}\nstart: "a"', "lark"),
        ('// x ::= y\n?start: "a" | "::="', "lark"),
        ("TERM.2: /a/\nstart: TERM", "lark"),
    ],
)
def test_the_notation_is_told_by_the_first_definition(text: str, notation: str) -> None:
    assert guess_notation(text) == notation


def test_normalise(vocabulary: Vocabulary) -> None:
    lark = 'start: "ab"'
    assert normalise_grammar(lark) == normalise_grammar(lark, "lark") == lark
    for text, notation in (('root ::= "ab"', "gbnf"), ("root = 'ab';", "ebnf"), ("root ::= 'ab'", "ebnf")):
        assert normalise_grammar(text) == normalise_grammar(text, notation)
        matcher = compile_constraint(Lark(normalise_grammar(text)), vocabulary).matcher()
        assert matcher.forced() == b"ab"
    with pytest.raises(GrammarSyntaxError):
        guess_notation("hello world")
    with pytest.raises(ConfigError) as caught:
        normalise_grammar(lark, "antlr")
    assert caught.value.param == "notation"


@pytest.mark.parametrize("call", [gbnf_to_lark, guess_notation, normalise_grammar])
def test_what_is_no_text(call: Callable[[object], str]) -> None:
    with pytest.raises(RequestError):
        call(5)
