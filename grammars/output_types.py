"""Python, pydantic and Outlines types to constraints, and the generated text back to values of the type.

None, str                         free text
JsonSchema Regex Choice Lark      themselves; a JSON Schema gives a JSON value (or the pydantic instance)
dict                              a JSON Schema
bool int float                    the bare value in JSON spelling
Literal[...] Enum                 one of the values, strings without quotes
a function                        JSON of its arguments
any other type                    JSON of the schema that pydantic gives it; parsed by pydantic
constraints                       as they are; ToolCalls parses to (content, calls)
outlines.types                    Regex, CFG, JsonSchema, Choice and the terms of its regex language
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import json
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Literal, cast, get_args, get_origin

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError

from constrained_spec.errors import RequestError
from constrained_spec.grammars.constraints import Choice, Constraint, JsonSchema, Lark, Regex, ToolCalls
from constrained_spec.grammars.json_schema import SchemaSource, Whitespace
from constrained_spec.grammars.tools import parse_tool_calls

Parser = Callable[[str], object]


@dataclasses.dataclass(frozen=True, slots=True)
class JsonOptions:
    """The fields of ``JsonSchema`` that are no schema, for output types that bring none of their own. The compiler
    checks them."""

    whitespace: str = "one-space"
    on_unsupported: str = "error"
    ensure_ascii: bool = False
    registry: Mapping[str, SchemaSource] | None = None
    nullable: bool = False
    max_depth: int | None = None

    def of(self, schema: SchemaSource) -> JsonSchema:
        whitespace = cast(Whitespace, self.whitespace)
        on_unsupported = cast(Literal["error", "validate"], self.on_unsupported)
        return JsonSchema(
            schema, whitespace, on_unsupported, self.ensure_ascii, self.registry, self.nullable, self.max_depth
        )


_INTEGER = r"-?(?:0|[1-9][0-9]*)"
_NUMBER = _INTEGER + r"(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?"


def to_constraint(output_type: object, json_options: JsonOptions | None = None) -> Constraint | None:
    """The constraint of ``output_type``; None for free text. ``json_options`` are for JSON that does not say its own.

    Raises ``RequestError`` for what is no output type.
    """
    return _resolve(output_type, json_options or JsonOptions())[0]


def parse_output(output_type: object, text: str) -> object:
    """``text`` as a value of ``output_type``. Raises ``RequestError`` if it is not one (a stop string may cut it)."""
    try:
        return _resolve(output_type, JsonOptions())[1](text)
    except (ValidationError, ValueError) as error:
        raise RequestError(f"the output is no value of the type: {error}", param="output_type") from None


def _resolve(output_type: object, options: JsonOptions) -> tuple[Constraint | None, Parser]:
    if output_type is None or output_type is str:
        return None, str
    if isinstance(output_type, JsonSchema):
        return output_type, _schema_parser(output_type.schema)
    if isinstance(output_type, ToolCalls):
        return output_type, functools.partial(parse_tool_calls, syntax=output_type.syntax)
    if isinstance(output_type, get_args(Constraint)):
        return output_type, str
    if isinstance(output_type, dict):
        return options.of(output_type), json.loads
    if isinstance(output_type, str):
        raise RequestError(
            "a string is no output type", param="output_type", hint="wrap it: Regex(...), Lark(...) or JsonSchema(...)"
        )
    if output_type is bool:
        return Choice(("true", "false")), json.loads
    if output_type is int:
        return Regex(_INTEGER), int
    if output_type is float:
        return Regex(_NUMBER), float
    if get_origin(output_type) is Literal:
        return _one_of(get_args(output_type))
    if isinstance(output_type, type) and issubclass(output_type, enum.Enum):
        members = list(output_type)
        return _one_of([m.value for m in members], members)
    if type(output_type).__module__.partition(".")[0] == "outlines":
        return _from_outlines(output_type, options)
    return _from_pydantic(output_type, options)


def _schema_parser(schema: SchemaSource) -> Parser:
    if isinstance(schema, type) and issubclass(schema, BaseModel):
        return schema.model_validate_json
    return json.loads


def _one_of(values: Iterable[object], results: Iterable[object] | None = None) -> tuple[Constraint, Parser]:
    """A choice of the values' bare texts; ``results`` are what they parse to."""
    texts: dict[str, object] = {}
    values = list(values)
    for value, result in zip(values, values if results is None else results, strict=True):
        plain = value.value if isinstance(value, enum.Enum) else value
        if plain is not None and not isinstance(plain, str | int | float):
            raise RequestError(f"a choice of {plain!r} has no text", param="output_type")
        text = plain if isinstance(plain, str) else json.dumps(plain)
        if text in texts:
            raise RequestError(f"two of the values are written {text!r}", param="output_type")
        texts[text] = result

    def parse(text: str) -> object:
        if text not in texts:
            raise ValueError(f"{text!r} is none of the choices")
        return texts[text]

    return Choice(tuple(texts)), parse


def _from_pydantic(output_type: object, options: JsonOptions) -> tuple[Constraint, Parser]:
    try:
        adapter: TypeAdapter[object] = TypeAdapter(cast(type, output_type))
        schema = adapter.json_schema()
    except (PydanticUserError, TypeError, NameError, RecursionError) as error:
        raise RequestError(f"{output_type!r} is no output type: {error}", param="output_type") from None
    if isinstance(output_type, types.FunctionType | types.MethodType | types.BuiltinFunctionType):
        # Validating through the adapter would call the function.
        return options.of(schema), json.loads
    return options.of(schema), adapter.validate_json


def _from_outlines(term: object, options: JsonOptions) -> tuple[Constraint, Parser]:
    from outlines.types import dsl

    if isinstance(term, dsl.CFG):
        return Lark(term.definition), str
    if isinstance(term, dsl.Regex):
        return Regex(term.pattern), str
    if isinstance(term, dsl.JsonSchema):
        if term.whitespace_pattern is not None:
            raise RequestError(
                "a whitespace_pattern is not supported", param="output_type", hint="use the whitespace option"
            )
        return options.of(term.schema), json.loads
    if isinstance(term, dsl.Choice):
        return _one_of(term.items)
    if isinstance(term, dsl.Term):
        # Its regex of a JSON Schema ignores keywords, and a grammar has none.
        if _holds(term, (dsl.CFG, dsl.JsonSchema)):
            raise RequestError("a grammar or schema inside a regex term is not supported", param="output_type")
        return Regex(dsl.to_regex(term)), str
    raise RequestError(f"{term!r} is no output type", param="output_type")


def _holds(value: object, kinds: tuple[type, ...]) -> bool:
    if isinstance(value, kinds):
        return True
    if isinstance(value, list | tuple):
        return any(_holds(x, kinds) for x in value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return any(_holds(getattr(value, f.name), kinds) for f in dataclasses.fields(value))
    return False
