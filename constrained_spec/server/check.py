"""What the playground says of a constraint while it is typed: whether it is legal, and if not, where it is wrong."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from constrained_spec.errors import GrammarSyntaxError, RequestError, UnsatisfiableError, UnsupportedSchemaError
from constrained_spec.grammars.base import Grammar
from constrained_spec.grammars.compile import compile_constraint
from constrained_spec.grammars.constraints import Choice, Constraint, JsonSchema, Lark, Regex
from constrained_spec.grammars.dfa import DfaGrammar
from constrained_spec.grammars.inspect_grammar import describe, example
from constrained_spec.grammars.json_schema import SchemaGrammar, load_schema
from constrained_spec.grammars.llg import LlgGrammar
from constrained_spec.grammars.notation import guess_notation, normalise_grammar
from constrained_spec.grammars.tokens import token_index
from constrained_spec.types import Vocabulary

KINDS = ("schema", "regex", "choice", "grammar")
MAX_EXAMPLE_CHARS = 400

_SPACE = re.compile(r"[ \t\n\r]*")
_DECODER = json.JSONDecoder()


@dataclass(frozen=True, slots=True)
class Typed:
    """A constraint as it stands in a text field. ``translated``: what is compiled is a translation of ``text``."""

    kind: str
    text: str
    constraint: Constraint
    translated: bool = False


def read(kind: str, text: str) -> Typed:
    """``kind``: schema (JSON text), regex, choice (one text a line) or grammar (Lark, GBNF or EBNF).

    Raises ``RequestError`` for an unknown kind and for a text that does not parse.
    """
    if kind not in KINDS:
        raise RequestError(f"unknown kind {kind!r}", param="/kind", hint=f"one of {', '.join(KINDS)}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise GrammarSyntaxError("half a surrogate pair is no text", position=error.start) from None
    if kind == "schema":
        load_schema(text)
        return Typed(kind, text, JsonSchema(text))
    if kind == "regex":
        return Typed(kind, text, Regex(text))
    if kind == "choice":
        return Typed(kind, text, Choice(tuple(line for line in text.split("\n") if line)))
    try:
        notation = guess_notation(text)
    except GrammarSyntaxError:
        notation = "lark"  # whose compiler says more
    return Typed(kind, text, Lark(normalise_grammar(text, notation)), notation != "lark")


def legal(typed: Typed, vocabulary: Vocabulary) -> dict[str, Any]:
    """What is to be said of a constraint that compiles: its ``engine``, whether it is ``finite`` (None: not known), the
    ``count`` of its texts where that is known, an ``example`` (None: a short walk found none), and ``notes`` on what is
    not enforced.

    Raises ``RequestError`` for one that does not. Nothing here limits the time: compile under guard before.
    """
    grammar = compile_constraint(typed.constraint, vocabulary)
    language = describe(grammar, vocabulary)
    if language.count == 0:
        raise UnsatisfiableError("no text of this vocabulary satisfies the constraint")
    found = example(grammar, vocabulary, token_index(vocabulary))
    return _answer(
        ok=True,
        engine=_engine(grammar),
        finite={"finite": True, "infinite": False, "unknown": None}[language.size],
        count=language.count,
        example=None if found is None else found.decode(errors="backslashreplace")[:MAX_EXAMPLE_CHARS],
        notes=_notes(grammar),
    )


def illegal(error: RequestError, kind: str, text: str, *, translated: bool = False) -> dict[str, Any]:
    """What is to be said of a constraint that is refused: ``error`` with its ``message``, its ``hint``, the JSON
    ``pointer`` of a schema's place, and the ``position`` in ``text``, in characters, where one is known."""
    pointer = _pointer(error) if kind == "schema" else None
    # In a translation the position would point at the wrong place of the text.
    position = error.position if isinstance(error, GrammarSyntaxError) and not translated else None
    if position is None and pointer is not None:
        position = place_of(text, pointer)
    said = {"message": error.message, "pointer": pointer, "position": position, "hint": error.hint}
    return _answer(ok=False, error=said)


def _answer(**known: Any) -> dict[str, Any]:
    blank = dict.fromkeys(("ok", "error", "engine", "finite", "count", "example"))
    return {**blank, "notes": [], **known}


def _notes(grammar: Grammar) -> list[str]:
    if not isinstance(grammar, LlgGrammar):
        return []
    relaxed = grammar.relaxed if isinstance(grammar, SchemaGrammar) else ()
    return [*grammar.warnings, *(f"{pointer or '/'} is an annotation, not enforced" for pointer, _ in relaxed)]


def _pointer(error: RequestError) -> str | None:
    if isinstance(error, UnsupportedSchemaError):
        return error.pointer
    return error.param if error.param is not None and error.param.startswith("/") else None


def _engine(grammar: Grammar) -> str:
    if isinstance(grammar, DfaGrammar):
        return "DFA"
    return "llguidance" if isinstance(grammar, LlgGrammar) else type(grammar).__name__.removesuffix("Grammar")


# ---- from a JSON pointer to a place in the text -------------------------------------------------------------------


def place_of(text: str, pointer: str) -> int | None:
    """Character at which the member or item that ``pointer`` names begins in the JSON ``text``; None if it is not
    there. Of two members with one name the last counts, as for every JSON parser."""
    place = at = _skip(text, 0)
    for part in pointer.split("/")[1:]:
        wanted = part.replace("~1", "/").replace("~0", "~")
        found = None
        for name, begin, value in _children(text, at):
            if name == wanted:
                found = begin, value
        if found is None:
            return None
        place, at = found
    return place


def _children(text: str, at: int) -> Iterator[tuple[str, int, int]]:
    """(name or index, where the child begins, where its value begins) of the object or array at ``at`` of a text that
    parses."""
    opening = text[at : at + 1]
    if opening not in ("{", "["):
        return
    index = 0
    at = _skip(text, at + 1)
    while text[at] not in "}]":
        begin = value = at
        name = str(index)
        if opening == "{":
            name, end = _DECODER.raw_decode(text, at)
            value = _skip(text, _skip(text, end) + 1)  # behind the colon
        yield name, begin, value
        _, end = _DECODER.raw_decode(text, value)
        at = _skip(text, end)
        if text[at] == ",":
            at = _skip(text, at + 1)
        index += 1


def _skip(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    assert found is not None  # it matches the empty text too
    return found.end()
