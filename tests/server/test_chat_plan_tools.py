"""Tools of a chat request: what may be called, what the grammar enforces, what the model is shown."""

from __future__ import annotations

from typing import Any

import pytest

from constrained_spec.errors import RequestError
from constrained_spec.grammars.compile import compile_constraint
from constrained_spec.grammars.constraints import Lark, Regex, ToolCalls
from constrained_spec.grammars.tools import SYNTAXES, parse_tool_calls
from constrained_spec.server.plan import Limits, ModelFacts
from constrained_spec.server.tool_text import written_calls
from tests.server.plan_facts import FACTS, HI, VOCABULARY, chat, facts, function, legal, refused

POINT = {
    "type": "object",
    "properties": {"x": {"type": "integer"}},
    "required": ["x"],
    "additionalProperties": False,
}
TOOLS = [function("move", POINT), function("stop"), function("wait", {"type": "object", "properties": {}})]
SHOWN = facts(template_tools=True, template_tool_calls=True)


def custom(name: str = "run", **format: Any) -> dict[str, Any]:
    inner: dict[str, Any] = {"name": name, "description": "runs it"}
    if format:
        inner["format"] = {"type": "grammar", "grammar": format}
    return {"type": "custom", "custom": inner}


def named(name: str, kind: str = "function") -> dict[str, Any]:
    return {"type": kind, kind: {"name": name}}


def allowed(mode: str, *tools: dict[str, Any]) -> dict[str, Any]:
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": list(tools)}}


def test_without_a_choice_calls_are_possible() -> None:
    plan = chat(tools=TOOLS)
    assert plan.tools is not None
    assert (plan.tools.choice, plan.tools.parallel, plan.tools.syntax) == ("auto", True, "hermes")
    assert plan.tools.tools == ({"name": "move", "parameters": POINT}, {"name": "stop"},
                                {"name": "wait", "parameters": {"type": "object", "properties": {}}})  # fmt: skip
    assert plan.output_type == ToolCalls(plan.tools.tools)


MOVE: tuple[str, dict[str, object]] = ("move", {"x": 1})
STOP: tuple[str, dict[str, object]] = ("stop", {})
TEXTS = {
    "free": "hello",
    "move": written_calls([MOVE], "hermes"),
    "two": written_calls([MOVE, STOP], "hermes"),
    "wrong": written_calls([("move", {"x": "1"})], "hermes"),
}


@pytest.mark.parametrize(
    ("choice", "parallel", "texts"),
    [
        ("auto", None, {"free", "move", "two"}),
        ("auto", False, {"free", "move"}),
        ("none", None, {"free"}),
        ("required", True, {"move", "two"}),
        ("required", False, {"move"}),
        (named("move"), None, {"move"}),  # a named tool is called once
        (named("stop"), True, set()),
        (allowed("auto", named("move")), None, {"free", "move"}),
        (allowed("required", named("stop")), None, set()),
        (allowed("auto"), None, {"free"}),
    ],
)  # fmt: skip
def test_the_choice_is_enforced(choice: object, parallel: bool | None, texts: set[str]) -> None:
    plan = chat(tools=TOOLS, tool_choice=choice, parallel_tool_calls=parallel)
    assert {name for name, text in TEXTS.items() if legal(plan.output_type, text)} == texts


@pytest.mark.parametrize("syntax", SYNTAXES)
def test_calls_are_written_in_the_syntax_of_the_model(syntax: Any) -> None:
    plan = chat(facts(tool_syntax=syntax), tools=TOOLS, tool_choice="required")
    text = written_calls([MOVE, STOP], syntax)
    assert legal(plan.output_type, text)
    assert parse_tool_calls(text, syntax) == ("", [MOVE, STOP])


def test_a_template_that_knows_tools_is_shown_them() -> None:
    described = function("f", POINT)
    described["function"]["description"] = "does"
    plan = chat(SHOWN, tools=[described, custom("run")])
    assert plan.prompts == (HI,)
    [first, second] = plan.chat_tools
    assert first == described
    assert second["function"]["name"] == "run"
    assert second["function"]["parameters"]["required"] == ["input"]


def test_a_template_without_tools_gets_them_in_the_system_message() -> None:
    plan = chat(tools=TOOLS)
    assert plan.chat_tools == ()
    [prompt] = plan.prompts
    system: Any = prompt[0]
    assert system["role"] == "system"
    assert '"name": "move"' in system["content"]
    assert "<tool_call>" in system["content"]
    [prompt] = chat(tools=TOOLS, messages=[{"role": "system", "content": "Be kind."}, *HI]).prompts
    assert len(prompt) == 2
    first: Any = prompt[0]
    assert first["content"].startswith("Be kind.\n\nYou can call")


