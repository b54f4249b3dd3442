"""What a caller can ask for, as plain values. They are compiled by ``compile``.

A constraint is a set of texts. ``JsonSchema``, ``Regex``, ``Choice`` and ``Lark`` are the simple ones; the others
combine constraints. Combinations of ``Regex`` and ``Choice`` alone are compiled exactly; what others cannot enforce
exactly they refuse (``combine`` says when).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from constrained_spec.errors import RequestError
from constrained_spec.grammars.json_schema import SchemaSource, Whitespace


@dataclass(frozen=True, slots=True)
class JsonSchema:
    """A JSON value that ``schema`` accepts: a dict, a boolean, JSON text, or a pydantic model class.

    ``on_unsupported`` "validate" generates under a relaxation where a keyword cannot be enforced; ``ensure_ascii``
    writes characters beyond ASCII as ``\\uXXXX``; ``registry`` holds the schemas that remote references may name;
    ``nullable`` reads that keyword as OpenAPI 3.0 does; ``max_depth`` bounds how deep arrays and objects nest.
    """

    schema: SchemaSource
    whitespace: Whitespace = "one-space"
    on_unsupported: Literal["error", "validate"] = "error"
    ensure_ascii: bool = False
    registry: Mapping[str, SchemaSource] | None = None
    nullable: bool = False
    max_depth: int | None = None


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


@dataclass(frozen=True, slots=True, init=False)
class All:
    """A text that every one of ``parts`` allows."""

    parts: tuple[Constraint, ...]

    def __init__(self, *parts: Constraint) -> None:
        object.__setattr__(self, "parts", _several(parts, "All"))


@dataclass(frozen=True, slots=True)
class Without:
    """A text of ``base`` in which no substring matches ``banned``: a regex, or a ``Regex``/``Choice`` combination."""

    base: Constraint
    banned: str | Constraint

    def __post_init__(self) -> None:
        _check(self.base, "Without")
        if not isinstance(self.banned, str):
            _check(self.banned, "Without")


@dataclass(frozen=True, slots=True, init=False)
class Then:
    """A text of the first of ``parts``, then one of the second, and so on, with nothing between."""

    parts: tuple[Constraint, ...]

    def __init__(self, *parts: Constraint) -> None:
        object.__setattr__(self, "parts", _several(parts, "Then"))


@dataclass(frozen=True, slots=True, init=False)
class AnyOf:
    """A text that at least one of ``parts`` allows."""

    parts: tuple[Constraint, ...]

    def __init__(self, *parts: Constraint) -> None:
        object.__setattr__(self, "parts", _several(parts, "AnyOf"))


@dataclass(frozen=True, slots=True)
class Optional:
    """A text of ``part``, or nothing."""

    part: Constraint

    def __post_init__(self) -> None:
        _check(self.part, "Optional")


@dataclass(frozen=True, slots=True)
class Lazy:
    """Free text; where ``trigger`` first appears, ``constraint`` holds from the very next byte to the end.

    The trigger may end in the middle of a token. Where it is the name of a special token, that token triggers too. A
    text that ends without the trigger is legal.
    """

    trigger: str
    constraint: Constraint

    def __post_init__(self) -> None:
        _text(self.trigger, "the trigger", "trigger")
        _check(self.constraint, "Lazy")


@dataclass(frozen=True, slots=True)
class Tag:
    """``begin``, then a text of ``constraint``, then ``end``.

    ``end`` may be empty. Where ``constraint`` is made of ``Regex`` and ``Choice``, its text ends where ``end`` first
    appears; a JSON value or a ``Lark`` text ends where its own grammar says.
    """

    begin: str
    constraint: Constraint
    end: str = ""

    def __post_init__(self) -> None:
        _text(self.begin, "the begin of a tag", "begin")
        if not isinstance(self.end, str):
            raise RequestError("the end of a tag is a string", param="end")
        _check(self.constraint, "Tag")


@dataclass(frozen=True, slots=True)
class Tagged:
    """Free text with tags in it: wherever the begin of one of ``tags`` appears, its constraint and end follow.

    ``tags``: ``Tag`` values or (begin, constraint, end) tuples. ``stop_after_first``: the text ends with the first tag.
    """

    tags: tuple[Tag, ...]
    at_least_one: bool = False
    stop_after_first: bool = False

    def __post_init__(self) -> None:
        tags = tuple(tag if isinstance(tag, Tag) else Tag(*tag) for tag in self.tags)
        if not tags:
            raise RequestError("no tags", param="tags")
        for tag in tags:
            for other in tags:
                if other is not tag and other.begin in tag.begin:
                    raise RequestError(
                        f"the tag {tag.begin!r} can never begin, since {other.begin!r} within it begins first",
                        param="tags",
                        hint="no begin may contain another one",
                    )
        object.__setattr__(self, "tags", tags)


@dataclass(frozen=True, slots=True)
class ToolCalls:
    """Calls of ``tools``, with arguments that their schemas accept; ``tools.parse_tool_calls`` reads them back.

    ``tools``: OpenAI tool objects ({"type": "function", "function": {...}}) or bare {"name", "parameters"} objects.
    ``choice``: "auto" free text or calls; "none" free text without a call; "required" one call or more and no text
    before them; the name of a tool: calls of that one. ``parallel`` False: one call at most. ``syntax`` names how calls
    are written (see ``tools``).
    """

    tools: tuple[Mapping[str, object], ...]
    choice: str = "auto"
    parallel: bool = True
    syntax: Literal["hermes", "llama3", "mistral", "json"] = "hermes"
    whitespace: Whitespace = "one-space"

    def __post_init__(self) -> None:
        if isinstance(self.tools, Mapping | str) or not isinstance(self.tools, Iterable):
            raise RequestError("tools is a list of tool objects", param="tools")
        object.__setattr__(self, "tools", tuple(self.tools))


Constraint = JsonSchema | Regex | Choice | Lark | All | AnyOf | Without | Then | Optional | Lazy | Tagged | ToolCalls
_KINDS = (JsonSchema, Regex, Choice, Lark, All, AnyOf, Without, Then, Optional, Lazy, Tagged, ToolCalls)
MAX_COMBINATION_DEPTH = 50


def children(constraint: Constraint) -> tuple[Constraint, ...]:
    """The constraints that ``constraint`` is directly made of."""
    if isinstance(constraint, All | AnyOf | Then):
        return constraint.parts
    if isinstance(constraint, Without):
        return (constraint.base,) if isinstance(constraint.banned, str) else (constraint.base, constraint.banned)
    if isinstance(constraint, Optional):
        return (constraint.part,)
    if isinstance(constraint, Lazy):
        return (constraint.constraint,)
    if isinstance(constraint, Tagged):
        return tuple(tag.constraint for tag in constraint.tags)
    return ()


def is_regular(constraint: Constraint) -> bool:
    """Made of ``Regex`` and ``Choice`` alone."""
    if isinstance(constraint, JsonSchema | Lark | ToolCalls):
        return False
    return all(map(is_regular, children(constraint)))


def replaced(constraint: Constraint, swap: Callable[[Constraint], object]) -> tuple[object, ...]:
    """(name of the kind, its own fields with the constraints in them passed through ``swap``): what identifies it."""
    name = type(constraint).__name__
    if isinstance(constraint, Without) and isinstance(constraint.banned, str):
        return name, swap(constraint.base), constraint.banned
    own: tuple[object, ...] = ()
    if isinstance(constraint, Lazy):
        own = (constraint.trigger,)
    elif isinstance(constraint, Tagged):
        own = (
            tuple((tag.begin, tag.end) for tag in constraint.tags),
            constraint.at_least_one,
            constraint.stop_after_first,
        )
    return name, own, tuple(map(swap, children(constraint)))


def _several(parts: tuple[Constraint, ...], where: str) -> tuple[Constraint, ...]:
    if not parts:
        raise RequestError(f"{where} of nothing", param=where, hint="pass at least one constraint")
    for part in parts:
        _check(part, where)
    return parts


def _check(value: object, where: str) -> None:
    if not isinstance(value, _KINDS):
        raise RequestError(f"not a constraint: {value!r}", param=where, hint="wrap a pattern in Regex(...)")


def _text(value: object, what: str, param: str) -> None:
    if not isinstance(value, str) or not value:
        raise RequestError(f"{what} is a string that is not empty", param=param)
    try:
        value.encode()
    except UnicodeEncodeError:
        raise RequestError(f"{what} holds half a surrogate pair", param=param) from None
