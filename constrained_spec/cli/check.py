"""constrained-spec check: what a constraint compiles to, what it allows, and where a text leaves it."""

from __future__ import annotations

import copy
import dataclasses
import json
import time
from collections.abc import Callable
from typing import Any

import typer

from constrained_spec.backends.vocabulary_only import load_vocabulary
from constrained_spec.cli.check_view import show
from constrained_spec.cli.console import exit_codes, loading, quiet_libraries
from constrained_spec.cli.constraint import output_type
from constrained_spec.errors import ConfigError, RequestError, UnsatisfiableError, UnsupportedSchemaError
from constrained_spec.grammars.base import Grammar
from constrained_spec.grammars.compile import Constraint, JsonSchema, compile_constraint
from constrained_spec.grammars.dfa import DfaGrammar
from constrained_spec.grammars.guard import compile_guarded
from constrained_spec.grammars.inspect_grammar import Language, Place, describe, example, locate
from constrained_spec.grammars.json_schema import SchemaGrammar, load_schema
from constrained_spec.grammars.llg import LlgGrammar
from constrained_spec.grammars.output_types import JsonOptions, to_constraint
from constrained_spec.grammars.schema_walk import Json
from constrained_spec.grammars.tokens import token_index
from constrained_spec.types import Vocabulary

MAX_REFUSALS = 20


def check(
    text: str | None = typer.Argument(None, help="Say where this text leaves the language, if it does."),
    model: str = typer.Option("smollm2-135m", help="Whose vocabulary: alias, hub id, folder or GGUF file."),
    schema: str | None = typer.Option(None, help="JSON Schema: a file, or the text."),
    regex: str | None = typer.Option(None, help="Regular expression for the whole text."),
    choice: list[str] | None = typer.Option(None, help="One of these texts; repeat it."),
    grammar: str | None = typer.Option(None, help="Lark, GBNF or EBNF: a file or the text; or library:NAME."),
    type_: str | None = typer.Option(None, "--type", help="int, float, bool, … or module:Name."),
    whitespace: str = typer.Option("one-space", help="In JSON: one-space, compact, flexible."),
    on_unsupported: str = typer.Option(
        "error", help="In a schema: error, or validate (generate without the keyword, check the finished value)."
    ),
    ensure_ascii: bool = typer.Option(False, help="In JSON: write characters beyond ASCII as \\uXXXX."),
    max_depth: int | None = typer.Option(None, help="In JSON: arrays and objects nest at most so many levels."),
    timeout: float | None = typer.Option(None, help="Compile in a process of its own, for at most so many seconds."),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object."),
) -> None:
    """Compile a constraint and tell what it allows. Exits with 0, with 1 if TEXT is not in the language, with 2 if the
    constraint is refused."""
    with exit_codes():
        if text is not None:
            _readable(text)
        constraint: Constraint | None = None
        report = blank(None)
        try:
            wanted = output_type(
                schema=schema, regex=regex, choice=choice, grammar=grammar, type_=type_, whitespace=whitespace,
                on_unsupported=on_unsupported, ensure_ascii=ensure_ascii, max_depth=max_depth,
            )  # fmt: skip
            if on_unsupported not in ("error", "validate"):
                raise ConfigError(
                    f"unknown value {on_unsupported!r}", param="--on-unsupported", hint="one of error, validate"
                )
            options = JsonOptions(whitespace, on_unsupported, ensure_ascii, max_depth=max_depth)
            constraint = to_constraint(wanted, options)
            _check_json_only(constraint, ensure_ascii, max_depth)
        except RequestError as error:
            report["error"] = _error(error)
        else:
            if constraint is None:
                raise ConfigError(
                    "there is nothing to check",
                    param="check",
                    hint="give --schema, --regex, --choice, --grammar or --type",
                )
        if constraint is not None:
            quiet_libraries()
            with loading(model) as progress:
                vocabulary = load_vocabulary(model, progress=progress)
            report = {"model": model, "vocabulary": vocabulary.size, **examine(constraint, vocabulary, text, timeout)}
        if as_json:
            typer.echo(json.dumps(report, ensure_ascii=False))
        else:
            show(report, text)
        raise typer.Exit(exit_code(report))


def _check_json_only(constraint: Constraint | None, ensure_ascii: bool, max_depth: int | None) -> None:
    given = "--ensure-ascii" if ensure_ascii else "--max-depth" if max_depth is not None else None
    if given and not isinstance(constraint, JsonSchema):
        raise ConfigError(f"{given} is for JSON only", param=given, hint="give --schema, or a --type written as JSON")


def exit_code(report: dict[str, Any]) -> int:
    """2 for a refused constraint, 1 for a text that is not in the language, else 0."""
    if report["error"] is not None:
        return 2
    return 0 if report["text"] is None or report["text"]["complete"] else 1


