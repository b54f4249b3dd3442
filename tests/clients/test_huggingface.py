"""huggingface_hub's clients, which rewrite a JSON Schema to a form of their own, and `transformers chat` on top."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from huggingface_hub import (
    AsyncInferenceClient,
    ChatCompletionInputTool,
    ChatCompletionInputToolChoiceClass,
    InferenceClient,
)
from huggingface_hub.errors import BadRequestError
from transformers import GenerationConfig

from tests.clients.common import MODEL, SCHEMA, TOOL, is_person, only

MESSAGES = [{"role": "user", "content": "Ada Lovelace died at 36. Who was she?"}]
SHAPE: Any = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA}}


@pytest.fixture(scope="module")
def client(url: str) -> InferenceClient:
    return InferenceClient(base_url=f"{url}/v1")


def test_a_schema_without_a_model_name(client: InferenceClient) -> None:
    answer = client.chat_completion(MESSAGES, response_format=SHAPE, seed=1, temperature=1)
    assert answer.model == MODEL
    is_person(json.loads(answer.choices[0].message.content or ""))
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_the_stream_is_the_same(client: InferenceClient) -> None:
    options: dict[str, Any] = {"model": MODEL, "response_format": SHAPE, "temperature": 0}
    whole = client.chat_completion(MESSAGES, **options).choices[0].message.content
    chunks = list(client.chat_completion(MESSAGES, stream=True, **options))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole
    assert chunks[-1].choices[0].finish_reason == "stop"


def test_tools(client: InferenceClient) -> None:
    tool = ChatCompletionInputTool.parse_obj_as_instance(dict(TOOL))
    # The client's own type of this choice has no member "type".
    choice = ChatCompletionInputToolChoiceClass.parse_obj_as_instance({"function": {"name": "person"}})
    answer = client.chat_completion(MESSAGES, tools=[tool], tool_choice=choice)
    is_person(json.loads(only(answer.choices[0].message.tool_calls).function.arguments))


def test_logprobs_and_stop(client: InferenceClient) -> None:
    answer = client.chat_completion(
        MESSAGES, logprobs=True, top_logprobs=2, stop=["-"], extra_body={"structured_outputs": {"regex": "[a-c]{4}-"}}
    )
    choice = answer.choices[0]
    assert len(choice.message.content or "") == 4 and choice.logprobs is not None
    assert all(len(entry.top_logprobs) == 2 for entry in choice.logprobs.content)


def test_what_is_refused_is_named(client: InferenceClient) -> None:
    with pytest.raises(BadRequestError, match="/structured_outputs/regex"):
        client.chat_completion(MESSAGES, extra_body={"structured_outputs": {"regex": "a("}})


def test_the_request_of_transformers_chat(url: str) -> None:
    config = GenerationConfig(do_sample=True, max_new_tokens=6, temperature=0.9, top_k=20)

    async def chat() -> list[Any]:
        async with AsyncInferenceClient(base_url=f"{url}/v1") as client:
            stream = await client.chat_completion(
                MESSAGES, stream=True, model=MODEL,
                extra_body={"generation_config": config.to_json_string(), "model": MODEL},
            )  # fmt: skip
            return [chunk async for chunk in stream]

    chunks = anyio.run(chat)
    assert chunks[-1].choices[0].finish_reason in ("length", "stop")
    assert sum(len(chunk.choices[0].delta.content or "") for chunk in chunks) <= 6


def test_no_other_model_is_loaded(url: str) -> None:
    answer = httpx2.post(f"{url}/load_model", json={"model": "another"})
    assert answer.status_code == 404 and answer.json()["error"]["param"] == "/model"


@pytest.mark.model
def test_a_conversation_of_transformers_chat(smollm2_url: str) -> None:
    """The command itself, which probes the server before it asks."""
    command = [str(Path(sys.executable).with_name("transformers")), "chat", "smollm2-135m", f"{smollm2_url}/v1"]
    ran = subprocess.run(
        [*command, "max_new_tokens=24", "do_sample=False"],
        input="Say hello.\nn\n!exit\n", capture_output=True, text=True, check=False,
        env={**os.environ, "HF_HUB_OFFLINE": "0"},
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert "smollm2-135m was already loaded" in ran.stdout
