"""Every spelling of a constraint in a request body, normalised to one value.

What is read, and as what, is listed in docs/clients.md. The notation of a grammar text is told by its first definition
(``grammars.notation``): ``name:`` is Lark, ``name ::=`` GBNF, ``name =`` EBNF, whatever the field is called.
"""

from __future__ import annotations

import json
from typing import Any

from constrained_spec.grammars.constraints import Constraint, JsonSchema
from constrained_spec.grammars.json_schema import FLEXIBLE_WHITESPACE
from constrained_spec.grammars.output_types import JsonOptions
from constrained_spec.server.constraint_parts import Found, Reader
from constrained_spec.server.fields import Fields, text_of
from constrained_spec.server.plan import BodyError, Limits
from constrained_spec.server.sampling import EXTRA
from constrained_spec.server.structural_tags import read_structural_tag

ANY_OBJECT = {"type": "object"}
WHITESPACE_PATTERNS = {"": "compact", FLEXIBLE_WHITESPACE: "flexible"}
WHITESPACE_MODES = ("one-space", "compact", "flexible")
JSON_EXTRAS = ("whitespace", "on_unsupported", "nullable", "ensure_ascii", "max_depth")


def read_constraint(fields: Fields, limits: Limits, extra: Fields | None = None) -> Found | None:
    """The one constraint of a body, None for free text; ``extra`` holds this server's own options of JSON,
    and is finished here.

    Raises ``BodyError`` for two different constraints (naming both places), and for whatever cannot be honoured.
    """
    structured = fields.inside("structured_outputs")
    reader = Reader(limits, _json_options(fields, structured, extra))
    found: list[Found] = []

    def add(one: Found | None) -> None:
        if one is not None:
            found.append(one)

    format = fields.inside("response_format")
    if format is not None:
        add(response_format(format, reader))
    for source, prefix in ((structured, ""), (fields, "guided_")):
        if source is None:
            continue
        add(reader.schema(source, f"{prefix}json"))
        add(reader.regex(source, f"{prefix}regex"))
        add(reader.choice(source, f"{prefix}choice"))
        add(reader.grammar(source, f"{prefix}grammar"))
        if source.flag(f"{prefix}json_object"):
            add(Found(reader.options.of(ANY_OBJECT), source.pointer(f"{prefix}json_object")))
    if structured is not None:
        if structured.has("structural_tag"):
            add(_structural_tag(structured, "structural_tag", reader))
        structured.only("disable_additional_properties", False, hint="say it in the schema")
        structured.ignore("disable_fallback")  # nothing falls back here
        structured.finish("json, regex, choice, grammar, json_object or structural_tag")
    fields.only("guided_decoding_backend", "auto", hint="there is one engine; leave it out")
    add(reader.regex(fields, "regex"))
    add(reader.grammar(fields, "ebnf"))
    add(reader.grammar(fields, "grammar"))
    add(reader.schema(fields, "json_schema"))
    if extra is not None:
        extra.finish(f"one of {', '.join((*EXTRA, *JSON_EXTRAS))}")
    for other in found[1:]:
        if _content(other.constraint) != _content(found[0].constraint):
            raise BodyError(
                f"two different constraints: {found[0].at} and {other.at}",
                code="conflicting_constraints",
                param=other.at,
                hint="send one of them",
            )
    return found[0] if found else None


def response_format(format: Fields, reader: Reader) -> Found | None:
    """``response_format`` in the forms of OpenAI, llama.cpp, TGI, Fireworks and vLLM."""
    kind = format.one_of("type", (
        "text", "json_object", "json_schema", "json", "regex", "grammar", "structural_tag",
    ))  # fmt: skip
    found: Found | None = None
    if kind is None:
        format.need("type")
    elif kind == "json_object":
        found = _first(reader, format, "schema", "value") or Found(reader.options.of(ANY_OBJECT), format.at)
    elif kind == "json":
        found = _needed(reader, format, "value", "schema")
    elif kind == "json_schema":
        found = _json_schema(format, reader)
    elif kind == "regex":
        name = "pattern" if format.has("pattern") else "value"
        format.need(name)
        found = reader.regex(format, name)
    elif kind == "grammar":
        format.need("grammar")
        found = reader.grammar(format, "grammar")
    elif kind == "structural_tag":
        found = Found(read_structural_tag(format, reader), format.at, exact=False)
    format.finish()
    return found


