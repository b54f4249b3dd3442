"""pydantic-ai: the three ways to structured output, function tools, streams, predictions."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict
from pydantic_ai import Agent, NativeOutput, PromptedOutput, Tool
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIChatModelSettings
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.settings import ModelSettings

from tests.clients.common import MODEL, Person, T, in_process, is_person

PROMPT = "Ada Lovelace died at 36. Who was she?"
OUTPUTS: dict[str, Any] = {"tool": Person, "native": NativeOutput(Person), "strict": NativeOutput(Person, strict=True)}
# A call of one tool, and any JSON object, may go on for ever.
ONE_CALL: ModelSettings = {"parallel_tool_calls": False, "temperature": 0, "max_tokens": 200}
SHORT: ModelSettings = {"max_tokens": 60, "extra_body": {"close_on_length": True}}


class Anything(BaseModel):
    """Any JSON object: all that a prompt can hold a model of noise to."""

    model_config = ConfigDict(extra="allow")


@asynccontextmanager
async def reach(app: FastAPI) -> AsyncIterator[OpenAIChatModel]:
    async with in_process(app) as client:
        yield OpenAIChatModel(MODEL, provider=OpenAIProvider(openai_client=client))


def run(app: FastAPI, use: Callable[[OpenAIChatModel], Awaitable[T]]) -> T:
    async def inside() -> T:
        async with reach(app) as model:
            return await use(model)

    return anyio.run(inside)


def agent(**options: Any) -> Agent[Any, Any]:
    return Agent(retries=0, **options)


@pytest.mark.parametrize("kind", OUTPUTS)
def test_the_output_is_a_person(app: FastAPI, kind: str) -> None:
    asked = agent(output_type=OUTPUTS[kind])
    result = run(app, lambda model: asked.run(PROMPT, model=model, model_settings=ONE_CALL))
    assert isinstance(result.output, Person)
    if kind != "strict":  # there the client moves the limits of the schema into its descriptions
        is_person(result.output.model_dump())
    assert result.usage.output_tokens > 0 and result.usage.requests == 1


@pytest.mark.parametrize("kind", ["tool", "native"])
def test_the_streamed_output_is_the_same(app: FastAPI, kind: str) -> None:
    asked = agent(output_type=OUTPUTS[kind])

    async def stream(model: OpenAIChatModel) -> tuple[list[Any], Any, int]:
        async with asked.run_stream(PROMPT, model=model, model_settings=ONE_CALL) as answer:
            partial = [part async for part in answer.stream_output(debounce_by=None)]
            return partial, await answer.get_output(), answer.usage.output_tokens

    partial, final, tokens = run(app, stream)
    is_person(final.model_dump())
    assert partial[-1] == final
    whole = run(app, lambda model: asked.run(PROMPT, model=model, model_settings=ONE_CALL))
    assert whole.output == final and whole.usage.output_tokens == tokens


def test_prompted_output_is_a_json_object(app: FastAPI) -> None:
    asked = agent(output_type=PromptedOutput(Anything))
    result = run(app, lambda model: asked.run(PROMPT, model=model, model_settings=SHORT))
    assert isinstance(result.output, Anything)


def test_plain_text_is_streamed_in_pieces(app: FastAPI) -> None:
    settings: ModelSettings = {"temperature": 0, "extra_body": {"structured_outputs": {"regex": "[a-z]{12}"}}}

    async def stream(model: OpenAIChatModel) -> list[str]:
        async with agent().run_stream(PROMPT, model=model, model_settings=settings) as answer:
            return [piece async for piece in answer.stream_text(delta=True, debounce_by=None)]

    pieces = run(app, stream)
    assert len(pieces) > 1
    whole = run(app, lambda model: agent().run(PROMPT, model=model, model_settings=settings))
    assert "".join(pieces) == whole.output


def test_a_function_tool_is_called_with_valid_arguments(app: FastAPI) -> None:
    noted: list[Person] = []

    def note(person: Person) -> str:
        """Note a person."""
        noted.append(person)
        return "noted"

    asked = agent(output_type=Person, tools=[Tool(note)])

    async def steps(model: OpenAIChatModel) -> None:
        """Until the model gives its answer, which a model of noise may not do in time."""
        async with asked.iter(PROMPT, model=model, model_settings={**ONE_CALL, "temperature": 1, "seed": 3}) as nodes:
            for _ in range(8):
                try:
                    await anext(nodes)
                except StopAsyncIteration:
                    break

    run(app, steps)
    for person in noted:
        is_person(person.model_dump())
    assert noted


def test_a_prediction_is_counted(app: FastAPI) -> None:
    asked = agent(output_type=NativeOutput(Person))
    settings = OpenAIChatModelSettings(temperature=0, max_tokens=80)
    plain = run(app, lambda model: asked.run(PROMPT, model=model, model_settings=settings))
    text = plain.response.text
    assert text is not None
    predicting = OpenAIChatModelSettings(
        temperature=0, max_tokens=80, openai_prediction={"type": "content", "content": text}
    )
    result = run(app, lambda model: asked.run(PROMPT, model=model, model_settings=predicting))
    assert result.output == plain.output
    assert result.usage.details["accepted_prediction_tokens"] > 0
    assert result.usage.details.get("rejected_prediction_tokens", 0) == 0
