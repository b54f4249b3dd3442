"""Damaged requests: each is answered, none fails here, and those beside them get what they always get."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import anyio
import httpx2
import pytest

from constrained_spec.api import Engine
from tests.server.conftest import BASE, parse_events
from tests.server.mutations import PATHS, Damaged, corpus, damaged

REFUSALS = {400, 404, 408, 413, 415, 429}
PROBE = {
    "messages": [{"role": "user", "content": "Count."}], "max_tokens": 12, "temperature": 1, "seed": 5,
    "ignore_eos": True, "structured_outputs": {"regex": "[a-z ]{40}"},
}  # fmt: skip
AT_ONCE = 5
HANG = 120  # seconds after which a batch counts as hanging


@pytest.fixture(scope="module")
def engine(make_model: Callable[[int], Any]) -> Iterator[Engine]:
    engine = Engine(make_model(4), queue=64, prefix_reuse=True, history_bytes=1 << 20)
    yield engine
    engine.close(drain=False)


def test_the_damage_is_varied() -> None:
    bodies = corpus()
    made = [damaged(i, bodies) for i in range(300)]
    assert made == [damaged(i, bodies) for i in range(300)]
    assert len({one.data for one in made}) > 280
    assert len({one.path for one in made}) == len(PATHS)


def test_three_hundred(make_api: Callable[..., Any], engine: Engine) -> None:
    counts = _run(make_api, engine, range(300))
    assert counts[200] >= 30 and counts[400] >= 100  # neither all refused nor all harmless


@pytest.mark.full
def test_ten_thousand(make_api: Callable[..., Any], engine: Engine) -> None:
    counts = _run(make_api, engine, range(300, 10_300))
    assert counts[200] >= 1000 and counts[400] >= 3000


def _run(make_api: Callable[..., Any], engine: Engine, numbers: range) -> Counter[int]:
    """Send them, a few at a time and one known request with them; count the answers by status."""
    bodies = corpus()
    names = tuple(sorted({body["model"] for _, body in bodies if "model" in body}))
    app = make_api(engine, served_model_name=names, request_timeout=10, compile_seconds=2, queue=64).app
    counts: Counter[int] = Counter()

    async def run() -> None:
        transport = httpx2.ASGITransport(app=app, raise_app_exceptions=False)
        async with httpx2.AsyncClient(transport=transport, base_url=BASE, timeout=HANG) as client:
            expected = await _probe(client)

            async def send(one: Damaged) -> None:
                answer = await client.post(one.path, content=one.data, headers={"content-type": "application/json"})
                counts[answer.status_code] += 1
                _check(one, answer)

            async def known() -> None:
                assert await _probe(client) == expected

            for start in range(numbers.start, numbers.stop, AT_ONCE):
                with anyio.fail_after(HANG):
                    async with anyio.create_task_group() as group:
                        for number in range(start, min(start + AT_ONCE, numbers.stop)):
                            group.start_soon(send, damaged(number, bodies))
                        group.start_soon(known)
            assert await _probe(client) == expected
            with anyio.fail_after(HANG):
                while engine.snapshot().running or engine.snapshot().waiting:
                    await anyio.sleep(0.01)
            assert len(asyncio.all_tasks()) == 1

    anyio.run(run)
    after = engine.snapshot()
    assert after.free_slots == after.slots
    assert engine.health().restarts == 0
    assert "error" not in after.finished, engine.fallbacks
    return counts


async def _probe(client: httpx2.AsyncClient) -> str:
    answer = await client.post("/v1/chat/completions", json=PROBE)
    assert answer.status_code == 200, answer.text
    text: str = answer.json()["choices"][0]["message"]["content"]
    assert answer.json()["usage"]["completion_tokens"] == len(text) == 12
    return text


def _check(one: Damaged, answer: httpx2.Response) -> None:
    assert answer.headers["x-request-id"], str(one)
    if answer.status_code != 200:
        assert answer.status_code in REFUSALS, f"{answer.status_code} {answer.text} for {one}"
        _check_error(one, answer.json())
    elif answer.headers["content-type"].startswith("text/event-stream"):
        for event in parse_events(answer.text):
            if event != "[DONE]" and "error" in event and event.get("object") != "response":
                _check_error(one, event)
    else:
        assert isinstance(answer.json(), dict)


def _check_error(one: Damaged, body: Any) -> None:
    error = body["error"]
    assert set(error) == {"message", "type", "param", "code"}, str(one)
    assert error["message"] and error["code"] != "internal_error", f"{error} for {one}"
    assert error["param"] is None or error["param"].startswith("/"), f"{error} for {one}"
    assert json.dumps(body, ensure_ascii=False).encode(), str(one)
