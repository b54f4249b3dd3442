"""Server-sent events, written as they come, and work that ends with the client's interest in it."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio
from fastapi.sse import KEEPALIVE_COMMENT
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from constrained_spec.errors import RequestCancelled

T = TypeVar("T")
Write = Callable[[bytes], Awaitable[None]]
PING_SECONDS = 15.0


class EventStream(Response):
    """Runs ``produce(write)`` and sends what it writes. A client that goes away cancels it at once.

    A response that iterates a generator would notice only with the next event; a request may wait long for its first.
    While nothing comes, a comment every ``PING_SECONDS`` keeps proxies from giving up.
    """

    media_type = "text/event-stream"

    def __init__(self, produce: Callable[[Write], Awaitable[None]]) -> None:
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._produce = produce

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        last = time.monotonic()

        async def write(data: bytes) -> None:
            nonlocal last
            last = time.monotonic()
            await send({"type": "http.response.body", "body": data, "more_body": True})

        async def ping() -> None:
            while True:
                await anyio.sleep(PING_SECONDS)
                if time.monotonic() - last >= PING_SECONDS:
                    await write(KEEPALIVE_COMMENT)

        async with anyio.create_task_group() as group:

            async def run() -> None:
                await self._produce(write)
                await send({"type": "http.response.body", "body": b"", "more_body": False})
                group.cancel_scope.cancel()

            group.start_soon(run)
            group.start_soon(ping)
            await _gone(receive)
            group.cancel_scope.cancel()


async def unless_gone(receive: Receive, work: Callable[[], Awaitable[T]]) -> T:
    """What ``work`` returns or raises. ``RequestCancelled`` if the client goes away first; the work is cancelled."""
    done: list[T] = []
    failed: list[Exception] = []
    async with anyio.create_task_group() as group:

        async def run() -> None:
            try:
                done.append(await work())
            except Exception as error:
                failed.append(error)
            group.cancel_scope.cancel()

        group.start_soon(run)
        await _gone(receive)
        group.cancel_scope.cancel()
    if failed:
        raise failed[0]
    if not done:
        raise RequestCancelled("the client went away")
    return done[0]


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        continue
