"""openai-python: function tools and custom tools."""

from __future__ import annotations

import json
import re
from typing import Any, cast

import pytest
from openai import AsyncOpenAI, pydantic_function_tool
from openai.types.chat import (
    ChatCompletion,
    ChatCompletionCustomToolParam,
    ChatCompletionMessageCustomToolCall,
    ChatCompletionMessageFunctionToolCall,
    ChatCompletionMessageParam,
    ChatCompletionToolParam,
)

from tests.clients.common import MODEL, TOOL, USER, Person, Talk, is_person, only

OTHER: ChatCompletionToolParam = {
    "type": "function",
    "function": {
        "name": "pick",
        "parameters": {
            "type": "object",
            "properties": {"colour": {"enum": ["red", "blue"]}},
            "required": ["colour"],
            "additionalProperties": False,
        },
    },
}
NAMED = {"type": "function", "function": {"name": "pick"}}


def custom(syntax: str, definition: str) -> ChatCompletionCustomToolParam:
    grammar = {"type": "grammar", "grammar": {"syntax": syntax, "definition": definition}}
    return cast(ChatCompletionCustomToolParam, {"type": "custom", "custom": {"name": "note", "format": grammar}})


def asked(talk: Talk, **options: Any) -> ChatCompletion:
    async def create(client: AsyncOpenAI) -> ChatCompletion:
        answer: ChatCompletion = await client.chat.completions.create(
            **{"model": MODEL, "messages": USER, "max_tokens": 200, **options}
        )
        return answer

    return talk(create)


def calls(answer: ChatCompletion) -> list[tuple[str, Any]]:
    """Name and arguments of every call, checked against its schema."""
    found = []
    for call in answer.choices[0].message.tool_calls or ():
        assert isinstance(call, ChatCompletionMessageFunctionToolCall) and call.id
        arguments = json.loads(call.function.arguments)
        if call.function.name == "person":
            is_person(arguments)
        else:
            assert arguments in ({"colour": "red"}, {"colour": "blue"})
        found.append((call.function.name, arguments))
    return found


def test_parse_gives_the_arguments_as_an_object(talk: Talk) -> None:
    answer = talk(
        lambda c: c.chat.completions.parse(
            model=MODEL, messages=USER, tools=[pydantic_function_tool(Person)], tool_choice="required",
            parallel_tool_calls=False, seed=2,
        )
    )  # fmt: skip
    call = only(answer.choices[0].message.tool_calls)
    assert isinstance(call.function.parsed_arguments, Person)
    is_person(json.loads(call.function.arguments))
    assert answer.choices[0].message.content is None and answer.choices[0].finish_reason == "tool_calls"


@pytest.mark.parametrize("seed", range(3))
def test_the_choice_is_kept(talk: Talk, seed: int) -> None:
    tools = [TOOL, OTHER]
    one = {"tools": tools, "seed": seed, "parallel_tool_calls": False}
    assert len(calls(asked(talk, tool_choice="required", **one))) == 1
    named = calls(asked(talk, tool_choice=NAMED, tools=tools, seed=seed))
    assert [name for name, _ in named] == ["pick"]
    none = asked(talk, tool_choice="none", max_tokens=20, **one)
    assert none.choices[0].message.tool_calls is None and none.choices[0].finish_reason in ("stop", "length")
    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [NAMED]}}
    assert [name for name, _ in calls(asked(talk, tool_choice=allowed, **one))] == ["pick"]
    calls(asked(talk, max_tokens=40, **one))


def test_drafts_change_no_call(talk: Talk) -> None:
    same = {"tools": [TOOL, OTHER], "tool_choice": "required", "parallel_tool_calls": False, "temperature": 0}
    drafted = asked(talk, **same, extra_body={"extra": {"speculation": "fixed", "gamma": 8}})
    assert calls(drafted) == calls(asked(talk, **same, extra_body={"extra": {"speculation": "off"}}))


def test_the_result_of_a_call_goes_back(talk: Talk) -> None:
    first = asked(talk, tools=[TOOL], tool_choice="required", parallel_tool_calls=False, seed=1)
    message = first.choices[0].message
    call = only(message.tool_calls)
    said = cast(list[ChatCompletionMessageParam], [
        *USER, message.model_dump(exclude_none=True), {"role": "tool", "tool_call_id": call.id, "content": "noted"},
    ])  # fmt: skip
    again = asked(talk, messages=said, tools=[TOOL], tool_choice="none", max_tokens=8)
    assert first.usage is not None and again.usage is not None
    assert again.usage.prompt_tokens > first.usage.prompt_tokens


@pytest.mark.parametrize(
    ("tool", "pattern"),
    [(custom("regex", "[a-d]{4}"), "[a-d]{4}"), (custom("lark", 'start: "x" DIGIT\nDIGIT: /[0-9]/'), "x[0-9]")],
    ids=["regex", "lark"],
)
@pytest.mark.parametrize("choice", ["required", {"type": "custom", "custom": {"name": "note"}}])
def test_custom_tools_keep_to_their_grammar(
    talk: Talk, tool: ChatCompletionCustomToolParam, pattern: str, choice: Any
) -> None:
    answer = asked(talk, tools=[tool], tool_choice=choice, seed=3)
    call = only(answer.choices[0].message.tool_calls)
    assert isinstance(call, ChatCompletionMessageCustomToolCall) and call.custom.name == "note"
    assert re.fullmatch(pattern, call.custom.input)
    assert answer.choices[0].finish_reason == "tool_calls"
