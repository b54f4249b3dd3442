"""Whole answers, as JSON: ``answer`` picks the shape that the plan's endpoint has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from constrained_spec.api.result import Result
from constrained_spec.server.answers_completions import completion_answer
from constrained_spec.server.answers_llama import llama_answer
from constrained_spec.server.events import (
    ContentDelta,
    Delta,
    ReasoningDelta,
    ToolArguments,
    ToolStart,
    markers,
    splitter_of,
)
from constrained_spec.server.reasoning import MarkedText
from constrained_spec.server.responses_events import responses_answer
from constrained_spec.server.shapes import Answering, Finished, Json, law, spec_metrics


def answer(a: Answering, outputs: Sequence[Finished]) -> Json:
    """The body of the answer to ``a.plan``. ``outputs`` has one entry per output, in order of their index."""
    if a.plan.kind == "completion":
        return completion_answer(a, outputs)
    if a.plan.kind == "responses":
        return responses_answer(a, outputs[0])
    if a.plan.kind in ("llama", "infill"):
        return llama_answer(a, outputs[0])
    return chat_answer(a, outputs)


def chat_answer(a: Answering, outputs: Sequence[Finished]) -> Json:
    """A ``chat.completion`` object. ``/v1/fim/completions`` answers in the same shape."""
    results = [output.result for output in outputs]
    body: Json = {
        "id": a.id,
        "object": "chat.completion",
        "created": a.created,
        "model": a.plan.model,
        "system_fingerprint": a.fingerprint,
        "choices": [_choice(a, output) for output in outputs],
        "usage": a.usage(results),
    }
    if a.plan.return_spec_metrics:
        body["metrics"] = spec_metrics(results)
    return body


def finish_reason(result: Result[Any], calls: int) -> str:
    """OpenAI's reason: an output that ended with calls is to be answered by them; one that was cut off was cut off."""
    return "tool_calls" if calls and result.finish_reason == "stop" else result.finish_reason


def _choice(a: Answering, output: Finished) -> Json:
    result = output.result
    splitter = splitter_of(a.plan, a.facts)
    text = MarkedText(a.vocabulary, markers(a.plan, a.facts)).take(result)
    message = chat_message([*splitter.feed(text), *splitter.finish()])
    choice: Json = {
        "index": output.index,
        "message": message,
        "logprobs": a.logprobs(result.logprobs, result),
        "finish_reason": finish_reason(result, splitter.calls),
        **law(result),
    }
    if a.plan.return_rounds:
        choice["spec"] = a.rounds(output.pieces)
    return choice


def chat_message(deltas: Sequence[Delta]) -> Json:
    """The message that ``deltas`` add up to. Its content is null where there are only calls or only reasoning."""
    content = reasoning = ""
    calls: list[Json] = []
    for delta in deltas:
        if isinstance(delta, ContentDelta):
            content += delta.text
        elif isinstance(delta, ReasoningDelta):
            reasoning += delta.text
        elif isinstance(delta, ToolStart):
            calls.append(call_start(delta))
        else:
            _more(calls[delta.index], delta)
    message: Json = {"role": "assistant", "content": content or (None if calls or reasoning else ""), "refusal": None}
    if reasoning:
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = calls
    return message


def call_start(start: ToolStart) -> Json:
    """A call without arguments yet."""
    if start.kind == "custom":
        return {"id": start.id, "type": "custom", "custom": {"name": start.name, "input": ""}}
    return {"id": start.id, "type": "function", "function": {"name": start.name, "arguments": ""}}


def _more(call: Json, delta: ToolArguments) -> None:
    if call["type"] == "custom":
        call["custom"]["input"] += delta.text
    else:
        call["function"]["arguments"] += delta.text
