"""Answers and streams of a real engine agree with each other, with their schemas, and with OpenAI's client."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletionChunk, ParsedChatCompletion
from openai.types.responses import Response

if TYPE_CHECKING:
    from tests.server.conftest import Api

USER = [{"role": "user", "content": "Go on."}]
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 12}, "days": {"type": "integer"}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
FUNCTION = {"type": "function", "function": {"name": "weather", "parameters": PARAMETERS}}
SEEDS = range(4)


def read(events: list[Any]) -> ParsedChatCompletion[None]:
    assert events[-1] == "[DONE]"
    state: ChatCompletionStreamState[None] = ChatCompletionStreamState()
    for event in events[:-1]:
        state.handle_chunk(ChatCompletionChunk.model_validate(event))
    return state.get_final_completion()


def post(api: Api, path: str, **body: Any) -> Any:
    answer = api.post(path, {"model": "tiny", "max_tokens": 200, **body})
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("choice", ["required", "auto", {"type": "function", "function": {"name": "weather"}}])
def test_calls_are_streamed_as_they_are_answered_and_fit_their_schema(api: Api, choice: Any, seed: int) -> None:
    body = {"messages": USER, "tools": [FUNCTION], "tool_choice": choice, "seed": seed, "parallel_tool_calls": False}
    whole = post(api, "/v1/chat/completions", **body)["choices"][0]
    streamed = read(api.events("/v1/chat/completions", {**body, "model": "tiny", "max_tokens": 200})).choices[0]
    calls = [call["function"] for call in whole["message"].get("tool_calls") or ()]
    again = [call.function for call in streamed.message.tool_calls or ()]
    assert [(c["name"], c["arguments"]) for c in calls] == [(c.name, c.arguments) for c in again]
    assert (whole["message"]["content"] or "") == (streamed.message.content or "")
    assert whole["finish_reason"] == streamed.finish_reason
    if whole["finish_reason"] == "tool_calls":
        jsonschema.validate(json.loads(calls[0]["arguments"]), PARAMETERS)
    if choice != "auto":
        assert calls


@pytest.mark.parametrize("choice", ["required", {"type": "custom", "custom": {"name": "sh"}}])
def test_the_input_of_a_custom_tool_follows_its_grammar(api: Api, choice: Any) -> None:
    grammar = {"type": "grammar", "grammar": {"syntax": "regex", "definition": "[a-c]{3,6}"}}
    tool = {"type": "custom", "custom": {"name": "sh", "format": grammar}}
    body = {"messages": USER, "tools": [tool], "tool_choice": choice, "seed": 1, "parallel_tool_calls": False}
    call = post(api, "/v1/chat/completions", **body)["choices"][0]["message"]["tool_calls"][0]
    assert re.fullmatch("[a-c]{3,6}", call["custom"]["input"])
    events = api.events("/v1/chat/completions", {**body, "model": "tiny", "max_tokens": 200})
    deltas = [event["choices"][0]["delta"] for event in events[:-1]]
    assert (
        "".join(d["tool_calls"][0]["custom"]["input"] for d in deltas if "tool_calls" in d) == call["custom"]["input"]
    )


def test_logprobs_spell_the_content(api: Api) -> None:
    body = {"messages": USER, "logprobs": True, "top_logprobs": 3, "max_tokens": 12, "seed": 5}
    choice = post(api, "/v1/chat/completions", **body)["choices"][0]
    entries = choice["logprobs"]["content"]
    spelt = b"".join(bytes(entry["bytes"] or ()) for entry in entries)
    assert spelt.decode(errors="replace") == choice["message"]["content"]
    assert all(entry["logprob"] <= 0 and len(entry["top_logprobs"]) == 3 for entry in entries)
    streamed = read(api.events("/v1/chat/completions", {**body, "model": "tiny"})).choices[0].logprobs
    assert streamed is not None
    assert [entry.bytes for entry in streamed.content or ()] == [entry["bytes"] for entry in entries]


def test_offsets_of_a_completion_point_at_its_tokens(api: Api) -> None:
    constraint = {"structured_outputs": {"regex": "[a-zé]{20}"}}
    body = {"prompt": "Hé: ", "logprobs": 1, "seed": 2, **constraint}
    choice = post(api, "/v1/completions", **body)["choices"][0]
    for token, offset in zip(choice["logprobs"]["tokens"], choice["logprobs"]["text_offset"], strict=True):
        if not token.startswith(("bytes:", "<")):
            assert choice["text"].startswith(token, offset)


def test_rounds_are_streamed_with_every_token(api: Api) -> None:
    body = {
        "model": "tiny", "messages": USER, "seed": 3, "max_tokens": 20, "structured_outputs": {"regex": "(ab){10}"},
        "return_rounds": True, "return_spec_metrics": True, "stream_options": {"include_usage": True},
    }  # fmt: skip
    *events, done = api.events("/v1/chat/completions", body)
    assert done == "[DONE]"
    tokens = [token for event in events for token in event.get("spec", {}).get("tokens", ())]
    assert len(tokens) == events[-1]["usage"]["completion_tokens"]
    rounds = [event["spec"]["round"] for event in events if "spec" in event]
    assert all(place["legal"] for r in rounds if r for place in r["places"])
    figures = events[-2]["metrics"]["speculative_decoding"]
    drafted = [token for token in tokens if token["origin"] not in ("recovered", "bonus")]
    assert figures["num_accepted_draft_tokens"] == len(drafted)
    assert sum(figures["acceptance_histogram"].values()) == figures["num_spec_steps"]


@pytest.mark.parametrize("seed", SEEDS)
def test_responses_hold_to_their_format_and_stream_the_same(api: Api, seed: int) -> None:
    shape = {"format": {"type": "json_schema", "name": "n", "schema": PARAMETERS}}
    body = {"model": "tiny", "input": "Go on.", "text": shape, "seed": seed, "max_output_tokens": 300}
    answer = api.post("/v1/responses", body)
    assert answer.status_code == 200, answer.text
    response = Response.model_validate(answer.json())
    if response.status == "completed":
        jsonschema.validate(json.loads(response.output_text), PARAMETERS)
    last = api.events("/v1/responses", body)[-1]
    assert last["type"] == f"response.{response.status}"
    assert Response.model_validate(last["response"]).output_text == response.output_text


def test_responses_call_functions(api: Api) -> None:
    tool = {"type": "function", "name": "weather", "parameters": PARAMETERS}
    body = {"model": "tiny", "input": "Go on.", "tools": [tool], "tool_choice": "required", "max_output_tokens": 300}
    answer = api.post("/v1/responses", {**body, "seed": 2, "parallel_tool_calls": False})
    assert answer.status_code == 200, answer.text
    response = Response.model_validate(answer.json())
    call = response.output[0]
    assert call.type == "function_call"
    if response.status == "completed":
        jsonschema.validate(json.loads(call.arguments), PARAMETERS)
        follow: Callable[..., Any] = api.post
        items = [
            {"role": "user", "content": "Go on."},
            call.model_dump(exclude_none=True),
            {"type": "function_call_output", "call_id": call.call_id, "output": "sun"},
        ]
        assert follow("/v1/responses", {"model": "tiny", "input": items, "max_output_tokens": 3}).status_code == 200


def test_an_error_of_the_schema_points_into_the_responses_body(api: Api) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": "("}}}
    answer = api.post("/v1/responses", {"input": "x", "text": {"format": {"type": "json_schema", "schema": schema}}})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"].startswith("/text/format/")
