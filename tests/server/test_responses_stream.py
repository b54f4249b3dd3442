"""Events of the Responses API: their order, OpenAI's types, and what OpenAI's client makes of them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import httpx2
import openai
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from constrained_spec.server.plan import Plan
from constrained_spec.server.sse import encode, open_stream
from tests.server.outputs import CALL, answering, output, plan, streamed, tools, whole

EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
CUSTOM_CALL = '<tool_call>\n{"name": "sh", "arguments": {"input": "a\\nb"}}\n</tool_call>'
CASES = [
    pytest.param({}, "Héllo 😀", id="text"),
    pytest.param({}, "", id="nothing"),
    pytest.param({"tools": tools(custom={"sh": None})}, f"Well.{CALL}\n{CUSTOM_CALL}\nDone.", id="calls"),
    pytest.param({"reasoning": True}, "<think>\nhm\n</think>\n\nyes", id="reasoning"),
    pytest.param({"logprobs": True, "top_logprobs": 1}, "Hi", id="logprobs"),
]


def made(**changes: Any) -> Plan:
    raw = {
        "model": "m", "input": "hi", "metadata": {"k": "v"}, "instructions": "be brief", "max_output_tokens": 9,
        "tools": [
            {"type": "function", "name": "f", "parameters": {"type": "object"}},
            {"type": "custom", "name": "sh", "format": {"type": "text"}},
        ],
    }  # fmt: skip
    return plan("responses", raw=raw, **changes)


def kinds(events: Sequence[dict[str, Any]]) -> list[str]:
    """The types in order, repeated deltas once."""
    return [kind.removeprefix("response.") for kind, _ in itertools.groupby(event["type"] for event in events)]


def same_but_ids(item: Any) -> Any:
    if isinstance(item, dict):
        return {k: same_but_ids(v) for k, v in item.items() if k not in ("id", "call_id")}
    return [same_but_ids(v) for v in item] if isinstance(item, list) else item


@pytest.mark.parametrize("size", [1, 3, 100])
@pytest.mark.parametrize(("changes", "text"), CASES)
def test_events_are_numbered_typed_and_end_with_the_answer(changes: dict[str, Any], text: str, size: int) -> None:
    events = streamed(made(**changes), output(text, size=size))
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    for event in events:
        EVENT.validate_python(event)
    answer = whole(made(**changes), output(text))
    Response.model_validate(answer)
    assert events[-1]["type"] == "response.completed"
    assert same_but_ids(events[-1]["response"]) == same_but_ids(answer)
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert done == events[-1]["response"]["output"]


@pytest.mark.parametrize(("changes", "text"), CASES)
def test_deltas_of_an_item_add_up_to_it(changes: dict[str, Any], text: str) -> None:
    events = streamed(made(**changes), output(text, size=1))
    for i, item in enumerate(events[-1]["response"]["output"]):
        own = [event for event in events if event.get("output_index") == i]
        assert own[0]["type"] == "response.output_item.added"
        assert own[-1]["type"] == "response.output_item.done"
        assert own[0]["item"]["id"] == item["id"]
        joined = "".join(event["delta"] for event in own if event["type"].endswith(".delta"))
        final = item["content"][0]["text"] if "content" in item else item.get("arguments", item.get("input"))
        assert joined == final


def test_the_sequence_of_a_text() -> None:
    assert kinds(streamed(made(), output("Hello"))) == [
        "created", "in_progress", "output_item.added", "content_part.added", "output_text.delta", "output_text.done",
        "content_part.done", "output_item.done", "completed",
    ]  # fmt: skip


def test_the_sequence_of_text_and_calls() -> None:
    item = ["output_item.added", "content_part.added", "output_text.delta", "output_text.done", "content_part.done"]
    events = streamed(made(tools=tools(custom={"sh": None})), output(f"Well.{CALL}\n{CUSTOM_CALL}"))
    assert kinds(events) == [
        "created", "in_progress", *item, "output_item.done",
        "output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done",
        # The line break between the calls is text like any other, since text came before.
        *item, "output_item.done",
        "output_item.added", "custom_tool_call_input.delta", "custom_tool_call_input.done", "output_item.done",
        "completed",
    ]  # fmt: skip
    text, call, _, custom = events[-1]["response"]["output"]
    assert text["content"][0]["text"] == "Well."
    assert (call["type"], call["name"], call["arguments"]) == ("function_call", "f", '{"a": "é"}')
    assert (custom["type"], custom["name"], custom["input"]) == ("custom_tool_call", "sh", "a\nb")


def test_reasoning_is_an_item_before_the_message() -> None:
    answer = whole(made(reasoning=True), output("<think>\nhm\n</think>\n\nyes"))
    reasoning, message = answer["output"]
    assert reasoning["content"] == [{"type": "reasoning_text", "text": "hm"}]
    assert message["content"][0]["text"] == "yes"
    assert answer["usage"]["output_tokens_details"]["reasoning_tokens"] == len("<think>\nhm\n</think>")


def test_the_answer_repeats_the_request() -> None:
    answer = whole(made(options={"temperature": 0.0, "top_p": 0.5}), output("Hi"))
    assert (answer["status"], answer["error"], answer["incomplete_details"]) == ("completed", None, None)
    assert (answer["instructions"], answer["metadata"], answer["max_output_tokens"]) == ("be brief", {"k": "v"}, 9)
    assert (answer["temperature"], answer["top_p"], answer["store"]) == (0.0, 0.5, False)
    assert [tool["type"] for tool in answer["tools"]] == ["function", "custom"]
    assert (answer["usage"]["input_tokens"], answer["usage"]["output_tokens"], answer["usage"]["total_tokens"]) == (
        10,
        3,
        13,
    )
    assert answer["usage"]["input_tokens_details"]["cached_tokens"] == 4


def test_an_answer_that_was_cut_off_is_incomplete() -> None:
    events = streamed(made(), output("Hel", reason="length", eos=False))
    assert events[-1]["type"] == "response.incomplete"
    response = Response.model_validate(events[-1]["response"])
    assert response.status == "incomplete"
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"
    assert response.output[0].status == "incomplete"  # type: ignore[union-attr]
    assert response.output_text == "Hel"


def test_a_failure_midway_is_a_failed_response_with_what_there_was() -> None:
    stream = open_stream(answering(made()), 0, 10)
    events = [*stream.start(), *stream.piece(output("Hello")[0][0])]
    events += stream.failed({"error": {"message": "it broke", "type": "server_error", "param": None, "code": "x"}})
    for event in events:
        EVENT.validate_python(event)
    assert events[-1]["type"] == "response.failed"
    assert events[-1]["response"]["error"] == {"code": "server_error", "message": "it broke"}
    assert events[-1]["response"]["output"][0]["content"][0]["text"] == "Hell"


def test_logprobs_go_with_the_text_and_are_all_there_at_the_end() -> None:
    wanted = made(logprobs=True, top_logprobs=1)
    events = streamed(wanted, output("Hé", size=1))
    deltas = [e["logprobs"] for e in events if e["type"] == "response.output_text.delta"]
    assert [entry["token"] for entries in deltas for entry in entries] == ["H", "\ufffd", "\ufffd"]
    part = events[-1]["response"]["output"][0]["content"][0]
    assert [entry["bytes"] for entry in part["logprobs"]] == [[0x48], [0xC3], [0xA9]]
    assert part["logprobs"] == whole(wanted, output("Hé"))["output"][0]["content"][0]["logprobs"]


def test_speculation_figures_are_there_on_request() -> None:
    assert whole(made(return_spec_metrics=True), output("Hi"))["metrics"]["speculative_decoding"]["num_spec_steps"] == 3
    assert "metrics" not in whole(made(), output("Hi"))


@pytest.mark.parametrize(("changes", "text"), CASES)
def test_openais_client_reads_the_stream(changes: dict[str, Any], text: str) -> None:
    events = streamed(made(**changes), output(text, size=2))
    answer = Response.model_validate(events[-1]["response"])

    def handle(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(
            200, headers={"content-type": "text/event-stream"}, content=b"".join(map(encode, events))
        )

    with (
        httpx2.Client(transport=httpx2.MockTransport(handle)) as http,
        openai.OpenAI(api_key="k", base_url="http://test/v1", http_client=http) as client,
        client.responses.stream(model="m", input="hi") as stream,
    ):
        seen = [event.type for event in stream]
        final = stream.get_final_response()
    assert seen[0] == "response.created"
    assert seen[-1] == "response.completed"
    assert final.output_text == answer.output_text
    assert [item.type for item in final.output] == [item.type for item in answer.output]