def test_a_response_format_says_nothing_where_a_call_must_come() -> None:
    text = {"type": "json_schema", "json_schema": {"schema": {"type": "array"}}}
    for choice in ("required", named("move")):
        with_text = chat(tools=TOOLS, tool_choice=choice, response_format=text)
        assert with_text.output_type == chat(tools=TOOLS, tool_choice=choice).output_type


def test_tools_that_may_not_be_called_leave_the_constraint_alone() -> None:
    assert chat(tools=TOOLS, tool_choice="none", regex="a+").output_type == Regex("a+")


@pytest.mark.parametrize("syntax", ["hermes", "mistral", "json"])
@pytest.mark.parametrize("think", [None, ("<think>", "</think>")])
def test_where_calls_are_possible_the_constraint_is_the_alternative(syntax: Any, think: Any) -> None:
    schema = {"type": "json_schema", "json_schema": {"schema": POINT}}
    plan = chat(facts(tool_syntax=syntax, think=think), tools=TOOLS, response_format=schema)
    call, answer = written_calls([MOVE], syntax), '{"x": 1}'
    texts = [answer, call, written_calls([MOVE, STOP], syntax), "hello", answer + call, '{"x": "1"}']
    assert [legal(plan.output_type, text) for text in texts] == [True, True, True, False, False, False]
    assert plan.locate("/properties/x") == "/response_format/json_schema/schema/properties/x"
    assert plan.locate("tools/0/parameters/properties/x") == "/tools/0/function/parameters/properties/x"
    single = chat(facts(tool_syntax=syntax), tools=TOOLS, response_format=schema, parallel_tool_calls=False)
    assert not legal(single.output_type, texts[2])


def test_an_alternative_that_cannot_be_told_from_a_call_is_refused() -> None:
    plan = chat(facts(tool_syntax="llama3"), tools=TOOLS, response_format={"type": "json_object"})
    assert plan.output_type is not None
    with pytest.raises(RequestError):
        compile_constraint(plan.output_type, VOCABULARY)


def test_a_constraint_beside_a_call_that_must_come_is_refused() -> None:
    assert refused(chat, tools=TOOLS, regex="a", tool_choice="required") == ("conflicting_constraints", "/regex")


# ---- custom tools -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tool", "constraint"),
    [
        (custom(), None),
        (custom(syntax="regex", definition="[0-9]+"), Regex("[0-9]+")),
        (custom(syntax="lark", definition='start: "a"+'), Lark('start: "a"+')),
    ],
)
@pytest.mark.parametrize("choice", [named("run", "custom"), "required"])
def test_the_one_custom_tool_that_must_be_called_gets_the_whole_output(
    tool: dict[str, Any], constraint: object, choice: object
) -> None:
    tools = [tool] if choice == "required" else [tool, *TOOLS]
    plan = chat(tools=tools, tool_choice=choice)
    assert plan.output_type == constraint
    assert plan.tools is not None
    assert (plan.tools.syntax, plan.tools.choice, plan.tools.custom) == ("raw", "run", {"run": constraint})


def test_a_custom_tool_among_others_is_called_with_its_input_in_json() -> None:
    plan = chat(tools=[*TOOLS, custom(syntax="regex", definition="[0-9]+|x")])
    assert plan.tools is not None
    assert plan.tools.custom == {"run": Regex("[0-9]+|x")}
    calls = {value: written_calls([("run", {"input": value})], "hermes") for value in ("12", "x", "1x", "")}
    assert {value for value, text in calls.items() if legal(plan.output_type, text)} == {"12", "x"}


def test_a_lark_grammar_cannot_stand_in_json() -> None:
    tool = custom(syntax="lark", definition='start: "a"+')
    at = "/tools/1/custom/format/grammar/definition"
    assert refused(chat, tools=[TOOLS[0], tool]) == ("unsupported_value", at)
    assert refused(chat, tools=[TOOLS[0], tool], tool_choice="required") == ("unsupported_value", at)
    # Where it is not called, nothing is to be enforced.
    assert chat(tools=[TOOLS[0], tool], tool_choice=named("move")).tools is not None
    assert legal(chat(tools=[tool], tool_choice="none").output_type, "hello")


