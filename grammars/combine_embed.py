"""A JSON Schema or a Lark grammar as a part of a larger llguidance grammar."""

from __future__ import annotations

import json

import numpy as np

from constrained_spec.errors import GrammarBudgetError, RequestError, UnsupportedSchemaError
from constrained_spec.grammars import json_schema
from constrained_spec.grammars.base import Grammar
from constrained_spec.grammars.combine_tree import SPECIAL, Embed
from constrained_spec.grammars.constraints import JsonSchema, Lark
from constrained_spec.grammars.json_schema import SchemaGrammar
from constrained_spec.grammars.llg import EngineError, LlgGrammar, check_grammar, header
from constrained_spec.grammars.schema_engine import lark_text
from constrained_spec.grammars.schema_walk import with_null
from constrained_spec.grammars.simple import compile_simple
from constrained_spec.grammars.tokens import TokenIndex, is_set

_IN_NUMBER = frozenset(b"0123456789.eE+-")


def embed(constraint: JsonSchema | Lark, index: TokenIndex, what: str) -> Embed:
    """Raises what compiling ``constraint`` alone raises."""
    if isinstance(constraint, JsonSchema) and constraint.ensure_ascii:
        raise RequestError(
            "ensure_ascii is for a schema on its own or in an intersection, not within another constraint",
            param="ensure_ascii",
            hint="leave it out",
        )
    grammar = compile_simple(constraint, index, "", "any")
    assert isinstance(grammar, LlgGrammar)
    refuse_relaxed(grammar)
    matcher = grammar.matcher()
    row = np.empty(index.vocabulary.mask_words, np.int32)
    matcher.mask_into(row)
    row &= ~index.eos_row
    tokens = index.vocabulary.tokens
    legal = index.vocabulary.legal_ids(row).tolist()
    first = frozenset(text[0] if (text := tokens[i]) else SPECIAL for i in legal)
    named = tuple(i for i, t in enumerate(tokens) if t is None and is_set(grammar.legal_row, i))
    if isinstance(constraint, Lark):
        if constraint.text.lstrip().startswith("%llguidance"):
            raise RequestError(
                "a Lark grammar inside another constraint cannot have a %llguidance line",
                param="grammar",
                hint="remove it",
            )
        return Embed(f"%lark {{\n{constraint.text}\n}}", what, first, frozenset(), matcher.is_complete, named)
    # A number is the only JSON value that more text can continue.
    number = _IN_NUMBER if first & frozenset(b"-0123456789") else frozenset[int]()
    return Embed(_json_body(constraint, index), what, first, number, False)


def refuse_relaxed(grammar: Grammar) -> None:
    """A combined text has no finished JSON value that could be validated, so nothing may have been left out."""
    if isinstance(grammar, SchemaGrammar) and grammar.relaxed:
        pointer, keyword = grammar.relaxed[0]
        raise UnsupportedSchemaError(
            f"{keyword!r} cannot be enforced, and within another constraint it cannot be validated afterwards",
            pointer=pointer,
            keyword=keyword,
        )


def _json_body(constraint: JsonSchema, index: TokenIndex) -> str:
    """What stands behind the colon of the rule for ``constraint``, which compiles."""
    schema = json.loads(json_schema.canonical_text(constraint.schema))
    if constraint.nullable:
        schema = with_null(schema)
    registry = {
        uri: json.loads(json_schema.canonical_text(other)) for uri, other in (constraint.registry or {}).items()
    }
    for attempt in json_schema._attempts(schema, registry, False, constraint.max_depth):
        try:
            text = lark_text(attempt()[0], json_schema._SPACING[constraint.whitespace], "any")
            check_grammar(text, index)
        except (EngineError, UnsupportedSchemaError, GrammarBudgetError):
            continue
        return text.removeprefix(header("any")).strip().removeprefix("start:").strip()
    raise RequestError("the schema cannot stand inside another constraint", param="schema")
