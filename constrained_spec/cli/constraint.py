"""From the options of a command to one output type."""

from __future__ import annotations

import builtins
import importlib
import json
import re
import sys
from pathlib import Path

from constrained_spec.errors import ConfigError, GrammarBudgetError, GrammarSyntaxError, RequestError
from constrained_spec.grammars import library
from constrained_spec.grammars.budget import DEFAULT
from constrained_spec.grammars.compile import Choice, Lark, Regex
from constrained_spec.grammars.notation import guess_notation, normalise_grammar
from constrained_spec.grammars.output_types import JsonOptions

_LIBRARY = re.compile(r"library:(\w+)")  # no Lark text: that has a rule ``start``
_BUILTINS = ("bool", "int", "float", "str", "list", "dict")


def output_type(
    *,
    schema: str | None,
    regex: str | None,
    choice: list[str] | None,
    grammar: str | None,
    type_: str | None,
    whitespace: str,
    on_unsupported: str = "error",
    ensure_ascii: bool = False,
    max_depth: int | None = None,
) -> object:
    """At most one of the options; ``schema`` and ``grammar`` are a file or the text itself.

    A grammar may be Lark, GBNF or EBNF, or ``library:NAME``.

    Raises ``ConfigError`` or ``RequestError``, naming the option.
    """
    given = {"--schema": schema, "--regex": regex, "--choice": choice or None, "--grammar": grammar, "--type": type_}
    named = [name for name, value in given.items() if value is not None]
    if len(named) > 1:
        raise ConfigError(f"{' and '.join(named)} contradict each other", param=named[1], hint="give one constraint")
    if schema is not None:
        value = _schema(_text_of(schema, "--schema"))
        return JsonOptions(whitespace, on_unsupported, ensure_ascii, max_depth=max_depth).of(value)
    if regex is not None:
        return Regex(regex)
    if choice:
        return Choice(tuple(choice))
    if grammar is not None:
        return _grammar(grammar)
    return _resolve(type_) if type_ is not None else None


def _grammar(value: str) -> Lark | Regex:
    """A text in any notation that can be told, else Lark, whose compiler says what is wrong with it."""
    if name := _LIBRARY.fullmatch(value):
        return library.get(name[1])
    text = _text_of(value, "--grammar")
    try:
        kind = guess_notation(text)
    except GrammarSyntaxError:
        kind = "lark"
    return Lark(text if kind == "lark" else normalise_grammar(text, kind))


def _schema(text: str) -> dict[str, object] | bool:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"the schema is not JSON: {error}", param="--schema") from error
    if not isinstance(value, dict | bool):
        raise RequestError("a JSON Schema is an object or a boolean", param="--schema")
    return value


def _text_of(value: str, option: str) -> str:
    """The content of the file of that name, or else the value itself if it reads like a schema or grammar."""
    try:
        if Path(value).is_file():
            _hold_size(Path(value).stat().st_size, option)
            return Path(value).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{value!r} is not UTF-8 text: {error}", param=option) from error
    except (OSError, ValueError) as error:
        # The text of a schema can be no possible file name: too long, or with a zero character.
        if not _is_text(value):
            reason = getattr(error, "strerror", None) or str(error)
            raise ConfigError(f"cannot read {value[:80]!r}: {reason}", param=option) from error
    if not _is_text(value):
        raise ConfigError(f"there is no file {value!r}", param=option, hint="give a file or the text itself")
    return value


def _hold_size(size: int, option: str) -> None:
    """A file that is too large is refused before it is read and parsed."""
    most = 8 * DEFAULT.text_bytes  # the budget is for compact JSON; indentation may take several times as much
    if size > most:
        raise GrammarBudgetError(f"the file has {size} bytes, the limit is {most}", limit="text_bytes", param=option)


def _is_text(value: str) -> bool:
    return any(mark in value for mark in "{:\n") or value.strip() in ("true", "false")


def _resolve(name: str) -> object:
    """A built-in type by name, or ``module:Name``, the module looked up in the current folder first."""
    if ":" not in name:
        if name not in _BUILTINS:
            raise ConfigError(f"unknown type {name!r}", param="--type", hint=f"{', '.join(_BUILTINS)} or module:Name")
        return getattr(builtins, name)
    module, _, attribute = name.partition(":")
    # A module beside the caller is what they mean; the installed script does not look there by itself.
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        value: object = importlib.import_module(module)
        for part in attribute.split("."):
            value = getattr(value, part)
    except Exception as error:  # running the caller's module may raise anything
        reason = f"{type(error).__name__}: {error}"
        raise ConfigError(f"cannot import {name!r}: {reason}", param="--type", hint="module:Name") from error
    return value
