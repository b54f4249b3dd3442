"""Constraints that one compiler handles alone."""

from __future__ import annotations

from constrained_spec.grammars.choice import compile_choice
from constrained_spec.grammars.constraints import Choice, JsonSchema, Lark, Regex
from constrained_spec.grammars.dfa import DfaGrammar
from constrained_spec.grammars.json_schema import compile_json_schema
from constrained_spec.grammars.lark import compile_lark
from constrained_spec.grammars.llg import LlgGrammar
from constrained_spec.grammars.regex import compile_regex
from constrained_spec.grammars.tokens import TokenIndex, Tokenization

Simple = JsonSchema | Regex | Choice | Lark


def compile_simple(
    constraint: Simple, index: TokenIndex, key: str, tokenization: Tokenization
) -> DfaGrammar | LlgGrammar:
    """Raises what the compilers raise."""
    if isinstance(constraint, JsonSchema):
        return compile_json_schema(
            constraint.schema,
            index,
            key,
            whitespace=constraint.whitespace,
            tokenization=tokenization,
            registry=constraint.registry,
            on_unsupported=constraint.on_unsupported,
            nullable=constraint.nullable,
            ensure_ascii=constraint.ensure_ascii,
            max_depth=constraint.max_depth,
        )
    if isinstance(constraint, Regex):
        return compile_regex(constraint.pattern, index, key, tokenization=tokenization)
    if isinstance(constraint, Choice):
        return compile_choice(constraint.options, index, key, tokenization=tokenization)
    return compile_lark(constraint.text, index, key, tokenization=tokenization)
