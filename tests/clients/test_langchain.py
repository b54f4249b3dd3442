"""LangChain: the three methods of structured output, tools, logprobs, streams."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any, Literal

import anyio
import httpx2
import pytest
from fastapi import FastAPI
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.runnables import Runnable
from langchain_openai import ChatOpenAI
from pydantic import SecretStr

from tests.clients.common import MODEL, PLACE, SCHEMA, Person, T, is_person

PROMPT = "Ada Lovelace died at 36. Who was she?"
Method = Literal["json_schema", "function_calling"]
METHODS: tuple[Method, ...] = ("json_schema", "function_calling")
LETTERS = {"structured_outputs": {"regex": "[a-z]{12}"}}


def run(app: FastAPI, use: Callable[[ChatOpenAI], Awaitable[T]], **options: Any) -> T:
    """What ``use`` makes of a chat model of ``app``, in this process."""

    async def inside() -> T:
        async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), timeout=600) as http:
            return await use(
                ChatOpenAI(
                    model=MODEL, base_url=PLACE, api_key=SecretStr("none"), http_async_client=http, max_retries=0,
                    **{"temperature": 0, **options},
                )
            )  # fmt: skip

    return anyio.run(inside)


def ask(app: FastAPI, make: Callable[[ChatOpenAI], Runnable[Any, Any]], **options: Any) -> Any:
    return run(app, lambda chat: make(chat).ainvoke(PROMPT), **options)


@pytest.mark.parametrize("method", METHODS)
def test_the_output_is_a_person(app: FastAPI, method: Method) -> None:
    output = ask(app, lambda chat: chat.with_structured_output(Person, method=method))
    assert isinstance(output, Person)
    is_person(output.model_dump())
    raw = ask(app, lambda chat: chat.with_structured_output(SCHEMA, method=method, include_raw=True))
    assert raw["parsing_error"] is None
    is_person(raw["parsed"])


def test_json_mode_gives_an_object(app: FastAPI) -> None:
    output = ask(
        app, lambda chat: chat.with_structured_output(None, method="json_mode"),
        max_tokens=60, extra_body={"close_on_length": True},
    )  # fmt: skip
    assert isinstance(output, dict)


# The client dumps a parsed object that it declares to be none.
@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
@pytest.mark.parametrize("method", METHODS)
def test_structured_output_is_streamed(app: FastAPI, method: Method) -> None:
    async def stream(chat: ChatOpenAI) -> list[Any]:
        return [part async for part in chat.with_structured_output(Person, method=method).astream(PROMPT)]

    parts = run(app, stream)
    is_person(parts[-1].model_dump())
    assert parts[-1] == ask(app, lambda chat: chat.with_structured_output(Person, method=method))


def test_tools_are_bound_called_and_answered(app: FastAPI) -> None:
    async def talk(chat: ChatOpenAI) -> tuple[AIMessage, AIMessage]:
        bound = chat.bind_tools([Person], tool_choice="required", parallel_tool_calls=False)
        call = await bound.ainvoke(PROMPT)
        (made,) = call.tool_calls
        result = ToolMessage("noted", tool_call_id=made["id"])
        after = await chat.ainvoke([HumanMessage(PROMPT), call, result], max_tokens=4)
        return call, after

    call, after = run(app, talk)
    assert call.tool_calls[0]["name"] == "Person"
    is_person(call.tool_calls[0]["args"])
    assert after.response_metadata["finish_reason"] in ("length", "stop")


def test_text_and_usage_streamed_and_whole(app: FastAPI) -> None:
    async def both(chat: ChatOpenAI) -> tuple[list[Any], AIMessage]:
        return [chunk async for chunk in chat.astream(PROMPT)], await chat.ainvoke(PROMPT)

    chunks, whole = run(app, both, extra_body=LETTERS, stream_usage=True)
    assert "".join(chunk.text for chunk in chunks) == whole.text and len(whole.text) == 12
    total = sum((chunk.usage_metadata or {"output_tokens": 0})["output_tokens"] for chunk in chunks)
    assert whole.usage_metadata is not None and total == whole.usage_metadata["output_tokens"] == 12


def test_logprobs_come_with_the_answer(app: FastAPI) -> None:
    answer = ask(app, lambda chat: chat.bind(logprobs=True, top_logprobs=2), extra_body=LETTERS)
    entries = answer.response_metadata["logprobs"]["content"]
    assert "".join(entry["token"] for entry in entries) == answer.text
    assert all(len(entry["top_logprobs"]) == 2 for entry in entries)


def test_drafts_change_nothing(app: FastAPI) -> None:
    texts = [
        ask(app, lambda chat: chat, extra_body={"guided_json": SCHEMA, "extra": {"speculation": mode}}).text
        for mode in ("fixed", "off")
    ]
    assert texts[0] == texts[1]
    is_person(json.loads(texts[0]))
