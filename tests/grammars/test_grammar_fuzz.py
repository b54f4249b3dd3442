"""Damaged grammar texts: they compile, or they are refused with a typed error. Nothing else may happen."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from constrained_spec.errors import GrammarSyntaxError, RequestError
from constrained_spec.grammars import library
from constrained_spec.grammars.compile import Lark, Regex, compile_constraint
from constrained_spec.grammars.ebnf import ebnf_to_lark
from constrained_spec.grammars.gbnf import gbnf_to_lark
from constrained_spec.grammars.notation import normalise_grammar
from constrained_spec.types import Vocabulary

GBNF = [
    'root ::= object # value\nvalue ::= object | "\\"" [^"\\\\\\x00-\\x1F]* "\\"" | [0-9]+ | "null"\n'
    'object ::= "{" ws (value ":" ws value ("," ws value)*)? "}"\nws ::= ([ \\t\\n] ws)?',
    'root ::= e\ne ::= e [-+] t | t\nt ::= f ("*" f){0,3}\nf ::= "(" e ")" | [a-z_]+ "\\u00e9"? | .',
]
EBNF = [
    "(* sum *) e = t, { ('+' | '-'), t }; t = 2 * f | [ f ], 'x'; f = letter - 'b' | '(', e, ')'; letter = 'a' | 'b';",
    "[1] e ::= t (('+' | #x2D) t)* /* sum */\n[2] t ::= [a-z#x41-#x5A]+ | '(' e ')' | ([^0-9] - 'q')?",
]
REGEX = [library.describe(name).text for name in ("semver", "iso_date", "cron", "csv_row", "ipv4")]
LARK = [library.describe(name).text for name in ("arithmetic", "json", "sql_select", "python_expression")]
MARKS = "()[]{}|*+?.,;:='\"\\#/-<>!&~^$%@ \n\t09aZxuUé😀\x00\ud800"


def damaged(text: str, rng: random.Random) -> str:
    for _ in range(rng.choice((1, 1, 2, 3, 6))):
        at = rng.randrange(len(text) + 1)
        end = min(len(text), at + rng.choice((1, 1, 2, 10)))
        kind = rng.randrange(4)
        if kind == 0:
            text = text[:at] + text[end:]
        elif kind == 1:
            text = text[:at] + rng.choice(MARKS) + text[at:]
        elif kind == 2:
            text = text[:at] + rng.choice(MARKS) + text[end:]
        else:
            other = rng.randrange(len(text) + 1)
            text = text[:at] + text[other : other + rng.choice((3, 15))] + text[at:]
    return text


def outcome(text: str, notation: str, vocabulary: Vocabulary) -> RequestError | None:
    try:
        if notation == "regex":
            compile_constraint(Regex(text), vocabulary)
        else:
            compile_constraint(Lark(normalise_grammar(text, notation)), vocabulary)
    except RequestError as error:
        return error
    except BaseException as error:
        raise AssertionError(f"{error!r} for {text!r}") from error
    return None


@pytest.mark.parametrize("notation", ["gbnf", "ebnf", "auto", "regex", "lark"])
def test_damaged_texts(notation: str, vocabulary: Vocabulary) -> None:
    rng = random.Random(f"damage {notation}")
    seeds = {"gbnf": GBNF, "ebnf": EBNF, "auto": GBNF + EBNF + LARK, "regex": REGEX, "lark": LARK}[notation]
    compiled = refused = 0
    for _ in range(250):
        text = damaged(rng.choice(seeds), rng)
        error = outcome(text, notation, vocabulary)
        compiled += error is None
        refused += error is not None
        if isinstance(error, GrammarSyntaxError) and error.position is not None:
            assert 0 <= error.position <= len(text), text
    assert compiled > 10 and refused > 10


@pytest.mark.parametrize("translate", [gbnf_to_lark, ebnf_to_lark])
def test_a_translated_text_is_never_refused_by_the_engine(
    translate: Callable[[str], str], vocabulary: Vocabulary
) -> None:
    """A translator's own text that the engine refuses is a fault of the translator."""
    rng = random.Random(9)
    for _ in range(250):
        text = damaged(rng.choice(GBNF if translate is gbnf_to_lark else EBNF), rng)
        try:
            lark = translate(text)
        except RequestError:
            continue
        compile_constraint(Lark(lark), vocabulary)


def test_random_noise(vocabulary: Vocabulary) -> None:
    rng = random.Random(11)
    for _ in range(300):
        text = "".join(rng.choice(MARKS + "root::=") for _ in range(rng.randint(0, 40)))
        for notation in ("auto", "gbnf", "ebnf"):
            outcome(text, notation, vocabulary)
