"""Where the subschemas of a JSON Schema are, and RFC 6901 pointers to them."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from urllib.parse import unquote

from constrained_spec.grammars.schema_formats import ANNOTATIONS, DEFINED

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]

_ONE = (
    "additionalItems", "additionalProperties", "contains", "contentSchema", "else", "if", "items", "not",
    "propertyNames", "then", "unevaluatedItems", "unevaluatedProperties",
)  # fmt: skip
_LIST = ("allOf", "anyOf", "items", "oneOf", "prefixItems")
_MAP = ("$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties", "properties")


def escape(token: str | int) -> str:
    return str(token).replace("~", "~0").replace("/", "~1")


def children(node: Mapping[str, Json]) -> Iterator[tuple[str, Json]]:
    """(pointer relative to ``node``, schema) of the schemas directly inside ``node``, in declared order."""
    for keyword, value in node.items():
        at = f"/{escape(keyword)}"
        if keyword in _ONE and isinstance(value, Mapping):
            yield at, value
        elif keyword in _LIST and isinstance(value, list):
            yield from ((f"{at}/{i}", x) for i, x in enumerate(value))
        elif keyword in _MAP and isinstance(value, Mapping):
            yield from ((f"{at}/{escape(name)}", x) for name, x in value.items())


def subschemas(schema: Json) -> Iterator[tuple[str, dict[str, Json]]]:
    """(pointer, subschema) of every schema object, outermost first, in declared order."""
    todo: list[tuple[str, Json]] = [("", schema)]
    while todo:
        pointer, node = todo.pop()
        if not isinstance(node, Mapping):
            continue
        yield pointer, node
        todo += reversed([(pointer + at, x) for at, x in children(node)])


def with_null(schema: Json) -> Json:
    """``schema`` with null among the types wherever ``nullable: true`` stands beside ``type``, as in OpenAPI 3.0."""
    made: Json = copy.deepcopy(schema)
    for _, node in subschemas(made):
        kinds = node.get("type")
        if node.get("nullable") is True and kinds is not None:
            listed: list[Json] = kinds if isinstance(kinds, list) else [kinds]
            node["type"] = listed if "null" in listed else [*listed, "null"]
    return made


def without_private_formats(schema: Json) -> tuple[Json, tuple[tuple[str, str], ...]]:
    """``schema`` without the formats that no specification defines, and (pointer, keyword) of each of them."""
    made = copy.deepcopy(schema)
    found: list[tuple[str, str]] = []
    for pointer, node in list(subschemas(made)):
        name = node.get("format")
        if isinstance(name, str) and name not in DEFINED and name not in ANNOTATIONS:
            del node["format"]
            found.append((f"{pointer}/format", "format"))
    return made, tuple(found)


def nests_deeper(value: object, limit: int) -> bool:
    """Whether arrays and objects nest more than ``limit`` levels (data that contains itself does)."""
    todo = [(value, 1)]
    while todo:
        node, at = todo.pop()
        if at > limit:
            return True
        if isinstance(node, Mapping):
            todo += [(x, at + 1) for x in node.values()]
        elif isinstance(node, list | tuple):
            todo += [(x, at + 1) for x in node]
    return False


def unfolded_depth(schema: Json) -> int:
    """How many levels of subschemas lie on top of each other where local references are followed.

    Each target is read once, in declared order: so deep a compiler recurses that follows a reference where it meets it.
    References by anchor or by URI are not followed.
    """
    places = {f"#{pointer}": node for pointer, node in subschemas(schema)}
    seen: set[str] = set()
    stack = [(0, _references(schema))]  # levels above a schema, and what it refers to
    deepest = 0
    while stack:
        above, inside = stack[-1]
        found = next(inside, None)
        if found is None:
            stack.pop()
            continue
        target, level = found
        deepest = max(deepest, above + level)
        if target in places and target not in seen:
            seen.add(target)
            stack.append((above + level + 1, _references(places[target])))
    return deepest


def _references(schema: Json) -> Iterator[tuple[str, int]]:
    """(target, level) of the references in ``schema``, definitions left out: those are read where they are used."""
    todo: list[tuple[Json, int]] = [(schema, 0)]
    while todo:
        node, level = todo.pop()
        if not isinstance(node, Mapping):
            continue
        if isinstance(ref := node.get("$ref"), str):
            yield unquote(ref), level
        inner = [(x, level + 1) for at, x in children(node) if not at.startswith(("/$defs/", "/definitions/"))]
        todo += reversed(inner)
