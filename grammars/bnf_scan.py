"""Reading GBNF and EBNF texts: a position, escapes, numbers, and errors that say where."""

from __future__ import annotations

import re

from constrained_spec.errors import GrammarBudgetError, GrammarSyntaxError, RequestError
from constrained_spec.grammars.bnf import (
    EMPTY,
    MAX_GRAMMAR_CHARACTERS,
    MAX_NESTING,
    MAX_REPEAT,
    Expr,
    Rule,
    Text,
    as_regex,
    clean,
    times,
)
from constrained_spec.grammars.bnf_lexemes import render_rules
from constrained_spec.grammars.regex_syntax import Chars
from constrained_spec.grammars.regex_tree import render_rust, simplify
from constrained_spec.grammars.utf8 import MAX_CODE_POINT, complement, normalise

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:-[A-Za-z0-9_]+)*")
_NUMBER = re.compile(r"[0-9]{1,9}")
_HEX = re.compile(r"[0-9A-Fa-f]+")
_CONTROLS = {"n": 10, "t": 9, "r": 13, "f": 12, "v": 11, "a": 7, "b": 8, "0": 0}


class Scanner:
    """A position in ``text``. Subclasses add one notation each."""

    what = "the grammar"
    names = _NAME

    def __init__(self, text: str) -> None:
        if not isinstance(text, str):
            raise RequestError(f"a grammar is a string, not {type(text).__name__}", param="grammar")
        if len(text) > MAX_GRAMMAR_CHARACTERS:
            raise GrammarBudgetError(
                f"the grammar has {len(text)} characters, the limit is {MAX_GRAMMAR_CHARACTERS}",
                limit="max_grammar_characters",
                param="grammar",
            )
        for i, c in enumerate(text):
            if 0xD800 <= ord(c) <= 0xDFFF:
                raise self.error("a lone surrogate is no text", i)
        self.text = text
        self.at = 0
        self.depth = 0
        self.rules: dict[str, Rule] = {}

    def error(self, message: str, at: int | None = None, hint: str | None = None) -> GrammarSyntaxError:
        at = self.at if at is None else at
        return GrammarSyntaxError(f"{self.what}: {message} at character {at}", position=at, param="grammar", hint=hint)

    def peek(self, text: str) -> bool:
        return self.text.startswith(text, self.at)

    def take(self, text: str) -> bool:
        if self.peek(text):
            self.at += len(text)
            return True
        return False

    def next(self, what: str, at: int) -> str:
        """The next character; ``at``: where the thing that it belongs to began."""
        if self.at >= len(self.text):
            raise self.error(f"unclosed {what}", at)
        self.at += 1
        return self.text[self.at - 1]

    def name(self) -> str | None:
        found = self.names.match(self.text, self.at)
        if found is None:
            return None
        self.at = found.end()
        return found[0]

    def number(self) -> int:
        found = _NUMBER.match(self.text, self.at)
        if found is None:
            raise self.error("a number is expected")
        self.at = found.end()
        return int(found[0])

    def open_group(self, at: int) -> None:
        self.depth += 1
        self.check_nesting(self.depth, at)

    def check_nesting(self, depth: int, at: int) -> None:
        if depth > MAX_NESTING:
            raise GrammarBudgetError(
                f"the grammar nests more than {MAX_NESTING} groups or repeats at character {at}",
                limit="max_nesting",
                param="grammar",
            )

    def bounded(self, item: Expr, low: int, high: int | None, at: int) -> Expr:
        if high is not None and high < low:
            raise self.error("the smaller bound of a repeat comes first", at)
        if max(low, high or 0) > MAX_REPEAT:
            raise GrammarBudgetError(
                f"a repeat of more than {MAX_REPEAT} at character {at}", limit="max_repeat", param="grammar"
            )
        return times(item, low, high)

    def escape(self, at: int) -> int:
        """The code point of a backslash escape; the backslash, at ``at``, is read."""
        c = self.next("escape", at)
        width = {"x": 2, "u": 4, "U": 8}.get(c)
        if width:
            digits = self.text[self.at : self.at + width]
            if len(digits) < width or not _HEX.fullmatch(digits):
                raise self.error(f"\\{c} needs {width} hexadecimal digits", at)
            self.at += width
            return self.code_point(int(digits, 16), at)
        if c in _CONTROLS:
            return _CONTROLS[c]
        if c.isalnum() or not c.isascii() or not c.isprintable():
            raise self.error(f"unknown escape \\{c}", at)
        return ord(c)

    def code_point(self, code: int, at: int) -> int:
        if code > MAX_CODE_POINT or 0xD800 <= code <= 0xDFFF:
            raise self.error("no character has this number", at)
        return code

    def hexadecimal(self, at: int) -> int:
        """The number after ``#x``."""
        found = _HEX.match(self.text, self.at)
        if found is None or len(found[0]) > 8:
            raise self.error("#x needs a hexadecimal number", at)
        self.at = found.end()
        return self.code_point(int(found[0], 16), at)

    def chars(self, ranges: list[tuple[int, int]], negate: bool, at: int) -> Chars:
        found = normalise(ranges)
        if not found and not negate:
            raise self.error("an empty set matches nothing", at)
        return Chars(complement(found) if negate else found)

    def literal(self, codes: list[int]) -> Expr:
        return Text("".join(map(chr, codes))) if codes else EMPTY

    def add_rule(self, name: str, body: Expr, at: int) -> None:
        if name in self.rules:
            raise self.error(f"the rule {name!r} is defined twice", at, "join the two with |")
        self.rules[name] = Rule(name, body, at)


def to_lark(rules: dict[str, Rule], start: str) -> str:
    """Lark text for exactly the texts that the rule ``start`` derives."""
    cleaned = clean(rules, start)
    whole = as_regex(cleaned, start)
    if whole is not None:
        pattern = render_rust(simplify(whole))
        assert pattern is not None, "no rule holds a lookahead"
        return f"start: /{pattern}/\n"
    return render_rules(cleaned, start)
