"""Grammar texts in any known notation to the Lark dialect that ``lark`` compiles."""

from __future__ import annotations

import re
from typing import Literal

from constrained_spec.errors import ConfigError, GrammarSyntaxError
from constrained_spec.grammars.bnf_scan import Scanner
from constrained_spec.grammars.ebnf import ebnf_to_lark, is_w3c
from constrained_spec.grammars.gbnf import gbnf_to_lark

Notation = Literal["lark", "gbnf", "ebnf"]

NOTATIONS: tuple[Notation, ...] = ("lark", "gbnf", "ebnf")

_BLANK = re.compile(r"(?:\s|#[^\n]*|//[^\n]*|/\*.*?\*/|\(\*.*?\*\)|\[\s*[0-9]+[a-z]?\s*\])*", re.DOTALL)
_RULE = re.compile(r"[?!]?[A-Za-z_][\w-]*(?:\.-?[0-9]+)?(?:\[[^\]\n]*\]|\{[^}\n]*\})?\s*(::=|:=|=|:)")


def guess_notation(text: str) -> Notation:
    """By the first definition: ``name:`` is Lark, ``name =`` EBNF, ``name ::=`` GBNF unless W3C EBNF shows.

    Raises ``GrammarSyntaxError`` if the text starts with no definition.
    """
    Scanner(text)  # is it text, and of a legal length
    begin = _BLANK.match(text)
    at = begin.end() if begin else 0
    if text.startswith("%", at):
        return "lark"
    found = _RULE.match(text, at)
    if found is None:
        raise GrammarSyntaxError(
            f"the notation of the grammar cannot be told: no definition at character {at}",
            position=at,
            param="grammar",
            hint=f"start with a rule, or name the notation: one of {', '.join(NOTATIONS)}",
        )
    if found[1] == ":":
        return "lark"
    if found[1] == "::=":
        return "ebnf" if is_w3c(text) else "gbnf"
    return "ebnf"


def normalise_grammar(text: str, notation: str = "auto") -> str:
    """``text`` as Lark: unchanged if it is Lark, else translated with exactly the same texts.

    Raises ``ConfigError`` for an unknown ``notation``, and what the translators raise.
    """
    if notation not in ("auto", *NOTATIONS):
        raise ConfigError(
            f"unknown notation {notation!r}", param="notation", hint=f"one of auto, {', '.join(NOTATIONS)}"
        )
    kind = guess_notation(text) if notation == "auto" else notation
    if kind == "gbnf":
        return gbnf_to_lark(text)
    if kind == "ebnf":
        return ebnf_to_lark(text)
    Scanner(text)
    return text
