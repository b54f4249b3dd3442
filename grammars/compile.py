"""Constraint values to compiled grammars, cached by content and vocabulary."""

from __future__ import annotations

import hashlib
import json

from constrained_spec.errors import ConfigError, GrammarBudgetError, RequestError
from constrained_spec.grammars.base import Grammar
from constrained_spec.grammars.combine import compile_combination
from constrained_spec.grammars.constraints import (
    MAX_COMBINATION_DEPTH,
    All,
    AnyOf,
    Choice,
    Constraint,
    JsonSchema,
    Lark,
    Lazy,
    Optional,
    Regex,
    Tag,
    Tagged,
    Then,
    ToolCalls,
    Without,
    replaced,
)
from constrained_spec.grammars.dfa import DfaGrammar
from constrained_spec.grammars.json_schema import canonical_text
from constrained_spec.grammars.llg import LlgGrammar
from constrained_spec.grammars.lru import ByteLru
from constrained_spec.grammars.product import ProductGrammar
from constrained_spec.grammars.tokens import Tokenization, token_index
from constrained_spec.types import Vocabulary

__all__ = [
    "All",
    "AnyOf",
    "Choice",
    "Constraint",
    "JsonSchema",
    "Lark",
    "Lazy",
    "Optional",
    "Regex",
    "Tag",
    "Tagged",
    "Then",
    "ToolCalls",
    "Without",
    "compile_constraint",
]

CACHE_BYTES = 1 << 28

_GRAMMARS: ByteLru[str, DfaGrammar | LlgGrammar | ProductGrammar] = ByteLru(CACHE_BYTES)


def compile_constraint(constraint: Constraint, vocabulary: Vocabulary, *, tokenization: str = "any") -> Grammar:
    """The grammar of ``constraint`` over ``vocabulary``; threads that ask for the same one share one compilation.

    ``tokenization`` "any" allows every legal token; "canonical" only the tokeniser's own where the text is forced.
    Raises ``RequestError`` (see the compilers) and ``ConfigError`` for an unknown ``tokenization``.
    """
    if tokenization not in ("any", "canonical"):
        raise ConfigError(f"unknown tokenization {tokenization!r}", param="tokenization", hint="one of any, canonical")
    mode: Tokenization = "canonical" if tokenization == "canonical" else "any"
    key = _key(constraint, vocabulary, mode)

    def make() -> tuple[DfaGrammar | LlgGrammar | ProductGrammar, int]:
        grammar = compile_combination(constraint, token_index(vocabulary), key, mode)
        return grammar, grammar.nbytes

    return _GRAMMARS.get(key, make)


def _key(constraint: Constraint, vocabulary: Vocabulary, mode: Tokenization) -> str:
    text = repr((_content(constraint), vocabulary.digest, mode))
    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=16).hexdigest()


def _content(constraint: Constraint, depth: int = 0) -> tuple[object, ...]:
    if depth > MAX_COMBINATION_DEPTH:
        raise GrammarBudgetError(
            f"constraints nest more than {MAX_COMBINATION_DEPTH} deep",
            limit="max_combination_depth",
            param="combination",
        )
    if isinstance(constraint, JsonSchema):
        registry = {uri: canonical_text(schema) for uri, schema in (constraint.registry or {}).items()}
        options = (
            constraint.whitespace,
            constraint.on_unsupported,
            constraint.ensure_ascii,
            constraint.nullable,
            constraint.max_depth,
            sorted(registry.items()),
        )
        return ("json", canonical_text(constraint.schema), options)
    if isinstance(constraint, Regex):
        return ("regex", _text(constraint.pattern, "regex"))
    if isinstance(constraint, Choice):
        return ("choice", constraint.options)
    if isinstance(constraint, Lark):
        return ("lark", _text(constraint.text, "grammar"))
    if isinstance(constraint, ToolCalls):
        try:
            tools = json.dumps(constraint.tools, ensure_ascii=False, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise RequestError(f"the tools are not JSON data: {error}", param="tools") from None
        return ("tools", tools, constraint.choice, constraint.parallel, constraint.syntax, constraint.whitespace)
    if isinstance(constraint, All | AnyOf | Then | Without | Optional | Lazy | Tagged):
        return replaced(constraint, lambda part: _content(part, depth + 1))
    raise RequestError(f"not a constraint: {constraint!r}", param="output_type")


def _text(value: object, param: str) -> str:
    if not isinstance(value, str):
        raise RequestError(f"a {param} is a string, not {type(value).__name__}", param=param)
    return value
