r"""EBNF in two notations, translated to Lark with exactly the same texts. The first definition decides which.

W3C (XML, SPARQL), ``name ::= ...``
    '...' "..."           text, a backslash is a backslash; #xHH a character; [...] [^...] sets of these
    (...) | * + ?         a - b where both are sets of single characters; /* comments */
    [12] before a rule    a production number, ignored

ISO 14977, ``name = ... ;`` (``:=`` too; a full stop ends a rule too; the end may be left out)
    '...' "..."           text, a backslash is a backslash
    , or nothing          one after the other; | / ! between alternatives
    [...] (/.../)         optional; {...} (:...:) any number of times; (...) a group
    3 * item              exactly three; item* item+ as elsewhere; {...}- at least one
    a - b                 where both are sets of single characters; (* comments *)

Names are letters, digits, ``_`` and inner ``-``, no blanks. Where ``::=`` is used with nothing that only W3C has, the
text is GBNF, which is what XGrammar calls EBNF: the two agree but for the backslash. The texts start at ``root``, else
at ``start``, else at the first rule. Refused by name: ``? special ?``, exceptions over longer texts, ``[ wfc: ... ]``.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from itertools import count

from constrained_spec.grammars.bnf import EMPTY, NEVER, Except, Expr, Name, Options, Rule, Text, Times, options, series
from constrained_spec.grammars.bnf_scan import Scanner, to_lark
from constrained_spec.grammars.gbnf import parse_gbnf
from constrained_spec.grammars.regex_syntax import Chars
from constrained_spec.grammars.utf8 import Ranges, complement, normalise

_NUMBERED = re.compile(r"\[\s*[0-9]+[a-z]?\s*\](?=\s*[A-Za-z_][\w-]*\s*::=)")
_NOTE = re.compile(r"\[\s*(?:wfc|vc|ns[cw]?|gs)\s*:", re.IGNORECASE)
# Ordered: texts, sets and comments are taken whole before anything in them counts. One that is not closed takes all
# that is left: looking for an end again from each character in it would take a time that is the square of the length.
_ONLY_W3C = re.compile(
    r"""(?P<skip>"(?:\\.|[^"\\])*+(?:"|\\?\Z)|\#(?!x[0-9A-Fa-f]+(?!\w))[^\n]*)"""
    r"""|(?P<set>\[(?:\\.|[^\]\\])*+(?:\]|\\?\Z))"""
    r"""|(?P<mark>'|/\*|\#x[0-9A-Fa-f]|(?<=[\s)\]"])-(?=[\s(\["]))""",
    re.DOTALL,
)
_HEX_IN_SET = re.compile(r"#x[0-9A-Fa-f]")


def ebnf_to_lark(text: str, *, root: str | None = None) -> str:
    """Lark text with the same texts as the rule ``root`` of ``text``.

    Raises ``GrammarSyntaxError`` with a character offset, ``UnsatisfiableError``, ``GrammarBudgetError``.
    """
    rules = parse_ebnf(text)
    start = root or next((name for name in ("root", "start") if name in rules), next(iter(rules), ""))
    if start not in rules:
        raise Scanner("").error(f"EBNF: there is no rule {start!r}" if start else "EBNF: there is no rule", 0)
    return to_lark(rules, start)


def parse_ebnf(text: str) -> dict[str, Rule]:
    probe = _Iso(text)
    if probe.uses_w3c_sign():
        return _W3c(text).run() if is_w3c(text) else parse_gbnf(text)
    return probe.run()


def is_w3c(text: str) -> bool:
    """A text with ``::=`` holds something that GBNF lacks: single quotes, ``#xHH``, ``/*``, an exception."""
    if _NUMBERED.match(text.lstrip()):
        return True
    return any(found["mark"] or _HEX_IN_SET.search(found["set"] or "") for found in _ONLY_W3C.finditer(text))


