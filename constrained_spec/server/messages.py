"""Messages of a chat request, as chat templates expect them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from constrained_spec.grammars.schema_walk import nests_deeper
from constrained_spec.server.fields import Fields, kind_of, text_of
from constrained_spec.server.plan import BodyError, Limits, Message, ModelFacts
from constrained_spec.server.tool_text import written_calls

_MAX_DEPTH = 100  # of the arguments of an earlier call
ROLES = ("system", "developer", "user", "assistant", "tool", "function")


def read_messages(fields: Fields, facts: ModelFacts, limits: Limits) -> list[Message]:
    """``messages``, with content as one string, ``developer`` as ``system``, and arguments of calls as objects."""
    fields.need("messages")
    at = fields.pointer("messages")
    given = fields.listed("messages") or []
    if not given:
        raise BodyError("there are no messages", code="invalid_value", param=at)
    if len(given) > limits.max_messages:
        raise BodyError(
            f"{len(given)} messages, at most {limits.max_messages} are served", code="limit_exceeded", param=at
        )
    return [_message(Fields(value, f"{at}/{i}"), facts) for i, value in enumerate(given)]


def with_system(messages: list[Message], text: str) -> list[Message]:
    """``messages`` with ``text`` at the end of the first system message, or in a new one before them."""
    if messages[0]["role"] != "system":
        return [{"role": "system", "content": text}, *messages]
    first = {**messages[0], "content": f"{messages[0]['content']}\n\n{text}".lstrip()}
    return [first, *messages[1:]]


def read_content(fields: Fields, name: str = "content") -> str | None:
    """A string, or a list of text parts, which are joined with nothing between. Raises ``BodyError`` naming the part
    that is no text."""
    value, at = fields.value(name), fields.pointer(name)
    if value is None or isinstance(value, str):
        return None if value is None else text_of(value, at)
    if not isinstance(value, list):
        raise BodyError(f"{name} is a string or a list of parts, not {kind_of(value)}", code="invalid_type", param=at)
    texts = []
    for i, entry in enumerate(value):
        part = Fields(entry, f"{at}/{i}")
        kind = part.text("type")
        key = "refusal" if kind == "refusal" else "text"
        if kind not in ("text", "input_text", "output_text", "refusal"):
            raise BodyError(
                f"parts of type {kind!r} are not served" if kind else "a part has a type",
                code="unsupported_value" if kind else "missing_field",
                param=part.pointer("type"),
                hint="this model reads text alone",
            )
        part.need(key)
        texts.append(part.text(key) or "")
        part.only("annotations", [])
        part.only("logprobs", [])
        part.finish()
    return "".join(texts)


def _message(fields: Fields, facts: ModelFacts) -> Message:
    fields.need("role")
    role = fields.one_of("role", ROLES)
    content = read_content(fields)
    made: dict[str, Any] = {"role": "system" if role == "developer" else role}
    name = fields.text("name")
    if name is not None:
        made["name"] = name
    if role == "assistant":
        _assistant(fields, made, content, facts)
    else:
        if content is None:
            raise BodyError("content is missing", code="missing_field", param=fields.pointer("content"))
        made["content"] = content
        if role == "tool":
            call = fields.text("tool_call_id")
            if call is not None:
                made["tool_call_id"] = call
        elif role == "function":
            made["role"] = "tool"
    fields.finish("remove it: the chat template would not see it")
    return made


def _assistant(fields: Fields, made: dict[str, Any], content: str | None, facts: ModelFacts) -> None:
    refusal = fields.text("refusal")
    calls = _calls(fields)
    for name in ("audio", "annotations"):
        fields.only(name, [])
    if content is None and refusal is None and not calls:
        raise BodyError("content is missing", code="missing_field", param=fields.pointer("content"))
    made["content"] = content if content is not None else refusal or ""
    reasoning = fields.text("reasoning_content")
    if reasoning is not None:
        made["reasoning_content"] = reasoning
    if not calls:
        return
    if facts.template_tool_calls:
        made["tool_calls"] = calls
        return
    pairs = [(call["function"]["name"], call["function"]["arguments"]) for call in calls]
    made["content"] = "\n".join(filter(None, (made["content"], written_calls(pairs, facts.tool_syntax))))


def _calls(fields: Fields) -> list[dict[str, Any]]:
    calls = [
        _call(Fields(value, f"{fields.pointer('tool_calls')}/{i}"))
        for i, value in enumerate(fields.listed("tool_calls") or ())
    ]
    legacy = fields.inside("function_call")
    if legacy is not None:
        calls.append({"type": "function", "function": _function(legacy)})
        legacy.finish()
    return calls


def _call(call: Fields) -> dict[str, Any]:
    kind = call.one_of("type", ("function", "custom")) or "function"
    made: dict[str, Any] = {"type": "function"}
    identity = call.text("id")
    if identity is not None:
        made["id"] = identity
    call.integer("index")  # of a streamed call; some clients leave it in
    call.need(kind)
    inner = call.inside(kind)
    assert inner is not None, "it is there"
    if kind == "custom":
        inner.need("name")
        made["function"] = {"name": inner.text("name"), "arguments": {"input": inner.text("input") or ""}}
    else:
        made["function"] = _function(inner)
    inner.finish()
    call.finish()
    return made


def _function(fields: Fields) -> dict[str, Any]:
    """Templates expect the arguments as an object; OpenAI has them as JSON text."""
    fields.need("name")
    name, given, at = fields.text("name"), fields.value("arguments"), fields.pointer("arguments")
    if isinstance(given, str):
        try:
            given = json.loads(text_of(given, at) or "{}")
        except (ValueError, RecursionError):
            raise BodyError("the arguments are no JSON text", code="invalid_value", param=at) from None
    if given is None:
        given = {}
    if not isinstance(given, Mapping):
        raise BodyError("the arguments of a call are an object", code="invalid_type", param=at)
    if nests_deeper(given, _MAX_DEPTH):
        raise BodyError(f"the arguments nest more than {_MAX_DEPTH} levels", code="limit_exceeded", param=at)
    return {"name": name, "arguments": dict(given)}
