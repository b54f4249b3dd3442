"""Object clauses written out: names as patterns, counts of properties by listing which optional ones are there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import reduce
from itertools import combinations, product
from typing import TYPE_CHECKING, cast

from interegular.fsm import FSM

from constrained_spec.grammars.schema_clauses import NEVER, Conj, Object, Rest, Text, both, negated
from constrained_spec.grammars.schema_languages import (
    UNDECIDED,
    TooHard,
    automaton,
    complement,
    disjoint,
    exactly,
    is_void,
    length,
    pattern_of,
    words,
)
from constrained_spec.grammars.schema_walk import Json

if TYPE_CHECKING:
    from constrained_spec.grammars.schema_emit import Emitter

MAX_VARIANTS = 128  # into which one object clause may be split
MAX_NAMES = 16  # that a pattern stands for, to be listed
MAX_OVERLAPPING = 5  # patterns of names whose overlaps are separated


@dataclass(frozen=True, slots=True)
class Variant:
    """Optional properties that are required or forbidden, and how many undeclared ones there are, at least and most."""

    required: tuple[str, ...] = ()
    forbidden: tuple[str, ...] = ()
    low: int = 0
    high: int | None = None


@dataclass(frozen=True, slots=True)
class Space:
    """The properties: named ones in order of output, and by patterns the others (None: any other name)."""

    named: dict[str, Conj]
    cells: tuple[tuple[str | None, Conj], ...]

    @property
    def is_open(self) -> bool:
        return any(conj != NEVER for _, conj in self.cells)


class _TooMany(Exception):
    pass


class Objects:
    """Writes object clauses for ``emitter``."""

    def __init__(self, emitter: Emitter) -> None:
        self._emitter = emitter

    def write(self, clause: Object) -> list[Json]:
        if clause.value is not None:
            return [{"const": clause.value}]
        space = self._space(clause)
        made: list[Json] = []
        for case, needs_open in self._found(clause, space):
            required = tuple(dict.fromkeys(case.required))
            named = {
                n: both(c, dict(case.props).get(n, ())) if needs_open is not None else c for n, c in space.named.items()
            }
            named = {n: NEVER if self._never(c) else c for n, c in named.items()}
            if any(named[n] == NEVER for n in required):
                continue
            here = Space(named, space.cells)
            try:
                variants = list(self._variants(case, here, required, needs_open or 0))
            except _TooMany:
                at = clause.where if clause.where[0] else ("", "minProperties")
                self._emitter.refuse(at, "the number of properties can only be enforced for few optional ones")
                variants = [Variant()]
            made += [self._node(here, required, v) for v in variants]
        return made

    def _never(self, conj: Conj) -> bool:
        return self._emitter.logic.meeting.none_holds(conj)

    def _space(self, clause: Object) -> Space:
        clause, finite = self._names(clause)
        names = dict.fromkeys([n for n, _ in clause.props] + list(clause.required))
        for rest in (*clause.rests, *(r for r, _ in clause.exists)):
            names.update(dict.fromkeys(sorted(rest.names)))
        names.update(dict.fromkeys(finite or ()))
        ask = self._emitter.logic.meeting.property
        named = {name: ask(clause, name) for name in names}
        try:
            cells = self._cells(clause)
        except TooHard:
            at = clause.where_names or "/patternProperties"
            keyword = at.rsplit("/", 1)[-1]
            self._emitter.refuse((at, keyword), "patterns of property names overlap in a way that cannot be separated")
            cells = ((None, ()),)
        if finite is not None:
            cells = ((None, NEVER),)
        cells = tuple((p, NEVER if self._never(c) else c) for p, c in cells)
        if clause.low > 1 or clause.high is not None or clause.exists:
            # Few names under a pattern are counted like declared ones.
            for pattern, conj in cells:
                listed = words(pattern, MAX_NAMES) if pattern is not None and conj != NEVER else None
                if listed is not None:
                    named.update({n: ask(clause, n) for n in listed if n not in named})
                    # All of them are named now: no other rule can reach them, so this one is not needed either.
                    cells = tuple((p, c) for p, c in cells if p != pattern)
        return Space(named, cells)

    def _names(self, clause: Object) -> tuple[Object, list[str] | None]:
        """propertyNames as a rule on patterns, or the list of the only names."""
        finite: list[str] | None = None
        for conj in clause.names:
            texts = [cast(Text, c) for c in self._emitter.logic.clauses(conj, "string")]
            for text in texts:
                for place in text.open:
                    self._emitter.refuse(place)
                for name, pointer in text.formats:
                    self._emitter.refuse((pointer, "format"), f"the format {name!r} cannot be enforced for names")
            if all(t.value is not None and not t.patterns for t in texts):
                own = [cast(str, t.value) for t in texts]
                finite = own if finite is None else [n for n in finite if n in own]
                continue
            try:
                pattern = _name_pattern(texts)
            except TooHard:
                at = clause.where_names
                self._emitter.refuse((at, "propertyNames"), "the names cannot be written as one pattern")
                continue
            clause = replace(clause, rests=(*clause.rests, Rest(frozenset(), (pattern,), NEVER)))
        if self._emitter.relaxing:
            clause = replace(clause, names=())
        return clause, finite

    def _cells(self, clause: Object) -> tuple[tuple[str | None, Conj], ...]:
        patterns = list(dict.fromkeys([p for p, _ in clause.rules] + [p for r in clause.rests for p in r.patterns]))

        def demand(held: frozenset[str]) -> Conj:
            made: Conj = ()
            for pattern, conj in clause.rules:
                if pattern in held:
                    made = both(made, conj)
            for rest in clause.rests:
                if not held & set(rest.patterns):
                    made = both(made, rest.conj)
            return NEVER if any(x is NEVER[0] for x in made) else made

        default = (None, demand(frozenset()))
        if len(patterns) == 1 or all(disjoint(a, b) for a, b in combinations(patterns, 2)):
            written = [pattern_of(automaton(p)) if UNDECIDED.search(p) else p for p in patterns]
            return (*((w, demand(frozenset((p,)))) for p, w in zip(patterns, written, strict=True)), default)
        if len(patterns) > MAX_OVERLAPPING:
            raise TooHard
        cells: list[tuple[str | None, Conj]] = []
        for held in product((True, False), repeat=len(patterns)):
            if not any(held):
                continue
            machines = [automaton(p) if h else complement(automaton(p)) for p, h in zip(patterns, held, strict=True)]
            machine = reduce(lambda a, b: cast(FSM, a & b), machines)
            if not is_void(machine):
                inside = frozenset(p for p, h in zip(patterns, held, strict=True) if h)
                cells.append((pattern_of(machine), demand(inside)))
        return (*cells, default)

    def _found(self, clause: Object, space: Space) -> Iterator[tuple[Object, int | None]]:
        """``clause`` without ``exists``: for each way to satisfy it, and whether that takes an undeclared property."""
        cases: list[tuple[Object, int | None]] = [(replace(clause, exists=()), None if not clause.exists else 0)]
        if clause.exists:
            # The demands on named properties are in ``space`` already.
            cases = [(replace(clause, exists=(), props=()), 0)]
        for rest, at in clause.exists:
            split: list[tuple[Object, int | None]] = []
            for case, needs in cases:
                for name, conj in space.named.items():
                    if name in rest.names or conj == NEVER or self._holds_any(rest.patterns, name, clause):
                        continue
                    met = case.meet(Object(props=((name, rest.conj),), required=(name,)))
                    if met is not None:
                        split.append((met, needs))
                split += self._undeclared(case, rest, space, at)
            cases = split
        yield from cases

    def _holds_any(self, patterns: tuple[str, ...], name: str, clause: Object) -> bool:
        return any(self._emitter.logic.meeting.finds(p, name, clause) for p in patterns)

    def _undeclared(
        self, case: Object, rest: Rest, space: Space, at: tuple[str, str]
    ) -> list[tuple[Object, int | None]]:
        opened = [(p, c) for p, c in space.cells if c != NEVER]
        if all(self._never(both(c, rest.conj)) for _, c in opened):
            return []
        if rest.patterns or any(not self._never(both(c, negated(rest.conj))) for _, c in opened):
            self._emitter.refuse(at, f"the negation of {at[1]!r} cannot be enforced where other properties are allowed")
            return [(case, 0)]
        return [(case, 1)]

    def _variants(self, clause: Object, space: Space, required: tuple[str, ...], needs: int) -> Iterator[Variant]:
        optional = [n for n, c in space.named.items() if n not in required and c != NEVER]
        missing = max(clause.low - len(required), 0)
        room = None if clause.high is None else clause.high - len(required)
        if room is not None and room < 0:
            return
        if not space.is_open:
            if needs or missing > len(optional):
                return
            allowed = len(optional) if room is None else min(room, len(optional))
            for kept in self._chosen(optional, allowed):
                for chosen in self._chosen(kept, missing):
                    yield Variant(chosen, tuple(n for n in optional if n not in kept))
            return
        if room is None and not needs:
            yield from (Variant(chosen) for chosen in self._chosen(optional, missing))
            for more in range(1, missing + 1):
                for chosen in self._chosen(optional, missing - more):
                    yield self._counted(clause, Variant(chosen, tuple(n for n in optional if n not in chosen), more))
            return
        for size in range(len(optional) + 1 if room is None else min(room, len(optional)) + 1):
            for chosen in self._chosen(optional, size):
                low = max(needs, missing - size)
                high = None if room is None else room - size
                if high is None or low <= high:
                    others = tuple(n for n in optional if n not in chosen)
                    yield self._counted(clause, Variant(chosen, others, low, high))

    def _chosen(self, names: list[str] | tuple[str, ...], size: int) -> Iterator[tuple[str, ...]]:
        for i, chosen in enumerate(combinations(names, size)):
            if i >= MAX_VARIANTS:
                raise _TooMany
            yield chosen

    def _counted(self, clause: Object, variant: Variant) -> Variant:
        if variant.low < 2:
            return variant
        # An undeclared name may come twice in the text, and then counts once in the value.
        at = clause.where if clause.where[0] else ("", "minProperties")
        self._emitter.refuse(at, "two undeclared properties cannot be kept from having the same name")
        return replace(variant, low=1)

    def _node(self, space: Space, required: tuple[str, ...], variant: Variant) -> Json:
        build = self._emitter.build
        node: dict[str, Json] = {"type": "object"}
        names = dict[str, Json]()
        for name, conj in space.named.items():
            made = False if name in variant.forbidden else build(conj)
            if made is not False or space.is_open:
                names[name] = made
        if names:
            node["properties"] = names
        all_required: list[Json] = [n for n in space.named if n in required or n in variant.required]
        if all_required:
            node["required"] = all_required
        patterns = dict[str, Json]()
        closed = variant.high == 0
        for pattern, conj in space.cells:
            made = False if closed else build(conj)
            if pattern is None:
                if made is not True:
                    node["additionalProperties"] = made
            else:
                patterns[pattern] = made
        if patterns and not (closed and node.get("additionalProperties") is False):
            node["patternProperties"] = patterns
        if variant.low:
            node["minProperties"] = variant.low + len(all_required)
        if variant.high:
            node["maxProperties"] = variant.high + len(all_required)
        return node


def _name_pattern(texts: list[Text]) -> str:
    """One pattern for the names that satisfy one of ``texts``. Raises ``TooHard``."""
    if len(texts) == 1:
        (text,) = texts
        plain = text.value is None and not text.excluded and not text.low and text.high is None
        if plain and len(text.patterns) == 1 and text.patterns[0][1]:
            return text.patterns[0][0]
        if text.value is None and not text.excluded and not text.patterns:
            return f"^[\\s\\S]{{{text.low},{'' if text.high is None else text.high}}}$"
    machines = [_machine(t) for t in texts]
    return pattern_of(reduce(lambda a, b: cast(FSM, a | b), machines))


def _machine(text: Text) -> FSM:
    parts = [automaton(p) if holds else complement(automaton(p)) for p, holds, _ in text.patterns]
    if text.value is not None:
        parts.append(exactly(frozenset((text.value,))))
    if text.excluded:
        parts.append(complement(exactly(text.excluded)))
    if text.high is not None and text.high > 200:
        raise TooHard
    if text.low or text.high is not None or not parts:
        parts.append(length(text.low, text.high))
    return reduce(lambda a, b: cast(FSM, a & b), parts)