class _Ebnf(Scanner, ABC):
    """What both notations share."""

    what = "EBNF"
    comment = ("/*", "*/")
    signs: tuple[str, ...] = ("::=",)
    bars = "|"
    closing = "|)"
    numbered = False

    def run(self) -> dict[str, Rule]:
        self.space()
        # All rules or none: a set such as [1] may end a rule.
        self.numbered = _NUMBERED.match(self.text, self.at) is not None
        while self.at < len(self.text):
            if self.numbered:
                number = _NUMBERED.match(self.text, self.at)
                if number is None:
                    raise self.error("a production number is expected, as at the first rule")
                self.at = number.end()
                self.space()
            at = self.at
            name = self.name()
            if name is None:
                raise self.error("a rule is expected")
            self.space()
            if not any(self.take(sign) for sign in self.signs):
                raise self.error(f"{self.signs[0]} is expected after {name!r}", hint="a name has no blanks")
            self.add_rule(name, self.alternatives(), at)
            self.end_of_rule()
            self.space()
        return {name: Rule(name, self.resolved(rule.body), rule.position) for name, rule in self.rules.items()}

    def space(self) -> None:
        opening, closing = self.comment
        while self.at < len(self.text):
            if self.peek(opening):
                end = self.text.find(closing, self.at + len(opening))
                if end < 0:
                    raise self.error("unclosed comment")
                self.at = end + len(closing)
            elif self.text[self.at] in " \t\r\n\f\v":
                self.at += 1
            else:
                return

    def end_of_rule(self) -> None:
        if self.at < len(self.text) and not self.starts_rule():
            raise self.error(f"unexpected {self.text[self.at]!r}")

    def starts_rule(self) -> bool:
        """A name and a definition sign stand here."""
        if self.numbered:
            return _NUMBERED.match(self.text, self.at) is not None
        begin = self.at
        found = self.name() is not None
        if found:
            self.space()
            found = any(self.peek(sign) for sign in self.signs)
        self.at = begin
        return found

    def alternatives(self) -> Expr:
        found = [self.sequence()]
        while self.at < len(self.text) and self.text[self.at] in self.bars and not self.closes():
            self.at += 1
            found.append(self.sequence())
        return options(found)

    def closes(self) -> bool:
        return False

    def separator(self) -> bool:
        return False

    def sequence(self) -> Expr:
        items: list[Expr] = []
        self.space()
        while True:
            at = self.at
            item = self.term()
            if item is None:
                return series(items) if items else EMPTY
            items.append(item)
            self.space()
            if self.separator():
                self.space()
            assert self.at > at, "a term has characters"

    def term(self) -> Expr | None:
        """One item with its repeats and exceptions."""
        at = self.at
        if at >= len(self.text) or self.text[at] in self.closing or self.closes() or self.starts_rule():
            return None
        item = self.postfix(self.primary())
        self.space()
        while self.peek("-"):
            self.at += 1
            self.space()
            if self.ends_term():
                return self.at_least_one(item, at)
            but = self.postfix(self.primary())
            # a - b - c is a - (b | c): a long chain does not nest.
            item = (
                Except(item.item, options([item.but, but]), at) if isinstance(item, Except) else Except(item, but, at)
            )
            self.space()
        return item

    def ends_term(self) -> bool:
        return False

    def at_least_one(self, item: Expr, at: int) -> Expr:
        if isinstance(item, Times) and item.low == 0 and item.high is None:
            return self.bounded(item.item, 1, None, at)
        raise self.error("an exception of nothing is only known after {...}", at)

    @abstractmethod
    def postfix(self, item: Expr) -> Expr:
        """``item`` with the repeat signs that follow it."""

    @abstractmethod
    def primary(self) -> Expr:
        """One item without what follows it."""

    def quoted(self) -> Expr:
        at = self.at
        quote = self.next("text in quotes", at)
        end = self.text.find(quote, self.at)
        if end < 0:
            raise self.error("unclosed text in quotes", at)
        found = self.text[self.at : end]
        self.at = end + 1
        return Text(found) if found else EMPTY

    def group(self, closing: str, at: int) -> Expr:
        self.open_group(at)
        found = self.alternatives()
        if not self.take(closing):
            raise self.error("unclosed group", at)
        self.depth -= 1
        return found

    def resolved(self, expr: Expr) -> Expr:
        """``expr`` with its exceptions worked out."""
        if isinstance(expr, Except):
            allowed, banned = self.set_of(expr.item, expr.position, ()), self.set_of(expr.but, expr.position, ())
            outside = complement(normalise([*complement(allowed), *banned]))
            return Chars(outside) if outside else NEVER
        if isinstance(expr, Times):
            return self.bounded(self.resolved(expr.item), expr.low, expr.high, 0)
        if isinstance(expr, Text | Chars | Name):
            return expr
        parts = [self.resolved(item) for item in expr.items]
        return options(parts) if isinstance(expr, Options) else series(parts)

    def set_of(self, expr: Expr, at: int, within: tuple[str, ...]) -> Ranges:
        """The characters that ``expr`` stands for, each alone."""
        if isinstance(expr, Text) and len(expr.text) == 1:
            return normalise([(ord(expr.text), ord(expr.text))])
        if isinstance(expr, Chars):
            return expr.ranges
        if isinstance(expr, Options):
            return normalise(r for item in expr.items for r in self.set_of(item, at, within))
        if isinstance(expr, Name) and expr.name not in self.rules:
            raise self.error(f"the rule {expr.name!r} is used but not defined", expr.position)
        if isinstance(expr, Name) and expr.name not in within and len(within) < 50:
            return self.set_of(self.rules[expr.name].body, at, (*within, expr.name))
        if isinstance(expr, Except):
            allowed, banned = self.set_of(expr.item, at, within), self.set_of(expr.but, at, within)
            return complement(normalise([*complement(allowed), *banned]))
        raise self.error("an exception is known only between sets of single characters", at, "write out what remains")


