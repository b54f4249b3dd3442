"""What happens to every request: an id, a line in the log, a limit on its size, and a look at where it comes from."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from constrained_spec.server.errors import HttpError, answer
from constrained_spec.server.logs import failure

_GIVEN_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_PROBES = frozenset({"/health", "/metrics"})  # asked every few seconds, by machines
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_LOCAL_HOST = re.compile(r"(localhost|127(\.\d{1,3}){3}|\[::1\])(:\d{1,5})?", re.IGNORECASE)


class RequestContext:
    """Outermost: the request id (the caller's, if it is one), the access log, and the answer to a failure.

    Handlers add what the log should say to ``scope["state"]["log"]``.
    """

    def __init__(
        self, app: ASGIApp, log: structlog.typing.BindableLogger, observe: Callable[[str, int], None], prompts: bool
    ) -> None:
        """``observe(path, status)`` is called once per request; ``prompts``: failures are logged with their text."""
        self._app = app
        self._log: Any = log
        self._observe = observe
        self._prompts = prompts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get("x-request-id", "")
        name = given if _GIVEN_ID.fullmatch(given) else f"req_{secrets.token_hex(12)}"
        state = scope.setdefault("state", {})
        state["request_id"] = name
        details: dict[str, object] = state.setdefault("log", {})
        started, status = time.perf_counter(), 0

        async def with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["x-request-id"] = name
            await send(message)

        try:
            await self._app(scope, receive, with_id)
        except Exception as error:
            self._log.error("failed", request=name, **failure(error, self._prompts))
            if not status:
                await answer(error).response()(scope, receive, with_id)
        finally:
            path = _route(scope)
            seconds = round(time.perf_counter() - started, 4)
            self._observe(path, status)
            tell = self._log.debug if path in _PROBES else self._log.info
            tell("request", request=name, method=scope["method"], path=path, status=status, seconds=seconds, **details)


def _route(scope: Scope) -> str:
    """The declared path: one that nobody declared is the caller's text, which neither log nor metric should hold."""
    route = scope.get("route")
    return getattr(route, "path", None) or "unknown"


class BodyLimit:
    """Refuses a body beyond ``limit`` bytes, at its announced length or as soon as so much has arrived."""

    def __init__(self, app: ASGIApp, limit: int) -> None:
        self._app = app
        self._limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        announced = Headers(scope=scope).get("content-length", "")
        if announced.isdecimal() and int(announced[:20]) > self._limit:
            await answer(self._error()).response()(scope, receive, send)
            return
        arrived = 0

        async def counted() -> Message:
            nonlocal arrived
            message = await receive()
            if message["type"] == "http.request":
                arrived += len(message.get("body", b""))
                if arrived > self._limit:
                    raise self._error()
            return message

        await self._app(scope, counted, send)

    def _error(self) -> HttpError:
        return HttpError(
            413, "too_large", f"the request is larger than {self._limit} bytes",
            hint="the setting max_body_bytes is the limit", headers={"connection": "close"},
        )  # fmt: skip


class OriginGuard:
    """Keeps web pages out that were not invited.

    A page can send a simple POST anywhere; its ``Origin`` then is neither this server nor a declared one. With
    ``local_only`` the ``Host`` must be a name of this machine: a page may have made its own name point here.
    """

    def __init__(self, app: ASGIApp, origins: tuple[str, ...], local_only: bool) -> None:
        self._app = app
        self._origins = frozenset(origins)
        self._local_only = local_only

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            error = self._refusal(scope["method"], Headers(scope=scope))
            if error is not None:
                await answer(error).response()(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _refusal(self, method: str, headers: Headers) -> HttpError | None:
        host = headers.get("host", "")
        if self._local_only and not _LOCAL_HOST.fullmatch(host):
            return HttpError(
                403, "host_not_allowed", "this server answers to localhost only", hint="set an API key for other names"
            )
        origin = headers.get("origin")
        if origin is None or method in SAFE_METHODS or "*" in self._origins or origin in self._origins:
            return None
        if urlsplit(origin).netloc.lower() == host.lower():
            return None
        return HttpError(403, "origin_not_allowed", "this origin may not call", hint="allow it with --cors-origins")
