"""Where the subschemas of a JSON Schema are, and RFC 6901 pointers to them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]

_ONE = (
    "additionalItems", "additionalProperties", "contains", "contentSchema", "else", "if", "items", "not",
    "propertyNames", "then", "unevaluatedItems", "unevaluatedProperties",
)  # fmt: skip
_LIST = ("allOf", "anyOf", "items", "oneOf", "prefixItems")
_MAP = ("$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties", "properties")


def escape(token: str | int) -> str:
    return str(token).replace("~", "~0").replace("/", "~1")


def subschemas(schema: Json) -> Iterator[tuple[str, dict[str, Json]]]:
    """(pointer, subschema) of every schema object, outermost first, in declared order."""
    todo: list[tuple[str, Json]] = [("", schema)]
    while todo:
        pointer, node = todo.pop()
        if not isinstance(node, Mapping):
            continue
        yield pointer, node
        inner: list[tuple[str, Json]] = []
        for keyword, value in node.items():
            at = f"{pointer}/{escape(keyword)}"
            if keyword in _ONE and isinstance(value, Mapping):
                inner.append((at, value))
            elif keyword in _LIST and isinstance(value, list):
                inner += [(f"{at}/{i}", x) for i, x in enumerate(value)]
            elif keyword in _MAP and isinstance(value, Mapping):
                inner += [(f"{at}/{escape(name)}", x) for name, x in value.items()]
        todo += reversed(inner)


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
