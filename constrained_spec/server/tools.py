"""Tools of a request: which calls the grammar allows, and what the chat template shows.

A custom tool is shown, and called, as a function with one string parameter ``input``. Where a call of one custom tool
is the only thing that may be written, the output is that input itself, with nothing around it ("raw").
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from constrained_spec.grammars.constraints import Constraint, Lark, Regex, ToolCalls
from constrained_spec.grammars.custom_tool import from_custom_tool
from constrained_spec.grammars.notation import normalise_grammar
from constrained_spec.server.constraint_parts import Reader, placed
from constrained_spec.server.fields import Fields
from constrained_spec.server.plan import BodyError, Limits, ModelFacts, ToolPlan

MODES = ("none", "auto", "required")


@dataclass(frozen=True, slots=True)
class Tool:
    """One tool as the body states it. ``at`` points at it, ``schema_at`` at its parameters or its grammar.

    ``parameters`` None means no parameters. ``input`` is the constraint of a custom tool's input, None any text.
    """

    name: str
    description: str | None
    parameters: Mapping[str, Any] | None
    at: str
    schema_at: str
    custom: bool = False
    input: Constraint | None = None

    @property
    def schema(self) -> Mapping[str, Any] | None:
        """The JSON Schema of the arguments."""
        if not self.custom:
            return self.parameters
        text: dict[str, Any] = {"type": "string"}
        if isinstance(self.input, Regex):
            text["pattern"] = f"^(?:{self.input.pattern})$"
        return {"type": "object", "properties": {"input": text}, "required": ["input"], "additionalProperties": False}

    @property
    def shown(self) -> dict[str, Any]:
        """The tool as chat templates expect it."""
        function: dict[str, Any] = {"name": self.name}
        if self.description is not None:
            function["description"] = self.description
        function["parameters"] = {"type": "object", "properties": {}} if self.schema is None else dict(self.schema)
        return {"type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """``mode`` is one of ``MODES``; ``names`` limits the callable tools (None: all of them), ``at`` points at it."""

    mode: str = "auto"
    names: tuple[str, ...] | None = None
    named: bool = False
    at: str = "/tool_choice"


@dataclass(frozen=True, slots=True)
class Tools:
    """All that follows from the tools of a request. ``output_type`` None: any text (a raw custom tool without one)."""

    plan: ToolPlan
    shown: tuple[Mapping[str, Any], ...]
    output_type: Constraint | None
    places: Mapping[str, str]


def function_tool(fields: Fields, reader: Reader) -> Tool:
    """A function: ``name``, ``description``, ``parameters``, ``strict`` (its schema is enforced either way)."""
    fields.need("name")
    name, parameters = fields.text("name") or "", fields.inside("parameters")
    fields.flag("strict")
    description = fields.text("description")
    at = fields.pointer("parameters")
    schema = None if parameters is None else reader.checked(dict(parameters.body), at)
    return Tool(_name(name, fields), description, schema, fields.at, at)


def custom_tool(fields: Fields, reader: Reader) -> Tool:
    """A custom tool: ``name``, ``description``, ``format`` (text, or a grammar in lark or regex)."""
    fields.need("name")
    name, format = fields.text("name") or "", fields.inside("format")
    description = fields.text("description")
    found: Lark | Regex | None = None
    at = fields.pointer("format")
    if format is not None and format.body.get("type") != "text":
        found = from_custom_tool(format.body, param=at)
        inside = isinstance(format.body.get("grammar"), Mapping)
        at = f"{at}/grammar/definition" if inside else f"{at}/definition"
        if isinstance(found, Lark):
            text = found.text
            reader.limit(len(text), "max_grammar_chars", "the grammar", at)
            placed(at, lambda: normalise_grammar(text, "lark"))
        else:
            reader.limit(len(found.pattern), "max_regex_chars", "the pattern", at)
    elif format is not None:
        format.value("type")
        format.finish()
    return Tool(_name(name, fields), description, None, fields.at, at, custom=True, input=found)


def chat_tools(fields: Fields, reader: Reader) -> list[Tool]:
    """``tools`` of a chat request, names told apart."""
    tools: list[Tool] = []
    for i, value in enumerate(fields.listed("tools") or ()):
        entry = Fields(value, f"{fields.pointer('tools')}/{i}")
        entry.need("type")
        kind = entry.one_of("type", ("function", "custom"))
        assert kind is not None, "it is there"
        entry.need(kind)
        inner = entry.inside(kind)
        assert inner is not None, "it is there"
        tools.append(function_tool(inner, reader) if kind == "function" else custom_tool(inner, reader))
        if kind == "function":
            inner.finish("a function has name, description, parameters, strict")
        else:
            inner.finish("a custom tool has name, description, format")
        entry.finish()
    return tools


def chat_tool_choice(fields: Fields) -> ToolChoice | None:
    """``tool_choice`` of a chat request."""
    value, at = fields.value("tool_choice"), fields.pointer("tool_choice")
    if value is None:
        return None
    if isinstance(value, str):
        mode = fields.one_of("tool_choice", MODES)
        return ToolChoice(mode or "auto", at=at)
    choice = Fields(value, at)
    kind = choice.one_of("type", ("function", "custom", "allowed_tools"))
    if kind is None and choice.has("function"):
        kind = "function"  # huggingface_hub sends no type
    if kind is None:
        choice.need("type")
    assert kind is not None, "it is there"
    choice.need(kind)
    inner = choice.inside(kind)
    assert inner is not None, "it is there"
    choice.finish()
    if kind != "allowed_tools":
        inner.need("name")
        name = inner.text("name") or ""
        inner.finish()
        return ToolChoice("required", (name,), named=True, at=inner.pointer("name"))
    inner.need("mode")
    inner.need("tools")
    mode, names = inner.one_of("mode", ("auto", "required")), []
    for i, entry in enumerate(inner.listed("tools") or ()):
        tool = Fields(entry, f"{inner.pointer('tools')}/{i}")
        of = tool.inside(tool.one_of("type", ("function", "custom")) or "function")
        if of is None:
            raise BodyError("an allowed tool names a tool", code="missing_field", param=tool.at)
        of.need("name")
        names.append(of.text("name") or "")
        of.finish()
        tool.finish()
    inner.finish()
    return ToolChoice(mode or "auto", tuple(names), at=inner.pointer("tools"))


def plan_tools(
    tools: Sequence[Tool], choice: ToolChoice | None, parallel: bool | None, facts: ModelFacts, limits: Limits
) -> Tools | None:
    """What follows from ``tools``; None without any. Raises ``BodyError`` for a choice that cannot be honoured."""
    if len(tools) > limits.max_tools:
        raise BodyError(
            f"{len(tools)} tools, at most {limits.max_tools} are served", code="limit_exceeded", param="/tools"
        )
    choice = choice or ToolChoice()
    by_name = _by_name(tools)
    for name in choice.names or ():
        if name not in by_name:
            raise BodyError(
                f"no tool is named {name!r}",
                code="invalid_value",
                param=choice.at,
                hint=f"one of {', '.join(by_name)}" if by_name else "send tools",
            )
    if not tools:
        if choice.mode == "required":
            raise BodyError("a call is required, but there are no tools", code="invalid_value", param=choice.at)
        return None
    # With no tool allowed, none is called.
    callable_ = [tool for tool in tools if choice.names is None or tool.name in choice.names]
    if not callable_ and choice.mode == "required":
        raise BodyError("a call is required, but no tool is allowed", code="invalid_value", param=choice.at)
    shown = tuple(tool.shown for tool in tools)
    if choice.mode == "required" and len(callable_) == 1 and callable_[0].custom:
        return _raw(callable_[0], shown)
    if choice.mode == "none" or not callable_:
        callable_ = [tool for tool in tools if not isinstance(tool.input, Lark)]
        choice = ToolChoice("none")
    _refuse_lark(callable_)
    named = choice.names[0] if choice.named and choice.names else choice.mode
    plan = ToolPlan(
        tools=tuple(
            {"name": t.name} if t.schema is None else {"name": t.name, "parameters": dict(t.schema)} for t in callable_
        ),
        choice=named,
        parallel=parallel is not False and not choice.named,  # a named tool is called once
        syntax=facts.tool_syntax,
        custom={tool.name: tool.input for tool in callable_ if tool.custom},
    )
    constraint = ToolCalls(plan.tools, plan.choice, plan.parallel, facts.tool_syntax)  # type: ignore[arg-type]
    return Tools(plan, shown, constraint, _places(callable_))


def _raw(tool: Tool, shown: tuple[Mapping[str, Any], ...]) -> Tools:
    plan = ToolPlan(tools=(), choice=tool.name, parallel=False, syntax="raw", custom={tool.name: tool.input})
    places = dict.fromkeys(("output_type", "regex", "grammar"), tool.schema_at)
    return Tools(plan, shown, tool.input, places)


def _refuse_lark(tools: Sequence[Tool]) -> None:
    for tool in tools:
        if isinstance(tool.input, Lark):
            raise BodyError(
                f"the custom tool {tool.name!r} has a Lark grammar, whose texts cannot stand inside a JSON string",
                code="unsupported_value",
                param=tool.schema_at,
                hint=f"name the tool in tool_choice, so that its input is the whole output, or use the syntax regex "
                f"({json.dumps({'type': 'custom', 'custom': {'name': tool.name}})})",
            )


def _places(tools: Sequence[Tool]) -> dict[str, str]:
    places = {"output_type": "/tools", "tools": "/tools"}
    for i, tool in enumerate(tools):
        places[f"tools/{i}"] = tool.at
        # What is wrong with a schema that this module wrote is the pattern in it.
        places[f"tools/{i}/parameters"] = tool.schema_at
        if tool.custom:
            places[f"tools/{i}/parameters/properties/input/pattern"] = tool.schema_at
    return places


def _by_name(tools: Sequence[Tool]) -> dict[str, Tool]:
    found: dict[str, Tool] = {}
    for tool in tools:
        if tool.name in found:
            raise BodyError(f"two tools are named {tool.name!r}", code="invalid_value", param=f"{tool.at}/name")
        found[tool.name] = tool
    return found


def _name(name: str, fields: Fields) -> str:
    if not name or len(name) > 128 or name in MODES:
        raise BodyError(
            f"{name[:40]!r} is no name of a tool",
            code="invalid_value",
            param=fields.pointer("name"),
            hint="1 to 128 characters, and none of auto, none, required",
        )
    return name
