"""What strangers may not do: large bodies, foreign pages, hostile constraints, reading prompts in the log."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import anyio
import httpx2
import pytest

from constrained_spec.errors import GrammarBudgetError, OverloadedError
from constrained_spec.grammars.compile import Constraint
from constrained_spec.grammars.constraints import Choice, JsonSchema, Regex
from constrained_spec.grammars.guard import Worker
from constrained_spec.server.compile import Compiler
from constrained_spec.server.logs import make_logger
from constrained_spec.server.metrics import Metrics
from constrained_spec.server.settings import Settings

ASK = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 4, "temperature": 0}


# ---- size ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("announced", [True, False])
def test_a_body_beyond_the_limit_is_refused(make_api: Callable[..., Any], announced: bool) -> None:
    api = make_api(max_body_bytes=1000)
    data = json.dumps({**ASK, "user": "x" * 1000}).encode()

    async def parts() -> AsyncIterator[bytes]:
        for start in range(0, len(data), 100):
            yield data[start : start + 100]

    answer = api.ask("POST", "/v1/chat/completions", content=data if announced else parts())
    assert answer.status_code == 413
    assert answer.json()["error"]["code"] == "too_large"
    assert api.post("/v1/chat/completions", ASK).status_code == 200


def test_a_body_without_end_is_not_read_to_its_end(make_api: Callable[..., Any]) -> None:
    api = make_api(max_body_bytes=1000)
    read = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal read
        while True:
            read += 100
            yield b" " * 100

    assert api.ask("POST", "/v1/chat/completions", content=endless()).status_code == 413
    assert read <= 1200


# ---- pages --------------------------------------------------------------------------------------------------------


def _origin(api: Any, origin: str, method: str = "POST") -> httpx2.Response:
    headers = {"origin": origin, "content-type": "application/json"}
    answer: httpx2.Response = api.ask(method, "/v1/chat/completions", content=json.dumps(ASK), headers=headers)
    return answer


def test_other_origins_may_not_post(api: Any) -> None:
    for origin in ("https://evil.example", "http://localhost:1", "null", "https://localhost.evil.example"):
        answer = _origin(api, origin)
        assert answer.status_code == 403
        assert answer.json()["error"]["code"] == "origin_not_allowed"
        assert "access-control-allow-origin" not in answer.headers
    assert _origin(api, "http://localhost").status_code == 200


def test_declared_origins_may(make_api: Callable[..., Any]) -> None:
    api = make_api(cors_origins=("https://good.example",))
    answer = _origin(api, "https://good.example")
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == "https://good.example"
    assert _origin(api, "https://evil.example").status_code == 403
    ask = {"origin": "https://good.example", "access-control-request-method": "POST"}
    assert api.ask("OPTIONS", "/v1/chat/completions", headers=ask).status_code == 200
    assert _origin(make_api(cors_origins=("*",)), "https://any.example").status_code == 200


def test_names_that_only_point_here_are_refused(make_api: Callable[..., Any]) -> None:
    api = make_api()
    for host in ("evil.example", "evil.example:8000", "localhost.evil.example", "", "[::1].evil.example"):
        answer = api.ask("GET", "/v1/models", headers={"host": host})
        assert answer.status_code == 403, host
    for host in ("localhost:8000", "127.0.0.1:8000", "[::1]:8000", "LOCALHOST"):
        assert api.ask("GET", "/v1/models", headers={"host": host}).status_code == 200, host
    with_key = make_api(api_key=("k",))
    assert with_key.ask("GET", "/v1/models", headers={"host": "a.example", "x-api-key": "k"}).status_code == 200


# ---- constraints --------------------------------------------------------------------------------------------------


@pytest.fixture
def compiler(server_model: Any) -> Any:
    settings = Settings(model="tiny")
    made = Compiler(server_model.vocabulary, settings.budget, Metrics("tiny", lambda: None), workers=1, waiting=1)
    yield made
    made.close()


def test_one_slow_constraint_does_not_hold_up_known_ones(compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    """While one is compiled, known ones pass, one more waits, and further ones are told to come again."""
    started, go_on = threading.Event(), threading.Event()
    check = Worker.check

    def slow(self: Worker, constraint: Constraint, *rest: Any) -> None:
        if constraint == Regex("hostile"):
            started.set()
            assert go_on.wait(60)
        check(self, constraint, *rest)

    known, other = Choice(("a", "b")), Choice(("c", "d"))

    async def run() -> None:
        await compiler.compile(known, "any")
        monkeypatch.setattr(Worker, "check", slow)
        async with anyio.create_task_group() as group:
            group.start_soon(compiler.compile, Regex("hostile"), "any")
            await anyio.to_thread.run_sync(started.wait, 60)
            await compiler.compile(known, "any")
            group.start_soon(compiler.compile, other, "any")
            while not compiler.waiting:
                await anyio.sleep(0.001)
            with pytest.raises(OverloadedError):
                await compiler.compile(Choice(("e", "f")), "any")
            go_on.set()
        await compiler.compile(other, "any")

    anyio.run(run)


def test_a_constraint_over_its_budget_is_refused_and_remembered(
    server_model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Compiles for seconds: with one that takes no time, the answer may be there before the limit is looked at.
    slow = JsonSchema({"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(9000)}})
    budget = Settings(model="tiny", compile_seconds=0.05).budget
    compiler = Compiler(server_model.vocabulary, budget, Metrics("tiny", lambda: None), workers=1, waiting=1)
    calls = 0
    check = Worker.check

    def counted(self: Worker, *given: Any) -> None:
        nonlocal calls
        calls += 1
        check(self, *given)

    monkeypatch.setattr(Worker, "check", counted)
    for _ in range(3):
        with pytest.raises(GrammarBudgetError, match="does not compile within"):
            anyio.run(compiler.compile, slow, "any")
    compiler.close()
    assert calls == 1


# ---- logs ---------------------------------------------------------------------------------------------------------


def _logged(make_api: Callable[..., Any], **settings: Any) -> tuple[Any, io.StringIO]:
    out = io.StringIO()
    api = make_api(log_format="json", **settings)
    log = make_logger(Settings(model="tiny", log_format="json", log_level="debug"), out)
    service = api.app.state.service
    service.log = log
    for middleware in api.app.user_middleware:
        if "log" in middleware.kwargs:
            middleware.kwargs["log"] = log
    return api, out


SECRET = "sesame-47"


def test_the_log_has_a_line_a_request_and_no_prompt(make_api: Callable[..., Any]) -> None:
    api, out = _logged(make_api)
    ask = {**ASK, "messages": [{"role": "user", "content": SECRET}], "stop": [SECRET]}
    api.post("/v1/chat/completions", ask, headers={"x-request-id": "abc-1"})
    api.post("/v1/chat/completions", {**ask, SECRET: 1})
    api.post("/v1/chat/completions", {**ask, "response_format": {"type": SECRET}})
    api.events("/v1/chat/completions", ask)
    api.get(f"/{SECRET}?q={SECRET}")
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert SECRET not in out.getvalue()
    assert [line["status"] for line in lines] == [200, 400, 400, 200, 404]
    assert lines[0]["request"] == "abc-1"
    assert (lines[0]["kind"], lines[0]["path"], lines[0]["level"]) == ("chat", "/v1/chat/completions", "info")
    assert lines[0]["completion_tokens"] == lines[3]["completion_tokens"] > 0
    assert lines[1]["code"] == "unknown_field"


def test_a_failure_is_logged_with_its_place_and_without_its_text(
    make_api: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*given: object, **more: object) -> None:
        raise RuntimeError(SECRET)

    for prompts in (False, True):
        api, out = _logged(make_api, log_prompts=prompts)
        monkeypatch.setattr(api.app.state.service, "submit", broken)
        assert api.post("/v1/chat/completions", ASK).status_code == 500
        failed = json.loads(out.getvalue().splitlines()[0])
        assert failed["event"] == "failed" and failed["error"] == "RuntimeError" and "broken" in failed["at"]
        assert (SECRET in out.getvalue()) is prompts


@pytest.mark.parametrize("given", ["a b", "x" * 65, "a\tb", "", "é"])
def test_a_request_id_that_is_none_is_replaced(api: Any, given: str) -> None:
    answer = api.ask("GET", "/version", headers=[(b"x-request-id", given.encode())])
    assert answer.headers["x-request-id"].startswith("req_")
