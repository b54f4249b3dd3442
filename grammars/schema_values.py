"""Whether one given value satisfies a schema: keyword by keyword, so also where no union of clauses says it."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from constrained_spec.errors import UnsupportedSchemaError
from constrained_spec.grammars.schema_clauses import Conj, Lit, type_of
from constrained_spec.grammars.schema_formats import superset
from constrained_spec.grammars.schema_keywords import KEYWORDS
from constrained_spec.grammars.schema_languages import TooHard, found_in
from constrained_spec.grammars.schema_refs import Place
from constrained_spec.grammars.schema_walk import Json

if TYPE_CHECKING:
    from constrained_spec.grammars.schema_logic import Logic

_REFERENCES = {"$ref": 0, "$dynamicRef": 2020, "$recursiveRef": 2019}


class Values:
    """Judges values for ``logic``. Raises ``UnsupportedSchemaError`` where a format or unevaluated* decides."""

    def __init__(self, logic: Logic) -> None:
        self._logic = logic

    def satisfies(self, conj: Conj, value: Json) -> bool:
        for literal in conj:
            if isinstance(literal, Lit):
                if self.at(literal.place, value) != literal.positive:
                    return False
            elif not any(self.satisfies(option, value) for option in literal.options):
                return False
        return True

    def at(self, place: Place, value: Json) -> bool:
        """Whether ``value`` satisfies the schema at ``place``."""
        if isinstance(place.node, bool):
            return place.node
        node = self._logic.keywords(place)
        return all(self._keyword(place, node, keyword, value) for keyword in node)

    def _keyword(self, place: Place, node: dict[str, Json], keyword: str, value: Json) -> bool:
        draft, child = place.resource.draft, self._logic.refs.child
        if keyword in _REFERENCES:
            if draft < _REFERENCES[keyword] or (keyword == "$recursiveRef" and draft != 2019):
                return True
            return self.at(self._logic.refs.resolve(place, keyword), value)
        if keyword in ("allOf", "anyOf", "oneOf"):
            count = len(cast(list[Json], node[keyword]))
            held = sum(self.at(child(place, keyword, i), value) for i in range(count))
            return held == count if keyword == "allOf" else held == 1 if keyword == "oneOf" else held > 0
        if keyword == "not":
            return not self.at(child(place, "not"), value)
        if keyword == "if" and draft >= 7:
            branch = "then" if self.at(child(place, "if"), value) else "else"
            return branch not in node or self.at(child(place, branch), value)
        if keyword in ("dependentRequired", "dependentSchemas", "dependencies"):
            return (draft < 2019 and keyword != "dependencies") or self._depends(place, keyword, value)
        if keyword in ("unevaluatedItems", "unevaluatedProperties") and draft >= 2019:
            if type_of(value) == ("array" if keyword == "unevaluatedItems" else "object"):
                raise _doubtful(f"{place.pointer}/{keyword}", keyword)
            return True
        return self._assertion(place, keyword, value)

    def _assertion(self, place: Place, keyword: str, value: Json) -> bool:
        rule, kind = KEYWORDS.get(keyword), type_of(value)
        if rule is None or rule.kind not in (None, kind) or place.resource.draft < rule.since:
            return True
        found = rule.clauses(self._logic.refs, place, kind, True)
        if found is None:
            return True
        if keyword == "format":
            name = cast(str, cast(dict[str, Json], place.node)["format"])
            try:
                wide = superset(name)
                if wide is not None and not found_in(wide, cast(str, value)):
                    return False
            except TooHard:
                pass
            raise _doubtful(f"{place.pointer}/format", "format")
        return any(self._logic.meeting.holds(clause, value) for clause in found)

    def _depends(self, place: Place, keyword: str, value: Json) -> bool:
        if not isinstance(value, dict):
            return True
        for name, then in cast(dict[str, dict[str, Json]], place.node)[keyword].items():
            if name not in value:
                continue
            if isinstance(then, list | str):
                if any(n not in value for n in ([then] if isinstance(then, str) else then)):
                    return False
            elif not self.at(self._logic.refs.child(place, keyword, name), value):
                return False
        return True


def _doubtful(pointer: str, keyword: str) -> UnsupportedSchemaError:
    return UnsupportedSchemaError(
        f"whether {keyword!r} holds for a fixed value cannot be decided", pointer=pointer, keyword=keyword
    )