def blank(constraint: Constraint | None) -> dict[str, Any]:
    """A report before anything is known."""
    return {
        "kind": None if constraint is None else type(constraint).__name__,
        "engine": None, "compile_ms": None, "states": None, "bytes": None, "warnings": [], "refused": [], "relaxed": [],
        "language": None, "example": None, "text": None, "error": None,
    }  # fmt: skip


def examine(
    constraint: Constraint, vocabulary: Vocabulary, text: str | None = None, timeout: float | None = None
) -> dict[str, Any]:
    """Everything that can be said of ``constraint``, as plain values: the published JSON."""

    def make(it: Constraint) -> Grammar:
        if timeout is not None:
            return compile_guarded(it, vocabulary, timeout)
        return compile_constraint(it, vocabulary)

    index = token_index(vocabulary)
    index.engine  # noqa: B018  built before, so that the time is the constraint's own
    report = blank(constraint)
    start = time.perf_counter()
    try:
        grammar = make(constraint)
        report["compile_ms"] = round((time.perf_counter() - start) * 1000, 3)
        language = describe(grammar, vocabulary)
        if language.count == 0:
            raise UnsatisfiableError("no text of this vocabulary satisfies the constraint")
    except RequestError as error:
        report["compile_ms"] = round((time.perf_counter() - start) * 1000, 3)
        report["error"] = _error(error)
        report["refused"] = refusals(constraint, error, make)
        if isinstance(error, UnsatisfiableError):
            report["language"] = {"size": "empty", "count": 0}
        return report
    found = example(grammar, vocabulary, index)
    report |= _engine(grammar) | {
        "language": _language(language),
        "example": None if found is None else found.decode(errors="backslashreplace"),
        "text": None if text is None else _place(locate(grammar, text, vocabulary)),
    }
    return report


def refusals(
    constraint: Constraint, first: RequestError, make: Callable[[Constraint], Grammar]
) -> list[dict[str, str]]:
    """Every keyword of a schema that is refused, not only the first: what was refused is taken out, and it is tried
    again. At most ``MAX_REFUSALS`` of them."""
    found: list[dict[str, str]] = []
    error: RequestError | None = first
    schema: Json = copy.deepcopy(load_schema(constraint.schema)) if isinstance(constraint, JsonSchema) else None
    while isinstance(error, UnsupportedSchemaError) and len(found) < MAX_REFUSALS:
        found.append({"keyword": error.keyword, "pointer": error.pointer, "message": error.message})
        if not isinstance(constraint, JsonSchema) or not _remove(schema, error.pointer):
            break
        try:
            make(dataclasses.replace(constraint, schema=json.dumps(schema)))
            error = None
        except RequestError as another:
            error = another
    return found


def _remove(schema: Json, pointer: str) -> bool:
    """Delete what ``pointer`` names; False if there is no such place."""
    *above, last = [part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:]] or [""]
    node: Json = schema
    for part in above:
        if isinstance(node, dict) and part in node:
            node = node[part]
        elif isinstance(node, list) and part.isdigit() and int(part) < len(node):
            node = node[int(part)]
        else:
            return False
    if not isinstance(node, dict) or last not in node:
        return False
    del node[last]
    return True


def _engine(grammar: Grammar) -> dict[str, Any]:
    if isinstance(grammar, DfaGrammar):
        automaton = grammar.automaton
        return {"engine": "DFA", "states": automaton.size, "bytes": automaton.nbytes}
    if isinstance(grammar, LlgGrammar):
        relaxed = grammar.relaxed if isinstance(grammar, SchemaGrammar) else ()
        return {
            "engine": "llguidance",
            "bytes": grammar.nbytes,
            "warnings": grammar.warnings,
            "relaxed": [{"keyword": keyword, "pointer": pointer} for pointer, keyword in relaxed],
        }
    return {"engine": type(grammar).__name__.removesuffix("Grammar"), "bytes": getattr(grammar, "nbytes", None)}


def _language(language: Language) -> dict[str, Any]:
    return {"size": language.size, "count": language.count}


def _place(place: Place) -> dict[str, Any]:
    return {
        "complete": place.complete,
        "byte": place.byte,
        "char": place.char,
        "cut_short": place.cut_short,
        "may_stop": place.may_stop,
        "allowed_bytes": list(place.allowed),
        "allowed_tokens": [token.decode(errors="backslashreplace") for token in place.tokens],
    }


def _error(error: RequestError) -> dict[str, Any]:
    out: dict[str, Any] = {
        "type": type(error).__name__, "message": error.message, "param": error.param, "hint": error.hint
    }  # fmt: skip
    for name in ("position", "pointer", "keyword", "limit"):
        if getattr(error, name, None) is not None:
            out[name] = getattr(error, name)
    return out


def _readable(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RequestError("the text is not valid in this locale", param="TEXT") from error
