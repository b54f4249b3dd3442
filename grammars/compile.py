"""Constraint values to compiled grammars, cached by content and vocabulary."""

from __future__ import annotations

import hashlib

from constrained_spec.errors import ConfigError, RequestError
from constrained_spec.grammars.base import Grammar
from constrained_spec.grammars.choice import compile_choice
from constrained_spec.grammars.constraints import Choice, Constraint, JsonSchema, Lark, Regex
from constrained_spec.grammars.dfa import DfaGrammar
from constrained_spec.grammars.json_schema import canonical_text, compile_json_schema
from constrained_spec.grammars.lark import compile_lark
from constrained_spec.grammars.llg import LlgGrammar
from constrained_spec.grammars.lru import ByteLru
from constrained_spec.grammars.regex import compile_regex
from constrained_spec.grammars.tokens import TokenIndex, Tokenization, token_index
from constrained_spec.types import Vocabulary

__all__ = ["Choice", "Constraint", "JsonSchema", "Lark", "Regex", "compile_constraint"]

CACHE_BYTES = 1 << 28

_GRAMMARS: ByteLru[str, DfaGrammar | LlgGrammar] = ByteLru(CACHE_BYTES)


def compile_constraint(constraint: Constraint, vocabulary: Vocabulary, *, tokenization: str = "any") -> Grammar:
    """The grammar of ``constraint`` over ``vocabulary``; threads that ask for the same one share one compilation.

    ``tokenization`` "any" allows every legal token; "canonical" only the tokeniser's own where the text is forced.
    Raises ``RequestError`` (see the compilers) and ``ConfigError`` for an unknown ``tokenization``.
    """
    if tokenization not in ("any", "canonical"):
        raise ConfigError(f"unknown tokenization {tokenization!r}", param="tokenization", hint="one of any, canonical")
    mode: Tokenization = "canonical" if tokenization == "canonical" else "any"
    key = _key(constraint, vocabulary, mode)

    def make() -> tuple[DfaGrammar | LlgGrammar, int]:
        grammar = _compile(constraint, token_index(vocabulary), key, mode)
        return grammar, grammar.nbytes

    return _GRAMMARS.get(key, make)


def _key(constraint: Constraint, vocabulary: Vocabulary, mode: Tokenization) -> str:
    content: tuple[object, ...]
    if isinstance(constraint, JsonSchema):
        content = ("json", canonical_text(constraint.schema), constraint.whitespace)
    elif isinstance(constraint, Regex):
        content = ("regex", _text(constraint.pattern, "regex"))
    elif isinstance(constraint, Choice):
        content = ("choice", constraint.options)
    elif isinstance(constraint, Lark):
        content = ("lark", _text(constraint.text, "grammar"))
    else:
        raise RequestError(f"not a constraint: {constraint!r}", param="output_type")
    text = repr((content, vocabulary.digest, mode))
    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=16).hexdigest()


def _text(value: object, param: str) -> str:
    if not isinstance(value, str):
        raise RequestError(f"a {param} is a string, not {type(value).__name__}", param=param)
    return value


def _compile(
    constraint: Constraint, index: TokenIndex, key: str, tokenization: Tokenization
) -> DfaGrammar | LlgGrammar:
    if isinstance(constraint, JsonSchema):
        return compile_json_schema(
            constraint.schema, index, key, whitespace=constraint.whitespace, tokenization=tokenization
        )
    if isinstance(constraint, Regex):
        return compile_regex(constraint.pattern, index, key, tokenization=tokenization)
    if isinstance(constraint, Choice):
        return compile_choice(constraint.options, index, key, tokenization=tokenization)
    return compile_lark(constraint.text, index, key, tokenization=tokenization)
