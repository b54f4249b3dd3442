"""W3C and ISO 14977 EBNF by the texts they stand for, and by their errors."""

from __future__ import annotations

import pytest

from constrained_spec.errors import GrammarBudgetError, GrammarSyntaxError, RequestError, UnsatisfiableError
from constrained_spec.grammars.compile import Lark, compile_constraint
from constrained_spec.grammars.ebnf import ebnf_to_lark
from constrained_spec.grammars.gbnf import gbnf_to_lark
from constrained_spec.types import Vocabulary


def holds(lark: str, text: str, vocabulary: Vocabulary) -> bool:
    matcher = compile_constraint(Lark(lark), vocabulary).matcher()
    return all(matcher.advance(vocabulary.tokens.index(bytes([b]))) for b in text.encode()) and matcher.is_complete


CASES = [
    # ISO 14977
    ('a = "x", { "y" | b }; b = 3 * "z", [ "w" ];', ["x", "xyy", "xzzzy", "xyzzzw"], ["", "xzz", "y"]),
    ("expr = term, { ('+' | '-'), term }; term = digit, { digit } | '(', expr, ')';\ndigit = '0'|'1'|'2';",
     ["1+2", "(10-2)+1", "((0))"], ["", "1+", "(1", "3", "1 +2"]),
    ("(* one (note) *) s = (/ 'a' /), (: 'b' :), 'c' (* two *).", ["c", "abbc", "bc"], ["a", "aac"]),
    ("s = 'a' / 'b' ! 'c'", ["a", "b", "c"], ["ab", ""]),
    ("s = { 'a' }-, 'b'", ["ab", "aab"], ["b", ""]),
    ("letter = 'a' | 'b' | 'c'; root = (letter - 'b'), (letter - (\"a\" | 'c'))", ["ab", "cb"], ["bb", "aa"]),
    ("s = x y\nx = '1'*\ny = '2'+", ["2", "1122"], ["", "1"]),
    (r"s = '\n', "+ '"\\" ;', ["\\n\\"], ["\n\\", "\\n"]),
    ("s = ; ", [""], ["a"]),
    ("s = 'a' | ; ", ["a", ""], ["b"]),
    ("my-rule := 'a' my-rule 'b' | 'ab'", ["ab", "aabb"], ["aab", "a"]),
    ("x = 'a'; start = x, x", ["aa"], ["a"]),
    # W3C
    ("root ::= 'a' | #x42 [#x30-#x39]+ c?\nc ::= [^#x0-#x7F.]", ["a", "B0", "B99é"], ["B", "b0", "B0."]),
    ("/* ws */ S ::= (#x20 | #x9 | #xD | #xA)+", [" ", "\t \n"], ["", "x"]),
    ("[1] doc ::= e '.'\n[2]   e ::= '(' e ')' | \"\\\" [tn\\]", ["\\t.", "((\\\\))."], ["\\x.", "(\\t."]),
    ("c ::= [a-z] - [aeiou]\nroot ::= c+ - 'z'", [], []),
    ("c ::= [a-z] - [aeiou]\nroot ::= (c - 'z')+ '-'", ["bcd-"], ["a-", "z-", "-"]),
    ("a = b - 'x' - 'y' - ('z'); b = 'w' | 'x' | 'y' | 'z';", ["w"], ["x", "y", "z"]),
    ("root ::= \"it's\" | 'say \"x\"'", ["it's", 'say "x"'], ["its"]),
    ("[1] Query ::= 'SELECT' WS Var+ 'WHERE' WS '{' WS Triple* '}'\n[2] Triple ::= Var Iri (Lit | Var) '.' WS\n"
     "[3] Var ::= [?$] [a-zA-Z]+ WS\n[4] Iri ::= '<' ([^<>\"{}|^`\\]-[#x00-#x20])* '>' WS\n"
     "[5] Lit ::= '\"' ( [^#x22#x5C#xA#xD] | Echar )* '\"' WS\n[6] Echar ::= '\\' [tbnrf\\\"']\n[7] WS ::= ' '*",
     ['SELECT ?a $b WHERE { ?a <http://x/y> "q\\n\\"é" . }', "SELECT?a WHERE{}"],
     ["SELECT WHERE { }", "SELECT ?a WHERE { ?a <a b> ?c . }", 'SELECT ?a WHERE { ?a <b> "\\x" . }',
      "SELECT ?a WHERE { ?a <b\\> ?c . }"]),
    ("syntax = production, { production }; production = identifier, ' = ', expression, ' .';\n"
     "expression = term, { ' | ', term }; term = factor, { ' ', factor }; letter = 'a' | 'b' | 'c';\n"
     "factor = identifier | literal | '[ ', expression, ' ]' | '( ', expression, ' )' | '{ ', expression, ' }';\n"
     "identifier = letter, { letter }; literal = '\"', letter, { letter }, '\"';",
     ['a = "b" { c | [ ab ] } .', "a = b .b = c ."], ["a = .", "a = { b .", "a = [ b } ."]),
    # what XGrammar calls EBNF
    ('root ::= "a\\n" x\nx ::= [\\]\\x41]{2}', ["a\n]A"], ["a\\n]A"]),
]  # fmt: skip


