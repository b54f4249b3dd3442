"""A client of an ASGI app that leaves when it wants to, sees each part of a body as it is sent, and forgets nothing."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import anyio

from tests.server.conftest import parse_events

HANG = 300  # seconds after which a test counts as hanging


class Visitor:
    """One POST. ``leave_after``: events of the answer after which the client goes away; None: it stays."""

    def __init__(
        self, app: Any, path: str, body: Mapping[str, Any], *, leave_after: int | None = None, key: str | None = None
    ) -> None:
        self._app, self._path, self._leave_after = app, path, leave_after
        self._body: bytes | None = json.dumps(body).encode()
        self._headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
        if key is not None:
            self._headers.append((b"authorization", f"Bearer {key}".encode()))
        self._left = anyio.Event()
        self._answered = False
        self.status = 0
        self.headers: dict[str, str] = {}
        self.data = b""
        self.parts = 0

    def leave(self) -> None:
        self._left.set()

    @property
    def left(self) -> bool:
        return self._left.is_set()

    @property
    def events(self) -> list[Any]:
        """Those of a streamed answer; "[DONE]" as it is."""
        return parse_events(self.data.decode())

    async def run(self) -> None:
        """Until the app is done with the request."""
        scope = {
            "type": "http", "asgi": {"version": "3.0", "spec_version": "2.4"}, "http_version": "1.1", "method": "POST",
            "scheme": "http", "path": self._path, "raw_path": self._path.encode(), "query_string": b"",
            "root_path": "", "headers": self._headers, "client": ("127.0.0.1", 1), "server": ("localhost", 80),
        }  # fmt: skip
        await self._app(scope, self._receive, self._send)

    async def _receive(self) -> dict[str, Any]:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {k.decode(): v.decode() for k, v in message["headers"]}
            return
        if message["body"]:
            self.parts += 1
            self.data += message["body"]
            if self.parts == self._leave_after:
                self.leave()


async def until(ready: Callable[[], bool]) -> None:
    """Wait for it."""
    with anyio.fail_after(HANG):
        while not ready():
            await anyio.sleep(0.002)


def without_life(app: Any) -> Any:
    """Its test client starts and closes an app for each call; the engine behind this one is shared."""

    async def call(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "lifespan":
            await app(scope, receive, send)
            return
        for end in ("startup", "shutdown"):
            await receive()
            await send({"type": f"lifespan.{end}.complete"})

    return call
