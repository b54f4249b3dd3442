"""JSON Schema to grammar. What llguidance cannot enforce is refused with its place, never ignored."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from typing import Literal, cast

import jsonschema
from pydantic import BaseModel
from pydantic.errors import PydanticUserError

from constrained_spec.errors import (
    GrammarBudgetError,
    GrammarSyntaxError,
    RequestError,
    UnsatisfiableError,
    UnsupportedSchemaError,
)
from constrained_spec.grammars.ascii_json import AsciiMatcher, ascii_tokens
from constrained_spec.grammars.llg import EngineError, LlgGrammar, LlgMatcher
from constrained_spec.grammars.schema_depth import bounded, check_max_depth
from constrained_spec.grammars.schema_engine import Diagnosis, check_spelling, has_other_names, lark_text
from constrained_spec.grammars.schema_rewrite import default_draft, engine_is_sound, must_rewrite, orders_keys, rewrite
from constrained_spec.grammars.schema_valid import plainly_valid
from constrained_spec.grammars.schema_walk import (
    Json,
    escape,
    nests_deeper,
    subschemas,
    unfolded_depth,
    with_null,
    without_private_formats,
)
from constrained_spec.grammars.tokens import TokenIndex, Tokenization
from constrained_spec.grammars.tracking import TrackingMatcher

Whitespace = Literal["one-space", "compact", "flexible"]
OnUnsupported = Literal["error", "validate"]
SchemaSource = Mapping[str, object] | str | bool | type[BaseModel]

MAX_SCHEMA_BYTES = 1 << 20
MAX_SCHEMA_DEPTH = 200
MAX_ENUM = 20_000
MAX_MULTIPLE_OF = 100_000
MAX_UNFOLDED = 1000  # levels of subschemas, references followed

# Between tokens: a little space, or one line break with indentation. Bounded, so that no model can loop in it.
FLEXIBLE_WHITESPACE = r"[ \t]{0,2}(\r?\n[ \t]{0,32})?"

_SPACING: dict[str, dict[str, Json]] = {
    "one-space": {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "},
    "compact": {"whitespace_flexible": False, "item_separator": ",", "key_separator": ":"},
    "flexible": {"whitespace_flexible": True, "whitespace_pattern": FLEXIBLE_WHITESPACE},
}


def load_schema(source: SchemaSource) -> Json:
    """A schema as plain JSON data. Raises ``RequestError``/``GrammarSyntaxError`` for what is not one."""
    if isinstance(source, type):
        if not issubclass(source, BaseModel):
            raise RequestError(f"{source.__name__} is not a pydantic model", param="schema")
        try:
            return cast(Json, source.model_json_schema())
        except PydanticUserError as error:
            raise RequestError(f"{source.__name__} has no JSON Schema: {error.message}", param="schema") from None
    if isinstance(source, str):
        if len(source) > MAX_SCHEMA_BYTES:
            raise _too_large("max_schema_bytes", f"the schema exceeds {MAX_SCHEMA_BYTES} bytes", "schema")
        try:
            loaded = json.loads(source)
        except json.JSONDecodeError as error:
            raise GrammarSyntaxError(
                f"the schema is not JSON: {error.msg}", position=error.pos, param="schema"
            ) from None
        except RecursionError:
            raise _too_large("max_schema_depth", "the schema nests too deeply", "schema") from None
    else:
        loaded = source
    if not isinstance(loaded, Mapping | bool):
        raise RequestError("a schema is an object or a boolean", param="schema")
    return cast(Json, loaded)


def canonical_text(source: SchemaSource) -> str:
    """The schema as JSON text, order of keys kept (it is the order of output). Checks size and depth."""
    schema = load_schema(source)
    try:
        if nests_deeper(schema, MAX_SCHEMA_DEPTH):
            raise _too_large("max_schema_depth", f"the schema nests more than {MAX_SCHEMA_DEPTH} levels", "schema")
        text = json.dumps(schema, ensure_ascii=False, allow_nan=False)
        size = len(text.encode())
    except (TypeError, ValueError) as error:
        raise RequestError(f"the schema is not JSON data: {error}", param="schema") from None
    if size > MAX_SCHEMA_BYTES:
        raise _too_large("max_schema_bytes", f"the schema has {size} bytes, the limit is {MAX_SCHEMA_BYTES}", "schema")
    return text


def compile_json_schema(
    source: SchemaSource,
    index: TokenIndex,
    key: str,
    *,
    whitespace: Whitespace = "one-space",
    tokenization: Tokenization = "any",
    registry: Mapping[str, SchemaSource] | None = None,
    on_unsupported: OnUnsupported = "error",
    nullable: bool = False,
    ensure_ascii: bool = False,
    max_depth: int | None = None,
) -> SchemaGrammar:
    """The grammar of all values that ``source`` accepts, keys in declared order.

    Dialect 2020-12, or the one that ``$schema`` names. ``one-space`` separates as ``json.dumps`` does, ``compact`` not
    at all, ``flexible`` also allows line breaks and indentation, bounded. ``format`` is enforced. ``registry`` holds
    other schemas by URI; the meta-schemas are known, nothing is fetched. ``nullable``: that keyword beside ``type``
    means what OpenAPI 3.0 means by it; without this option it is an unknown keyword and means nothing.
    ``ensure_ascii``: characters beyond ASCII are written as ``json.dumps`` escapes them. ``max_depth``: arrays and
    objects nest at most so many levels; 0 leaves strings, numbers, booleans and null.

    ``on_unsupported="validate"``: what cannot be enforced is left out, listed in ``relaxed`` of the grammar, and must
    be checked on the finished value (``schema_relax.validates``). A ``format`` that no specification defines is an
    annotation by the specification; it is listed there too.

    Raises ``RequestError`` (``param`` is the JSON pointer) for an invalid schema, ``UnsupportedSchemaError``,
    ``UnsatisfiableError`` and ``GrammarBudgetError``.
    """
    if whitespace not in _SPACING:
        raise RequestError(
            f"unknown whitespace option {whitespace!r}", param="whitespace", hint=f"one of {', '.join(_SPACING)}"
        )
    if on_unsupported not in ("error", "validate"):
        raise RequestError(f"unknown option {on_unsupported!r}", param="on_unsupported", hint="one of error, validate")
    check_max_depth(max_depth)
    if ensure_ascii and tokenization != "any":  # what the engine forces are not the bytes of the text
        raise RequestError(
            "ensure_ascii goes with any tokenization only", param="ensure_ascii", hint='use tokenization="any"'
        )
    schema: Json = json.loads(canonical_text(source))
    others: dict[str, Json] = {uri: json.loads(canonical_text(other)) for uri, other in (registry or {}).items()}
    _check_valid(schema)
    if nullable:
        schema = with_null(schema)
    schema, private = without_private_formats(schema)
    options = _SPACING[whitespace]

    def build(made: Json, relaxed: tuple[tuple[str, str], ...]) -> SchemaGrammar:
        _check_budget(made)
        if has_other_names(made):
            check_spelling(schema)
            check_spelling(made)  # a value may come from another document
        text = lark_text(made, options, tokenization)
        return SchemaGrammar(text, index, key, tokenization, (*private, *relaxed), ensure_ascii)

    _check_budget(schema)
    first: Exception | None = None
    for attempt in _attempts(schema, others, on_unsupported == "validate", max_depth):
        try:
            made, relaxed = attempt()
            return build(made, relaxed)
        except (EngineError, UnsupportedSchemaError, GrammarBudgetError) as error:
            # The rewriting's own refusal names the place; the engine's has to be guessed from its message.
            if first is None or (isinstance(first, EngineError) and not isinstance(error, EngineError)):
                first = error
    assert first is not None
    if isinstance(first, EngineError):
        raise Diagnosis(schema, options, tokenization, index).explain(str(first)) from None
    raise first


class SchemaGrammar(LlgGrammar):
    """``relaxed``: (JSON pointer, keyword) of what the grammar does not enforce: formats that no specification defines,
    and more only where that was asked for. ``ensure_ascii``: characters beyond ASCII are written as escapes."""

    def __init__(
        self,
        text: str,
        index: TokenIndex,
        key: str,
        tokenization: Tokenization,
        relaxed: tuple[tuple[str, str], ...] = (),
        ensure_ascii: bool = False,
    ) -> None:
        self.relaxed = relaxed
        self._ascii = ascii_tokens(index) if ensure_ascii else None
        super().__init__(text, self._ascii.inner if self._ascii else index, key, "schema", tokenization)
        if ensure_ascii and self.matcher().is_dead:
            raise UnsatisfiableError("the schema allows no ASCII text that this vocabulary can spell", param="schema")

    def matcher(self) -> TrackingMatcher:
        inner = LlgMatcher(self, self.fresh())
        return AsciiMatcher(self._ascii, inner) if self._ascii else inner


Attempt = Callable[[], tuple[Json, tuple[tuple[str, str], ...]]]


def _attempts(
    schema: Json, registry: Mapping[str, Json], relaxing: bool, max_depth: int | None = None
) -> Iterator[Attempt]:
    """Ways to say ``schema`` in the engine's keywords, the one that keeps most of it first."""

    def rewritten() -> tuple[Json, tuple[tuple[str, str], ...]]:
        return bounded(rewrite(schema, registry).schema, max_depth), ()

    def relaxed() -> tuple[Json, tuple[tuple[str, str], ...]]:
        made = rewrite(schema, registry, relaxing=True)
        return bounded(made.schema, max_depth), made.relaxed

    def as_it_is() -> tuple[Json, tuple[tuple[str, str], ...]]:
        return schema, ()

    if max_depth is not None:
        yield rewritten  # only of what we wrote ourselves we know how it nests
    elif must_rewrite(schema):
        yield rewritten
        if engine_is_sound(schema):
            yield as_it_is  # it may know two patterns to be disjoint where we do not
    else:
        yield from (rewritten, as_it_is) if orders_keys(schema) else (as_it_is, rewritten)
    if relaxing:
        yield relaxed


