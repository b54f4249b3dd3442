"""Many streams at once, a third of them left midway: the others get all they would get alone, and nothing leaks."""

from __future__ import annotations

import asyncio
import gc
import json
import random
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import anyio
import jsonschema
import pytest

from constrained_spec.api import Engine, Ticket
from tests.server.visitor import HANG, Visitor, until

SCHEMA = {
    "type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "boolean"}}, "required": ["a", "b"],
    "additionalProperties": False,
}  # fmt: skip
TOOL = {"type": "function", "function": {"name": "look", "parameters": SCHEMA}}
PREFIX = "A beginning that many of these requests have in common, so that slots are reused. "
SLOTS = 8


def _body(number: int) -> dict[str, Any]:
    """Request ``number``: chat under one of six kinds of constraint, sampled with a seed of its own."""
    text = f"{PREFIX if number % 2 else ''}Request {number}."
    body: dict[str, Any] = {
        "messages": [{"role": "user", "content": text}], "max_tokens": 60 + number % 40, "temperature": 1,
        "seed": number, "stream": True, "stream_options": {"include_usage": True},
    }  # fmt: skip
    constraints: tuple[Mapping[str, Any], ...] = (
        {},
        {"structured_outputs": {"regex": "[a-z]{20,50} [0-9]{4}"}},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}},
        {"structured_outputs": {"choice": ["yes, certainly", "no, never", "perhaps"]}},
        {"tools": [TOOL], "tool_choice": "required"},
        {"prediction": {"type": "content", "content": "one two three"}, "stop": ["zz"], "n": 2},
    )
    return body | dict(constraints[number % len(constraints)])


def _holds(number: int, chunks: list[Any]) -> None:
    """What was streamed is what request ``number`` asked for."""
    kind = number % 6
    ends = [c["choices"][0]["finish_reason"] for c in chunks if c["choices"] and c["choices"][0]["finish_reason"]]
    deltas = [c["choices"][0]["delta"] for c in chunks if c["choices"]]
    if kind == 4:
        text = "".join(c["function"].get("arguments", "") for d in deltas for c in d.get("tool_calls") or ())
    else:
        text = "".join(d.get("content") or "" for d in deltas)
    if ends[0] == "length":
        return
    if kind == 1:
        assert re.fullmatch("[a-z]{20,50} [0-9]{4}", text)
    elif kind == 3:
        assert text in ("yes, certainly", "no, never", "perhaps")
    elif kind in (2, 4):
        jsonschema.validate(json.loads(text), SCHEMA)


@pytest.fixture(scope="module")
def engine(make_model: Callable[[int], Any]) -> Iterator[Engine]:
    engine = Engine(make_model(SLOTS), queue=1000, prefix_reuse=True, speculation="auto")
    yield engine
    engine.close(drain=False)


@pytest.fixture(scope="module")
def app(make_api: Callable[..., Any], engine: Engine) -> Any:
    return make_api(engine, slots=SLOTS, queue=1000).app


def test_sixty_streams(app: Any, engine: Engine) -> None:
    _load(app, engine, 60)


@pytest.mark.full
def test_two_hundred_streams(app: Any, engine: Engine) -> None:
    _load(app, engine, 200)


def _load(app: Any, engine: Engine, count: int) -> None:
    rng = random.Random(count)
    leaving = set(rng.sample(range(count), count * 3 // 10))
    before, held = engine.snapshot(), _tickets()

    async def run() -> list[Visitor]:
        visitors = [
            Visitor(app, "/v1/chat/completions", _body(i), leave_after=rng.randrange(1, 12) if i in leaving else None)
            for i in range(count)
        ]
        with anyio.fail_after(HANG):
            async with anyio.create_task_group() as group:
                for visitor in visitors:
                    group.start_soon(visitor.run)
        await until(lambda: engine.snapshot().running + engine.snapshot().waiting == 0)
        assert len(asyncio.all_tasks()) == 1
        return visitors

    visitors = anyio.run(run)
    after = engine.snapshot()
    assert after.free_slots == after.slots == SLOTS
    assert after.kv_tokens == 0
    assert engine.health().restarts == 0 and "error" not in after.finished
    prompts = completions = 0
    for i, visitor in enumerate(visitors):
        assert visitor.status == 200
        if i not in leaving:
            used = _whole(i, visitor)
            prompts, completions = prompts + used["prompt_tokens"], completions + used["completion_tokens"]
    ended = sum(after.finished.values()) - sum(before.finished.values())
    assert ended == count + sum(i % 6 == 5 for i in range(count))  # every output, n counted, ended once
    assert after.finished.get("cancelled", 0) > before.finished.get("cancelled", 0)
    assert after.completion_tokens - before.completion_tokens >= completions
    assert _tickets() <= held


def _tickets() -> set[int]:
    """All that anything still holds."""
    gc.collect()
    return {id(one) for one in gc.get_objects() if type(one) is Ticket}


def _whole(number: int, visitor: Visitor) -> dict[str, int]:
    """The usage of an answer that was heard to its end: what was streamed, no more and no less."""
    events = visitor.events
    assert events[-1] == "[DONE]"
    chunks, last = events[:-1], events[-2]
    outputs = 2 if number % 6 == 5 else 1
    assert sum(bool(c["choices"] and c["choices"][0]["finish_reason"]) for c in chunks) == outputs
    assert last["choices"] == [] and all(c.get("usage") is None for c in chunks[:-1])
    usage: dict[str, int] = last["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert 0 < usage["completion_tokens"] <= outputs * (60 + number % 40)
    _holds(number, chunks)
    return usage


def test_the_usage_under_load_is_that_of_a_request_alone(app: Any, engine: Engine) -> None:
    """Text and completion tokens of some requests, alone and among others that leave."""
    some = [0, 1, 2, 5]

    async def alone(number: int) -> Visitor:
        visitor = Visitor(app, "/v1/chat/completions", _body(number))
        await visitor.run()
        return visitor

    async def together() -> list[Visitor]:
        staying = [Visitor(app, "/v1/chat/completions", _body(i)) for i in some]
        leaving = [Visitor(app, "/v1/chat/completions", _body(100 + i), leave_after=3) for i in range(12)]
        with anyio.fail_after(HANG):
            async with anyio.create_task_group() as group:
                for visitor in [*leaving[:6], *staying, *leaving[6:]]:
                    group.start_soon(visitor.run)
        return staying

    crowd = anyio.run(together)
    for number, visitor in zip(some, crowd, strict=True):
        single = anyio.run(alone, number)
        assert _said(single) == _said(visitor)
        assert single.events[-2]["usage"]["completion_tokens"] == visitor.events[-2]["usage"]["completion_tokens"]


def _said(visitor: Visitor) -> dict[int, str]:
    texts: dict[int, str] = {}
    for chunk in visitor.events[:-1]:
        for choice in chunk["choices"]:
            texts[choice["index"]] = texts.get(choice["index"], "") + (choice["delta"].get("content") or "")
    return texts
