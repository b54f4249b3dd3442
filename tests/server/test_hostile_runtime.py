"""Harm that is tried while others are served: they go on, and what was taken is given back."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import anyio
import anyio.to_thread
import pytest

from constrained_spec.api import Engine
from constrained_spec.engine.scheduler import Scheduler
from constrained_spec.grammars.guard import Worker
from constrained_spec.server.app import create_app
from constrained_spec.server.chat import plan_chat
from constrained_spec.server.settings import Settings
from tests.server.visitor import HANG, Visitor, until

CHAT = "/v1/chat/completions"
ASK: dict[str, Any] = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 4, "temperature": 0}
LONG: dict[str, Any] = {**ASK, "max_tokens": 1900, "temperature": 1, "seed": 3, "ignore_eos": True, "stream": True}
# Seconds of compiling, far from any limit on its text.
SLOW = {"guided_json": {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(9000)}}}


@pytest.fixture(scope="module")
def engine(make_model: Callable[[int], Any]) -> Iterator[Engine]:
    engine = Engine(make_model(4), queue=16, prefix_reuse=True, history_bytes=1 << 20)
    yield engine
    engine.close(drain=False)


def _idle(engine: Engine) -> bool:
    now = engine.snapshot()
    return now.running == now.waiting == 0 and now.free_slots == now.slots


def _code(visitor: Visitor) -> str:
    """Of an answer that is an error."""
    code: str = json.loads(visitor.data)["error"]["code"]
    return code


# ---- constraints that take long -----------------------------------------------------------------------------------


def test_streams_go_on_while_a_hostile_constraint_compiles(make_api: Callable[..., Any], engine: Engine) -> None:
    app = make_api(engine, compile_seconds=0.5).app

    async def run() -> None:
        await Visitor(app, CHAT, {**ASK, "regex": "a+"}).run()  # the compiling process has started
        stream, hostile = Visitor(app, CHAT, LONG), Visitor(app, CHAT, {**ASK, **SLOW})
        async with anyio.create_task_group() as group:
            group.start_soon(stream.run)
            await until(lambda: stream.parts > 2)
            seen, rounds = stream.parts, engine.snapshot().rounds
            await hostile.run()
            assert stream.parts - seen > 20
            assert engine.snapshot().rounds - rounds > 20
            stream.leave()
        assert hostile.status == 400 and _code(hostile) == "constraint_too_large"
        assert json.loads(hostile.data)["error"]["param"] == "/guided_json"
        await until(lambda: _idle(engine))

    anyio.run(run)


def test_many_requests_with_one_new_constraint_compile_it_once(
    make_api: Callable[..., Any], engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None of them is turned away for the others, even where only one may wait to be compiled."""
    app = make_api(engine, compile_workers=1, compile_queue=1).app
    calls = 0
    check = Worker.check

    def counted(self: Worker, *given: Any) -> None:
        nonlocal calls
        calls += 1
        check(self, *given)

    monkeypatch.setattr(Worker, "check", counted)

    async def run(constraint: dict[str, Any]) -> list[Visitor]:
        visitors = [Visitor(app, CHAT, {**ASK, **constraint}) for _ in range(12)]
        async with anyio.create_task_group() as group:
            for visitor in visitors:
                group.start_soon(visitor.run)
        return visitors

    assert [v.status for v in anyio.run(run, {"regex": "new[0-9]{3}"})] == [200] * 12
    assert calls == 1
    assert [v.status for v in anyio.run(run, {"regex": "new(?=a)b"})] == [400] * 12
    assert calls == 2


