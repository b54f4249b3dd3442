"""A quick look that finds most schemas valid. The others are left to the meta-schema, which names the fault."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from constrained_spec.grammars.schema_walk import Json

_TYPES = frozenset(("null", "boolean", "integer", "number", "string", "array", "object"))


def _number(value: Json) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _count(value: Json) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _names(value: Json) -> bool:
    return (
        isinstance(value, list) and all(isinstance(x, str) for x in value) and len(set(map(str, value))) == len(value)
    )


def _type(value: Json) -> bool:
    if isinstance(value, str):
        return value in _TYPES
    return _names(value) and bool(value) and set(cast(list[str], value)) <= _TYPES


def _schema(value: Json) -> bool:
    return isinstance(value, bool) or (isinstance(value, dict) and plainly_valid(value))


def _schemas(value: Json) -> bool:
    return isinstance(value, dict) and all(map(_schema, value.values()))


def _listed(value: Json) -> bool:
    return isinstance(value, list) and bool(value) and all(map(_schema, value))


def _text(value: Json) -> bool:
    return isinstance(value, str)


def _anything(value: Json) -> bool:
    return True


_SHAPES: dict[str, Callable[[Json], bool]] = {
    "type": _type, "properties": _schemas, "patternProperties": _schemas, "definitions": _schemas, "$defs": _schemas,
    "additionalProperties": _schema, "items": _schema, "not": _schema, "required": _names, "allOf": _listed,
    "anyOf": _listed, "oneOf": _listed, "minimum": _number, "maximum": _number,
    "minLength": _count, "maxLength": _count,
    "minItems": _count, "maxItems": _count, "minProperties": _count, "maxProperties": _count, "pattern": _text,
    "format": _text, "title": _text, "description": _text, "$comment": _text, "default": _anything, "const": _anything,
    "uniqueItems": lambda value: isinstance(value, bool),
}  # fmt: skip


def plainly_valid(schema: Json) -> bool:
    """``schema`` is certainly valid in every dialect from draft 6 on; False says nothing."""
    if isinstance(schema, bool):
        return True
    for keyword, value in cast(dict[str, Json], schema).items():
        if keyword == "$ref":
            # Beside other keywords some dialects do not look at them; a reference must be one to this document.
            if not isinstance(value, str) or not value.startswith("#/"):
                return False
        elif keyword == "enum":
            strings = isinstance(value, list) and all(isinstance(x, str) for x in value)
            if not strings or not value or len(set(cast(list[str], value))) != len(cast(list[str], value)):
                return False
        elif keyword not in _SHAPES or not _SHAPES[keyword](value):
            return False
    return True
