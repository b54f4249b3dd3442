r"""The one regex flavour of this package, parsed once for every engine. The whole text must match.

    literals        any character; ``{`` where no quantifier is meant
    .               any character but newline (all with flag s)
    [...] [^...]    sets and ranges; ``]`` first is a literal; the escapes below
    \d \w \s        ASCII digits, ``[A-Za-z0-9_]``, ``[ \t\n\r\f\v]``; \D \W \S their complements
    \p{L} \P{Lu}    Unicode general categories, one or two letters
    \n \t \r \f \v \a \0 \xHH \uHHHH \UHHHHHHHH \u{H...} \x{H...}; a backslash before any other non-letter
    * + ? {n} {n,} {,m} {n,m}, lazy forms too (the language is the same)
    (...) (?:...) (?P<name>...) (?<name>...) (?#...) |
    (?i) (?s) at the start, (?i:...) (?s:...) (?-i:...) anywhere; i folds simple one-to-one case
    ^ $ \A \Z \z    where nothing can stand before (after) them: they change nothing there
    (?=...) (?!...) outside repeats

Refused by name: lookbehind, back-references, word boundaries, atomic and possessive groups, anchors elsewhere.
"""

from __future__ import annotations

import unicodedata
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from constrained_spec.errors import GrammarBudgetError, GrammarSyntaxError
from constrained_spec.grammars.utf8 import MAX_CODE_POINT, Ranges, complement, normalise

MAX_PATTERN = 200_000
MAX_NESTING = 100


@dataclass(frozen=True, slots=True)
class Chars:
    """One character out of ``ranges``; none at all if they are empty."""

    ranges: Ranges


@dataclass(frozen=True, slots=True)
class Concat:
    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Alt:
    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    item: Node
    low: int
    high: int | None


@dataclass(frozen=True, slots=True)
class Look:
    """A lookahead at ``position`` of the pattern."""

    item: Node
    negate: bool
    position: int


@dataclass(frozen=True, slots=True)
class Anchor:
    at_end: bool
    position: int


@dataclass(frozen=True, slots=True)
class Meet:
    """Texts of ``item`` that are (``negate``: are not) in ``look``; reaches to the end of the whole text.

    Never parsed: ``regex_tree`` writes lookaheads so.
    """

    item: Node
    look: Node
    negate: bool


Node = Chars | Concat | Alt | Repeat | Look | Anchor | Meet

EMPTY = Concat(())
NOTHING = Chars(())
ANY = Chars(normalise([(0, MAX_CODE_POINT)]))

_DIGIT = normalise([(48, 57)])
_WORD = normalise([(48, 57), (65, 90), (95, 95), (97, 122)])
_SPACE = normalise([(9, 13), (32, 32)])
_SETS = {
    "d": _DIGIT, "D": complement(_DIGIT), "w": _WORD, "W": complement(_WORD), "s": _SPACE, "S": complement(_SPACE)
}  # fmt: skip
_CONTROLS = {"n": 10, "t": 9, "r": 13, "f": 12, "v": 11, "a": 7, "0": 0}


@cache
def _cased() -> tuple[tuple[int, tuple[int, ...]], ...]:
    """(code point, its other cases), sorted; one-to-one mappings only."""
    found: dict[int, set[int]] = {}
    for c in range(0x1E944):  # no cased letter lies above
        text = chr(c)
        for other in (text.lower(), text.upper()):
            if len(other) == 1 and other != text:
                found.setdefault(c, set()).add(ord(other))
                found.setdefault(ord(other), set()).add(c)
    return tuple((c, tuple(sorted(others))) for c, others in sorted(found.items()))


@cache
def _category(name: str) -> Ranges:
    return normalise((c, c) for c in range(MAX_CODE_POINT + 1) if unicodedata.category(chr(c)).startswith(name))


def _fold(ranges: Ranges) -> Ranges:
    table = _cased()
    extra: list[tuple[int, int]] = []
    for low, high in ranges:
        i = bisect_left(table, (low, ()))
        while i < len(table) and table[i][0] <= high:
            extra += [(c, c) for c in table[i][1]]
            i += 1
    return normalise([*ranges, *extra])


def parse(pattern: str) -> Node:
    """The tree of ``pattern``, outer anchors still in it. Raises ``GrammarSyntaxError`` with a position."""
    if len(pattern) > MAX_PATTERN:
        raise GrammarBudgetError(
            f"the regex has {len(pattern)} characters, the limit is {MAX_PATTERN}", limit="max_pattern", param="regex"
        )
    return _Parser(pattern).run()


