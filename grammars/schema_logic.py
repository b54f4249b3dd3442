"""Schemas as unions of clauses, one union per JSON type: conjunction, negation, references, annotations."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import combinations
from typing import cast

from constrained_spec.errors import GrammarBudgetError, UnsupportedSchemaError
from constrained_spec.grammars.schema_clauses import (
    NEVER,
    Array,
    Clause,
    Conj,
    Either,
    Lit,
    Literals,
    Object,
    Rest,
    Seen,
    Text,
    Type,
    both,
    key_of,
    single,
    top,
    unknown,
    value_of,
)
from constrained_spec.grammars.schema_keywords import KEYWORDS, MAX_NAMES, Found
from constrained_spec.grammars.schema_meet import Meeting
from constrained_spec.grammars.schema_refs import Place, References
from constrained_spec.grammars.schema_values import Values
from constrained_spec.grammars.schema_walk import Json

MAX_CLAUSES = 4_096  # of one schema and type
MAX_STEPS = 100_000  # meetings of two clauses in one rewriting
MAX_TRACKED_BRANCHES = 6  # of an anyOf beside unevaluatedProperties or unevaluatedItems


class Logic:
    """The unions of one document. ``explicit``: the document names its dialect itself.

    Raises ``UnsupportedSchemaError`` for references that lead nowhere or in a circle, ``GrammarBudgetError``.
    """

    def __init__(self, refs: References, explicit: bool, lenient: bool) -> None:
        self.refs = refs
        self.lenient = lenient  # what cannot be resolved becomes an open demand
        self._explicit = explicit
        self._known: dict[tuple[object, ...], list[Clause]] = {}
        self._active: set[tuple[object, ...]] = set()
        self._steps = 0
        self.meeting = Meeting(self)
        self.values = Values(self)

    def clauses(self, conj: Conj, kind: Type) -> list[Clause]:
        """The union for values of ``kind``; [] if certainly none satisfies ``conj``."""
        key = (kind, *key_of(conj))
        if key not in self._known:
            union = [top(kind)]
            for literal in conj:
                union = self.product(union, self._literal(literal, kind, False))
            self._known[key] = self._settled(union, conj)
        return self._known[key]

    def product(self, a: Iterable[Clause], b: list[Clause], tracked: bool = False) -> list[Clause]:
        made: list[Clause] = []
        for x in a:
            for y in b:
                self._steps += 1
                if self._steps > MAX_STEPS:
                    raise _too_large("max_schema_steps", MAX_STEPS)
                clause = self.meeting.meet(x, y)
                if clause is not None:
                    made.append(clause)
        return self._union(made, tracked)

    def _union(self, clauses: list[Clause], tracked: bool) -> list[Clause]:
        if not tracked:
            free = next((c for c in clauses if self.meeting.is_free(c)), None)
            if free is not None:
                return [free]
        if len(clauses) > MAX_CLAUSES:
            raise _too_large("max_schema_clauses", MAX_CLAUSES)
        return clauses

    def _literal(self, literal: Literals, kind: Type, tracked: bool) -> list[Clause]:
        if isinstance(literal, Either):
            return self._union([_unseen(c) for o in literal.options for c in self.clauses(o, kind)], False)
        return self.place(literal.place, literal.positive, kind, tracked)

    def place(self, place: Place, positive: bool, kind: Type, tracked: bool = False) -> list[Clause]:
        node = place.node
        if isinstance(node, bool):
            return [top(kind)] if node == positive else []
        key = (kind, tracked, positive, *place.key)
        if key in self._known:
            return self._known[key]
        if key in self._active:
            raise UnsupportedSchemaError(
                "a reference leads back to itself without a value in between", pointer=place.pointer, keyword="$ref"
            )
        self._active.add(key)
        try:
            union = self._all(place, kind, tracked) if positive else self._any_fails(place, kind)
        finally:
            self._active.discard(key)
        union = self._known[key] = self._settled(union, (Lit(place, positive),))
        return union

    def _settled(self, union: list[Clause], conj: Conj) -> list[Clause]:
        """Open demands on a single value are decided by looking at it."""
        made: list[Clause] = []
        for clause in union:
            if not clause.open or not single(clause):
                made.append(clause)
                continue
            try:
                if self.values.satisfies(conj, value_of(clause)):
                    made.append(replace(clause, open=()))
            except UnsupportedSchemaError:
                made.append(clause)
        return made

    def _all(self, place: Place, kind: Type, tracked: bool) -> list[Clause]:
        node = self.keywords(place)
        late = "unevaluatedProperties" if kind == "object" else "unevaluatedItems" if kind == "array" else ""
        needs = late in node and place.resource.draft >= 2019
        inner = tracked or needs
        union: list[Clause] = [top(kind)]
        for keyword in node:
            found = self._keyword(place, keyword, kind, True, inner)
            if found is not None:
                union = self.product(union, found, inner)
        if needs:
            rest: Conj = (Lit(self.refs.child(place, late)),)
            # What is left over was found by this schema's own keywords; a cousin's findings do not count.
            union = [met for c in union if (met := self.meeting.meet(c, _unevaluated(c, rest, place))) is not None]
        return union if tracked else [_unseen(c) for c in union]

    def _any_fails(self, place: Place, kind: Type) -> list[Clause]:
        node = self.keywords(place)
        union: list[Clause] = []
        for keyword in node:
            found = self._keyword(place, keyword, kind, False, False)
            if found is not None:
                union += found
            if keyword in ("unevaluatedProperties", "unevaluatedItems") and place.resource.draft >= 2019:
                fits = kind == ("object" if keyword == "unevaluatedProperties" else "array")
                if fits and node[keyword] is not True:
                    union.append(unknown(kind, f"{place.pointer}/{keyword}", keyword))
        return self._union([_unseen(c) for c in union], False)

    def keywords(self, place: Place) -> dict[str, Json]:
        node = cast(dict[str, Json], place.node)
        if self._explicit and place.resource.draft <= 7 and "$ref" in node:
            return {"$ref": node["$ref"]}  # there, a reference hides what stands beside it
        return node

    def _keyword(self, place: Place, keyword: str, kind: Type, positive: bool, tracked: bool) -> list[Clause] | None:
        """The union of ``keyword``, or of its failing. None: it says nothing of values of ``kind``."""
        logical = getattr(self, f"_{keyword.lstrip('$')}", None) if keyword in _LOGICAL else None
        if logical is not None:
            draft = place.resource.draft
            if draft < _LOGICAL[keyword] or (keyword == "$recursiveRef" and draft != 2019):
                return None
            return cast(Callable[[Place, Type, bool, bool], list[Clause] | None], logical)(
                place, kind, positive, tracked
            )
        if keyword == "propertyNames" and kind == "object" and not positive and (named := self._other_names(place)):
            return named
        rule = KEYWORDS.get(keyword)
        if rule is None or rule.kind not in (None, kind) or place.resource.draft < rule.since:
            return None
        found: Found = rule.clauses(self.refs, place, kind, positive)
        return found

    def _other_names(self, place: Place) -> list[Clause]:
        """Objects with one of the names that propertyNames forbids, if these are few; [] if not."""
        outside = self.clauses((Lit(self.refs.child(place, "propertyNames"), False),), "string")
        texts = [c for c in outside if isinstance(c, Text) and c.value is not None and not (c.patterns or c.open)]
        if len(texts) < len(outside) or len(texts) > MAX_NAMES:
            return []
        return [Object(required=(t.value,)) for t in texts if t.value is not None]

    def _ref(self, place: Place, kind: Type, positive: bool, tracked: bool) -> list[Clause]:
        return self._follow(place, "$ref", kind, positive, tracked)

    def _dynamicRef(self, place: Place, kind: Type, positive: bool, tracked: bool) -> list[Clause]:  # noqa: N802
        return self._follow(place, "$dynamicRef", kind, positive, tracked)

    def _recursiveRef(self, place: Place, kind: Type, positive: bool, tracked: bool) -> list[Clause]:  # noqa: N802
        return self._follow(place, "$recursiveRef", kind, positive, tracked)

    def _follow(self, place: Place, keyword: str, kind: Type, positive: bool, tracked: bool) -> list[Clause]:
        try:
            target = self.refs.resolve(place, keyword)
        except UnsupportedSchemaError:
            if self.lenient:
                return [unknown(kind, f"{place.pointer}/{keyword}", keyword)]
            raise
        return self.place(target, positive, kind, tracked)

    def _branches(self, place: Place, keyword: str) -> list[Place]:
        listed = cast(dict[str, list[Json]], place.node)[keyword]
        return [self.refs.child(place, keyword, i) for i in range(len(listed))]

    def _allOf(self, place: Place, kind: Type, positive: bool, tracked: bool) -> list[Clause]:  # noqa: N802
        return self._join(self._branches(place, "allOf"), positive, positive, kind, tracked)

    def _anyOf(self, place: Place, kind: Type, positive: bool, tracked: bool) -> list[Clause]:  # noqa: N802
        branches = self._branches(place, "anyOf")
        if not (tracked and positive):
            return self._join(branches, not positive, positive, kind, tracked)
        if len(branches) > MAX_TRACKED_BRANCHES:
            return [unknown(kind, f"{place.pointer}/anyOf", "anyOf")]
        # Every set of branches that hold: the more of them, the more is evaluated, and the weaker is unevaluated*.
        union: list[Clause] = []
        for size in range(1, len(branches) + 1):
            for chosen in combinations(branches, size):
                union += self._join(chosen, True, True, kind, True)
        return self._union(union, True)

    def _join(self, places: Iterable[Place], every: bool, positive: bool, kind: Type, tracked: bool) -> list[Clause]:
        """All of (``every``) or one of the places hold (``positive``) or fail."""
        if not every:
            return self._union([c for p in places for c in self.place(p, positive, kind, tracked)], tracked)
        union = [top(kind)]
        for place in places:
            union = self.product(union, self.place(place, positive, kind, tracked), tracked)
        return union

    def _oneOf(self, place: Place, kind: Type, positive: bool, tracked: bool) -> list[Clause]:  # noqa: N802
        branches = self._branches(place, "oneOf")
        unions = [self.place(b, True, kind, tracked) for b in branches]
        # What stands beside oneOf can keep its branches apart: a discriminator that is required there.
        here = self._beside(place, kind) if positive else [top(kind)]
        narrow = [self.product(here, u) if len(here) * len(u) <= 256 else u for u in unions]
        meets = [
            (i, j) for i, j in combinations(range(len(branches)), 2) if not self.are_disjoint(narrow[i], narrow[j])
        ]
        if not positive:
            none = self._join(branches, True, False, kind, False)
            return self._union(none + [c for i, j in meets for c in self.product(unions[i], unions[j])], False)
        union: list[Clause] = []
        for i, own in enumerate(unions):
            for a, b in meets:
                if i in (a, b) and own:
                    own = self.product(own, self.place(branches[b if i == a else a], False, kind), tracked)
            union += own
        return self._union(union, tracked)

    def _beside(self, place: Place, kind: Type) -> list[Clause]:
        """The union of the assertions beside a oneOf, references and other logic left aside."""
        union: list[Clause] = [top(kind)]
        for keyword in self.keywords(place):
            if keyword in KEYWORDS:
                found = self._keyword(place, keyword, kind, True, False)
                union = union if found is None else self.product(union, found)
        return union

    def are_disjoint(self, a: list[Clause], b: list[Clause]) -> bool:
        if len(a) * len(b) > 2_500:
            return False
        for x in a:
            for y in b:
                met = self.meeting.meet(x, y)
                if met is not None and not self.meeting.is_empty(met):
                    return False
        return True

    def _not(self, place: Place, kind: Type, positive: bool, tracked: bool) -> list[Clause]:
        return [_unseen(c) for c in self.place(self.refs.child(place, "not"), not positive, kind)]

    def _if(self, place: Place, kind: Type, positive: bool, tracked: bool) -> list[Clause] | None:
        node = cast(dict[str, Json], place.node)
        has_then, has_else = "then" in node, "else" in node
        test = self.refs.child(place, "if")
        if not (has_then or has_else or (tracked and positive)):
            return None

        def branch(keyword: str) -> list[Clause]:
            if keyword not in node:
                return [top(kind)] if positive else []
            return self.place(self.refs.child(place, keyword), positive, kind, tracked)

        if positive and not tracked and not (has_then and has_else):
            # Without one of them, "if" itself need not be met: not-if or then; if or else.
            return self._union(self.place(test, has_else, kind) + branch("then" if has_then else "else"), False)
        passed = self.product(self.place(test, True, kind, tracked), branch("then"), tracked)
        failed = self.product(self.place(test, False, kind), branch("else"), tracked)
        return self._union(passed + failed, tracked)

    def _dependentSchemas(self, place: Place, kind: Type, positive: bool, tracked: bool) -> list[Clause] | None:  # noqa: N802
        return self._depend(place, "dependentSchemas", kind, positive, tracked)

    def _dependencies(self, place: Place, kind: Type, positive: bool, tracked: bool) -> list[Clause] | None:
        return self._depend(place, "dependencies", kind, positive, tracked)

    def _dependentRequired(self, place: Place, kind: Type, positive: bool, tracked: bool) -> list[Clause] | None:  # noqa: N802
        return self._depend(place, "dependentRequired", kind, positive, tracked)

    def _depend(self, place: Place, keyword: str, kind: Type, positive: bool, tracked: bool) -> list[Clause] | None:
        if kind != "object":
            return None
        union: list[Clause] = [top(kind)] if positive else []
        for name, then in cast(dict[str, dict[str, Json]], place.node)[keyword].items():
            here: Clause = Object(required=(name,))
            needs: list[Clause]
            if isinstance(then, list | str):
                others = [then] if isinstance(then, str) else cast(list[str], then)
                needs = [Object(required=tuple(others))] if positive else [_without(other) for other in others]
            else:
                needs = self.place(self.refs.child(place, keyword, name), positive, kind, tracked)
            if positive:
                union = self.product(union, [_without(name), *self.product([here], needs, tracked)], tracked)
            else:
                union += self.product([here], needs)
        return self._union(union, tracked)


_LOGICAL = {
    "$ref": 0, "$dynamicRef": 2020, "$recursiveRef": 2019, "allOf": 4, "anyOf": 4, "oneOf": 4, "not": 4, "if": 7,
    "dependentSchemas": 2019, "dependentRequired": 2019, "dependencies": 0,
}  # fmt: skip


def _without(name: str) -> Object:

    return Object(props=((name, NEVER),))


def _unseen(clause: Clause) -> Clause:
    if isinstance(clause, Object):
        seen = clause.seen
        return replace(clause, seen=Seen()) if seen.all or seen.names or seen.patterns else clause
    if isinstance(clause, Array) and (clause.seen != 0 or clause.seen_if):
        return replace(clause, seen=0, seen_if=())
    return clause


def _unevaluated(clause: Clause, rest: Conj, place: Place) -> Clause:
    """The demand on what ``clause`` has not evaluated."""
    if isinstance(clause, Object):
        seen = clause.seen
        rests = () if seen.all else (Rest(seen.names, seen.patterns, rest),)
        return Object(rests=rests, seen=Seen(all=True))
    assert isinstance(clause, Array)
    if clause.seen is None:
        return Array(seen=None)
    if clause.seen_if:
        rest = (Either((rest, *(both((), c) for c in clause.seen_if))),)
    return Array(prefix=((),) * clause.seen, rest=rest, seen=None)


def _too_large(limit: str, value: int) -> GrammarBudgetError:
    return GrammarBudgetError(
        f"rewriting the schema exceeds {limit} ({value})",
        limit=limit,
        param="schema",
        hint="fewer alternatives under oneOf, not, if and dependencies",
    )
