"""Stopping: open requests end, for a bounded time; the process ends as it was told to."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from typer.testing import CliRunner

from constrained_spec.api import Engine
from constrained_spec.cli.main import app as main
from constrained_spec.server.app import create_app
from constrained_spec.server.settings import Settings

LONG = {"prompt": "hello", "max_tokens": 1900, "temperature": 1, "seed": 3, "ignore_eos": True}


async def _ask_and_close(model: Any, seconds: float, tokens: int) -> httpx2.Response:
    """What a request is answered that runs when the server starts to close."""
    engine = Engine(model, queue=4)
    app = create_app(Settings(model="tiny", log_level="error", shutdown_seconds=seconds), engine)
    answers: list[httpx2.Response] = []
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url="http://localhost") as client:
        async with anyio.create_task_group() as group, app.router.lifespan_context(app):

            async def ask() -> None:
                answers.append(await client.post("/v1/completions", json={**LONG, "max_tokens": tokens}))

            group.start_soon(ask)
            while not engine.snapshot().running:
                await anyio.sleep(0.002)
        refused = await client.post("/v1/completions", json=LONG)
        assert refused.status_code == 503 and refused.json()["error"]["code"] == "server_closing"
    assert engine.health().status == "closed"
    return answers[0]


def test_an_open_request_ends_first(make_model: Callable[[int], Any]) -> None:
    answer = anyio.run(_ask_and_close, make_model(1), 120.0, 300)
    assert answer.status_code == 200
    assert answer.json()["usage"]["completion_tokens"] == 300


def test_but_no_longer_than_the_bound(make_model: Callable[[int], Any]) -> None:
    answer = anyio.run(_ask_and_close, make_model(1), 0.0, 1900)
    assert answer.status_code == 499
    assert answer.json()["error"]["code"] == "cancelled"


@pytest.fixture
def process(server_folder: Path) -> Iterator[Callable[..., tuple[subprocess.Popen[str], str]]]:
    """``process(*flags)``: a server on a free port, and its address once it answers."""
    started: list[subprocess.Popen[str]] = []

    def start(*flags: str) -> tuple[subprocess.Popen[str], str]:
        command = [sys.executable, "-c", "from constrained_spec.cli.main import main; main()", "serve"]
        server = subprocess.Popen(
            [*command, str(server_folder), "--port", "0", "--log-format", "json", *flags],
            stderr=subprocess.PIPE, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        started.append(server)
        address, ready = "", False
        assert server.stderr is not None
        for line in server.stderr:
            event = json.loads(line)["event"]
            found = re.search(r"http://[^ ]+", event)
            address = found.group() if found else address
            ready = ready or event == "ready"
            if address and ready:
                return server, address
        raise AssertionError("the server ended before it was ready")

    yield start
    for server in started:
        server.kill()
        server.wait()
        assert server.stderr is not None
        server.stderr.close()


def test_a_signal_lets_a_stream_end(process: Callable[..., Any]) -> None:
    server, address = process()
    lines: list[str] = []
    with httpx2.Client(base_url=address, timeout=120) as client:
        assert client.get("/health").json()["status"] == "ok"
        body = {**LONG, "max_tokens": 300, "stream": True}
        with client.stream("POST", "/v1/completions", json=body) as answer:
            assert answer.status_code == 200
            for line in answer.iter_lines():
                if not lines:
                    server.send_signal(signal.SIGTERM)
                lines.append(line)
    assert "data: [DONE]" in lines
    chunks = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"
    assert server.wait(120) == -signal.SIGTERM


def test_a_model_that_cannot_be_loaded_ends_the_command(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["serve", str(tmp_path / "absent"), "--port", "0"])
    assert done.exit_code == 2
    assert "error: " in done.output and "absent" in done.output
