"""When two clauses hold together, when one cannot hold at all, and whether a given value satisfies one."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, cast

from constrained_spec.errors import UnsupportedSchemaError
from constrained_spec.grammars.schema_clauses import (
    NEVER,
    Array,
    Clause,
    Conj,
    Number,
    Object,
    Plain,
    Text,
    both,
    fraction,
    key_of,
    least,
    merged,
    type_of,
)
from constrained_spec.grammars.schema_formats import superset
from constrained_spec.grammars.schema_languages import TooHard, found_in, is_empty
from constrained_spec.grammars.schema_walk import Json

if TYPE_CHECKING:
    from constrained_spec.grammars.schema_logic import Logic


class Meeting:
    """Conjunction of clauses of one type. What it calls empty is empty; the reverse need not be true."""

    def __init__(self, logic: Logic) -> None:
        self._logic = logic
        self._empty: dict[tuple[object, ...], bool] = {}
        self._asking: set[tuple[object, ...]] = set()

    def meet(self, a: Clause, b: Clause) -> Clause | None:
        if isinstance(a, Plain):
            values = tuple(v for v in a.values if v in cast(Plain, b).values)
            return Plain(values, merged(a.open, b.open)) if values else None
        if isinstance(a, Number):
            return a.meet(cast(Number, b))
        if isinstance(a, Text):
            return self._texts(a, cast(Text, b))
        if isinstance(a, Array):
            other = cast(Array, b)
            if a.value is None and other.value is None:
                return a.meet(other)
            fixed, free = (a, other) if a.value is not None else (other, a)
        else:
            thing = cast(Object, b)
            if a.value is None and thing.value is None:
                return a.meet(thing)
            if a.value is not None:
                return self._fixed(a, thing)
            return self._fixed(thing, a)
        return self._fixed(fixed, free)

    def _fixed(self, fixed: Array | Object, other: Clause) -> Clause | None:
        """The one value of ``fixed`` if it satisfies ``other``."""
        assert fixed.value is not None
        if not self.holds(replace(other, open=()), fixed.value):
            return None
        return replace(fixed, open=merged(fixed.open, other.open))

    def _texts(self, a: Text, b: Text) -> Text | None:
        if a.value is not None and b.value is not None and a.value != b.value:
            return None
        made = Text(
            max(a.low, b.low),
            least(a.high, b.high),
            tuple(dict.fromkeys(a.patterns + b.patterns)),
            tuple(dict.fromkeys(a.formats + b.formats)),
            a.value if b.value is None else b.value,
            a.excluded | b.excluded,
            merged(a.open, b.open),
        )
        if made.value is None:
            return None if made.high is not None and made.low > made.high else made
        if not _fits(made, made.value):
            return None
        for name, _ in made.formats:
            wide = superset(name)
            if wide is not None and not _found(wide, made.value):
                return None
        undecided = []
        for pattern, holds, at in made.patterns:
            try:
                if found_in(pattern, made.value) != holds:
                    return None
            except TooHard:
                undecided.append((pattern, holds, at))
        # All of it has been checked on the value, but what no automaton decides.
        return Text(patterns=tuple(undecided), formats=made.formats, value=made.value, open=made.open)

    def is_free(self, clause: Clause) -> bool:
        """No demand at all."""
        if clause.open:
            return False
        if isinstance(clause, Plain):
            return clause.values in ((None,), (False, True))
        if isinstance(clause, Number):
            return clause == Number()
        if isinstance(clause, Text):
            return clause == Text()
        if isinstance(clause, Array):
            a = clause
            free = not (any(a.prefix) or a.rest or a.low or a.unique or a.hits)
            return free and a.high is None and a.value is None
        o = clause
        free = not (any(c for _, c in o.props) or o.required or any(c for _, c in o.rules) or o.rests or o.exists)
        return free and not (o.names or o.low) and o.high is None and o.value is None

    def none_holds(self, conj: Conj) -> bool:
        """Certainly no value satisfies ``conj``."""
        if not conj:
            return False
        if conj == NEVER:
            return True
        key = key_of(conj)
        if key not in self._empty:
            if key in self._asking:
                return False  # inside itself: a finite value may still end it
            self._asking.add(key)
            try:
                self._empty[key] = all(
                    self.is_empty(c)
                    for kind in ("null", "boolean", "number", "string", "array", "object")
                    for c in self._logic.clauses(conj, kind)
                )
            finally:
                self._asking.discard(key)
        return self._empty[key]

    def is_empty(self, clause: Clause) -> bool:
        """Certainly no value satisfies ``clause``."""
        if isinstance(clause, Plain):
            return not clause.values
        if isinstance(clause, Number):
            return clause.is_empty()
        if isinstance(clause, Text):
            if clause.value is not None:
                return False
            wide = [w for name, _ in clause.formats if (w := superset(name)) is not None]
            held = (p for p, holds, _ in clause.patterns if holds)
            return is_empty((*wide, *held), clause.low, clause.high)
        if isinstance(clause, Array):
            if clause.value is not None:
                return False
            # Past the prefix all items are alike: one of them speaks for all.
            asked = range(min(clause.low, len(clause.prefix) + 1))
            return any(self.none_holds(clause.item(i)) for i in asked)
        if clause.value is not None:
            return False
        return any(self.none_holds(self.property(clause, name)) for name in clause.required)

    def property(self, clause: Object, name: str) -> Conj:
        """All that ``clause`` asks of the value under ``name``, and NEVER if the name is not allowed."""
        made: Conj = next((c for n, c in clause.props if n == name), ())
        for pattern, conj in clause.rules:
            if self.finds(pattern, name, clause):
                made = both(made, conj)
        for rest in clause.rests:
            if name not in rest.names and not any(self.finds(p, name, clause) for p in rest.patterns):
                made = both(made, rest.conj)
        for names in clause.names:
            if not self.accepts(names, name):
                return NEVER
        return NEVER if any(literal is NEVER[0] for literal in made) else made

    def finds(self, pattern: str, name: str, clause: Object) -> bool:
        try:
            return found_in(pattern, name)
        except TooHard:
            raise UnsupportedSchemaError(
                f"whether the pattern {pattern!r} holds for {name!r} cannot be decided",
                pointer="/patternProperties",
                keyword="patternProperties",
            ) from None

    def accepts(self, conj: Conj, value: Json) -> bool:
        """Whether ``value`` satisfies ``conj``. Raises ``UnsupportedSchemaError`` where that cannot be decided."""
        return self._logic.values.satisfies(conj, value)

    def holds(self, clause: Clause, value: Json) -> bool:
        """Whether ``value``, of the clause's type, satisfies it; formats aside."""
        if isinstance(clause, Plain):
            return value in clause.values
        if isinstance(clause, Number):
            return clause.holds(fraction(value))
        if isinstance(clause, Text):
            assert isinstance(value, str)
            return self._texts(clause, Text(value=value)) is not None
        if isinstance(clause, Array):
            return self._array_holds(clause, cast(list[Json], value))
        return self._object_holds(clause, cast(dict[str, Json], value))

    def _array_holds(self, clause: Array, value: list[Json]) -> bool:
        if clause.value is not None and not same(clause.value, value):
            return False
        if len(value) < clause.low or (clause.high is not None and len(value) > clause.high):
            return False
        if clause.unique and any(same(a, b) for i, a in enumerate(value) for b in value[:i]):
            return False
        for hit in clause.hits:
            n = sum(self.accepts(hit.conj, x) for x in value[hit.start :])
            if n < hit.low or (hit.high is not None and n > hit.high):
                return False
        return all(self.accepts(clause.item(i), x) for i, x in enumerate(value))

    def _object_holds(self, clause: Object, value: dict[str, Json]) -> bool:
        if clause.value is not None and not same(clause.value, value):
            return False
        if len(value) < clause.low or (clause.high is not None and len(value) > clause.high):
            return False
        if any(name not in value for name in clause.required):
            return False
        for rest, _ in clause.exists:
            outside = (
                n for n in value if n not in rest.names and not any(self.finds(p, n, clause) for p in rest.patterns)
            )
            if not any(self.accepts(rest.conj, value[n]) for n in outside):
                return False
        return all(self.accepts(self.property(clause, name), x) for name, x in value.items())


def _fits(text: Text, value: str) -> bool:
    return len(value) >= text.low and (text.high is None or len(value) <= text.high) and value not in text.excluded


def _found(pattern: str, text: str) -> bool:
    try:
        return found_in(pattern, text)
    except TooHard:
        return True


def same(a: Json, b: Json) -> bool:
    """Equal as JSON values: 1 is 1.0 but not true."""
    if type_of(a) != type_of(b):
        return False
    if isinstance(a, list):
        other = cast(list[Json], b)
        return len(a) == len(other) and all(same(x, y) for x, y in zip(a, other, strict=True))
    if isinstance(a, dict):
        thing = cast(dict[str, Json], b)
        return a.keys() == thing.keys() and all(same(x, thing[k]) for k, x in a.items())
    return a == b