def _too_large(limit: str, message: str, param: str) -> GrammarBudgetError:
    return GrammarBudgetError(message, limit=limit, param=param)


def _check_valid(schema: Json) -> None:
    if plainly_valid(schema):
        return
    default = jsonschema.Draft7Validator if default_draft(schema) == 7 else jsonschema.Draft202012Validator
    validator = jsonschema.validators.validator_for(schema, default=None)
    if validator is None and isinstance(schema, dict) and "$schema" in schema:
        raise UnsupportedSchemaError(
            f"the dialect {schema['$schema']!r} is not known",
            pointer="/$schema",
            keyword="$schema",
            hint="2020-12 or draft-07",
        )
    try:
        # Without format checks: whether a pattern is a regex is the engine's to say, not Python's.
        (validator or default).check_schema(schema, format_checker=jsonschema.FormatChecker(()))
    except jsonschema.SchemaError as error:
        pointer = "".join(f"/{escape(part)}" for part in error.absolute_path)
        raise RequestError(f"the schema is not valid: {error.message}", param=pointer or "/") from None
    for pointer, node in subschemas(schema):
        if "x-guidance" in node:
            raise UnsupportedSchemaError(
                "engine options do not belong into a schema",
                pointer=f"{pointer}/x-guidance",
                keyword="x-guidance",
                hint="use the whitespace option",
            )


