"""What the engine cannot enforce, rewritten into what it can: the same JSON values, or a typed refusal.

A schema is taken apart into unions of clauses, one union per JSON type (``schema_logic``), and these are written out
again in the keywords that the engine enforces (``schema_emit``). Negation is pushed to the keywords, where a
complement exists or is refused. Keys come in the order in which ``properties`` first declare them, read from top to
bottom; required names that are declared nowhere follow, then all others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from constrained_spec.errors import GrammarBudgetError
from constrained_spec.grammars.schema_clauses import Lit
from constrained_spec.grammars.schema_emit import Emitter
from constrained_spec.grammars.schema_formats import ENGINE_FORMATS
from constrained_spec.grammars.schema_logic import Logic
from constrained_spec.grammars.schema_refs import References, draft_of
from constrained_spec.grammars.schema_walk import Json, subschemas

_REFUSED = frozenset(
    (
        "not", "if", "dependentRequired", "dependentSchemas", "dependencies", "oneOf", "$dynamicRef", "$recursiveRef",
        "propertyNames", "uniqueItems", "contains", "unevaluatedProperties", "unevaluatedItems", "minProperties",
        "maxProperties", "$anchor", "$dynamicAnchor",
    )
)  # fmt: skip
_IN_PLACE = ("allOf", "anyOf", "$ref")
_OF_OBJECTS = ("properties", "required", "patternProperties", "additionalProperties")
_SINCE_2019 = (
    "$anchor", "$dynamicAnchor", "$dynamicRef", "$recursiveRef", "dependentRequired", "dependentSchemas", "maxContains",
    "minContains", "prefixItems", "unevaluatedItems", "unevaluatedProperties",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Rewritten:
    """``relaxed``: (pointer, keyword) of what ``schema`` leaves out; with none of them it is equivalent."""

    schema: Json
    relaxed: tuple[tuple[str, str], ...]


def default_draft(schema: Json) -> int:
    """The dialect of a schema that does not name one: 2020-12, unless it can only be draft 7 or older."""
    old = False
    for _, node in subschemas(schema):
        if any(keyword in node for keyword in _SINCE_2019):
            return 2020
        old |= isinstance(node.get("items"), list) or "dependencies" in node
    return 7 if old else 2020


def must_rewrite(schema: Json) -> bool:
    """The engine refuses the schema as it is, or would not enforce all of it."""
    return any(
        not _REFUSED.isdisjoint(node)
        or ("format" in node and node["format"] not in ENGINE_FORMATS)
        or (isinstance(node.get("$id", node.get("id")), str) and pointer)
        for pointer, node in subschemas(schema)
    )


def engine_is_sound(schema: Json) -> bool:
    """What the engine compiles of the schema as it is, it enforces: it refuses every other keyword that it lacks."""
    return not any(
        ("minProperties" in node and node["minProperties"] not in (0, 1))  # it takes a name twice for two
        or (isinstance(node.get("$id", node.get("id")), str) and pointer)
        for pointer, node in subschemas(schema)
    )


def orders_keys(schema: Json) -> bool:
    """The engine would merge objects in an order of its own."""
    return any(
        ("allOf" in node and ((isinstance(node["allOf"], list) and len(node["allOf"]) > 1) or len(node) > 1))
        or (any(k in node for k in _IN_PLACE) and any(k in node for k in _OF_OBJECTS))
        for _, node in subschemas(schema)
    )


def rewrite(schema: Json, registry: Mapping[str, Json] | None = None, *, relaxing: bool = False) -> Rewritten:
    """``schema`` in the engine's keywords. ``relaxing`` leaves out what cannot be written, and lists it.

    Raises ``UnsupportedSchemaError`` (never for a keyword while ``relaxing``) and ``GrammarBudgetError``.
    """
    try:
        return _rewritten(schema, registry, relaxing)
    except RecursionError:
        raise GrammarBudgetError(
            "the schema nests too deeply to be rewritten", limit="max_schema_depth", param="schema"
        ) from None


def _rewritten(schema: Json, registry: Mapping[str, Json] | None, relaxing: bool) -> Rewritten:
    explicit = isinstance(schema, dict) and "$schema" in schema
    refs = References(schema, registry, draft_of(schema, default_draft(schema)))
    logic = Logic(refs, explicit, relaxing)
    dropped: dict[tuple[str, str], None] = {}
    emitter = Emitter(logic, (lambda place: dropped.setdefault(place)) if relaxing else None)
    made = emitter.build((Lit(refs.start()),))
    if emitter.definitions:
        made = {**made, "$defs": emitter.definitions} if isinstance(made, dict) else made
    return Rewritten(made, tuple(dropped))
