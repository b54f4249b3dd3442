"""Unions of clauses written as a schema that the engine enforces in full."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import cast

from constrained_spec.errors import GrammarBudgetError, UnsupportedSchemaError
from constrained_spec.grammars.schema_arrays import Arrays
from constrained_spec.grammars.schema_clauses import (
    NEVER,
    TYPES,
    Array,
    Clause,
    Conj,
    Lit,
    Number,
    Object,
    Plain,
    Text,
    Type,
    key_of,
)
from constrained_spec.grammars.schema_formats import ENGINE_FORMATS
from constrained_spec.grammars.schema_languages import UNDECIDED, TooHard, automaton, complement, exactly, pattern_of
from constrained_spec.grammars.schema_logic import Logic
from constrained_spec.grammars.schema_objects import Objects
from constrained_spec.grammars.schema_walk import Json, children

MAX_SIZE = 60_000  # nodes of the rewritten schema
_INLINE = 12  # nodes up to which a repeated schema is copied rather than named

# A schema of these alone means to the engine what it means to us.
_PLAIN = frozenset(
    (
        "type", "enum", "const", "properties", "required", "additionalProperties", "items", "minItems", "maxItems",
        "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "minLength", "maxLength", "multipleOf",
        "pattern", "format", "title", "description", "default", "examples", "$comment", "deprecated", "readOnly",
        "writeOnly",
    )
)  # fmt: skip


class Emitter:
    """Writes conjunctions as schemas, recursive ones under ``$defs``. ``drop``: told what is left out, if allowed."""

    def __init__(self, logic: Logic, drop: Callable[[tuple[str, str]], None] | None) -> None:
        self.logic = logic
        self.definitions: dict[str, Json] = {}
        self.relaxing = drop is not None
        self._drop = drop
        self._names: dict[tuple[object, ...], str] = {}  # in work, or named
        self._used: set[str] = set()
        self._done: dict[tuple[object, ...], Json] = {}
        self._plain: dict[int, bool] = {}
        self._size = 0
        self._arrays = Arrays(self)
        self._objects = Objects(self)

    def build(self, conj: Conj) -> Json:
        """A schema of exactly the values that satisfy ``conj``. Raises ``UnsupportedSchemaError``."""
        if not conj:
            return True
        if conj == NEVER:
            return False
        # However many places refer to one schema, it is written once.
        conj = tuple(Lit(self.logic.refs.followed(x.place), x.positive) if isinstance(x, Lit) else x for x in conj)
        key = key_of(conj)
        if key in self._done:
            return self._done[key]
        if key in self._names:
            self._used.add(self._names[key])
            return {"$ref": f"#/$defs/{self._names[key]}"}
        name = self._names[key] = f"d{len(self._names)}"
        made = self._write(conj)
        if name in self._used or (isinstance(made, dict) and _size(made, _INLINE) > _INLINE):
            self.definitions[name] = made
            self._done[key] = {"$ref": f"#/$defs/{name}"}
            return self._done[key]
        self._done[key] = made
        return made

    def refuse(self, place: tuple[str, str], why: str = "") -> None:
        """Leaves a demand out, where that was asked for, else raises."""
        if self._drop is None:
            raise UnsupportedSchemaError(
                why or f"the keyword {place[1]!r} cannot be enforced here", pointer=place[0], keyword=place[1]
            )
        self._drop(place)

    def _write(self, conj: Conj) -> Json:
        if len(conj) == 1 and isinstance(conj[0], Lit) and conj[0].positive and self._is_plain(conj[0]):
            return conj[0].place.node
        free: list[Json] = []
        made: list[Json] = []
        for kind in TYPES:
            clauses = [c for c in self.logic.clauses(conj, kind) if not self.logic.meeting.is_empty(c)]
            if any(self.logic.meeting.is_free(c) for c in clauses):
                free.append(kind)
            else:
                made += self._kind(kind, clauses)
        if len(free) == len(TYPES):
            return True
        if free:
            made.append({"type": free})
        self._count(made)
        return False if not made else made[0] if len(made) == 1 else {"anyOf": made}

    def _count(self, made: list[Json]) -> None:
        self._size += sum(_size(m, MAX_SIZE) for m in made)
        if self._size > MAX_SIZE:
            raise GrammarBudgetError(
                f"the rewritten schema exceeds {MAX_SIZE} nodes", limit="max_rewritten_schema", param="schema"
            )

    def _kind(self, kind: Type, clauses: list[Clause]) -> list[Json]:
        for clause in clauses:
            for place in clause.open:
                self.refuse(place)
        if kind == "null":
            return [{"type": "null"}] if clauses else []
        if kind == "boolean":
            allowed = {v for c in clauses for v in cast(Plain, c).values}
            return [{"type": "boolean"} if len(allowed) == 2 else {"const": v} for v in sorted(map(bool, allowed))[:1]]
        if kind == "number":
            return _numbers([cast(Number, c) for c in clauses])
        if kind == "string":
            return self._texts([cast(Text, c) for c in clauses])
        if kind == "array":
            return [x for c in clauses for x in self._arrays.write(cast(Array, c))]
        return [x for c in clauses for x in self._objects.write(cast(Object, c))]

    def _texts(self, clauses: list[Text]) -> list[Json]:
        values: list[Json] = []
        made: list[Json] = []
        for clause in clauses:
            if clause.value is not None and not clause.patterns and not clause.formats:
                values.append(clause.value)
            else:
                made.append(self._text(clause))
        listed: list[Json] = [*dict.fromkeys(cast(list[str], values))]
        if listed:
            made.insert(0, {"type": "string", "enum": listed})
        return [m for m in made if m is not False]

    def _text(self, clause: Text) -> Json:
        made: dict[str, Json] = {"type": "string"}
        if clause.low:
            made["minLength"] = clause.low
        if clause.high is not None:
            made["maxLength"] = clause.high
        if clause.value is not None:
            made["enum"] = [clause.value]
        patterns: list[str] = []
        for pattern, holds, pointer in clause.patterns:
            try:
                patterns.append(self._readable(pattern) if holds else pattern_of(complement(automaton(pattern))))
            except TooHard:
                self.refuse((pointer, "pattern" if pointer.endswith("pattern") else "format"), _why(pattern, holds))
        if clause.excluded:
            try:
                patterns.append(pattern_of(complement(exactly(clause.excluded))))
            except TooHard:
                self.refuse(("", "enum"), "so many or so long strings cannot be excluded")
        if "" in patterns:
            return False  # the complement of all strings
        formats: list[Json] = []
        for name, pointer in clause.formats:
            if name in ENGINE_FORMATS:
                formats.append({"format": name})
            else:
                self.refuse((pointer, "format"), f"the format {name!r} cannot be enforced")
        found: list[Json] = [{"pattern": p} for p in dict.fromkeys(patterns)]
        parts = formats + found
        if len(parts) == 1:
            return {**made, **cast(dict[str, Json], parts[0])}
        return {**made, "allOf": parts} if parts else made

    def _readable(self, pattern: str) -> str:
        return pattern_of(automaton(pattern)) if UNDECIDED.search(pattern) else pattern

    def _is_plain(self, literal: Lit) -> bool:
        place = literal.place
        if not isinstance(place.node, dict):
            return False
        # Older drafts spell some of it differently, and know less of it.
        return place.resource.draft >= 7 and self._plain_node(place.node)

    def _plain_node(self, node: dict[str, Json]) -> bool:
        if id(node) not in self._plain:
            ok = (
                node.keys() <= _PLAIN
                and not isinstance(node.get("items"), list)
                and node.get("format", "date") in ENGINE_FORMATS
                and not UNDECIDED.search(str(node.get("pattern", "")))
                and all(self._plain_node(x) for _, x in children(node) if isinstance(x, dict))
            )
            self._plain[id(node)] = ok
        return self._plain[id(node)]


def _why(pattern: str, holds: bool) -> str:
    return f"the pattern {pattern!r} cannot be enforced" if holds else f"the pattern {pattern!r} cannot be negated"


def _size(value: Json, stop: int) -> int:
    count, todo = 0, [value]
    while todo and count <= stop:
        node = todo.pop()
        count += 1
        if isinstance(node, dict):
            todo += node.values()
        elif isinstance(node, list):
            todo += node
    return count


def _numbers(clauses: list[Number]) -> list[Json]:
    values = list(dict.fromkeys(c.value for c in clauses if c.value is not None))
    made: list[Json] = [{"enum": [_number(v) for v in values]}] if values else []
    for c in clauses:
        if c.value is not None:
            continue
        integer = c.step is not None and c.step.denominator == 1
        node: dict[str, Json] = {"type": "integer" if integer else "number"}
        if c.low is not None:
            node["exclusiveMinimum" if c.low_open else "minimum"] = _number(c.low)
        if c.high is not None:
            node["exclusiveMaximum" if c.high_open else "maximum"] = _number(c.high)
        if c.step is not None and c.step != 1:
            node["multipleOf"] = _number(c.step)
        made.append(node)
    return made


def _number(value: Fraction) -> Json:
    if value.denominator == 1:
        return value.numerator
    near = float(value)
    if Fraction(str(near)) != value:
        raise UnsupportedSchemaError(f"no JSON number is {value}", pointer="", keyword="multipleOf")
    return near
