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

_BUILTINS = ("bool", "int", "float", "str", "list", "dict")


def output_type(
    *,
    schema: str | None,
    regex: str | None,
    choice: list[str] | None,
    grammar: str | None,
    type_: str | None,
    whitespace: str,
) -> object:
    """At most one of the options; ``schema`` and ``grammar`` are a file or the text itself.

    Raises ``ConfigError`` or ``RequestError``, naming the option.
    """
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
    """The content of the file of that name, or else the value itself if it reads like a schema or grammar."""
    try:
        if Path(value).is_file():
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
