"""openai-python: the Responses API."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI
from openai.types.responses import FunctionToolParam, Response, ResponseFunctionToolCall

from tests.clients.common import MODEL, SCHEMA, Person, Talk, is_person, only

SHAPE = {"format": {"type": "json_schema", "name": "person", "schema": SCHEMA}}
TOOL: FunctionToolParam = {"type": "function", "name": "person", "parameters": SCHEMA, "strict": True}


def asked(talk: Talk, **options: Any) -> Response:
    async def create(client: AsyncOpenAI) -> Response:
        answer: Response = await client.responses.create(
            **{"model": MODEL, "input": "Who?", "max_output_tokens": 120, "temperature": 0, **options}
        )
        return answer

    return talk(create)


def test_parse_gives_the_object(talk: Talk) -> None:
    answer = talk(lambda c: c.responses.parse(model=MODEL, input="Who?", text_format=Person))
    assert isinstance(answer.output_parsed, Person)
    is_person(json.loads(answer.output_text))
    assert answer.status == "completed"


def test_a_schema_holds_with_and_without_drafts(talk: Talk) -> None:
    drafted = asked(talk, text=SHAPE)
    is_person(json.loads(drafted.output_text))
    assert asked(talk, text=SHAPE, extra_body={"extra": {"speculation": "off"}}).output_text == drafted.output_text
    assert drafted.usage is not None and drafted.usage.output_tokens == len(drafted.output_text.encode())


def test_a_cut_answer_is_incomplete(talk: Talk) -> None:
    answer = asked(talk, text=SHAPE, max_output_tokens=16)
    assert answer.status == "incomplete" and answer.incomplete_details is not None
    assert answer.incomplete_details.reason == "max_output_tokens"


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "person"}])
def test_function_tools(talk: Talk, choice: Any) -> None:
    answer = asked(talk, tools=[TOOL], tool_choice=choice, parallel_tool_calls=False)
    call = only(answer.output)
    assert isinstance(call, ResponseFunctionToolCall) and call.name == "person"
    is_person(json.loads(call.arguments))
    # The conversation goes on with the call and its result.
    items = [
        {"role": "user", "content": "Who?"}, call.model_dump(exclude_none=True),
        {"type": "function_call_output", "call_id": call.call_id, "output": "noted"},
    ]  # fmt: skip
    assert asked(talk, input=items, tools=[TOOL], tool_choice="none").usage is not None


@pytest.mark.parametrize("call", [False, True])
def test_the_stream_adds_up_to_the_answer(talk: Talk, call: bool) -> None:
    options: dict[str, Any] = (
        {"tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False} if call else {"text": SHAPE}
    )

    async def read(client: AsyncOpenAI) -> list[Any]:
        stream: Any = await client.responses.create(
            model=MODEL, input="Who?", max_output_tokens=120, temperature=0, stream=True, **options
        )
        return [event async for event in stream]

    events = talk(read)
    assert events[0].type == "response.created" and events[-1].type == "response.completed"
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kind = "response.function_call_arguments.delta" if call else "response.output_text.delta"
    written = "".join(event.delta for event in events if event.type == kind)
    is_person(json.loads(written))
    answer = asked(talk, **options)
    item = only(answer.output)
    assert written == (item.arguments if isinstance(item, ResponseFunctionToolCall) else answer.output_text)
    assert events[-1].response.usage.output_tokens == (answer.usage.output_tokens if answer.usage else None)


def test_the_stream_helper_parses(talk: Talk) -> None:
    async def read(client: AsyncOpenAI) -> Any:
        async with client.responses.stream(model=MODEL, input="Who?", text_format=Person) as stream:
            async for _ in stream:
                pass
            return await stream.get_final_response()

    final = talk(read)
    assert isinstance(final.output_parsed, Person)
    is_person(json.loads(final.output_text))


def test_what_is_not_kept_cannot_be_continued(talk: Talk) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        asked(talk, previous_response_id="resp_1")
    assert caught.value.param == "/previous_response_id"
