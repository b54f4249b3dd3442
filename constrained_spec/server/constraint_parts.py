"""The parts that the spellings of a constraint are made of: schemas, patterns, choices, grammar texts."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from constrained_spec.errors import GrammarSyntaxError, RequestError
from constrained_spec.grammars.constraints import Choice, Constraint, Lark, Regex
from constrained_spec.grammars.notation import normalise_grammar
from constrained_spec.grammars.output_types import JsonOptions
from constrained_spec.grammars.schema_walk import nests_deeper
from constrained_spec.server.fields import Fields, kind_of, text_of
from constrained_spec.server.plan import ANYWHERE, BodyError, Limits

T = TypeVar("T")
_SIMPLE = ("output_type", "schema", "regex", "choice", "grammar", "combination", "tags")


@dataclass(frozen=True, slots=True)
class Found:
    """A constraint and the JSON pointer where the body states it. ``exact``: pointers into its schema continue it."""

    constraint: Constraint
    at: str
    exact: bool = True

    @property
    def places(self) -> dict[str, str]:
        """See ``Plan.places``."""
        return {"/" if self.exact else ANYWHERE: self.at, **dict.fromkeys(_SIMPLE, self.at)}


class Reader:
    """Reads the parts that the spellings are made of; ``options`` are those of JSON Schemas."""

    def __init__(self, limits: Limits, options: JsonOptions) -> None:
        self.limits = limits
        self.options = options

    def schema(self, fields: Fields, name: str) -> Found | None:
        """A JSON Schema: an object, a boolean, or the JSON text of one."""
        value, at = fields.value(name), fields.pointer(name)
        if value is None:
            return None
        if isinstance(value, str):
            self.limit(len(text_of(value, at)), "max_schema_bytes", "the schema", at)
            try:
                value = json.loads(value)
            except json.JSONDecodeError as error:
                raise GrammarSyntaxError(f"the schema is not JSON: {error.msg}", position=error.pos, param=at) from None
            except (ValueError, RecursionError):
                raise BodyError("the schema cannot be read as JSON", code="invalid_value", param=at) from None
        if not isinstance(value, dict | bool):
            raise BodyError(
                f"a schema is an object, a boolean, or its JSON text, not {kind_of(value)}",
                code="invalid_type",
                param=at,
            )
        return Found(self.options.of(self.checked(value, at)), at)

    def regex(self, fields: Fields, name: str) -> Found | None:
        pattern, at = fields.text(name), fields.pointer(name)
        if pattern is None:
            return None
        self.limit(len(pattern), "max_regex_chars", "the pattern", at)
        return Found(Regex(pattern), at)

    def choice(self, fields: Fields, name: str) -> Found | None:
        options, at = fields.texts(name), fields.pointer(name)
        if options is None:
            return None
        if not options:
            raise BodyError("no choices", code="invalid_value", param=at)
        self.limit(len(options), "max_choices", "the choice", at)
        return Found(Choice(tuple(options)), at)

    def grammar(self, fields: Fields, name: str) -> Found | None:
        """A grammar text in any notation; see the module."""
        text, at = fields.text(name), fields.pointer(name)
        if text is None:
            return None
        self.limit(len(text), "max_grammar_chars", "the grammar", at)
        return Found(Lark(placed(at, lambda: normalise_grammar(text))), at)

    def checked(self, schema: Any, at: str) -> Any:
        """``schema``, if it is within the limits and plain JSON."""
        if nests_deeper(schema, self.limits.max_schema_depth):
            raise BodyError(
                f"the schema nests more than {self.limits.max_schema_depth} levels", code="limit_exceeded", param=at
            )
        try:
            size = len(json.dumps(schema, ensure_ascii=False, allow_nan=False).encode())
        except ValueError as error:
            raise BodyError(f"the schema is not JSON data: {error}", code="invalid_value", param=at) from None
        self.limit(size, "max_schema_bytes", "the schema", at)
        return schema

    def limit(self, size: int, name: str, what: str, at: str) -> None:
        most = getattr(self.limits, name)
        if size > most:
            raise BodyError(f"{what} has size {size}, {name} is {most}", code="limit_exceeded", param=at)


def placed(at: str, make: Callable[[], T]) -> T:
    """What ``make`` returns; its errors point at ``at``."""
    try:
        return make()
    except RequestError as error:
        error.param = at
        raise
