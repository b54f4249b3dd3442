"""One rule per assertion keyword: the union of clauses that it stands for, and the one of its failing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import cast

from constrained_spec.grammars.schema_clauses import (
    NEVER,
    Array,
    Clause,
    Conj,
    Hit,
    Lit,
    Number,
    Object,
    Plain,
    Rest,
    Seen,
    Text,
    Type,
    fraction,
    negated,
    top,
    type_of,
    unknown,
)
from constrained_spec.grammars.schema_formats import ALIASES, ANNOTATIONS, AS_PATTERN
from constrained_spec.grammars.schema_languages import words
from constrained_spec.grammars.schema_refs import Place, References
from constrained_spec.grammars.schema_walk import Json

Found = list[Clause] | None
Rule = Callable[[References, Place, Type, bool], Found]

MAX_NAMES = 32  # that a pattern stands for, to be listed
MAX_EXCLUDED = 2_000  # values of an enum that must not come up


@dataclass(frozen=True, slots=True)
class Keyword:
    """``kind``: the only type it speaks of (None: all). ``since``: the first draft that has it."""

    kind: Type | None
    since: int
    clauses: Rule


KEYWORDS: dict[str, Keyword] = {}


def _rule(keyword: str, kind: Type | None, since: int = 0) -> Callable[[Rule], Rule]:
    def add(rule: Rule) -> Rule:
        KEYWORDS[keyword] = Keyword(kind, since, rule)
        return rule

    return add


def _value(place: Place, keyword: str) -> Json:
    return cast(dict[str, Json], place.node).get(keyword)


def _count(place: Place, keyword: str) -> int:
    value = _value(place, keyword)
    assert isinstance(value, int | float)
    return int(value)


@_rule("type", None)
def _type(refs: References, place: Place, kind: Type, positive: bool) -> Found:
    listed = _value(place, "type")
    names = listed if isinstance(listed, list) else [listed]
    if kind in names:
        return [top(kind)] if positive else []
    if kind == "number" and "integer" in names:
        return [Number(step=Fraction(1)) if positive else unknown(kind, f"{place.pointer}/type", "type")]
    return [] if positive else [top(kind)]


@_rule("const", None, 6)
def _const(refs: References, place: Place, kind: Type, positive: bool) -> Found:
    return _values([_value(place, "const")], place, "const", kind, positive)


@_rule("enum", None)
def _enum(refs: References, place: Place, kind: Type, positive: bool) -> Found:
    return _values(cast(list[Json], _value(place, "enum")), place, "enum", kind, positive)


def _values(values: list[Json], place: Place, keyword: str, kind: Type, positive: bool) -> list[Clause]:
    own = [v for v in values if type_of(v) == kind]
    if positive:
        return _distinct([exactly(v) for v in own])
    if not own:
        return [top(kind)]
    if kind in ("null", "boolean"):
        left = tuple(v for v in ((None,) if kind == "null" else (False, True)) if v not in own)
        return [Plain(left)] if left else []
    if kind == "string":
        return [Text(excluded=frozenset(cast(list[str], own)))]
    if kind == "number":
        points = sorted({fraction(v) for v in own})
        if len(points) > MAX_EXCLUDED:
            return [unknown(kind, f"{place.pointer}/{keyword}", keyword)]
        ends = [None, *points, None]
        return [Number(a, a is not None, b, b is not None) for a, b in pairwise(ends)]
    if len(own) > 1:
        return [unknown(kind, f"{place.pointer}/{keyword}", keyword)]
    at, (value,) = (f"{place.pointer}/{keyword}", keyword), own
    if isinstance(value, list):
        other: list[Clause] = [Array(low=len(value) + 1)]
        other += [Array(high=len(value) - 1)] if value else []
        for i, item in enumerate(value):
            other.append(Array(prefix=(*((),) * i, _differs(place, item)), low=i + 1))
        return other
    members = cast(dict[str, Json], value)
    beyond = Object(exists=((Rest(frozenset(members), (), ()), at),)) if members else Object(low=1, where=at)
    union: list[Clause] = [beyond]
    for name, item in members.items():
        union += [Object(props=((name, NEVER),)), Object(props=((name, _differs(place, item)),), required=(name,))]
    return union


def _differs(place: Place, value: Json) -> Conj:
    """Any value but ``value``."""
    return (Lit(place.made({"enum": [value]}), False),)


def exactly(value: Json) -> Clause:
    if value is None or isinstance(value, bool):
        return Plain((value,))
    if isinstance(value, int | float):
        return Number(fraction(value), False, fraction(value), False)
    if isinstance(value, str):
        return Text(value=value)
    return Array(value=value) if isinstance(value, list) else Object(value=value)


def _distinct(clauses: list[Clause]) -> list[Clause]:
    """Containers compare by identity: repeated ones stay, which does no harm."""
    return list(dict.fromkeys(clauses))


@_rule("minimum", "number")
def _minimum(refs: References, place: Place, kind: Type, positive: bool) -> Found:
    end, without = fraction(_value(place, "minimum")), _value(place, "exclusiveMinimum") is True
    return [Number(low=end, low_open=without) if positive else Number(high=end, high_open=not without)]


@_rule("maximum", "number")
def _maximum(refs: References, place: Place, kind: Type, positive: bool) -> Found:
    end, without = fraction(_value(place, "maximum")), _value(place, "exclusiveMaximum") is True
    return [Number(high=end, high_open=without) if positive else Number(low=end, low_open=not without)]


@_rule("exclusiveMinimum", "number")
def _exclusive_minimum(refs: References, place: Place, kind: Type, positive: bool) -> Found:
    end = _value(place, "exclusiveMinimum")
    if isinstance(end, bool):
        return None
    return [Number(low=fraction(end), low_open=True) if positive else Number(high=fraction(end))]


@_rule("exclusiveMaximum", "number")
def _exclusive_maximum(refs: References, place: Place, kind: Type, positive: bool) -> Found:
    end = _value(place, "exclusiveMaximum")
    if isinstance(end, bool):
        return None
    return [Number(high=fraction(end), high_open=True) if positive else Number(low=fraction(end))]


@_rule("multipleOf", "number")
def _multiple_of(refs: References, place: Place, kind: Type, positive: bool) -> Found:
    if positive:
        return [Number(step=fraction(_value(place, "multipleOf")))]
    return [unknown(kind, f"{place.pointer}/multipleOf", "multipleOf")]


@_rule("minLength", "string")
def _min_length(refs: References, place: Place, kind: Type, positive: bool) -> Found:
    n = _count(place, "minLength")
    return [Text(low=n)] if positive else [Text(high=n - 1)] if n else []


@_rule("maxLength", "string")
def _max_length(refs: References, place: Place, kind: Type, positive: bool) -> Found:
    n = _count(place, "maxLength")
    return [Text(high=n) if positive else Text(low=n + 1)]


@_rule("pattern", "string")
def _pattern(refs: References, place: Place, kind: Type, positive: bool) -> Found:
    pattern = cast(str, _value(place, "pattern"))
    return [Text(patterns=((pattern, positive, f"{place.pointer}/pattern"),))]


@_rule("format", "string")
def _format(refs: References, place: Place, kind: Type, positive: bool) -> Found:
    name = _value(place, "format")
    at = f"{place.pointer}/format"
    if not isinstance(name, str) or name in ANNOTATIONS:
        return None
    name = ALIASES.get(name, name)
    if not positive:
        return [unknown(kind, at, "format")]
    return [Text(patterns=((AS_PATTERN[name], True, at),)) if name in AS_PATTERN else Text(formats=((name, at),))]


def _lit(refs: References, place: Place, *tokens: str | int) -> Conj:
    child = refs.child(place, *tokens)
    return () if child.node is True else NEVER if child.node is False else (Lit(child),)


@_rule("prefixItems", "array", 2020)
def _prefix_items(refs: References, place: Place, kind: Type, positive: bool) -> Found:
    return _prefix(refs, place, "prefixItems", positive)


@_rule("items", "array")
def _items(refs: References, place: Place, kind: Type, positive: bool) -> Found:
    if isinstance(_value(place, "items"), list):
        return _prefix(refs, place, "items", positive)
    start = _value(place, "prefixItems") if place.resource.draft >= 2020 else None
    return _from(len(start) if isinstance(start, list) else 0, refs, place, "items", positive)


@_rule("additionalItems", "array")
def _additional_items(refs: References, place: Place, kind: Type, positive: bool) -> Found:
    start = _value(place, "items")
    if place.resource.draft >= 2020 or not isinstance(start, list):
        return None
    return _from(len(start), refs, place, "additionalItems", positive)


def _prefix(refs: References, place: Place, keyword: str, positive: bool) -> list[Clause]:
    items = [_lit(refs, place, keyword, i) for i in range(len(cast(list[Json], _value(place, keyword))))]
    if positive:
        return [Array(prefix=tuple(items), seen=len(items))]
    return [Array(prefix=(*((),) * i, negated(item)), low=i + 1) for i, item in enumerate(items) if item]


def _from(start: int, refs: References, place: Place, keyword: str, positive: bool) -> list[Clause]:
    conj = _lit(refs, place, keyword)
    if positive:
        return [Array(prefix=((),) * start, rest=conj, seen=None)]
    if not conj:
        return []
    if conj == NEVER:
        return [Array(low=start + 1)]
    return [Array(hits=(Hit(negated(conj), 1, None, start, (f"{place.pointer}/{keyword}", keyword)),), low=start + 1)]


@_rule("contains", "array", 6)
def _contains(refs: References, place: Place, kind: Type, positive: bool) -> Found:
    conj = _lit(refs, place, "contains")
    counts = place.resource.draft >= 2019
    low = _count(place, "minContains") if counts and _value(place, "minContains") is not None else 1
    high = _count(place, "maxContains") if counts and _value(place, "maxContains") is not None else None
    seen = (conj,) if place.resource.draft >= 2020 else ()
    where = (f"{place.pointer}/contains", "contains")
    if positive:
        made = _hits(conj, low, high, where)
        return [Array(rest=m.rest, hits=m.hits, low=m.low, high=m.high, seen_if=seen) for m in made]
    found = _hits(conj, 0, low - 1, where) if low else []
    return [*found, *(_hits(conj, high + 1, None, where) if high is not None else [])]


def _hits(conj: Conj, low: int, high: int | None, where: tuple[str, str]) -> list[Array]:
    if high is not None and low > high:
        return []
    if not conj:
        return [Array(low=low, high=high)]
    if conj == NEVER:
        return [] if low else [Array()]
    if high == 0:
        return [Array(rest=negated(conj))]
    return [Array(hits=(Hit(conj, low, high, 0, where),), low=low)] if low or high is not None else [Array()]


@_rule("minItems", "array")
def _min_items(refs: References, place: Place, kind: Type, positive: bool) -> Found:
    n = _count(place, "minItems")
    return [Array(low=n)] if positive else [Array(high=n - 1)] if n else []


@_rule("maxItems", "array")
def _max_items(refs: References, place: Place, kind: Type, positive: bool) -> Found:
    n = _count(place, "maxItems")
    return [Array(high=n) if positive else Array(low=n + 1)]


@_rule("uniqueItems", "array")
def _unique_items(refs: References, place: Place, kind: Type, positive: bool) -> Found:
    at = (f"{place.pointer}/uniqueItems", "uniqueItems")
    if _value(place, "uniqueItems") is not True:
        return None
    return [Array(unique=at) if positive else unknown(kind, *at)]


@_rule("required", "object")
def _required(refs: References, place: Place, kind: Type, positive: bool) -> Found:
    names = _value(place, "required")
    if not isinstance(names, list):  # draft 3 put a boolean here
        return None
    if positive:
        return [Object(required=tuple(dict.fromkeys(cast(list[str], names))))]
    return [Object(props=((cast(str, name), NEVER),)) for name in names]


@_rule("properties", "object")
def _properties(refs: References, place: Place, kind: Type, positive: bool) -> Found:
    named = [
        (name, _lit(refs, place, "properties", name)) for name in cast(dict[str, Json], _value(place, "properties"))
    ]
    if positive:
        return [Object(props=tuple(named), seen=Seen(names=frozenset(n for n, _ in named)))]
    return [Object(props=((name, negated(conj)),), required=(name,)) for name, conj in named if conj]


@_rule("patternProperties", "object")
def _pattern_properties(refs: References, place: Place, kind: Type, positive: bool) -> Found:
    named = cast(dict[str, Json], _value(place, "patternProperties"))
    rules = [(pattern, _lit(refs, place, "patternProperties", pattern)) for pattern in named]
    if positive:
        return [Object(rules=tuple(rules), seen=Seen(patterns=tuple(named)))]
    union: list[Clause] = []
    for pattern, conj in rules:
        names = words(pattern, MAX_NAMES) if conj else []
        if names is None:
            union.append(unknown(kind, f"{place.pointer}/patternProperties", "patternProperties"))
        else:
            union += [Object(props=((name, negated(conj)),), required=(name,)) for name in names]
    return union


@_rule("additionalProperties", "object")
def _additional_properties(refs: References, place: Place, kind: Type, positive: bool) -> Found:
    names, patterns = _value(place, "properties"), _value(place, "patternProperties")
    conj = _lit(refs, place, "additionalProperties")
    known = frozenset(names) if isinstance(names, dict) else frozenset[str]()
    held = tuple(patterns) if isinstance(patterns, dict) else ()
    if positive:
        return [Object(rests=(Rest(known, held, conj),) if conj else (), seen=Seen(all=True))]
    if not conj:
        return []
    at = (f"{place.pointer}/additionalProperties", "additionalProperties")
    return [Object(exists=((Rest(known, held, negated(conj)), at),))]


@_rule("propertyNames", "object", 6)
def _property_names(refs: References, place: Place, kind: Type, positive: bool) -> Found:
    conj = _lit(refs, place, "propertyNames")
    if not conj:
        return [Object()] if positive else []
    if positive:
        return [Object(names=(conj,), where_names=f"{place.pointer}/propertyNames")]
    if conj == NEVER:
        return [Object(low=1, where=(f"{place.pointer}/propertyNames", "propertyNames"))]
    return [unknown(kind, f"{place.pointer}/propertyNames", "propertyNames")]


@_rule("minProperties", "object")
def _min_properties(refs: References, place: Place, kind: Type, positive: bool) -> Found:
    n, where = _count(place, "minProperties"), (f"{place.pointer}/minProperties", "minProperties")
    return [Object(low=n, where=where)] if positive else [Object(high=n - 1, where=where)] if n else []


@_rule("maxProperties", "object")
def _max_properties(refs: References, place: Place, kind: Type, positive: bool) -> Found:
    n, where = _count(place, "maxProperties"), (f"{place.pointer}/maxProperties", "maxProperties")
    return [Object(high=n, where=where) if positive else Object(low=n + 1, where=where)]
