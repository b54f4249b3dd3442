r"""GBNF, the notation of llama.cpp, which XGrammar calls EBNF; translated to Lark with exactly the same texts.

    name ::= ...          a rule; the next ``name ::=`` ends it; ``root`` is where a text starts
    "..."                 text; [...] [^...] sets, ranges, ``-`` first or last for itself; . any character
    \n \t \r \f \v \a \b \0 \xHH \uHHHH \UHHHHHHHH; a backslash before punctuation; \x41 is U+0041, not a byte
    (...) | * + ? {n} {n,} {n,m} {,m}
    # ...                 a comment to the end of the line; names are letters, digits, - and _

Refused by name: token references (``<name>``, ``<[1]>``, ``!<name>``), lookaheads and tag dispatch of XGrammar.
"""

from __future__ import annotations

import re

from constrained_spec.grammars.bnf import EMPTY, Expr, Name, Rule, options, series
from constrained_spec.grammars.bnf_scan import Scanner, to_lark
from constrained_spec.grammars.regex_syntax import ANY, Chars

_NAME = re.compile(r"[A-Za-z0-9_-]+")
_DEFINES = re.compile(r"(?:[ \t\r\n]|#[^\n]*(?:\n|\Z))*::=")
_BOUNDS = re.compile(r"\{\s*([0-9]{0,9})\s*(,?)\s*([0-9]{0,9})\s*\}")


def gbnf_to_lark(text: str, *, root: str = "root") -> str:
    """Lark text with the same texts as the rule ``root`` of ``text``.

    Raises ``GrammarSyntaxError`` with a character offset, ``UnsatisfiableError``, ``GrammarBudgetError``.
    """
    rules = parse_gbnf(text)
    if root not in rules:
        raise Scanner("").error(f"there is no rule {root!r}", 0, f"name the rule that a text starts with {root!r}")
    return to_lark(rules, root)


def parse_gbnf(text: str) -> dict[str, Rule]:
    return _Parser(text).run()


class _Parser(Scanner):
    what = "GBNF"
    names = _NAME

    def run(self) -> dict[str, Rule]:
        self._space()
        while self.at < len(self.text):
            at = self.at
            name = self.name()
            if name is None:
                raise self.error("a rule is expected", hint='write name ::= "text"')
            self._space()
            if not self.take("::="):
                raise self.error(f"::= is expected after {name!r}")
            self.add_rule(name, self._alternatives(), at)
            if self.at < len(self.text) and not _NAME.match(self.text, self.at):
                raise self.error(f"unexpected {self.text[self.at]!r}")
        return self.rules

    def _space(self) -> None:
        while self.at < len(self.text):
            if self.text[self.at] == "#":
                end = self.text.find("\n", self.at)
                self.at = len(self.text) if end < 0 else end
            elif self.text[self.at] in " \t\r\n":
                self.at += 1
            else:
                return

    def _alternatives(self) -> Expr:
        found = [self._sequence()]
        while self.take("|"):
            found.append(self._sequence())
        return options(found)

    def _sequence(self) -> Expr:
        items: list[Expr] = []
        self._space()
        while (item := self._item()) is not None:
            self._space()
            stacked = 0
            while (again := self._repeated(item)) is not None:
                item = again
                stacked += 1
                self.check_nesting(stacked, self.at)
                self._space()
            items.append(item)
        return series(items) if items else EMPTY

    def _item(self) -> Expr | None:
        at = self.at
        if at >= len(self.text) or self.text[at] in "|)":
            return None
        c = self.text[at]
        if c == '"':
            self.at += 1
            return self._text(at)
        if c == "[":
            self.at += 1
            return self._set(at)
        if c == "(":
            self.at += 1
            return self._group(at)
        if c == ".":
            self.at += 1
            return ANY
        if c == "<" or self.peek("!<"):
            raise self.error("a token reference cannot be enforced", at, "write the text of the token in quotes")
        found = _NAME.match(self.text, at)
        if found is None:
            hint = "write text in double quotes" if c in "'`" else None
            raise self.error(f"unexpected {c!r}", at, hint)
        if _DEFINES.match(self.text, found.end()):
            return None
        self.at = found.end()
        if found[0] in ("TagDispatch", "Token", "ExcludeToken", "TokenTagDispatch") and self.peek("("):
            raise self.error(f"{found[0]} cannot be enforced here", at, "write out the rule in text")
        return Name(found[0], at)

    def _text(self, at: int) -> Expr:
        codes: list[int] = []
        while (c := self.next("text in quotes", at)) != '"':
            codes.append(self.escape(self.at - 1) if c == "\\" else ord(c))
        return self.literal(codes)

    def _set(self, at: int) -> Chars:
        negate = self.take("^")
        ranges: list[tuple[int, int]] = []
        while not self.take("]"):
            begin = self.at
            low = self._member(at)
            high = low
            if self.peek("-") and not self.text.startswith("]", self.at + 1):
                self.at += 1
                high = self._member(at)
            if low > high:
                raise self.error("bad range", begin)
            ranges.append((low, high))
        return self.chars(ranges, negate, at)

    def _member(self, at: int) -> int:
        c = self.next("set", at)
        return self.escape(self.at - 1) if c == "\\" else ord(c)

    def _group(self, at: int) -> Expr:
        if self.peek("=") or self.peek("!"):
            raise self.error("a lookahead cannot be enforced", at, "rewrite the rule without it")
        self.open_group(at)
        found = self._alternatives()
        if not self.take(")"):
            raise self.error("unclosed group", at)
        self.depth -= 1
        return found

    def _repeated(self, item: Expr) -> Expr | None:
        at = self.at
        for sign, low, high in (("*", 0, None), ("+", 1, None), ("?", 0, 1)):
            if self.take(sign):
                return self.bounded(item, low, high, at)
        if not self.peek("{"):
            return None
        bounds = _BOUNDS.match(self.text, at)
        if bounds is None or not (bounds[1] or bounds[3]) or (bounds[3] and not bounds[2]):
            raise self.error("a repeat is {n}, {n,}, {,m} or {n,m}", at)
        self.at = bounds.end()
        low = int(bounds[1] or 0)
        return self.bounded(item, low, (int(bounds[3]) if bounds[3] else None) if bounds[2] else low, at)
