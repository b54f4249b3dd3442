"""Array clauses written out: contains and uniqueItems by listing the cases, where these are few."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from typing import TYPE_CHECKING

from constrained_spec.grammars.schema_clauses import TYPES, Array, Conj, Hit, Number, Plain, Text, both, negated
from constrained_spec.grammars.schema_walk import Json

if TYPE_CHECKING:
    from constrained_spec.grammars.schema_emit import Emitter

MAX_CASES = 256  # into which one array clause may be split
MAX_UNIQUE = 5  # items of an array whose orders are listed


class Arrays:
    """Writes array clauses for ``emitter``."""

    def __init__(self, emitter: Emitter) -> None:
        self._emitter = emitter

    def write(self, clause: Array) -> list[Json]:
        if clause.value is not None:
            return [{"const": clause.value}]
        made: list[Json] = []
        for case in self._cases(self._closed(clause)):
            if case.unique and (case.high is None or case.high > 1):
                made += self._unique(case)
            elif not self._emitter.logic.meeting.is_empty(case):
                made.append(self._plain(case))
        return made

    def _closed(self, clause: Array) -> Array:
        """Ends before the first item that nothing satisfies."""
        never = self._emitter.logic.meeting.none_holds
        end = next((i for i in range(len(clause.prefix) + 1) if never(clause.item(i))), None)
        if end is None or (clause.high is not None and clause.high <= end):
            return clause
        return replace(clause, high=end)

    def _cases(self, clause: Array) -> list[Array]:
        """Without ``hits``: for each of them, the places where its items stand."""
        cases = [replace(clause, hits=())]
        for hit in clause.hits:
            split: list[Array] = []
            for case in cases:
                found = self._places(case, hit)
                if found is None:
                    self._emitter.refuse(
                        (hit.where[0], hit.where[1]),
                        f"the keyword {hit.where[1]!r} needs a small maxItems to be enforced",
                    )
                    found = [case]
                split += found
            cases = split
        return cases

    def _places(self, case: Array, hit: Hit) -> list[Array] | None:
        """``case`` with ``hit`` spelled out. None: too many ways."""
        logic, other = self._emitter.logic, negated(hit.conj)
        span = list(range(case.high if case.high is not None else len(case.prefix) + 1))
        must = [i for i in span if i >= hit.start and logic.meeting.none_holds(both(case.item(i), other))]
        rest_must = case.high is None and logic.meeting.none_holds(both(case.rest, other))
        if (
            hit.high is None
            and (rest_must or case.high is not None)
            and len(must) >= len([i for i in span if i >= hit.start])
        ):
            # Every item satisfies it anyway: it is a question of number.
            low = max(case.low, hit.start + hit.low)
            return [replace(case, low=low)] if case.high is None or low <= case.high else []
        if hit.high is None and sum(i < case.low for i in must) >= hit.low:
            return [case]
        if case.high is None or case.high > 12:
            return self._unbounded(case, hit, other)
        made: list[Array] = []
        for size in range(max(case.low, 0), case.high + 1):
            spots = range(hit.start, size)
            most = len(spots) if hit.high is None else min(hit.high, len(spots))
            for count in range(hit.low, most + 1):
                if hit.high is None and count > hit.low:
                    break  # exactly ``low`` chosen ones and no word on the others says "at least"
                for chosen in combinations(spots, count):
                    if len(made) >= MAX_CASES:
                        return None
                    items = [
                        both(
                            case.item(i),
                            hit.conj if i in chosen else other if hit.high is not None and i >= hit.start else (),
                        )
                        for i in range(size)
                    ]
                    if not any(logic.meeting.none_holds(item) for item in items):
                        made.append(replace(case, prefix=tuple(items), low=size, high=size))
        return made

    def _unbounded(self, case: Array, hit: Hit, other: Conj) -> list[Array] | None:
        """Where only the first items can satisfy it, or all that may not are first."""
        logic = self._emitter.logic
        if not logic.meeting.none_holds(both(case.rest, hit.conj)):
            return None
        head = len(case.prefix)
        if head > 8 or head < hit.start:
            return None
        made: list[Array] = []
        for size in range(head + 1):
            # Arrays that end inside the prefix, and those that go on after it.
            fixed = replace(case, high=size, low=size) if size < head else replace(case, low=max(case.low, head))
            if size < case.low and size < head:
                continue
            spots = range(hit.start, size)
            most = len(spots) if hit.high is None else min(hit.high, len(spots))
            for count in range(hit.low, most + 1):
                for chosen in combinations(spots, count):
                    items = tuple(
                        both(case.item(i), hit.conj if i in chosen else other if i >= hit.start else ())
                        for i in range(size)
                    )
                    if len(made) >= MAX_CASES:
                        return None
                    if not any(logic.meeting.none_holds(item) for item in items):
                        made.append(replace(fixed, prefix=items))
        return made

    def _unique(self, case: Array) -> list[Json]:
        """Distinct items, by listing: sequences of single values, and items that cannot be equal anyway."""
        assert case.unique is not None
        high = case.high
        domains: list[list[tuple[object, Json]]] = []
        span = high if high is not None else len(case.prefix) + 1
        for i in range(min(span, MAX_UNIQUE + 8)):
            domain = self._finite(case.item(i))
            if domain is None:
                break
            domains.append(domain)
        finite = len(domains) == min(span, MAX_UNIQUE + 8)
        if finite and high is None:
            # Beyond the prefix all items come from one set: no longer than prefix and set together.
            high = len(case.prefix) + len(domains[-1])
            domains += [domains[-1]] * (high - len(domains))
        if finite and high is not None and high <= len(domains):
            return self._sequences(case, domains, high)
        if self._pairwise_disjoint(case):
            return [self._plain(case)]
        self._emitter.refuse(case.unique, "uniqueItems needs few possible items, or items that cannot be equal")
        return [self._plain(case)]

    def _pairwise_disjoint(self, case: Array) -> bool:
        if case.high is None or case.high > 8:
            return False
        none = self._emitter.logic.meeting.none_holds
        return all(none(both(case.item(i), case.item(j))) for i, j in combinations(range(case.high), 2))

    def _sequences(self, case: Array, domains: list[list[tuple[object, Json]]], high: int) -> list[Json]:
        sequences: list[list[tuple[object, Json]]] = [[]]
        made: list[Json] = [{"const": []}] if case.low == 0 else []
        for i in range(high):
            sequences = [[*s, v] for s in sequences for v in domains[i] if all(v[0] != old[0] for old in s)]
            if len(sequences) + len(made) > MAX_CASES:
                assert case.unique is not None
                self._emitter.refuse(case.unique, "uniqueItems would need too many cases")
                return [self._plain(case)]
            if i + 1 >= case.low:
                made += [{"const": [v for _, v in s]} for s in sequences]
        return made

    def _finite(self, conj: Conj) -> list[tuple[object, Json]] | None:
        """(identity, value) of all values of ``conj`` if they are few single ones."""
        found: dict[object, Json] = {}
        for kind in TYPES:
            for clause in self._emitter.logic.clauses(conj, kind):
                if clause.open:
                    return None
                if isinstance(clause, Plain):
                    found.update({(kind, v): v for v in clause.values})
                elif isinstance(clause, Number):
                    listed = clause.members(MAX_CASES)
                    if listed is None:
                        return None
                    found.update({(kind, v): v for v in listed})
                elif isinstance(clause, Text) and clause.value is not None and not (clause.patterns or clause.formats):
                    found[kind, clause.value] = clause.value
                else:
                    if self._emitter.logic.meeting.is_empty(clause):
                        continue
                    return None
                if len(found) > MAX_CASES:
                    return None
        return list(found.items())

    def _plain(self, case: Array) -> Json:
        build = self._emitter.build
        node: dict[str, Json] = {"type": "array"}
        size = len(case.prefix) if case.high is None else min(len(case.prefix), case.high)
        if any(case.prefix[:size]):
            node["prefixItems"] = [build(conj) for conj in case.prefix[:size]]
        elif case.prefix and case.rest and (case.high is None or case.high > size):
            node["prefixItems"] = [True] * size
        if case.high is not None and case.high <= size:
            node["maxItems"] = case.high
        else:
            if case.rest:
                node["items"] = build(case.rest)
            if case.high is not None:
                node["maxItems"] = case.high
        if case.low:
            node["minItems"] = case.low
        return node
