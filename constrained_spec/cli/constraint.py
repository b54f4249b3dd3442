"""From the options of a command to one output type."""

from __future__ import annotations

import builtins
import importlib
import json
import sys
from pathlib import Path

from constrained_spec.errors import ConfigError, RequestError
from constrained_spec.grammars.compile import Choice, JsonSchema, Lark, Regex
from constrained_spec.grammars.output_types import to_constraint


def output_type(
    *,
    schema: str | None,
    regex: str | None,
    choice: list[str] | None,
    grammar: str | None,
    type_: str | None,
    whitespace: str,
) -> object:
    """At most one of the options; ``schema`` and ``grammar`` are a file or the text itself."""
    given = {"--schema": schema, "--regex": regex, "--choice": choice or None, "--grammar": grammar, "--type": type_}
    named = [name for name, value in given.items() if value is not None]
    if len(named) > 1:
        raise ConfigError(f"{' and '.join(named)} contradict each other", param=named[1], hint="give one constraint")
    if schema is not None:
        value = _schema(_text_of(schema, "--schema"))
        return to_constraint(value if isinstance(value, dict) else JsonSchema(value), whitespace=whitespace)
    if regex is not None:
        return Regex(regex)
    if choice:
        return Choice(tuple(choice))
    if grammar is not None:
        return Lark(_text_of(grammar, "--grammar"))
    return _resolve(type_) if type_ is not None else None


def _schema(text: str) -> dict[str, object] | bool:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"the schema is not JSON: {error}", param="--schema") from error
    if not isinstance(value, dict | bool):
        raise RequestError("a JSON Schema is an object or a boolean", param="--schema")
    return value


def _text_of(value: str, option: str) -> str:
    """The content of the file of that name, or the value itself when it cannot be a file name."""
    if "\n" in value or "{" in value or ":" in value:
        return value
    path = Path(value)
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(f"cannot read {value!r}: {reason}", param=option, hint="give a file or the text") from error


def _resolve(name: str) -> object:
    if ":" not in name:
        value = getattr(builtins, name, None)
        if value not in (bool, int, float, str, list, dict):
            raise ConfigError(
                f"unknown type {name!r}", param="--type", hint="bool, int, float, str, list, dict or module:Name"
            )
        return value
    module, _, attribute = name.partition(":")
    # A module beside the caller is what they mean; the installed script does not look there by itself.
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"cannot import {name!r}: {error}", param="--type") from error
