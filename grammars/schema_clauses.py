"""What a schema asks of values of one JSON type, as conjunctions. A schema is, per type, a union of such clauses.

``open`` lists (pointer, keyword) of demands that a clause cannot express. Such a clause meets others and is dropped
when that leaves nothing, but it is never written out unless a relaxation was asked for.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal

from constrained_spec.grammars.schema_refs import Place
from constrained_spec.grammars.schema_walk import Json

Type = Literal["null", "boolean", "number", "string", "array", "object"]
TYPES: tuple[Type, ...] = ("null", "boolean", "number", "string", "array", "object")

Open = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, eq=False)
class Lit:
    """The schema at ``place`` holds (``positive``) or does not."""

    place: Place
    positive: bool = True

    @property
    def key(self) -> tuple[object, ...]:
        return (*self.place.key, self.positive)


@dataclass(frozen=True, slots=True, eq=False)
class Either:
    """At least one of the conjunctions holds."""

    options: tuple[Conj, ...]

    @property
    def key(self) -> tuple[object, ...]:
        return ("either", *(key_of(o) for o in self.options))


Literals = Lit | Either
Conj = tuple[Literals, ...]  # all of them hold; () is any value

NEVER: Conj = (Either(()),)


def key_of(conj: Conj) -> tuple[object, ...]:
    return tuple(literal.key for literal in conj)


def both(a: Conj, b: Conj) -> Conj:
    known = {literal.key for literal in a}
    return (*a, *(x for x in b if x.key not in known)) if a else b


def negated(conj: Conj) -> Conj:
    """The conjunction that holds exactly where ``conj`` does not."""
    options: list[Conj] = []
    for literal in conj:
        if isinstance(literal, Lit):
            options.append((Lit(literal.place, not literal.positive),))
        else:
            none: Conj = ()
            for option in literal.options:
                none = both(none, negated(option))
            options.append(none)
    return options[0] if len(options) == 1 else (Either(tuple(options)),)


@dataclass(frozen=True, slots=True)
class Plain:
    """null, true or false; ``values`` are those allowed."""

    values: tuple[bool | None, ...]
    open: Open = ()


@dataclass(frozen=True, slots=True)
class Number:
    """``low``..``high`` (``*_open``: without the end itself), a multiple of ``step``; integers are multiples of 1."""

    low: Fraction | None = None
    low_open: bool = False
    high: Fraction | None = None
    high_open: bool = False
    step: Fraction | None = None
    open: Open = ()

    def meet(self, other: Number) -> Number | None:
        low, low_open = _tighter((self.low, self.low_open), (other.low, other.low_open), 1)
        high, high_open = _tighter((self.high, self.high_open), (other.high, other.high_open), -1)
        step = self.step if other.step is None else other.step if self.step is None else lcm(self.step, other.step)
        made = Number(low, low_open, high, high_open, step, merged(self.open, other.open))
        return None if made.is_empty() else made

    @property
    def value(self) -> Fraction | None:
        return self.low if self.low is not None and self.low == self.high else None

    def is_empty(self) -> bool:
        if self.low is None or self.high is None:
            return False
        if self.low > self.high or (self.low == self.high and (self.low_open or self.high_open)):
            return True
        if self.step is None:
            return False
        first = math.ceil(self.low / self.step) * self.step
        if self.low_open and first == self.low:
            first += self.step
        return first > self.high or (self.high_open and first == self.high)

    def members(self, most: int) -> list[int | float] | None:
        """All numbers of a clause that has at most ``most``, else None."""
        if self.low is None or self.high is None or (self.step is None and self.low != self.high):
            return None
        step = self.step or Fraction(1)
        first = self.low if self.step is None else math.ceil(self.low / step) * step
        count = int((self.high - first) / step) + 1
        if count > most + 2:
            return None
        listed = (first + i * step for i in range(count))
        kept = [v for v in listed if self.holds(v)]
        return [v.numerator if v.denominator == 1 else float(v) for v in kept]

    def holds(self, value: Fraction) -> bool:
        return self.meet(Number(value, False, value, False)) is not None


def _tighter(
    a: tuple[Fraction | None, bool], b: tuple[Fraction | None, bool], sign: int
) -> tuple[Fraction | None, bool]:
    if a[0] is None or b[0] is None:
        return b if a[0] is None else a
    if a[0] == b[0]:
        return a[0], a[1] or b[1]
    return a if (a[0] - b[0]) * sign > 0 else b


def lcm(a: Fraction, b: Fraction) -> Fraction:
    return Fraction(math.lcm(a.numerator * b.denominator, b.numerator * a.denominator), a.denominator * b.denominator)


@dataclass(frozen=True, slots=True)
class Text:
    """A string of ``low`` to ``high`` code points; ``patterns`` are found in it or (False) are not."""

    low: int = 0
    high: int | None = None
    patterns: tuple[tuple[str, bool, str], ...] = ()  # (pattern, holds, pointer)
    formats: tuple[tuple[str, str], ...] = ()  # (name, pointer)
    value: str | None = None
    excluded: frozenset[str] = frozenset()
    open: Open = ()


@dataclass(frozen=True, slots=True, eq=False)
class Hit:
    """From item ``start`` on, ``low`` to ``high`` items satisfy ``conj``."""

    conj: Conj
    low: int
    high: int | None
    start: int
    where: tuple[str, str]


@dataclass(frozen=True, slots=True, eq=False)
class Array:
    """``prefix`` says what the first items are, ``rest`` the others."""

    prefix: tuple[Conj, ...] = ()
    rest: Conj = ()
    low: int = 0
    high: int | None = None
    unique: tuple[str, str] | None = None
    hits: tuple[Hit, ...] = ()
    value: list[Json] | None = None
    open: Open = ()
    # Items that the schema has evaluated, as unevaluatedItems counts: so many from the start, and those of ``seen_if``.
    seen: int | None = 0  # None: all
    seen_if: tuple[Conj, ...] = ()

    def meet(self, other: Array) -> Array | None:
        longest = max(len(self.prefix), len(other.prefix))
        prefix = tuple(both(self.item(i), other.item(i)) for i in range(longest))
        made = Array(
            prefix,
            both(self.rest, other.rest),
            max(self.low, other.low),
            least(self.high, other.high),
            self.unique or other.unique,
            self.hits + other.hits,
            self.value,
            merged(self.open, other.open),
            None if self.seen is None or other.seen is None else max(self.seen, other.seen),
            self.seen_if + other.seen_if,
        )
        return None if made.high is not None and made.low > made.high else made

    def item(self, i: int) -> Conj:
        return self.prefix[i] if i < len(self.prefix) else self.rest


@dataclass(frozen=True, slots=True, eq=False)
class Rest:
    """Every property that is not in ``names`` and holds none of ``patterns`` satisfies ``conj``."""

    names: frozenset[str]
    patterns: tuple[str, ...]
    conj: Conj


@dataclass(frozen=True, slots=True, eq=False)
class Seen:
    """Properties that the schema has evaluated, as unevaluatedProperties counts."""

    names: frozenset[str] = frozenset()
    patterns: tuple[str, ...] = ()
    all: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Object:
    """``props`` in order of output; ``rules`` (pattern, conj) hold of every name with the pattern, named or not."""

    props: tuple[tuple[str, Conj], ...] = ()
    required: tuple[str, ...] = ()
    rules: tuple[tuple[str, Conj], ...] = ()
    rests: tuple[Rest, ...] = ()
    exists: tuple[tuple[Rest, tuple[str, str]], ...] = ()  # a property outside names and patterns has conj
    names: tuple[Conj, ...] = ()  # of propertyNames
    low: int = 0
    high: int | None = None
    value: dict[str, Json] | None = None
    where: tuple[str, str] = ("", "minProperties")  # of low or high
    where_names: str = ""
    open: Open = ()
    seen: Seen = Seen()

    def meet(self, other: Object) -> Object | None:
        props = dict(self.props)
        for name, conj in other.props:
            props[name] = both(props[name], conj) if name in props else conj
        made = Object(
            tuple(props.items()),
            tuple(dict.fromkeys(self.required + other.required)),
            self.rules + other.rules,
            self.rests + other.rests,
            self.exists + other.exists,
            self.names + other.names,
            max(self.low, other.low),
            least(self.high, other.high),
            self.value,
            self.where if self.where[0] else other.where,
            self.where_names or other.where_names,
            merged(self.open, other.open),
            Seen(
                self.seen.names | other.seen.names,
                self.seen.patterns + other.seen.patterns,
                self.seen.all or other.seen.all,
            ),
        )
        if made.high is not None and max(made.low, len(made.required)) > made.high:
            return None
        return None if any(props.get(name) == NEVER for name in made.required) else made


Clause = Plain | Number | Text | Array | Object


def least(a: int | None, b: int | None) -> int | None:
    return b if a is None else a if b is None else min(a, b)


def merged(a: Open, b: Open) -> Open:
    return tuple(dict.fromkeys(a + b))


def top(kind: Type) -> Clause:
    """No demand at all on values of ``kind``."""
    if kind == "null":
        return Plain((None,))
    if kind == "boolean":
        return Plain((False, True))
    if kind == "number":
        return Number()
    return Text() if kind == "string" else Array() if kind == "array" else Object()


def unknown(kind: Type, pointer: str, keyword: str) -> Clause:
    """A demand on values of ``kind`` that no clause expresses."""
    return replace(top(kind), open=((pointer, keyword),))


def type_of(value: Json) -> Type:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "number"
    return "string" if isinstance(value, str) else "array" if isinstance(value, list) else "object"


def fraction(value: Json) -> Fraction:
    assert isinstance(value, int | float)
    return Fraction(str(value))


def single(clause: Clause) -> bool:
    """The clause is about one value only."""
    if isinstance(clause, Plain):
        return len(clause.values) == 1
    return clause.value is not None


def value_of(clause: Clause) -> Json:
    """The one value of a clause that is ``single``."""
    if isinstance(clause, Plain):
        return clause.values[0]
    value = clause.value
    if isinstance(value, Fraction):
        return value.numerator if value.denominator == 1 else float(value)
    return value
