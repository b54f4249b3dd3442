"""``/v1/responses``: the body is rewritten as that of a chat request, and errors point back into the original.

Nothing is stored here: a conversation is sent whole, and what would need the server's memory is refused by name.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from constrained_spec.errors import ConfigError, RequestError
from constrained_spec.server.chat import plan_chat
from constrained_spec.server.fields import Fields
from constrained_spec.server.plan import BodyError, Limits, ModelFacts, Plan
from constrained_spec.server.responses_input import Conversation, Pointers

_STATELESS = "send the whole conversation as input items: this server keeps none"
# Fields of chat requests that the Responses API has under another name, or not at all.
_CHAT_ONLY = {
    "messages": "input",
    "response_format": "text.format",
    "max_tokens": "max_output_tokens",
    "max_completion_tokens": "max_output_tokens",
    "logprobs": "include",
    "reasoning_effort": "reasoning.effort",
    "verbosity": "text.verbosity",
    "n": None,
    "functions": None,
    "function_call": None,
    "return_rounds": None,
}
# All others mean what they mean in a chat request, and are read, or refused, there.
_READ_HERE = frozenset(
    {
        "background", "context_management", "conversation", "include", "input", "instructions", "max_output_tokens",
        "max_tool_calls", "moderation", "previous_response_id", "prompt", "reasoning", "store", "stream_options",
        "text", "tool_choice", "tools", "top_logprobs", "truncation",
    }
)  # fmt: skip
_LOGPROBS = "message.output_text.logprobs"
_NO_EFFECT = ("reasoning.encrypted_content",)


def plan_responses(body: object, facts: ModelFacts, limits: Limits) -> Plan:
    """The plan of a body of ``/v1/responses``. Raises ``RequestError`` with a JSON pointer into it."""
    fields = Fields(body)
    raw = fields.body
    _refuse_chat_names(fields)
    talk = _conversation(fields)
    pointers: Pointers = {
        "/messages": "/input",
        "/max_completion_tokens": "/max_output_tokens",
        "/logprobs": "/include",
        "/reasoning_effort": "/reasoning/effort",
        "/verbosity": "/text/verbosity",
        **talk.pointers,
    }
    chat: dict[str, Any] = {"messages": talk.messages}
    _settings(fields, chat)
    _text(fields, chat, pointers)
    _tools(fields, chat, pointers)
    _unstored(fields)
    chat |= {name: value for name, value in raw.items() if name not in _READ_HERE}
    try:
        plan = plan_chat(chat, facts, limits)
    except (RequestError, ConfigError) as error:
        error.param = _back(error.param, pointers)
        raise
    return dataclasses.replace(
        plan,
        kind="responses",
        raw=raw,
        places={name: _back(place, pointers) or place for name, place in plan.places.items()},
        ignored=(*(_back(p, pointers) or p for p in plan.ignored), *fields.ignored, *talk.ignored),
    )


def _refuse_chat_names(fields: Fields) -> None:
    for name, instead in _CHAT_ONLY.items():
        if fields.has(name):
            raise BodyError(
                f"unknown field {name!r}",
                code="unknown_field",
                param=fields.pointer(name),
                hint=f"here it is {instead}" if instead else "/v1/chat/completions has it",
            )


def _conversation(fields: Fields) -> Conversation:
    talk = Conversation()
    instructions = fields.text("instructions")
    if instructions:
        talk.instructions(instructions)
    fields.need("input")
    if isinstance(fields.body["input"], str):
        talk.text(fields.text("input") or "")
        return talk
    items = fields.listed("input") or []
    if not items:
        raise BodyError("the input is empty", code="invalid_value", param="/input")
    for i, item in enumerate(items):
        talk.item(Fields(item, f"/input/{i}"))
    return talk


def _settings(fields: Fields, chat: dict[str, Any]) -> None:
    most = fields.value("max_output_tokens")
    if most is not None:
        chat["max_completion_tokens"] = most
    top = fields.value("top_logprobs")
    if top is not None:
        chat["top_logprobs"] = top
    for i, name in enumerate(fields.texts("include") or ()):
        if name == _LOGPROBS:
            chat["logprobs"] = True
        elif name in _NO_EFFECT:
            fields.ignored.append(f"/include/{i}")
        else:
            raise BodyError(
                f"{name!r} cannot be included",
                code="unsupported_value",
                param=f"/include/{i}",
                hint=f"{_LOGPROBS!r} can",
            )
    if top:
        chat["logprobs"] = True
    elif "logprobs" not in chat:
        chat.pop("top_logprobs", None)
    reasoning = fields.inside("reasoning")
    if reasoning is not None:
        if reasoning.has("effort"):
            chat["reasoning_effort"] = reasoning.value("effort")
        reasoning.value("effort")
        reasoning.ignore("summary", "generate_summary")
        reasoning.finish()
        fields.ignored += reasoning.ignored
    stream_options = fields.inside("stream_options")
    if stream_options is not None:
        stream_options.ignore("include_obfuscation")
        stream_options.finish("the last event always tells the usage")
        fields.ignored += stream_options.ignored


def _text(fields: Fields, chat: dict[str, Any], pointers: Pointers) -> None:
    text = fields.inside("text")
    if text is None:
        return
    if text.has("verbosity"):
        chat["verbosity"] = text.value("verbosity")
    shape = text.inside("format")
    text.value("verbosity")
    text.finish()
    if shape is None:
        return
    inner = dict(shape.body)
    pointers["/response_format"] = "/text/format"
    if inner.get("type") == "json_schema":
        pointers["/response_format/json_schema"] = "/text/format"
        inner = {"type": inner.pop("type"), "json_schema": inner}
    chat["response_format"] = inner


def _tools(fields: Fields, chat: dict[str, Any], pointers: Pointers) -> None:
    tools = fields.listed("tools")
    if tools is not None:
        chat["tools"] = [_tool(Fields(tool, f"/tools/{i}"), i, pointers) for i, tool in enumerate(tools)]
    choice = fields.value("tool_choice")
    if isinstance(choice, Mapping):
        chat["tool_choice"] = _choice(Fields(choice, "/tool_choice"), pointers)
    elif choice is not None:
        chat["tool_choice"] = choice


def _tool(tool: Fields, i: int, pointers: Pointers) -> dict[str, Any]:
    inner = dict(tool.body)
    kind = inner.pop("type", None)
    if kind not in ("function", "custom"):
        raise BodyError(
            f"tools of type {kind!r} are not offered",
            code="unsupported_value",
            param=tool.pointer("type"),
            hint='"function" and "custom" tools are',
        )
    pointers[f"/tools/{i}/{kind}"] = tool.at
    if kind == "custom" and isinstance(shape := inner.get("format"), Mapping) and "syntax" in shape:
        inner["format"] = {"type": shape.get("type"), "grammar": {k: v for k, v in shape.items() if k != "type"}}
        pointers[f"/tools/{i}/custom/format/grammar"] = f"{tool.at}/format"
    return {"type": kind, kind: inner}


def _choice(choice: Fields, pointers: Pointers) -> dict[str, Any]:
    kind = choice.one_of("type", ("function", "custom", "allowed_tools"))
    if kind == "allowed_tools":
        allowed = [
            {"type": tool.get("type"), str(tool.get("type")): {"name": tool.get("name")}}
            if isinstance(tool, Mapping)
            else tool
            for tool in choice.listed("tools") or ()
        ]
        mode = choice.value("mode")
        choice.finish()
        pointers["/tool_choice/allowed_tools"] = "/tool_choice"
        return {"type": kind, "allowed_tools": {"mode": mode, "tools": allowed}}
    choice.need("type")
    assert kind is not None
    name = choice.value("name")
    choice.finish()
    pointers[f"/tool_choice/{kind}"] = "/tool_choice"
    return {"type": kind, kind: {"name": name}}


def _unstored(fields: Fields) -> None:
    """What needs memory or machinery that is not here."""
    for name in ("previous_response_id", "conversation", "prompt"):
        fields.only(name, hint=_STATELESS)
    fields.only("store", False, hint="this server stores no answers: send false, or leave it out")
    fields.only("background", False)
    fields.only("truncation", "disabled", hint="what does not fit is refused, never cut")
    fields.only("context_management", [])
    fields.only("moderation")
    fields.ignore("max_tool_calls")  # of hosted tools, of which there are none


def _back(param: str | None, pointers: Pointers) -> str | None:
    """A pointer into the chat body as one into the request, by the longest part that is known."""
    if param is None:
        return None
    head = param
    while head:
        if head in pointers:
            return pointers[head] + param[len(head) :]
        head = head.rpartition("/")[0]
    return param
