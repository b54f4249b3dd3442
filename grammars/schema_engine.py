"""A schema as a text for llguidance, and what llguidance says against it as an error with the place at fault."""

from __future__ import annotations

import copy
import json
import re

from constrained_spec.errors import GrammarBudgetError, RequestError, UnsatisfiableError, UnsupportedSchemaError
from constrained_spec.grammars.llg import EngineError, check_grammar, header, refuse
from constrained_spec.grammars.schema_walk import Json, escape, subschemas
from constrained_spec.grammars.tokens import TokenIndex, Tokenization

_MAX_PROBES = 64
# The engine tells the name of another property from the declared ones by how it is written, and lets it hold any
# character by number: ``\u0061`` would be another name than a. So where an object may have other names, no string is
# written with numbers, which leaves out control characters without a letter of their own.
_NO_NUMBERS = 'nrbtf\\"'
_NUMBERED = re.compile(r"(?<!\\)(?:\\\\)*\\u00|\x7f")


def lark_text(schema: Json, options: dict[str, Json], tokenization: Tokenization) -> str:
    """``schema`` as a Lark grammar; ``options`` are the engine's for JSON."""
    if has_other_names(schema):
        options = {**options, "json_allowed_escapes": _NO_NUMBERS}
    body: Json
    if isinstance(schema, dict):
        body = {**schema, "x-guidance": options}
    else:
        body = {"x-guidance": options} if schema else False
    return f"{header(tokenization)}start: %json {json.dumps(body, ensure_ascii=False)}\n"


def has_other_names(schema: Json) -> bool:
    """Somewhere in ``schema``, names other than the declared ones, or than those of a pattern, are allowed."""
    return any(_is_open(node) for _, node in subschemas(schema))


def _is_open(node: dict[str, Json]) -> bool:
    declared, patterns = node.get("properties"), node.get("patternProperties")
    rest = node.get("additionalProperties", True) is not False
    return bool(declared and (rest or patterns)) or bool(patterns and rest)


def check_spelling(schema: Json) -> None:
    """For a schema beside objects with other names: raises ``UnsupportedSchemaError`` for a value that has no spelling
    there."""
    for pointer, node in subschemas(schema):
        for keyword in ("const", "enum"):
            if keyword in node and _NUMBERED.search(json.dumps(node[keyword], ensure_ascii=False)):
                raise UnsupportedSchemaError(
                    "a control character in a fixed value cannot be written where objects may have other properties",
                    pointer=f"{pointer}/{keyword}",
                    keyword=keyword,
                    hint="set additionalProperties to false, or leave the character out",
                )


class Diagnosis:
    """Turns llguidance's message into an error with the place and keyword at fault."""

    def __init__(self, schema: Json, options: dict[str, Json], tokenization: Tokenization, index: TokenIndex) -> None:
        self.schema = schema
        self._options = options
        self._tokenization = tokenization
        self._index = index

    def explain(self, message: str) -> RequestError:
        message = re.sub(r"^at \d+\(\d+\): (failed to compile JSON schema: )?", "", message)
        first = message.split("\n", 1)[0].strip()
        found = re.match(r'Unimplemented keys: \["((?:[^"\\]|\\.)*)"', first)
        if found:
            return self._unsupported(found[1], f"the keyword {found[1]!r} cannot be enforced")
        found = re.match(r"Unknown format: (.*)", first)
        if found:
            return self._unsupported(
                "format",
                f"the format {found[1]!r} cannot be enforced",
                value=found[1],
                hint="remove it if it is only a remark",
            )
        if first.startswith("oneOf constraints"):
            return self._unsupported(
                "oneOf",
                "the branches of oneOf cannot be proven disjoint",
                hint="use anyOf, or give the branches a property with different const values",
            )
        if "regex" in first.lower() and not first.startswith("Unsatisfiable"):
            detail = message.rsplit("error: ", 1)[-1].split("\n", 1)[0]
            keyword = "pattern" if self._places("pattern") else "patternProperties"
            return self._unsupported(keyword, f"a pattern cannot be enforced: {detail}")
        if re.match(r"Pointer '|Resource '|.*\$ref", first):
            return self._unsupported("$ref", f"a reference cannot be resolved: {first}")
        if first.startswith("Unsatisfiable"):
            return UnsatisfiableError(f"no value satisfies the schema: {first}", param="schema")
        error = refuse(EngineError(first), "schema", "schema")
        if isinstance(error, GrammarBudgetError):
            return error
        keyword = next((k for _, node in subschemas(self.schema) for k in node if k in first), "")
        return self._unsupported(keyword, f"the schema cannot be enforced: {first}")

    def _places(self, keyword: str, value: str | None = None) -> list[str]:
        return [
            pointer
            for pointer, node in subschemas(self.schema)
            if keyword in node and (value is None or node[keyword] == value)
        ]

    def _unsupported(
        self,
        keyword: str,
        message: str,
        *,
        value: str | None = None,
        hint: str | None = None,
    ) -> UnsupportedSchemaError:
        places = self._places(keyword, value)
        place = places[0] if places else ""
        if len(places) > 1:
            place = next((p for p in places[:_MAX_PROBES] if self._is_guilty(keyword, p, places)), place)
        pointer = f"{place}/{escape(keyword)}" if places else place
        return UnsupportedSchemaError(message, pointer=pointer, keyword=keyword, hint=hint)

    def _is_guilty(self, keyword: str, place: str, places: list[str]) -> bool:
        """With ``keyword`` left at ``place`` alone the schema still does not compile."""
        probe = copy.deepcopy(self.schema)
        others = set(places) - {place}
        for pointer, node in list(subschemas(probe)):
            if pointer in others:
                del node[keyword]
        try:
            check_grammar(lark_text(probe, self._options, self._tokenization), self._index)
        except EngineError:
            return True
        return False
