r"""Tool calls as constraints, and their texts back to calls.

    hermes    ``<tool_call>\n{"name": "f", "arguments": {...}}\n</tool_call>``, in free text
    llama3    ``{"name": "f", "parameters": {...}}``, several joined by ``; ``; after ``<|python_tag|>`` too
    mistral   free text, then ``[TOOL_CALLS] [{"name": "f", "arguments": {...}}, ...]``
    json      ``[{"name": "f", "arguments": {...}}, ...]``

Markers that are special tokens of the vocabulary may be those tokens or their text. With "auto" a llama3 or json text
that begins as a call is one; any other text is free.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from constrained_spec.errors import RequestError
from constrained_spec.grammars.combine_embed import embed
from constrained_spec.grammars.combine_tree import Either, Many, Seq, Token, Tree
from constrained_spec.grammars.constraints import JsonSchema, ToolCalls

if TYPE_CHECKING:
    from constrained_spec.grammars.combine import Builder

SYNTAXES = ("hermes", "llama3", "mistral", "json")
_NOTHING = {"type": "object", "properties": {}, "additionalProperties": False}
_BEGIN, _END, _MISTRAL, _PYTHON = "<tool_call>", "</tool_call>", "[TOOL_CALLS]", "<|python_tag|>"


def calls(constraint: ToolCalls, builder: Builder) -> Tree:
    """The tree of ``constraint``. Raises ``RequestError`` with the place in ``tools``, or what its schemas raise."""
    if constraint.syntax not in SYNTAXES:
        raise RequestError(
            f"unknown tool call syntax {constraint.syntax!r}", param="syntax", hint=f"one of {', '.join(SYNTAXES)}"
        )
    tools = _named(constraint)
    choice = constraint.choice
    if choice not in ("auto", "none", "required"):
        if choice not in tools:
            raise RequestError(f"no tool is named {choice!r}", param="tool_choice", hint=f"one of {', '.join(tools)}")
        tools = {choice: tools[choice]}
    if choice == "none" or (choice == "auto" and not tools):
        return _silent(constraint, builder)
    if not tools:
        raise RequestError("a tool call is required, but there are no tools", param="tools")
    comma, colon = (",", ":") if constraint.whitespace == "compact" else (", ", ": ")
    arguments = "parameters" if constraint.syntax == "llama3" else "arguments"
    heads = {
        f'{{"name"{colon}{json.dumps(name, ensure_ascii=False)}{comma}"{arguments}"{colon}': _arguments(
            constraint, builder, place, schema
        )
        for name, (place, schema) in tools.items()
    }

    def call(before: str) -> Tree:
        # One word up to the arguments: what comes before it alone would not tell a call from free text.
        return Either(tuple(Seq((builder.text(before + h), a, builder.text("}"))) for h, a in heads.items()))

    return _frame(constraint, builder, call, comma, colon)


def _frame(constraint: ToolCalls, builder: Builder, call: Callable[[str], Tree], comma: str, colon: str) -> Tree:
    """Calls in their syntax: how many, what stands between them, and the free text around them. ``call`` makes a call
    with a text in front."""
    auto, parallel = constraint.choice == "auto", constraint.parallel

    def joined(before: str, between: str) -> Tree:
        first = call(before)
        return Seq((first, Many(call(between), 0, True))) if parallel else first

    if constraint.syntax == "hermes":
        inner = Seq((call("\n"), builder.text("\n")))
        if auto:
            return builder.tagged([(_BEGIN, inner, _END)], False, not parallel)
        block = Seq((builder.mark(_BEGIN), inner, builder.mark(_END)))
        return Seq((block, Many(Seq((builder.text("\n"), block)), 0, True))) if parallel else block
    if constraint.syntax == "llama3":
        several = joined("", "; ")
        if _PYTHON in builder.special:
            several = Seq((Many(Token(builder.special[_PYTHON]), 0, False), several))
        return Either((builder.free_unless_first(f'{{"name"{colon}'), several)) if auto else several
    array = Seq((joined("[", comma), builder.text("]")))
    if constraint.syntax == "json":
        return Either((builder.free_unless_first(f'[{{"name"{colon}'), array)) if auto else array
    spaced = Seq((Many(builder.text(" "), 0, False), array))
    if auto:
        return builder.tagged([(_MISTRAL, spaced, "")], False, True)
    return Seq((builder.mark(_MISTRAL), spaced))


def _silent(constraint: ToolCalls, builder: Builder) -> Tree:
    """Free text without a call."""
    colon = ":" if constraint.whitespace == "compact" else ": "
    if constraint.syntax == "hermes":
        return builder.free([_BEGIN])
    if constraint.syntax == "mistral":
        return builder.free([_MISTRAL])
    return builder.free_unless_first(("[" if constraint.syntax == "json" else "") + f'{{"name"{colon}')


def _named(constraint: ToolCalls) -> dict[str, tuple[str, object]]:
    """Name: (place in ``tools``, schema of the arguments)."""
    found: dict[str, tuple[str, object]] = {}
    for i, tool in enumerate(constraint.tools):
        place, function = f"tools/{i}", tool
        if isinstance(tool, Mapping) and "function" in tool:
            if tool.get("type", "function") != "function":
                raise RequestError(f"a tool of type {tool['type']!r} has no calls", param=f"{place}/type")
            place, function = f"{place}/function", tool["function"]  # type: ignore[assignment]
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str) or not function["name"]:
            raise RequestError("a tool is an object with a name", param=place)
        name = str(function["name"])
        if name in found or name in ("auto", "none", "required"):
            raise RequestError(f"the name {name!r} is taken", param=f"{place}/name")
        found[name] = (f"{place}/parameters", function.get("parameters"))
    return found


def _arguments(constraint: ToolCalls, builder: Builder, place: str, schema: object) -> Tree:
    if schema is None:
        schema = _NOTHING
    if not isinstance(schema, Mapping):
        raise RequestError("the parameters of a tool are a JSON Schema object", param=place)
    if not {"type", "$ref"} & set(schema):
        schema = {**schema, "type": "object"}  # arguments are an object whatever the schema leaves open
    try:
        found = embed(JsonSchema(dict(schema), constraint.whitespace), builder.index, f"the arguments at {place}")
    except RequestError as error:
        error.param = f"{place}{'' if error.param in (None, '/', 'schema') else error.param}"
        raise
    if found.first != frozenset(b"{"):
        raise RequestError("the arguments of a tool are a JSON object", param=place, hint='set "type": "object"')
    return found


def parse_tool_calls(text: str, syntax: str) -> tuple[str, list[tuple[str, dict[str, object]]]]:
    """(the free text, the calls as (name, arguments)) of a text written in ``syntax``.

    Raises ``RequestError`` for a text that begins a call and does not finish it, as one that was cut off does.
    """
    if syntax not in SYNTAXES:
        raise RequestError(f"unknown tool call syntax {syntax!r}", param="syntax", hint=f"one of {', '.join(SYNTAXES)}")
    if syntax == "hermes":
        return _parse_hermes(text)
    if syntax == "llama3":
        bare = text.removeprefix(_PYTHON)
        if bare == text and not text.startswith(('{"name":', '{"name" :')):
            return text, []
        found, at = [], 0
        while True:
            call, at = _read(bare, at, "parameters")
            found.append(call)
            if at == len(bare):
                return "", found
            if not bare.startswith("; ", at):
                raise _unfinished(at)
            at += 2
    content = ""
    if syntax == "mistral":
        content, begin, text = text.partition(_MISTRAL)
        if not begin:
            return content, []
        text = text.removeprefix(" ")
    elif not text.startswith('[{"name":'):
        return text, []
    values, at = _decode(text, 0)
    if not isinstance(values, list) or at != len(text):
        raise _unfinished(at)
    return content, [_call(value, "arguments", 0) for value in values]


def _parse_hermes(text: str) -> tuple[str, list[tuple[str, dict[str, object]]]]:
    content, found, at = "", [], 0
    while (begin := text.find(_BEGIN, at)) >= 0:
        content += text[at:begin]
        at = begin + len(_BEGIN)
        at += text.startswith("\n", at)
        call, at = _read(text, at, "arguments")
        found.append(call)
        at += text.startswith("\n", at)
        if not text.startswith(_END, at):
            raise _unfinished(at)
        at += len(_END)
    content += text[at:]
    # Line breaks alone stand between calls and are no content.
    return ("" if found and not content.strip() else content), found


def _read(text: str, at: int, key: str) -> tuple[tuple[str, dict[str, object]], int]:
    value, end = _decode(text, at)
    return _call(value, key, at), end


def _decode(text: str, at: int) -> tuple[object, int]:
    try:
        value, end = json.JSONDecoder().raw_decode(text, at)
    except (json.JSONDecodeError, RecursionError):
        raise _unfinished(at) from None
    return value, end


def _call(value: object, key: str, at: int) -> tuple[str, dict[str, object]]:
    if isinstance(value, dict) and isinstance(value.get("name"), str) and isinstance(value.get(key), dict):
        return value["name"], value[key]
    raise _unfinished(at)


def _unfinished(at: int) -> RequestError:
    return RequestError(f"a tool call is not finished or not well formed at character {at}", param="text")