# ---- errors -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        ({"tools": [{"type": "web_search"}]}, "invalid_value", "/tools/0/type"),
        ({"tools": [{"function": {"name": "f"}}]}, "missing_field", "/tools/0/type"),
        ({"tools": [{"type": "function"}]}, "missing_field", "/tools/0/function"),
        ({"tools": [{"type": "function", "function": {}}]}, "missing_field", "/tools/0/function/name"),
        ({"tools": [function("")]}, "invalid_value", "/tools/0/function/name"),
        ({"tools": [function("auto")]}, "invalid_value", "/tools/0/function/name"),
        ({"tools": [function(), function()]}, "invalid_value", "/tools/1/function/name"),
        ({"tools": [{"type": "function", "function": {"name": "f", "params": {}}}]}, "unknown_field",
         "/tools/0/function/params"),
        ({"tools": [function("f", {"const": float("inf")})]}, "invalid_value", "/tools/0/function/parameters"),
        ({"tools": [function()], "tool_choice": "any"}, "invalid_value", "/tool_choice"),
        ({"tools": [function()], "tool_choice": named("g")}, "invalid_value", "/tool_choice/function/name"),
        ({"tools": [function()], "tool_choice": {"type": "function"}}, "missing_field", "/tool_choice/function"),
        ({"tools": [function()], "tool_choice": allowed("required")}, "invalid_value",
         "/tool_choice/allowed_tools/tools"),
        ({"tool_choice": "required"}, "invalid_value", "/tool_choice"),
        ({"tool_choice": named("f")}, "invalid_value", "/tool_choice/function/name"),
        ({"tools": "f"}, "invalid_type", "/tools"),
        ({"tools": [custom(syntax="abnf", definition="a")]}, None, "/tools/0/custom/format/grammar/syntax"),
        ({"tools": [{"type": "custom", "custom": {"name": "c", "format": {"type": "text", "x": 1}}}]}, "unknown_field",
         "/tools/0/custom/format/x"),
    ],
)  # fmt: skip
def test_refused(body: dict[str, Any], code: str | None, param: str) -> None:
    assert refused(chat, **body) == (code, param)


def test_limits() -> None:
    assert refused(chat, limits=Limits(max_tools=2), tools=TOOLS) == ("limit_exceeded", "/tools")
    tool = custom(syntax="regex", definition="aaaa")
    at = "/tools/0/custom/format/grammar/definition"
    assert refused(chat, limits=Limits(max_regex_chars=3), tools=[tool]) == ("limit_exceeded", at)


@pytest.mark.parametrize(
    ("body", "place"),
    [
        ({"tools": [function("f", {"properties": {"x": {"type": 7}}})]},
         "/tools/0/function/parameters/properties/x/type"),
        ({"tools": [*TOOLS, function("f", {"properties": {"x": {"type": 7}}})], "tool_choice": named("f")},
         "/tools/3/function/parameters/properties/x/type"),
        ({"tools": [function(), custom(syntax="regex", definition="(")]}, "/tools/1/custom/format/grammar/definition"),
        ({"tools": [custom(syntax="regex", definition="(")], "tool_choice": "required"},
         "/tools/0/custom/format/grammar/definition"),
        ({"tools": [function("f", {"type": "array"})]}, "/tools/0/function/parameters"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("model", [FACTS, facts(think=("<think>", "</think>"))])
def test_errors_of_the_compiler_point_into_the_body(body: dict[str, Any], place: str, model: ModelFacts) -> None:
    plan = chat(model, **body)
    assert plan.output_type is not None
    with pytest.raises(RequestError) as caught:
        compile_constraint(plan.output_type, VOCABULARY)
    assert plan.locate(caught.value.param) == place


def test_calls_after_reasoning() -> None:
    model = facts(think=("<think>", "</think>"))
    required = chat(model, tools=TOOLS, tool_choice="required").output_type
    call = written_calls([MOVE], "hermes")
    assert [legal(required, t) for t in (call, f"<think>so</think>\n{call}", "<think>so</think>", f"so{call}")] == [
        True, True, False, False,
    ]  # fmt: skip
    auto = chat(model, tools=TOOLS).output_type
    assert all(legal(auto, t) for t in ("hi", "<think>so</think>hi", call, f"<think>so</think>{call}"))
    opened = facts(think=("<think>", "</think>"), think_opened=True)
    auto = chat(opened, tools=TOOLS).output_type
    assert [legal(auto, t) for t in ("so</think>hi", f"so</think>{call}", "so")] == [True, True, False]