def test_whoever_leaves_while_a_constraint_compiles_is_never_run(
    make_api: Callable[..., Any], engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = make_api(engine).app
    started, go_on = threading.Event(), threading.Event()
    check = Worker.check

    def slow(self: Worker, *given: Any) -> None:
        started.set()
        assert go_on.wait(HANG)
        check(self, *given)

    monkeypatch.setattr(Worker, "check", slow)

    async def run() -> None:
        before = engine.snapshot()
        leaving, waiting = (Visitor(app, CHAT, {**ASK, "regex": "slow[0-9]{3}"}) for _ in range(2))
        async with anyio.create_task_group() as group:
            group.start_soon(leaving.run)
            await anyio.to_thread.run_sync(started.wait, HANG)
            group.start_soon(waiting.run)  # for the same constraint
            leaving.leave()
            go_on.set()
        assert waiting.status == 200
        assert engine.snapshot().prompt_tokens - before.prompt_tokens == _usage(waiting)["prompt_tokens"]

    anyio.run(run)


def _usage(visitor: Visitor) -> dict[str, Any]:
    usage: dict[str, Any] = json.loads(visitor.data)["usage"]
    return usage


def test_a_body_that_takes_long_to_read_holds_nobody_up(
    make_api: Callable[..., Any], engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = make_api(engine).app
    started, go_on = threading.Event(), threading.Event()

    def slow(body: Any, *rest: Any) -> Any:
        if body.get("user") == "slow":
            started.set()
            assert go_on.wait(HANG)
        return plan_chat(body, *rest)

    monkeypatch.setattr("constrained_spec.server.routes.chat.plan_chat", slow)

    async def run() -> None:
        first, second = Visitor(app, CHAT, {**ASK, "user": "slow"}), Visitor(app, CHAT, ASK)
        async with anyio.create_task_group() as group:
            group.start_soon(first.run)
            await anyio.to_thread.run_sync(started.wait, HANG)
            await second.run()
            assert second.status == 200 and first.status == 0
            go_on.set()
        assert first.status == 200

    anyio.run(run)


# ---- time and room ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [True, False])
def test_a_deadline_is_told_as_such(make_api: Callable[..., Any], engine: Engine, stream: bool) -> None:
    visitor = Visitor(make_api(engine).app, CHAT, {**LONG, "stream": stream, "timeout": 0.1})
    anyio.run(visitor.run)
    if stream and visitor.status == 200:  # it had begun
        assert visitor.events[-1] == "[DONE]" and visitor.events[-2]["error"]["code"] == "timeout"
    else:
        assert visitor.status == 408 and _code(visitor) == "timeout"
    assert _idle(engine)


def test_a_deadline_that_passed_before_the_start(make_api: Callable[..., Any], engine: Engine) -> None:
    app = make_api(engine).app
    visitor = Visitor(app, CHAT, {**ASK, "timeout": 1e-9})
    anyio.run(visitor.run)
    assert visitor.status == 408 and visitor.headers["x-should-retry"] == "false"
    cut = Visitor(app, "/completion", {"prompt": "hello", "n_predict": 1900, "t_max_predict_ms": 1})
    anyio.run(cut.run)  # there, what was written until then is the answer
    assert cut.status == 200 and json.loads(cut.data)["tokens_predicted"] < 1900


def test_a_deadline_passes_for_those_that_wait_too(make_api: Callable[..., Any], make_model: Any) -> None:
    engine = Engine(make_model(1), queue=4)
    app = make_api(engine).app

    async def run() -> None:
        first = Visitor(app, CHAT, LONG)
        second = Visitor(app, CHAT, {**ASK, "timeout": 0.2})
        async with anyio.create_task_group() as group:
            group.start_soon(first.run)
            await until(lambda: first.parts > 1)
            await second.run()
            first.leave()
        assert second.status == 408
        await until(lambda: _idle(engine))

    anyio.run(run)
    engine.close(drain=False)


def test_outputs_that_find_no_room_take_their_siblings_with_them(make_api: Callable[..., Any], make_model: Any) -> None:
    """Of four choices two would still fit: none is kept."""
    engine = Engine(make_model(1), queue=2)
    app = make_api(engine, slots=4, queue=4).app

    async def run() -> None:
        first, several = Visitor(app, CHAT, LONG), Visitor(app, CHAT, {**ASK, "n": 4})
        async with anyio.create_task_group() as group:
            group.start_soon(first.run)
            await until(lambda: first.parts > 1)
            await several.run()
            assert several.status == 429 and _code(several) == "overloaded"
            assert int(several.headers["retry-after"]) >= 1
            await until(lambda: engine.snapshot().waiting == 0)
            assert engine.snapshot().running == 1
            first.leave()
        await until(lambda: _idle(engine))

    anyio.run(run)
    engine.close(drain=False)


# ---- between callers ----------------------------------------------------------------------------------------------


def test_no_draft_and_no_prefix_comes_from_another_key(make_api: Callable[..., Any], engine: Engine) -> None:
    """The same prompt and seed: the second caller's answer must cost what it would cost alone."""
    app = make_api(engine, api_key=("one", "two")).app
    ask = {
        "messages": [{"role": "user", "content": "tell the secret of this caller, at some length"}], "max_tokens": 80,
        "temperature": 1, "seed": 11, "ignore_eos": True, "extra": {"drafter": "suffix", "speculation": "fixed"},
    }  # fmt: skip

    def answered(key: str) -> tuple[str, int, int]:
        """Text, cached tokens of the prompt, tokens drafted from history."""
        before = engine.snapshot().proposed
        visitor = Visitor(app, CHAT, ask, key=key)
        anyio.run(visitor.run)
        assert visitor.status == 200, visitor.data
        body = json.loads(visitor.data)
        cached = body["usage"]["prompt_tokens_details"]["cached_tokens"]
        return body["choices"][0]["message"]["content"], cached, engine.snapshot().proposed - before

    text, cached, fresh = answered("one")
    again, cached_again, drafted = answered("one")
    other, cached_other, drafted_other = answered("two")
    assert text == again == other  # the seed's text, whatever was drafted
    assert cached == cached_other == 0 < cached_again
    assert drafted > fresh == drafted_other


# ---- failures of ours ---------------------------------------------------------------------------------------------


def test_a_broken_engine_says_so_and_comes_back_once(
    make_api: Callable[..., Any], make_model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine(make_model(2), queue=8)
    api = make_api(engine)
    step = Scheduler.step
    broken = threading.Event()

    def breaking(self: Scheduler) -> None:
        if broken.is_set() and self.running:
            broken.clear()
            raise RuntimeError("a secret of the prompt")
        step(self)

    monkeypatch.setattr(Scheduler, "step", breaking)

    async def crash() -> list[Visitor]:
        """A stream that has begun, a whole answer, and one that waits."""
        visitors = [Visitor(api.app, CHAT, {**LONG, "stream": stream}) for stream in (True, False, False)]
        async with anyio.create_task_group() as group:
            group.start_soon(visitors[0].run)
            await until(lambda: visitors[0].parts > 1)
            for visitor in visitors[1:]:
                group.start_soon(visitor.run)
            await until(lambda: engine.snapshot().waiting == 1)
            broken.set()
        return visitors

    for restarts, status in ((1, 200), (1, 503)):
        stream, *whole = anyio.run(crash)
        assert stream.events[-2]["error"]["code"] == "internal_error" and stream.events[-1] == "[DONE]"
        assert [(v.status, _code(v)) for v in whole] == [(500, "internal_error")] * 2
        assert not any(b"secret" in v.data for v in (stream, *whole))
        health = api.get("/health")
        assert (health.status_code, health.json()["restarts"]) == (status, restarts)
        answer = api.post(CHAT, ASK)
        assert answer.status_code == (200 if status == 200 else 500)
    assert api.get("/metrics").status_code == 200
    engine.close(drain=False)


def test_closing_lets_every_open_stream_end(make_model: Any) -> None:
    engine = Engine(make_model(3), queue=16)
    app = create_app(Settings(model="tiny", log_level="error", shutdown_seconds=HANG), engine)
    streams = [Visitor(app, CHAT, {**LONG, "max_tokens": 150, "seed": i}) for i in range(6)]
    late = Visitor(app, CHAT, ASK)

    async def run() -> None:
        async with anyio.create_task_group() as group, app.router.lifespan_context(app):
            for stream in streams:
                group.start_soon(stream.run)
            await until(lambda: engine.snapshot().running == 3 and engine.snapshot().waiting == 3)
        await late.run()

    anyio.run(run)
    for stream in streams:
        assert stream.events[-1] == "[DONE]"
        assert stream.events[-2]["choices"][0]["finish_reason"] == "length"
    assert late.status == 503 and _code(late) == "server_closing"
    assert engine.health().status == "closed"