def _check_budget(schema: Json) -> None:
    depth = unfolded_depth(schema)
    if depth > MAX_UNFOLDED:  # the engine recurses, and the process would end
        message = f"followed through its references the schema is {depth} levels deep, the limit is {MAX_UNFOLDED}"
        raise _too_large("max_unfolded", message, "schema")
    steps: dict[int, str] = {}
    for pointer, node in subschemas(schema):
        values = node.get("enum")
        if isinstance(values, list) and len(values) > MAX_ENUM:
            raise _too_large("max_enum", f"an enum of {len(values)} values, the limit is {MAX_ENUM}", f"{pointer}/enum")
        step = node.get("multipleOf")
        if isinstance(step, int | float) and not isinstance(step, bool):
            steps.setdefault(_residues(step), f"{pointer}/multipleOf")
    # Where two of them can meet, the engine builds the automaton of their common multiple.
    common = [math.lcm(*steps)] if steps and _joins(schema) else []
    for residues in (*steps, *common):
        if residues > MAX_MULTIPLE_OF:
            raise _too_large(
                "max_multiple_of",
                f"multipleOf needs {residues} states, the limit is {MAX_MULTIPLE_OF}",
                steps.get(residues, next(iter(steps.values()))),
            )


def _residues(step: float) -> int:
    """Numerator of ``step``, factors of ten dropped: about the number of states its check takes."""
    numerator = Fraction(str(step)).numerator
    while numerator and numerator % 10 == 0:
        numerator //= 10
    return abs(numerator)


def _joins(schema: Json) -> bool:
    return any("allOf" in node or ("$ref" in node and len(node) > 1) for _, node in subschemas(schema))
