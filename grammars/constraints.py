"""What a caller can ask for, as plain values. They are compiled by ``compile``."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from constrained_spec.errors import RequestError
from constrained_spec.grammars.json_schema import SchemaSource, Whitespace


@dataclass(frozen=True, slots=True)
class JsonSchema:
    """A JSON value that ``schema`` accepts: a dict, a boolean, JSON text, or a pydantic model class."""

    schema: SchemaSource
    whitespace: Whitespace = "one-space"


@dataclass(frozen=True, slots=True)
class Regex:
    """A text that ``pattern`` matches as a whole; the flavour is described in ``regex_syntax``."""

    pattern: str


@dataclass(frozen=True, slots=True)
class Choice:
    """One of ``options``."""

    options: tuple[str, ...]

    def __post_init__(self) -> None:
        if isinstance(self.options, str) or not isinstance(self.options, Iterable):
            raise RequestError(f"no list of choices: {self.options!r}", param="choice", hint="pass a list of strings")
        object.__setattr__(self, "options", tuple(self.options))


@dataclass(frozen=True, slots=True)
class Lark:
    """A text of the context-free grammar ``text`` (llguidance's Lark dialect, rule ``start``)."""

    text: str


Constraint = JsonSchema | Regex | Choice | Lark
