"""openai-python: what its exceptions say."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import anyio
import openai
import pytest
from fastapi import FastAPI
from openai import AsyncOpenAI
from pydantic import SecretStr

from constrained_spec.api import Engine
from tests.clients.common import MODEL, USER, Talk, in_process
from tests.server.conftest import tiny_model

BAD_SCHEMA = {"type": "object", "properties": {"x": {"not": {"multipleOf": 3}, "type": "integer"}}}
REFUSED: Mapping[str, tuple[dict[str, Any], str, str]] = {
    "unknown field": ({"extra_body": {"temprature": 1}}, "/temprature", "unknown_field"),
    "range": ({"temperature": -1}, "/temperature", "invalid_value"),
    "stop": ({"stop": ["x"] * 17}, "/stop", "limit_exceeded"),
    "image": (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
        "/messages/0/content/0/type",
        "unsupported_value",
    ),
    "tool": ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "/tool_choice/function/name", "invalid"),
    "two constraints": (
        {"extra_body": {"guided_regex": "a", "structured_outputs": {"choice": ["b"]}}},
        "/guided_regex",
        "conflicting_constraints",
    ),
    "schema": (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": BAD_SCHEMA}}},
        "/response_format/json_schema/schema/properties/x/not/multipleOf",
        "unsupported_schema",
    ),
    "regex": ({"extra_body": {"structured_outputs": {"regex": "a("}}}, "/structured_outputs/regex", "invalid"),
    "empty language": (
        {"extra_body": {"guided_json": {"type": "integer", "minimum": 3, "maximum": 2}}},
        "/guided_json",
        "unsatisfiable",
    ),
    "prompt": ({"messages": [{"role": "user", "content": "x" * 3000}]}, "/messages", ""),
}


async def ask(client: AsyncOpenAI, **options: Any) -> Any:
    return await client.chat.completions.create(**{"model": MODEL, "messages": USER, "max_tokens": 8, **options})


@pytest.mark.parametrize("name", REFUSED)
def test_a_refused_request_says_where(talk: Talk, name: str) -> None:
    options, param, code = REFUSED[name]
    with pytest.raises(openai.BadRequestError) as caught:
        talk(lambda c: ask(c, **options))
    error = caught.value
    assert error.param == param and code in (error.code or "")
    assert error.type == "invalid_request_error" and error.request_id


def test_another_model_is_not_found(talk: Talk) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        talk(lambda c: ask(c, model="gpt-5"))
    assert caught.value.code == "model_not_found" and caught.value.param == "/model"


def test_a_wrong_key_is_refused(make_app: Callable[..., FastAPI], tiny: Engine) -> None:
    app = make_app(tiny, api_key=(SecretStr("right"),))
    with pytest.raises(openai.AuthenticationError):
        Talk(app, "wrong")(ask)
    assert Talk(app, "right")(ask).choices


def test_a_full_server_says_when_to_come_again(make_app: Callable[..., FastAPI]) -> None:
    engine = Engine(tiny_model(slots=1), queue=0)
    app = make_app(engine, queue=0, slots=1)

    async def crowd() -> None:
        async with in_process(app) as client, anyio.create_task_group() as group:
            group.start_soon(lambda: ask(client, max_tokens=1500, extra_body={"ignore_eos": True}))
            while engine.snapshot().running == 0:
                await anyio.sleep(0.001)
            with pytest.raises(openai.RateLimitError) as caught:
                await ask(client)
            group.cancel_scope.cancel()
        assert int(caught.value.response.headers["retry-after"]) >= 1 and caught.value.code

    try:
        anyio.run(crowd)
    finally:
        engine.close(drain=False)


def test_the_answer_carries_its_request_id(talk: Talk) -> None:
    async def raw(client: AsyncOpenAI) -> tuple[Any, Any]:
        response = await client.chat.completions.with_raw_response.create(
            model=MODEL, messages=USER, max_tokens=2, extra_headers={"x-request-id": "mine-1"}
        )
        return response.headers["x-request-id"], response.parse()

    identity, answer = talk(raw)
    assert identity == "mine-1" and answer._request_id == "mine-1"
