"""Connections made to do harm: half requests, broken HTTP, clients that vanish. Others are served beside them."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx2
import pytest
import uvicorn

from constrained_spec.api import Engine

ASK: dict[str, Any] = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 4, "temperature": 0}
HANG = 120  # seconds after which a wait counts as hanging
HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"


class Served:
    """The app behind uvicorn, on a port of this machine."""

    def __init__(self, app: Any, engine: Engine) -> None:
        self.engine = engine
        self.server = uvicorn.Server(
            uvicorn.Config(app, host="127.0.0.1", port=0, log_level="critical", lifespan="off", ws="none")
        )
        self.thread = threading.Thread(target=self.server.run)
        self.thread.start()
        self.until(lambda: self.server.started)
        self.port: int = self.server.servers[0].sockets[0].getsockname()[1]

    def until(self, ready: Callable[[], bool]) -> None:
        end = time.monotonic() + HANG
        while not ready():
            assert self.thread.is_alive() and time.monotonic() < end
            time.sleep(0.005)

    def connect(self, data: bytes) -> socket.socket:
        made = socket.create_connection(("127.0.0.1", self.port), timeout=HANG)
        try:
            made.sendall(data)
        except OSError:
            made.close()
            raise
        return made

    def ask(self) -> httpx2.Response:
        return httpx2.post(f"http://127.0.0.1:{self.port}/v1/chat/completions", json=ASK, timeout=HANG)

    @property
    def tasks(self) -> int:
        """Requests that the server has not finished."""
        return len(self.server.server_state.tasks)

    def settle(self) -> None:
        """Wait until nothing is left of any request, here or in the engine."""
        self.until(lambda: not self.tasks)
        self.until(lambda: not self.engine.snapshot().running and not self.engine.snapshot().waiting)
        assert self.engine.snapshot().free_slots == self.engine.snapshot().slots
        assert self.engine.health().restarts == 0

    def stop(self) -> None:
        self.server.should_exit = True
        self.thread.join(HANG)
        assert not self.thread.is_alive()


@pytest.fixture(scope="module")
def served(make_api: Callable[..., Any], make_model: Callable[[int], Any]) -> Iterator[Served]:
    engine = Engine(make_model(2), queue=64)
    served = Served(make_api(engine).app, engine)
    yield served
    served.stop()
    engine.close(drain=False)


def _status(data: bytes) -> int:
    return int(data.split(b" ", 2)[1])


def _answer(made: socket.socket) -> bytes:
    """All that comes until the server closes the connection."""
    data = b""
    while part := made.recv(65536):
        data += part
    return data


def test_half_bodies_take_no_slot_and_hold_nobody_up(served: Served) -> None:
    expected = served.ask().json()["choices"]
    body = json.dumps(ASK).encode()
    half = HEAD + b"content-length: %d\r\n\r\n" % len(body) + body[:20]
    heads = [served.connect(HEAD[: 10 + i]) for i in range(20)]
    halves = [served.connect(half) for _ in range(40)]
    served.until(lambda: served.tasks == 40)
    for _ in range(5):
        for made in halves:
            made.sendall(body[20:21] if body[20:21] == b" " else b"")
        answer = served.ask()
        assert answer.status_code == 200 and answer.json()["choices"] == expected
    assert served.engine.snapshot().running == served.engine.snapshot().waiting == 0
    slow = halves.pop()
    for at in range(20, len(body)):  # a byte at a time is still a body
        slow.sendall(body[at : at + 1])
    assert _status(slow.recv(100)) == 200
    for made in (*heads, *halves, slow):
        made.close()
    served.settle()
    assert served.ask().json()["choices"] == expected


def test_clients_that_vanish_at_any_point(served: Served) -> None:
    body = json.dumps({**ASK, "max_tokens": 1900, "ignore_eos": True, "stream": True, "temperature": 1}).encode()
    whole = HEAD + b"content-length: %d\r\n\r\n" % len(body) + body
    for sent in range(1, len(whole), 17):
        served.connect(whole[:sent]).close()
    for _ in range(6):
        made = served.connect(whole)
        assert _status(made.recv(50)) == 200
        # With a reset: the peer is gone at once, and whatever was on its way with it.
        made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
        made.close()
    assert served.ask().status_code == 200
    served.settle()


def test_a_client_that_does_not_read(served: Served) -> None:
    """Its stream fills the buffers and stops; others go on, and its leaving ends it."""
    body = json.dumps(
        {**ASK, "max_tokens": 1900, "ignore_eos": True, "stream": True, "temperature": 1, "n": 2, "return_rounds": True}
    ).encode()
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    made.connect(("127.0.0.1", served.port))
    made.sendall(HEAD + b"content-length: %d\r\n\r\n" % len(body) + body)
    served.until(lambda: served.engine.snapshot().running == 2)
    assert served.ask().status_code == 200
    made.close()
    served.settle()


@pytest.mark.parametrize(
    "data",
    [
        b"\x00" * 100 + b"\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 50 + b"\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET /" + b"a" * 200_000 + b" HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: localhost\r\nx: " + b"a" * 200_000 + b"\r\n\r\n",
        HEAD + b"content-length: 5\r\ncontent-length: 6\r\n\r\nabcdef",
        HEAD + b"content-length: -5\r\n\r\n",
        HEAD + b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\nGET /metrics HTTP/1.1\r\n\r\n",
        HEAD + b"transfer-encoding: chunked\r\n\r\nZZ\r\nabc\r\n",
        HEAD + b"x-request-id: a\nset-cookie: b\r\n\r\n",
        HEAD + b" folded: x\r\n\r\n",
    ],
    ids=range(12),
)
def test_broken_http_ends_its_connection_alone(served: Served, data: bytes) -> None:
    answer = b""
    with contextlib.suppress(OSError), served.connect(data) as made:  # it may have had enough before all was sent
        made.shutdown(socket.SHUT_WR)
        answer = _answer(made)
    assert not answer or 400 <= _status(answer) < 500
    assert b"set-cookie" not in answer
    assert served.ask().status_code == 200
    served.settle()


def test_a_body_beyond_the_limit_ends_its_connection(make_api: Callable[..., Any], served: Served) -> None:
    """Announced or not: the answer comes before the body is sent, and the rest of it is not taken for a request."""
    small = Served(make_api(served.engine, max_body_bytes=1000).app, served.engine)
    try:
        made = small.connect(HEAD + b"content-length: 5000\r\n\r\n" + b" " * 900)
        answer = _answer(made)
        made.close()
        assert _status(answer) == 413 and json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "too_large"
        made = small.connect(HEAD + b"transfer-encoding: chunked\r\n\r\n" + b"400\r\n" + b" " * 1024 + b"\r\n")
        answer = _answer(made)
        made.close()
        assert _status(answer) == 413
        assert small.ask().status_code == 200
        small.settle()
    finally:
        small.stop()