class _W3c(_Ebnf):
    what = "W3C EBNF"

    def postfix(self, item: Expr) -> Expr:
        for stacked in count():
            at = self.at
            self.check_nesting(stacked, at)
            bounds = {"*": (0, None), "+": (1, None), "?": (0, 1)}.get(self.text[at : at + 1])
            if bounds is None:
                return item
            self.at += 1
            item = self.bounded(item, *bounds, at)
        raise AssertionError("the loop ends by return")

    def primary(self) -> Expr:
        at = self.at
        c = self.text[at] if at < len(self.text) else ""
        if c and c in "'\"":
            return self.quoted()
        if self.take("#x"):
            return Text(chr(self.hexadecimal(at)))
        if c == "[":
            if _NOTE.match(self.text, at):
                raise self.error("a constraint in brackets cannot be enforced", at, "leave it out")
            self.at += 1
            return self.set(at)
        if c == "(":
            self.at += 1
            return self.group(")", at)
        name = self.name()
        if name is None:
            raise self.error(f"unexpected {c!r}" if c else "the grammar ends too early", at)
        return Name(name, at)

    def set(self, at: int) -> Chars:
        negate = self.take("^")
        ranges: list[tuple[int, int]] = []
        while not self.take("]"):
            begin = self.at
            low = high = self.member(at)
            if self.peek("-") and not self.text.startswith("]", self.at + 1):
                self.at += 1
                high = self.member(at)
            if low > high:
                raise self.error("bad range", begin)
            ranges.append((low, high))
        return self.chars(ranges, negate, at)

    def member(self, at: int) -> int:
        if re.match(r"#x[0-9A-Fa-f]", self.text[self.at : self.at + 3]):
            self.at += 2
            return self.hexadecimal(at)
        return ord(self.next("set", at))


class _Iso(_Ebnf):
    what = "EBNF"
    comment = ("(*", "*)")
    signs = (":=", "=")
    bars = "|/!"
    closing = "|!)]};."

    def uses_w3c_sign(self) -> bool:
        """The first definition sign is ``::=``."""
        rest = re.sub(r"\(\*.*?(?:\*\)|\Z)|/\*.*?(?:\*/|\Z)|#[^\n]*", " ", self.text, flags=re.DOTALL)
        found = re.match(r"\s*(?:\[[^\]]*\]\s*)?[A-Za-z_][\w-]*\s*(::=)?", rest)
        return bool(found and found[1])

    def closes(self) -> bool:
        return self.peek("/)") or self.peek(":)")

    def end_of_rule(self) -> None:
        if self.at < len(self.text) and self.text[self.at] in ";.":
            self.at += 1
        else:
            super().end_of_rule()

    def separator(self) -> bool:
        at = self.at
        if not self.take(","):
            return False
        self.space()
        if self.at >= len(self.text) or self.text[self.at] in self.closing or self.closes():
            raise self.error("nothing follows the comma", at)
        return True

    def ends_term(self) -> bool:
        return self.at >= len(self.text) or self.text[self.at] in ",|/!)]};." or self.starts_rule()

    def term(self) -> Expr | None:
        if self.peek("/"):  # an alternative, or the end of (/ ... /)
            return None
        return super().term()

    def postfix(self, item: Expr) -> Expr:
        begin = self.at
        self.space()
        at = self.at
        for sign, low in (("*", 0), ("+", 1)):
            if self.take(sign):
                return self.bounded(item, low, None, at)
        self.at = begin
        return item

    def primary(self) -> Expr:
        at = self.at
        c = self.text[at] if at < len(self.text) else ""
        if c.isascii() and c.isdigit():
            often = self.number()
            self.space()
            if not self.take("*"):
                raise self.error("a number is written before * only", at, "quote it if it is text")
            self.space()
            self.open_group(at)
            item = self.bounded(self.primary(), often, often, at)
            self.depth -= 1
            return item
        if c and c in "'\"":
            return self.quoted()
        if c == "?":
            raise self.error("a ? special sequence ? cannot be enforced", at, "write [ item ] for an optional item")
        for opening, closing, high in (("(/", "/)", 1), ("(:", ":)", None), ("[", "]", 1), ("{", "}", None)):
            if self.take(opening):
                return self.bounded(self.group(closing, at), 0, high, at)
        if self.take("("):
            return self.group(")", at)
        name = self.name()
        if name is None:
            raise self.error(f"unexpected {c!r}" if c else "the grammar ends too early", at)
        return Name(name, at)
