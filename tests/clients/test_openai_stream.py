"""openai-python: streamed chat completions."""

from __future__ import annotations

import json
from typing import Any

import pytest
from openai import AsyncOpenAI, pydantic_function_tool
from openai.lib.streaming.chat import ContentDoneEvent
from openai.types.chat import (
    ChatCompletion,
    ChatCompletionChunk,
    ChatCompletionMessageFunctionToolCall,
    ParsedChatCompletion,
)
from openai.types.completion_usage import CompletionUsage

from tests.clients.common import MODEL, SCHEMA, TOOL, USER, Person, Talk, is_person, only

SHAPE = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA}}
REQUESTS: dict[str, dict[str, Any]] = {
    "schema": {"response_format": SHAPE},
    "call": {"tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False},
    "auto": {"tools": [TOOL]},
    "regex": {"extra_body": {"structured_outputs": {"regex": "[a-zé€]{12}"}}},
    "stop": {"stop": ["-c"], "extra_body": {"structured_outputs": {"regex": "(ab-){4}cd"}}},
}


def chunks(talk: Talk, **options: Any) -> list[ChatCompletionChunk]:
    async def read(client: AsyncOpenAI) -> list[ChatCompletionChunk]:
        stream: Any = await client.chat.completions.create(
            **{"model": MODEL, "messages": USER, "max_tokens": 120, "stream": True, **options}
        )
        return [chunk async for chunk in stream]

    return talk(read)


def whole(talk: Talk, **options: Any) -> ChatCompletion:
    async def create(client: AsyncOpenAI) -> ChatCompletion:
        answer: ChatCompletion = await client.chat.completions.create(
            **{"model": MODEL, "messages": USER, "max_tokens": 120, **options}
        )
        return answer

    return talk(create)


def counts(usage: CompletionUsage | None) -> tuple[int, int, int]:
    assert usage is not None
    return usage.prompt_tokens, usage.completion_tokens, usage.total_tokens


@pytest.mark.parametrize("name", REQUESTS)
@pytest.mark.parametrize("seed", range(2))
def test_the_stream_adds_up_to_the_answer(talk: Talk, name: str, seed: int) -> None:
    request = {**REQUESTS[name], "seed": seed}
    answer = whole(talk, **request)
    streamed = chunks(talk, **request, stream_options={"include_usage": True})
    *deltas, last = streamed
    assert last.choices == [] and counts(last.usage) == counts(answer.usage)
    assert all(chunk.usage is None for chunk in deltas)
    assert len({chunk.id for chunk in streamed}) == 1
    choices = [chunk.choices[0] for chunk in deltas]
    assert choices[0].delta.role == "assistant"
    assert [choice.finish_reason for choice in choices if choice.finish_reason] == [answer.choices[0].finish_reason]
    message = answer.choices[0].message
    assert "".join(choice.delta.content or "" for choice in choices) == (message.content or "")
    pieces = [call for choice in choices for call in choice.delta.tool_calls or ()]
    arguments = "".join(piece.function.arguments or "" for piece in pieces if piece.function is not None)
    if name == "call":
        call = only(message.tool_calls)
        assert isinstance(call, ChatCompletionMessageFunctionToolCall) and arguments == call.function.arguments
        is_person(json.loads(arguments))
        assert len(pieces) > 2 and pieces[0].id and not any(piece.id for piece in pieces[1:])
    elif name == "schema":
        is_person(json.loads(message.content or ""))


def test_no_chunk_without_choices_unless_asked_for(talk: Talk) -> None:
    assert all(chunk.choices for chunk in chunks(talk, max_tokens=6))


def test_several_choices_are_told_apart(talk: Talk) -> None:
    request: dict[str, Any] = {
        "n": 3, "seed": 5, "extra_body": {"structured_outputs": {"regex": "[a-z]{10}"}},
    }  # fmt: skip
    texts = ["", "", ""]
    for chunk in chunks(talk, **request):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    assert texts == [choice.message.content for choice in whole(talk, **request).choices]


def test_logprobs_are_streamed(talk: Talk) -> None:
    request: dict[str, Any] = {
        "logprobs": True, "top_logprobs": 2, "seed": 5,
        "extra_body": {"structured_outputs": {"regex": "[a-z]{10}"}},
    }  # fmt: skip
    entries = [
        entry
        for chunk in chunks(talk, **request)
        for choice in chunk.choices
        if choice.logprobs is not None
        for entry in choice.logprobs.content or ()
    ]
    expected = whole(talk, **request).choices[0].logprobs
    assert expected is not None and expected.content is not None
    assert [entry.token for entry in entries] == [entry.token for entry in expected.content]
    assert [entry.logprob for entry in entries] == pytest.approx(
        [entry.logprob for entry in expected.content], abs=1e-4
    )


def test_the_stream_helper_parses_content(talk: Talk) -> None:
    async def read(client: AsyncOpenAI) -> tuple[list[Any], ParsedChatCompletion[Person]]:
        async with client.chat.completions.stream(
            model=MODEL, messages=USER, response_format=Person, seed=1
        ) as stream:  # fmt: skip
            return [event async for event in stream], await stream.get_final_completion()

    events, final = talk(read)
    done = next(event for event in events if isinstance(event, ContentDoneEvent))
    assert isinstance(done.parsed, Person) and final.choices[0].message.parsed == done.parsed
    is_person(json.loads(done.content))
    assert {"chunk", "content.delta", "content.done"} <= {event.type for event in events}


def test_the_stream_helper_parses_arguments(talk: Talk) -> None:
    async def read(client: AsyncOpenAI) -> ParsedChatCompletion[None]:
        async with client.chat.completions.stream(
            model=MODEL, messages=USER, tools=[pydantic_function_tool(Person)], tool_choice="required",
            parallel_tool_calls=False, seed=1,
        ) as stream:  # fmt: skip
            async for _ in stream:
                pass
            return await stream.get_final_completion()

    call = only(talk(read).choices[0].message.tool_calls)
    assert isinstance(call.function.parsed_arguments, Person)
