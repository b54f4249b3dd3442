"""A client that goes away takes its request with it: streamed, whole, waiting, and all of its choices."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import anyio
import pytest

from constrained_spec.api import Engine, Snapshot

LONG = {
    "messages": [{"role": "user", "content": "hello"}], "max_tokens": 1900, "temperature": 1, "seed": 3,
    "ignore_eos": True,
}  # fmt: skip
HANG = 600  # seconds after which a test counts as hanging


class Visit:
    """One request to an ASGI app by a client that leaves when it wants to."""

    def __init__(self, app: Any, path: str, body: dict[str, Any]) -> None:
        self._app, self._path = app, path
        self._body: bytes | None = json.dumps(body).encode()
        self.sent: list[Any] = []
        self.some = anyio.Event()  # set with the first part of a body
        self._left = anyio.Event()

    def leave(self) -> None:
        self._left.set()

    async def run(self) -> None:
        headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
        scope = {
            "type": "http", "asgi": {"version": "3.0", "spec_version": "2.4"}, "http_version": "1.1", "method": "POST",
            "scheme": "http", "path": self._path, "raw_path": self._path.encode(), "query_string": b"",
            "root_path": "", "headers": headers, "client": ("127.0.0.1", 1), "server": ("localhost", 80),
        }  # fmt: skip
        await self._app(scope, self._receive, self._send)

    async def _receive(self) -> dict[str, Any]:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        self.sent.append(message)
        if message.get("body"):
            self.some.set()


@pytest.fixture(scope="module")
def small(make_model: Callable[[int], Any]) -> Iterator[Engine]:
    """Two slots, so that a third request waits."""
    engine = Engine(make_model(2), queue=8)
    yield engine
    engine.close(drain=False)


async def _until(ready: Callable[[], bool]) -> None:
    with anyio.fail_after(HANG):
        while not ready():
            await anyio.sleep(0.002)


def _idle(s: Snapshot) -> bool:
    return s.running == s.waiting == 0 and s.free_slots == s.slots


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("n", [1, 2])
def test_leaving_cancels_every_choice(make_api: Callable[..., Any], small: Engine, stream: bool, n: int) -> None:
    api = make_api(small)

    async def run() -> None:
        before = small.snapshot()
        visit = Visit(api.app, "/v1/chat/completions", {**LONG, "n": n, "stream": stream})
        async with anyio.create_task_group() as group:
            group.start_soon(visit.run)
            await _until(lambda: small.snapshot().running == n)
            if stream:
                await visit.some.wait()
            visit.leave()
        await _until(lambda: _idle(small.snapshot()))
        after = small.snapshot()
        assert after.finished["cancelled"] - before.finished.get("cancelled", 0) == n
        # Far from done: one output takes 1900 tokens.
        assert after.completion_tokens - before.completion_tokens < 1900

    anyio.run(run)


def test_leaving_while_waiting_for_a_slot(make_api: Callable[..., Any], small: Engine) -> None:
    api = make_api(small)

    async def run() -> None:
        first = Visit(api.app, "/v1/chat/completions", {**LONG, "n": 2, "stream": True})
        second = Visit(api.app, "/v1/chat/completions", {**LONG, "stream": True})
        async with anyio.create_task_group() as group:
            group.start_soon(first.run)
            await _until(lambda: small.snapshot().running == 2)
            group.start_soon(second.run)
            await _until(lambda: small.snapshot().waiting == 1)
            second.leave()
            await _until(lambda: small.snapshot().waiting == 0)
            assert small.snapshot().running == 2
            first.leave()
        await _until(lambda: _idle(small.snapshot()))

    anyio.run(run)


def test_those_who_stay_get_the_same_text(make_api: Callable[..., Any], small: Engine) -> None:
    api = make_api(small)
    ask = {**LONG, "max_tokens": 60}
    alone = api.post("/v1/chat/completions", ask).json()["choices"][0]["message"]["content"]

    async def run() -> str:
        stays = Visit(api.app, "/v1/chat/completions", ask)
        async with anyio.create_task_group() as group:
            for _ in range(4):
                leaves = Visit(api.app, "/v1/chat/completions", {**LONG, "stream": True})
                group.start_soon(leaves.run)
                await _until(lambda: small.snapshot().running > 0)
                leaves.leave()
            group.start_soon(stays.run)
            await stays.some.wait()
            stays.leave()
        body = json.loads(b"".join(m.get("body", b"") for m in stays.sent))
        return str(body["choices"][0]["message"]["content"])

    assert anyio.run(run) == alone


def test_two_hundred_streams_of_which_a_third_leaves(
    make_api: Callable[..., Any], make_model: Callable[[int], Any]
) -> None:
    """Who stays is told the right usage and the text that the request gives alone; nothing is left behind."""
    engine = Engine(make_model(4), queue=200, prefix_reuse=True)
    api = make_api(engine, queue=200)
    count, seeds, tokens = 200, 7, 16
    ask = {**LONG, "max_tokens": tokens, "stream": True, "stream_options": {"include_usage": True}}
    alone = [_told(api.post("/v1/chat/completions", {**ask, "seed": seed}).text) for seed in range(seeds)]

    async def run() -> list[Visit]:
        visits = [Visit(api.app, "/v1/chat/completions", {**ask, "seed": i % seeds}) for i in range(count)]

        async def leave(visit: Visit, started: bool) -> None:
            if started:  # others never see their first event
                await visit.some.wait()
            visit.leave()

        async with anyio.create_task_group() as group:
            for i, visit in enumerate(visits):
                group.start_soon(visit.run)
                if i % 3 == 0:
                    group.start_soon(leave, visit, i % 2 == 0)
            for i, visit in enumerate(visits):
                if i % 3:
                    await _until(lambda visit=visit: visit.sent and not visit.sent[-1].get("more_body", True))  # type: ignore[misc]
                    visit.leave()
        await _until(lambda: _idle(engine.snapshot()))
        return visits

    visits = anyio.run(run)
    for i, visit in enumerate(visits):
        if i % 3:
            assert _told(b"".join(m.get("body", b"") for m in visit.sent).decode()) == alone[i % seeds]
            assert alone[i % seeds][1] == tokens
    s = engine.snapshot()
    assert s.finished["length"] + s.finished["cancelled"] <= count + seeds
    assert s.finished["length"] >= seeds + count - (count + 2) // 3
    engine.close(drain=False)


def _told(text: str) -> tuple[str, int]:
    """The text of a stream, and the completion tokens that it reports."""
    chunks = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    said = "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks if c["choices"])
    return said, chunks[-1]["usage"]["completion_tokens"]


def test_a_full_queue_is_429_with_a_time(make_api: Callable[..., Any], make_model: Callable[[int], Any]) -> None:
    engine = Engine(make_model(1), queue=1)
    api = make_api(engine, slots=1, queue=1)

    async def run() -> None:
        visits = [Visit(api.app, "/v1/chat/completions", {**LONG, "stream": True}) for _ in range(2)]
        refused = Visit(api.app, "/v1/chat/completions", LONG)
        async with anyio.create_task_group() as group:
            group.start_soon(visits[0].run)
            await _until(lambda: engine.snapshot().running == 1)
            group.start_soon(visits[1].run)
            await _until(lambda: engine.snapshot().waiting == 1)
            group.start_soon(refused.run)
            await refused.some.wait()
            for visit in (*visits, refused):
                visit.leave()
        start = refused.sent[0]
        assert start["status"] == 429
        assert int(dict(start["headers"])[b"retry-after"]) >= 1
        assert json.loads(refused.sent[1]["body"])["error"]["code"] == "overloaded"

    anyio.run(run)
    engine.close(drain=False)