def _json_schema(format: Fields, reader: Reader) -> Found:
    """Nested as OpenAI's chat has it (TGI: under ``value``), or flat as llama.cpp and OpenAI's responses do.
    ``strict`` makes no difference: the schema is always enforced."""
    nested = format.inside("json_schema" if format.has("json_schema") else "value")
    holder = format if nested is None else nested
    for name in ("name", "description"):
        holder.text(name)
    holder.flag("strict")
    holder.need("schema")
    found = reader.schema(holder, "schema")
    assert found is not None, "it is there"
    if nested is not None:
        nested.finish()
    return found


def _first(reader: Reader, format: Fields, *names: str) -> Found | None:
    """The schema under one of ``names``."""
    given = [name for name in names if format.has(name)]
    if len(given) > 1:
        raise BodyError(
            f"two schemas: {' and '.join(given)}",
            code="conflicting_constraints",
            param=format.pointer(given[1]),
            hint="send one of them",
        )
    return reader.schema(format, given[0]) if given else None


def _needed(reader: Reader, format: Fields, *names: str) -> Found:
    found = _first(reader, format, *names)
    if found is None:
        raise BodyError(f"{names[0]} is missing", code="missing_field", param=format.pointer(names[0]))
    return found


def _structural_tag(fields: Fields, name: str, reader: Reader) -> Found:
    """The object ``name``, or its JSON text."""
    value, at = fields.value(name), fields.pointer(name)
    if isinstance(value, str):
        reader.limit(len(text_of(value, at)), "max_schema_bytes", "the structural tag", at)
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            raise BodyError("the structural tag is not JSON", code="invalid_value", param=at) from None
    tag = Fields(value, at)
    tag.only("type", "structural_tag")
    constraint = read_structural_tag(tag, reader)
    tag.finish()
    return Found(constraint, at, exact=False)


def _json_options(fields: Fields, structured: Fields | None, extra: Fields | None) -> JsonOptions:
    whitespace: dict[str, str] = {}
    for source, name in ((structured, "whitespace_pattern"), (fields, "guided_whitespace_pattern")):
        pattern = None if source is None else source.text(name)
        if source is not None and pattern is not None:
            if pattern not in WHITESPACE_PATTERNS and pattern not in WHITESPACE_MODES:
                raise BodyError(
                    f"the whitespace pattern {pattern!r} is none of this server's",
                    code="unsupported_value",
                    param=source.pointer(name),
                    hint=f"one of {', '.join(WHITESPACE_MODES)}, or a pattern of {list(WHITESPACE_PATTERNS)}",
                )
            whitespace[source.pointer(name)] = WHITESPACE_PATTERNS.get(pattern, pattern)
    if structured is not None and structured.flag("disable_any_whitespace"):
        whitespace[structured.pointer("disable_any_whitespace")] = "compact"
    options: dict[str, Any] = {}
    if extra is not None:
        own = extra.one_of("whitespace", WHITESPACE_MODES)
        if own is not None:
            whitespace[extra.pointer("whitespace")] = own
        options["on_unsupported"] = extra.one_of("on_unsupported", ("error", "validate")) or "error"
        options["nullable"] = extra.flag("nullable") or False
        options["ensure_ascii"] = extra.flag("ensure_ascii") or False
        options["max_depth"] = extra.integer("max_depth", least=1)
    if len(set(whitespace.values())) > 1:
        first, other = list(whitespace)[:2]
        raise BodyError(f"{first} and {other} differ", code="conflicting_constraints", param=other)
    return JsonOptions(next(iter(whitespace.values()), "one-space"), **options)


def _content(constraint: Constraint) -> object:
    """Equal for constraints of one language in one spelling: the order of keys counts, and 1 is not true."""
    if isinstance(constraint, JsonSchema):
        return json.dumps(constraint.schema), constraint.whitespace
    return repr(constraint)