@pytest.mark.parametrize(("text", "yes", "no"), CASES)
def test_texts(text: str, yes: list[str], no: list[str], vocabulary: Vocabulary) -> None:
    if not yes:
        with pytest.raises(GrammarSyntaxError, match="exception"):
            ebnf_to_lark(text)
        return
    lark = ebnf_to_lark(text)
    for case in yes:
        assert holds(lark, case, vocabulary), case
    for case in no:
        assert not holds(lark, case, vocabulary), case


def test_without_a_backslash_gbnf_and_w3c_agree() -> None:
    text = 'root ::= "a" x* | [b-d]+ (x "e")?\nx ::= "(" root ")"'
    assert ebnf_to_lark(text) == gbnf_to_lark(text) == ebnf_to_lark(text + "/* W3C */")


def test_another_root(vocabulary: Vocabulary) -> None:
    assert holds(ebnf_to_lark("a = 'x'; b = 'y';", root="b"), "y", vocabulary)
    with pytest.raises(GrammarSyntaxError, match="no rule 'c'"):
        ebnf_to_lark("a = 'x'; b = 'y';", root="c")


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("", 0),
        ("a = 'x", 4),
        ("a = ('x' ;", 4),
        ("a = 'x' )", 8),
        ("a = ['x' ;", 4),
        ("a = b;", 4),
        ("a = 'x'; a = 'y';", 9),
        ("a = 'x',;", 7),
        ("a = ? any ?;", 4),
        ("a = 3 'x';", 4),
        ("a = 'x' - 'yy';", 4),
        ("a = 'x' - ;", 4),
        ("a b = 'x';", 2),
        ("(* a = 'x';", 0),
        ("a = %;", 4),
        ("a ::= 'x", 6),
        ("a ::= 'b' #x", 10),
        ("a = 'x' - b;", 10),
        ("a ::= 'b' #x110000", 10),
        ("a ::= 'x' [z-a]", 11),
        ("a ::= 'x' [wfc: Unique]", 10),
        ("a ::= 'x' /* never closed", 10),
        ("a ::= 'x' ]", 10),
        ("[1] a ::= b\nb ::= 'x'", 14),
        ("a ::= 'x' b c\nb ::= 'y'", 12),
        ("a = b - 'x'; b = a;", 4),
    ],
)
def test_errors_say_where(text: str, position: int) -> None:
    with pytest.raises(GrammarSyntaxError) as caught:
        ebnf_to_lark(text)
    assert (caught.value.position, caught.value.param) == (position, "grammar")


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("a = a;", UnsatisfiableError),
        ("a = 'x' - 'x';", UnsatisfiableError),
        ("a = " + "[" * 101 + "'x'" + "]" * 101, GrammarBudgetError),
        ("a = 100001 * 'x'", GrammarBudgetError),
        ("a = " + "1 * " * 3000 + "'x'", GrammarBudgetError),
        ("a ::= 'x'" + "?" * 3000, GrammarBudgetError),
        (None, RequestError),
    ],
)
def test_other_errors_are_typed(text: str, kind: type[RequestError]) -> None:
    with pytest.raises(kind):
        ebnf_to_lark(text)