class _Parser:
    def __init__(self, pattern: str) -> None:
        self.text = pattern
        self.at = 0
        self.depth = 0
        self.ignore_case = False
        self.dot_all = False

    def run(self) -> Node:
        if self.text.startswith("(?"):
            self._global_flags()
        node = self._alternatives()
        if self.at < len(self.text):
            raise self._error("unbalanced parenthesis")
        return node

    def _error(self, message: str, at: int | None = None, hint: str | None = None) -> GrammarSyntaxError:
        at = self.at if at is None else at
        return GrammarSyntaxError(f"regex: {message} at position {at}", position=at, param="regex", hint=hint)

    def _unsupported(self, what: str, at: int) -> GrammarSyntaxError:
        return self._error(f"{what} cannot be enforced", at, "rewrite the pattern without it")

    def _peek(self, text: str) -> bool:
        return self.text.startswith(text, self.at)

    def _take(self, text: str) -> bool:
        if self._peek(text):
            self.at += len(text)
            return True
        return False

    def _next(self, what: str) -> str:
        if self.at >= len(self.text):
            raise self._error(f"{what} ends too early")
        self.at += 1
        return self.text[self.at - 1]

    def _global_flags(self) -> None:
        end = self.text.find(")")
        letters = self.text[2:end]
        if end > 2 and letters.isalpha():
            self._set_flags(letters, True, 2)
            self.at = end + 1

    def _set_flags(self, letters: str, value: bool, at: int) -> None:
        for letter in letters:
            if letter == "i":
                self.ignore_case = value
            elif letter == "s":
                self.dot_all = value
            elif letter not in "au":  # classes are ASCII and characters Unicode in any case
                raise self._unsupported(f"flag {letter!r}", at)

    def _alternatives(self) -> Node:
        options = [self._sequence()]
        while self._take("|"):
            options.append(self._sequence())
        return options[0] if len(options) == 1 else Alt(tuple(options))

    def _sequence(self) -> Node:
        items: list[Node] = []
        while self.at < len(self.text) and self.text[self.at] not in "|)":
            at = self.at
            atom = self._atom()
            if atom is not None:
                items.append(self._quantified(atom, at))
        return items[0] if len(items) == 1 else Concat(tuple(items))

    def _quantified(self, atom: Node, at: int) -> Node:
        bounds = self._quantifier()
        if bounds is None:
            return atom
        if isinstance(atom, Anchor | Look):
            raise self._error("an anchor or lookahead cannot be repeated", at)
        low, high = bounds
        if high is not None and low > high:
            raise self._error("the smaller bound of a repeat comes first", at)
        self._take("?")
        again = self.at
        if self._peek("+") or self._quantifier() is not None:
            raise self._error("a repeat of a repeat", again, "put the inner one into a group")
        return Repeat(atom, low, high)

    def _quantifier(self) -> tuple[int, int | None] | None:
        for sign, bounds in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self._take(sign):
                return bounds
        end = self.text.find("}", self.at, self.at + 24)
        if not self._peek("{") or end < 0:
            return None
        low, comma, high = self.text[self.at + 1 : end].partition(",")
        if not all((p.isascii() and p.isdigit()) or not p for p in (low, high)) or not (low or high):
            return None
        self.at = end + 1
        return int(low or 0), (int(high) if high else None) if comma else int(low)

    def _atom(self) -> Node | None:
        at = self.at
        c = self._next("the pattern")
        if c == "(":
            return self._group(at)
        if c == "[":
            return self._set(at)
        if c == "\\":
            return self._escape(at)
        if c == ".":
            return ANY if self.dot_all else Chars(complement(((10, 10),)))
        if c in "^$":
            return Anchor(c == "$", at)
        if c in "*+?":
            raise self._error("nothing to repeat", at)
        if c == "{":
            self.at = at
            if self._quantifier() is not None:
                raise self._error("nothing to repeat", at)
            self.at = at + 1
        return self._literal(ord(c))

    def _literal(self, code: int) -> Chars:
        return self._chars(normalise([(code, code)]))

    def _chars(self, ranges: Ranges) -> Chars:
        return Chars(_fold(ranges) if self.ignore_case else ranges)

    def _group(self, at: int) -> Node | None:
        self.depth += 1
        if self.depth > MAX_NESTING:
            raise GrammarBudgetError(
                f"the regex nests more than {MAX_NESTING} groups", limit="max_nesting", param="regex"
            )
        flags = (self.ignore_case, self.dot_all)
        look: bool | None = None
        if self._take("?"):
            if self._take("#"):
                end = self.text.find(")", self.at)
                if end < 0:
                    raise self._error("unclosed comment", at)
                self.at = end + 1
                self.depth -= 1
                return None
            if self._take("="):
                look = False
            elif self._take("!"):
                look = True
            else:
                self._group_kind(at)
        node = self._alternatives()
        if not self._take(")"):
            raise self._error("unclosed group", at)
        self.ignore_case, self.dot_all = flags
        self.depth -= 1
        return node if look is None else Look(node, look, at)

    def _group_kind(self, at: int) -> None:
        if self._take(":"):
            return
        if self._peek("<=") or self._peek("<!"):
            raise self._unsupported("lookbehind", at)
        if self._peek("P=") or self._peek("("):
            raise self._unsupported("a back-reference", at)
        if self._peek(">"):
            raise self._unsupported("an atomic group", at)
        if self._take("P<") or self._take("<"):
            end = self.text.find(">", self.at)
            if end < 0 or not self.text[self.at : end].isidentifier():
                raise self._error("bad group name", at)
            self.at = end + 1
            return
        end = self.text.find(":", self.at)
        on, _, off = self.text[self.at : end].partition("-")
        if end < 0 or not (on + off).isalpha():
            raise self._error("unknown kind of group", at)
        self._set_flags(on, True, at)
        self._set_flags(off, False, at)
        self.at = end + 1

    def _escape(self, at: int) -> Node:
        if self.at < len(self.text):
            c = self.text[self.at]
            if c in "AZz":
                self.at += 1
                return Anchor(c != "A", at)
            if c in "bB":
                raise self._unsupported("a word boundary", at)
            if c in "123456789kg":
                raise self._unsupported("a back-reference", at)
        return self._chars(self._escaped(at))

    def _escaped(self, at: int) -> Ranges:
        """What an escape stands for, within a set or outside. The backslash is read."""
        c = self._next("an escape")
        if c in _SETS:
            return _SETS[c]
        if c in _CONTROLS:
            return ((_CONTROLS[c], _CONTROLS[c]),)
        if c in "xuU":
            code = self._code_point(c, at)
            return normalise([(code, code)])
        if c in "pP":
            return self._property(c == "P", at)
        if c.isascii() and c.isalnum():
            raise self._error(f"unknown escape \\{c}", at)
        return normalise([(ord(c), ord(c))])

    def _code_point(self, kind: str, at: int) -> int:
        if kind != "U" and self._take("{"):
            end = self.text.find("}", self.at)
            digits = self.text[self.at : end] if end >= 0 else ""
            self.at = end + 1
        else:
            width = {"x": 2, "u": 4, "U": 8}[kind]
            digits = self.text[self.at : self.at + width]
            digits = digits if len(digits) == width else ""
            self.at += width
        if not digits or not all(d in "0123456789abcdefABCDEF" for d in digits) or int(digits, 16) > MAX_CODE_POINT:
            raise self._error("bad character number", at)
        code = int(digits, 16)
        if kind == "u" and 0xD800 <= code < 0xDC00 and self._peek("\\u"):
            low = self.text[self.at + 2 : self.at + 6]
            if len(low) == 4 and low[:2].lower() in ("dc", "dd", "de", "df") and low.isalnum():
                self.at += 6
                return 0x10000 + ((code & 0x3FF) << 10) + (int(low, 16) & 0x3FF)
        return code

    def _property(self, negate: bool, at: int) -> Ranges:
        name = self._next("a property")
        if name == "{":
            end = self.text.find("}", self.at)
            name = self.text[self.at : end] if end >= 0 else ""
            self.at = end + 1
        if name not in _CATEGORIES:
            raise self._error(f"unknown Unicode category {name!r}", at, "one or two letters, such as L or Nd")
        ranges = _category(name)
        return complement(ranges) if negate else ranges

    def _set(self, at: int) -> Node:
        negate = self._take("^")
        ranges: list[tuple[int, int]] = []
        first = True
        while first or not self._take("]"):
            if self.at >= len(self.text):
                raise self._error("unclosed set", at)
            ranges += self._set_item()
            first = False
        found = normalise(ranges)
        found = _fold(found) if self.ignore_case else found
        return Chars(complement(found) if negate else found)

    def _set_item(self) -> Iterator[tuple[int, int]]:
        at = self.at
        if self._peek("[:") and self.text.find(":]", self.at) > 0:
            raise self._unsupported("a POSIX class", at)
        low = self._set_member()
        if not self._peek("-") or self.text.startswith("]", self.at + 1) or self.at + 1 >= len(self.text):
            yield from low
            return
        self.at += 1
        high = self._set_member()
        ends = [_single(low), _single(high)]
        if ends[0] is None or ends[1] is None or ends[0] > ends[1]:
            raise self._error("bad range", at)
        yield ends[0], ends[1]

    def _set_member(self) -> Ranges:
        at = self.at
        c = self._next("a set")
        if c != "\\":
            # Raw, not normalised: a surrogate may still be the end of a range.
            return ((ord(c), ord(c)),)
        if self._take("b"):
            return ((8, 8),)
        if self.text[self.at : self.at + 1] in ("x", "u", "U"):
            code = self._code_point(self._next("an escape"), at)
            return ((code, code),)
        return self._escaped(at)


def _single(ranges: Ranges) -> int | None:
    return ranges[0][0] if len(ranges) == 1 and ranges[0][0] == ranges[0][1] else None


_CATEGORIES = frozenset(
    {"L", "Lu", "Ll", "Lt", "Lm", "Lo", "M", "Mn", "Mc", "Me", "N", "Nd", "Nl", "No", "P", "Pc", "Pd", "Ps", "Pe"}
    | {"Pi", "Pf", "Po", "S", "Sm", "Sc", "Sk", "So", "Z", "Zs", "Zl", "Zp", "C", "Cc", "Cf", "Co", "Cn"}
)
