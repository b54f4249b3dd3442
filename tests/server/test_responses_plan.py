"""Bodies of the Responses API mean what the same chat request means, and errors point into the body as it was sent."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from constrained_spec.errors import RequestError
from constrained_spec.grammars.constraints import JsonSchema
from constrained_spec.server.chat import plan_chat
from constrained_spec.server.plan import BodyError, Limits, Plan
from constrained_spec.server.responses import plan_responses
from tests.server.outputs import FACTS as THINKING_FACTS

FACTS = dataclasses.replace(THINKING_FACTS, think=None, template_tools=True, template_tool_calls=True)
LIMITS = Limits()
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
FUNCTION = {"type": "function", "name": "weather", "description": "of a city", "parameters": PARAMETERS, "strict": True}
CUSTOM = {"type": "custom", "name": "sh", "format": {"type": "grammar", "syntax": "regex", "definition": "[a-z]+"}}


def responses(**body: Any) -> Plan:
    return plan_responses({"model": "m", "input": "hi", **body}, FACTS, LIMITS)


def chat(**body: Any) -> Plan:
    return plan_chat({"model": "m", "messages": [{"role": "user", "content": "hi"}], **body}, FACTS, LIMITS)


def refused(**body: Any) -> RequestError:
    with pytest.raises(RequestError) as caught:
        responses(**body)
    return caught.value


def same(made: Plan, expected: Plan) -> None:
    for field in ("prompts", "options", "output_type", "tools", "chat_tools", "logprobs", "top_logprobs", "stream"):
        assert getattr(made, field) == getattr(expected, field), field
    assert made.kind == "responses"


def test_a_string_is_the_users_message() -> None:
    same(responses(), chat())
    same(responses(instructions="be brief", max_output_tokens=5, temperature=0, top_p=0.5, stream=True), chat(
        messages=[{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}],
        max_completion_tokens=5, temperature=0, top_p=0.5, stream=True,
    ))  # fmt: skip


def test_items_are_messages() -> None:
    made = responses(
        input=[
            {"role": "developer", "content": "d"},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "u"}]},
            {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
            {
                "type": "message", "id": "msg_1", "status": "completed", "role": "assistant",
                "content": [{"type": "output_text", "text": "I call", "annotations": [], "logprobs": []}],
            },
            {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "weather", "arguments": '{"city": "x"}'},
            {"type": "custom_tool_call", "call_id": "c2", "name": "sh", "input": "ls"},
            {"type": "function_call_output", "call_id": "c1", "output": "sun"},
            {"type": "custom_tool_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "a"}]},
        ]
    )  # fmt: skip
    same(made, chat(messages=[
        {"role": "developer", "content": "d"},
        {"role": "user", "content": "u"},
        {
            "role": "assistant", "content": "I call", "reasoning_content": "hm",
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "x"}'}},
                {"id": "c2", "type": "custom", "custom": {"name": "sh", "input": "ls"}},
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "sun"},
        {"role": "tool", "tool_call_id": "c2", "content": "a"},
    ]))  # fmt: skip
    assert {"/input/2/id", "/input/3/content/0/annotations"} <= set(made.ignored)


def test_calls_without_text_are_a_message_of_their_own() -> None:
    call = {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "c1", "output": "sun"}
    made = responses(input=[{"role": "user", "content": "u"}, call, output, call, output])
    messages = made.prompts[0]
    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "assistant", "tool"]  # type: ignore[index]


@pytest.mark.parametrize("strict", [True, False, None])
def test_a_text_format_is_a_response_format(strict: bool | None) -> None:
    inner = {"name": "n", "schema": SCHEMA, "strict": strict}
    made = responses(text={"format": {"type": "json_schema", **inner}})
    same(made, chat(response_format={"type": "json_schema", "json_schema": inner}))
    assert isinstance(made.output_type, JsonSchema)
    same(responses(text={"format": {"type": "json_object"}}), chat(response_format={"type": "json_object"}))
    same(responses(text={"format": {"type": "text"}}), chat())


def test_other_spellings_of_constraints_are_those_of_chat() -> None:
    same(responses(structured_outputs={"regex": "a+"}), chat(structured_outputs={"regex": "a+"}))
    same(responses(seed=3, stop=["x"], extra={"gamma": 2}), chat(seed=3, stop=["x"], extra={"gamma": 2}))


@pytest.mark.parametrize("tool", [FUNCTION, CUSTOM, {"type": "custom", "name": "sh", "format": {"type": "text"}}])
@pytest.mark.parametrize("choice", ["auto", "none", "required", "named", "allowed"])
def test_tools_and_their_choice(tool: dict[str, Any], choice: str) -> None:
    kind, name = tool["type"], tool["name"]
    chat_tool: dict[str, Any] = {k: v for k, v in tool.items() if k != "type"}
    if tool is CUSTOM:
        chat_tool["format"] = {"type": "grammar", "grammar": {"syntax": "regex", "definition": "[a-z]+"}}
    spellings: dict[str, tuple[Any, Any]] = {
        "named": ({"type": kind, "name": name}, {"type": kind, kind: {"name": name}}),
        "allowed": (
            {"type": "allowed_tools", "mode": "auto", "tools": [{"type": kind, "name": name}]},
            {
                "type": "allowed_tools",
                "allowed_tools": {"mode": "auto", "tools": [{"type": kind, kind: {"name": name}}]},
            },
        ),
    }
    ours, theirs = spellings.get(choice, (choice, choice))
    made = responses(tools=[tool], tool_choice=ours, parallel_tool_calls=False)
    expected = chat(tools=[{"type": kind, kind: chat_tool}], tool_choice=theirs, parallel_tool_calls=False)
    same(made, expected)


def test_logprobs_come_with_the_text_on_request() -> None:
    wanted = {"include": ["message.output_text.logprobs"]}
    same(responses(**wanted), chat(logprobs=True))
    same(responses(**wanted, top_logprobs=3), chat(logprobs=True, top_logprobs=3))
    same(responses(top_logprobs=3), chat(logprobs=True, top_logprobs=3))
    same(responses(top_logprobs=0), chat())


def test_what_changes_nothing_is_accepted_and_listed() -> None:
    made = responses(
        metadata={"a": "b"}, user="u", store=False, truncation="disabled", background=False, max_tool_calls=3,
        service_tier="auto", include=["reasoning.encrypted_content"], reasoning={"summary": "auto"},
        previous_response_id=None, stream_options={"include_obfuscation": False}, safety_identifier="s",
        prompt_cache_key="k",
    )  # fmt: skip
    same(made, chat())
    assert {
        "/metadata", "/max_tool_calls", "/service_tier", "/include/0", "/reasoning/summary", "/safety_identifier",
        "/stream_options/include_obfuscation", "/prompt_cache_key",
    } <= set(made.ignored)  # fmt: skip
    assert made.user == "u"


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({"store": True}, "/store", "unsupported_value"),
        ({"previous_response_id": "resp_1"}, "/previous_response_id", "unsupported_value"),
        ({"conversation": "c"}, "/conversation", "unsupported_value"),
        ({"prompt": {"id": "p"}}, "/prompt", "unsupported_value"),
        ({"background": True}, "/background", "unsupported_value"),
        ({"truncation": "auto"}, "/truncation", "unsupported_value"),
        ({"include": ["file_search_call.results"]}, "/include/0", "unsupported_value"),
        ({"tools": [{"type": "web_search"}]}, "/tools/0/type", "unsupported_value"),
        ({"tools": [FUNCTION], "tool_choice": {"type": "web_search"}}, "/tool_choice/type", "invalid_value"),
        ({"reasoning": {"effort": "high"}}, "/reasoning/effort", "unsupported_value"),
        ({"text": {"verbosity": "low"}}, "/text/verbosity", "unsupported_value"),
        ({"n": 2}, "/n", "unknown_field"),
        ({"return_rounds": True}, "/return_rounds", "unknown_field"),
        ({"response_format": {"type": "json_object"}}, "/response_format", "unknown_field"),
        ({"logprobs": True}, "/logprobs", "unknown_field"),
        ({"colour": "red"}, "/colour", "unknown_field"),
        ({"text": {"shape": 1}}, "/text/shape", "unknown_field"),
        ({"stream_options": {"include_usage": True}}, "/stream_options/include_usage", "unknown_field"),
        ({"input": None}, "/input", "missing_field"),
        ({"input": []}, "/input", "invalid_value"),
        ({"input": 3}, "/input", "invalid_type"),
        ({"input": ["x"]}, "/input/0", "invalid_type"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "/input/0/type", "unsupported_value"),
        ({"input": [{"role": "robot", "content": "x"}]}, "/input/0/role", "invalid_value"),
        ({"input": [{"role": "user"}]}, "/input/0/content", "missing_field"),
        ({"input": [{"role": "user", "content": "x", "mood": 1}]}, "/input/0/mood", "unknown_field"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
            "/input/0/content/0/type",
            "unsupported_value",
        ),
        ({"max_output_tokens": 0}, "/max_output_tokens", "invalid_value"),
        ({"max_output_tokens": "5"}, "/max_output_tokens", "invalid_type"),
        ({"model": "other"}, "/model", "model_not_found"),
        ({"instructions": 5}, "/instructions", "invalid_type"),
        ({"text": {"format": {"type": "json_schema", "name": "n"}}}, "/text/format/schema", "missing_field"),
        ({"text": {"format": {"type": "json_schema", "name": "n", "schema": 3}}}, "/text/format/schema", None),
        ({"tools": [{"type": "function", "parameters": {}}]}, "/tools/0/name", "missing_field"),
        ({"tools": [{**FUNCTION, "colour": 1}]}, "/tools/0/colour", "unknown_field"),
        ({"tools": [FUNCTION], "tool_choice": {"type": "function", "name": "x"}}, "/tool_choice/name", None),
        (
            {"input": [{"type": "function_call", "call_id": "c", "name": "f", "arguments": "{"}]},
            "/input/0/arguments",
            "invalid_value",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_honoured_is_refused_by_name(body: dict[str, Any], param: str, code: str | None) -> None:
    error = refused(**body)
    assert error.param == param
    if code is not None:
        assert isinstance(error, BodyError)
        assert error.code == code


def test_an_error_in_a_custom_tools_grammar_points_at_its_definition() -> None:
    tool = {"type": "custom", "name": "sh", "format": {"type": "grammar", "syntax": "lark", "definition": "start: ("}}
    assert refused(tools=[tool]).param == "/tools/0/format/definition"
    unknown = {"type": "custom", "name": "sh", "format": {"type": "grammar", "syntax": "abnf", "definition": "x"}}
    assert refused(tools=[unknown]).param == "/tools/0/format/syntax"


def test_errors_of_the_engine_are_located_in_the_body() -> None:
    made = responses(text={"format": {"type": "json_schema", "name": "n", "schema": SCHEMA}}, max_output_tokens=5)
    assert made.locate("/properties/a") == "/text/format/schema/properties/a"
    assert made.locate("max_tokens") == "/max_output_tokens"
    assert made.locate("prompt") == "/input"


def test_a_body_is_an_object() -> None:
    with pytest.raises(BodyError):
        plan_responses([1], FACTS, LIMITS)
