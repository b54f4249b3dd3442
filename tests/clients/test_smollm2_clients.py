"""Every client a few times with the real model, over loopback, synchronous where the client can be."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import anyio
import outlines
import pytest
from huggingface_hub import InferenceClient
from langchain_openai import ChatOpenAI
from openai import AsyncOpenAI, OpenAI
from openai.types.chat import ChatCompletionMessageParam
from pydantic import SecretStr
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.settings import ModelSettings

from constrained_spec.api import Engine
from tests.clients.common import SCHEMA, TOOL, Person, is_person, only

pytestmark = pytest.mark.model

MODEL = "smollm2-135m"
PROMPT = "Ada Lovelace died at 36. Extract her first name and her age as JSON."
MESSAGES: list[ChatCompletionMessageParam] = [{"role": "user", "content": PROMPT}]
SHAPE: Any = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA}}
MODES = ("fixed", "auto", "off")


@pytest.fixture(scope="module")
def client(smollm2_url: str) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{smollm2_url}/v1", api_key="none", max_retries=0, timeout=600) as made:
        yield made


@pytest.mark.parametrize(
    "constraint", [{"guided_json": SCHEMA}, {"guided_regex": "[A-Z][a-z]{2,9} is [0-9]{2}"}, {}],
    ids=["schema", "regex", "free"],
)  # fmt: skip
def test_drafts_change_nothing(client: OpenAI, constraint: dict[str, Any]) -> None:
    answers = [
        client.chat.completions.create(
            model=MODEL, messages=MESSAGES, temperature=0, max_tokens=40,
            extra_body={**constraint, "extra": {"speculation": mode}},
        )
        for mode in MODES
    ]  # fmt: skip
    texts = {answer.choices[0].message.content for answer in answers}
    assert len(texts) == 1
    assert len({answer.usage.completion_tokens for answer in answers if answer.usage}) == 1
    text = texts.pop() or ""
    if "guided_json" in constraint:
        is_person(json.loads(text))
    elif constraint:
        assert re.fullmatch("[A-Z][a-z]{2,9} is [0-9]{2}", text)


def test_usage_is_exact(client: OpenAI, smollm2: Engine) -> None:
    answer = client.chat.completions.create(
        model=MODEL, messages=MESSAGES, temperature=0, max_tokens=24, logprobs=True, extra_body={"ignore_eos": True}
    )
    usage, logprobs = answer.usage, answer.choices[0].logprobs
    assert usage is not None and logprobs is not None and logprobs.content is not None
    assert usage.prompt_tokens == len(smollm2.encode(MESSAGES))
    assert usage.completion_tokens == len(logprobs.content) == 24
    spelt = b"".join(bytes(entry.bytes or ()) for entry in logprobs.content)
    assert spelt.decode() == answer.choices[0].message.content


def test_a_call_is_parsed(client: OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL, messages=MESSAGES, tools=[TOOL], tool_choice="required", parallel_tool_calls=False,
        temperature=0, max_tokens=80,
    )  # fmt: skip
    call = only(answer.choices[0].message.tool_calls)
    assert call.type == "function"
    is_person(json.loads(call.function.arguments))


def test_a_right_prediction_is_taken(client: OpenAI) -> None:
    options: dict[str, Any] = {"model": MODEL, "messages": MESSAGES, "temperature": 0, "max_tokens": 40}
    plain = client.chat.completions.create(**options).choices[0].message.content
    assert plain
    answer = client.chat.completions.create(**options, prediction={"type": "content", "content": plain})
    assert answer.choices[0].message.content == plain
    assert answer.usage.completion_tokens_details.accepted_prediction_tokens > 20


def test_a_stream_and_a_response(client: OpenAI) -> None:
    with client.chat.completions.stream(
        model=MODEL, messages=MESSAGES, response_format=Person, temperature=0, max_tokens=60
    ) as stream:
        final = stream.get_final_completion()
    is_person(json.loads(final.choices[0].message.content or ""))
    parsed = client.responses.parse(model=MODEL, input=PROMPT, text_format=Person, temperature=0, max_output_tokens=60)
    is_person(json.loads(parsed.output_text))


def test_langchain(smollm2_url: str) -> None:
    chat = ChatOpenAI(
        model=MODEL, base_url=f"{smollm2_url}/v1", api_key=SecretStr("none"), max_retries=0, temperature=0
    )
    for method in ("json_schema", "function_calling"):
        output = chat.with_structured_output(Person, method=method).invoke(PROMPT, max_tokens=80)
        assert isinstance(output, Person)
        is_person(output.model_dump())
    assert "".join(chunk.text for chunk in chat.stream(PROMPT, max_tokens=8)) == chat.invoke(PROMPT, max_tokens=8).text


def test_pydantic_ai(smollm2_url: str) -> None:
    settings: ModelSettings = {"temperature": 0, "max_tokens": 80, "parallel_tool_calls": False}

    async def ask(output_type: Any) -> Any:
        async with AsyncOpenAI(base_url=f"{smollm2_url}/v1", api_key="none", max_retries=0, timeout=600) as client:
            model = OpenAIChatModel(MODEL, provider=OpenAIProvider(openai_client=client))
            agent: Agent[object, Any] = Agent(model, output_type=output_type, retries=0)
            return (await agent.run(PROMPT, model_settings=settings)).output

    for output_type in (Person, NativeOutput(Person)):
        is_person(anyio.run(ask, output_type).model_dump())


def test_outlines(client: OpenAI) -> None:
    for connect in (outlines.from_vllm, outlines.from_sglang, outlines.from_openai):
        model: Any = connect(client, MODEL)
        is_person(json.loads(model(PROMPT, Person, temperature=0, max_tokens=80)))


def test_huggingface(smollm2_url: str) -> None:
    client = InferenceClient(base_url=f"{smollm2_url}/v1", timeout=600)
    answer = client.chat_completion(MESSAGES, response_format=SHAPE, temperature=0, max_tokens=80)  # type: ignore[arg-type]
    is_person(json.loads(answer.choices[0].message.content or ""))
