"""Streams: their order, their end, and errors that come midway."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import anyio
import pytest

from constrained_spec.api import Engine
from constrained_spec.errors import DeadEndError
from constrained_spec.server import streaming
from constrained_spec.server.streaming import EventStream, Write

ASK = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 24, "temperature": 1, "seed": 7}


def _text(chunks: list[Any], index: int = 0) -> str:
    return "".join(
        choice["delta"].get("content") or "" for c in chunks[:-1] for choice in c["choices"] if choice["index"] == index
    )


def test_a_stream_says_what_the_whole_answer_says(api: Any) -> None:
    whole = api.post("/v1/chat/completions", ASK).json()["choices"][0]
    chunks = api.events("/v1/chat/completions", ASK)
    assert chunks[-1] == "[DONE]"
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert _text(chunks) == whole["message"]["content"]
    last = chunks[-2]["choices"][0]
    assert last["delta"] == {} and last["finish_reason"] == whole["finish_reason"]
    assert len({c["id"] for c in chunks[:-1]}) == 1
    assert all("usage" not in c for c in chunks[:-1])


def test_usage_comes_only_when_asked_for(api: Any) -> None:
    ask = {**ASK, "stream_options": {"include_usage": True}}
    chunks = api.events("/v1/chat/completions", ask)
    assert all(c["usage"] is None for c in chunks[:-2])
    assert chunks[-2]["choices"] == []
    whole = api.post("/v1/chat/completions", ASK).json()["usage"]
    assert chunks[-2]["usage"]["completion_tokens"] == whole["completion_tokens"]


def test_choices_come_interleaved_and_whole(api: Any) -> None:
    ask = {**ASK, "n": 3, "max_tokens": 40}
    whole = api.post("/v1/chat/completions", ask).json()["choices"]
    chunks = api.events("/v1/chat/completions", ask)
    assert [c["choices"][0]["index"] for c in chunks[:3]] == [0, 1, 2]
    assert [_text(chunks, i) for i in range(3)] == [c["message"]["content"] for c in whole]
    order = [c["choices"][0]["index"] for c in chunks[3:-1]]
    assert order != sorted(order), "one after another is no interleaving"


def test_prompts_and_choices_number_as_in_openais_api(api: Any) -> None:
    ask = {"prompt": ["one", "two"], "n": 2, "max_tokens": 4, "seed": 1, "temperature": 1}
    whole = api.post("/v1/completions", ask).json()["choices"]
    chunks = api.events("/v1/completions", ask)
    texts = ["", "", "", ""]
    for chunk in chunks[:-1]:
        for choice in chunk["choices"]:
            texts[choice["index"]] += choice["text"]
    assert texts == [c["text"] for c in whole]


def test_headers_keep_proxies_from_holding_events_back(api: Any) -> None:
    headers = api.post("/v1/chat/completions", {**ASK, "stream": True}).headers
    assert headers["content-type"].startswith("text/event-stream")
    assert headers["cache-control"] == "no-cache"
    assert headers["x-accel-buffering"] == "no"
    assert "content-length" not in headers
    assert headers["x-request-id"]


def test_what_is_wrong_before_the_first_event_is_a_plain_error(api: Any) -> None:
    answer = api.post("/v1/chat/completions", {**ASK, "temperature": -1, "stream": True})
    assert answer.status_code == 400
    assert answer.headers["content-type"] == "application/json"


def test_an_error_midway_is_an_event(make_api: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    api = make_api()
    service = api.app.state.service
    follow = service.follow

    async def broken(job: Any, index: int) -> Any:
        count = 0
        async for piece in follow(job, index):
            yield piece
            count += 1
            if index == 1 and count == 2:
                raise DeadEndError("no token is left")

    monkeypatch.setattr(service, "follow", broken)
    chunks = api.events("/v1/chat/completions", {**ASK, "n": 2})
    assert chunks[-1] == "[DONE]"
    assert chunks[-2] == {
        "error": {"message": "no token is left", "type": "invalid_request_error", "param": None, "code": "dead_end"}
    }


def test_a_failure_midway_does_not_tell_what_failed(
    make_api: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    api = make_api()

    async def broken(job: Any, index: int) -> Any:
        raise RuntimeError("secret")
        yield

    monkeypatch.setattr(api.app.state.service, "follow", broken)
    answer = api.post("/v1/chat/completions", {**ASK, "stream": True})
    assert "secret" not in answer.text
    assert '"code":"internal_error"' in answer.text and answer.text.endswith("data: [DONE]\n\n")


def test_a_deadline_ends_a_stream_with_an_event(api: Any, server_engine: Engine) -> None:
    ask = {**ASK, "max_tokens": 1900, "ignore_eos": True, "timeout": 0.05}
    chunks = api.events("/v1/chat/completions", ask)
    assert chunks[-2]["error"]["code"] == "timeout"
    assert api.post("/v1/chat/completions", ask).status_code == 408


def test_a_comment_keeps_an_idle_stream_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "PING_SECONDS", 0.01)
    sent: list[bytes] = []

    async def produce(write: Write) -> None:
        while b": ping\n\n" not in sent:
            await anyio.sleep(0.01)
        await write(b"data: end\n\n")

    async def receive() -> dict[str, Any]:
        await anyio.sleep_forever()
        raise AssertionError

    async def send(message: Any) -> None:
        sent.append(message.get("body", b""))

    anyio.run(EventStream(produce), {"type": "http"}, receive, send)
    assert sent[-2:] == [b"data: end\n\n", b""]


def test_llama_cpps_stream_ends_with_stop(api: Any) -> None:
    answer = api.post("/completion", {"prompt": "one", "n_predict": 6, "temperature": 0, "stream": True})
    events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: ")]
    assert events[-1]["stop"] is True
    assert all(event["stop"] is False for event in events[:-1])
