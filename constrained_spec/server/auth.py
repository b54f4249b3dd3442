"""Who may call: API keys, and the namespace that belongs to each."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from constrained_spec.server.errors import HttpError, answer

# Pages without data, and what a load balancer asks.
PUBLIC = frozenset({"/", "/lab", "/health"})


class KeyRing:
    """The accepted keys, as digests. Without a key everything is open, in one namespace."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._digests = tuple(_digest(key) for key in keys)

    def __bool__(self) -> bool:
        return bool(self._digests)

    def namespace(self, key: str | None) -> str | None:
        """The namespace of ``key``; None if it opens nothing.

        Every digest is compared, each in constant time: how long it takes tells nothing about the keys.
        """
        if not self._digests:
            return ""
        given = _digest(key or "")
        matches = [hmac.compare_digest(given, known) for known in self._digests]
        return given.hex()[:16] if any(matches) and key else None


def _digest(key: str) -> bytes:
    return hashlib.blake2b(key.encode(errors="surrogatepass"), digest_size=32).digest()


class Auth:
    """ASGI middleware: 401 without a valid key; ``scope["state"]["namespace"]`` otherwise."""

    def __init__(self, app: ASGIApp, ring: KeyRing, public: frozenset[str] = PUBLIC) -> None:
        self._app = app
        self._ring = ring
        self._public = public

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or (scope["path"] in self._public and scope["method"] in ("GET", "HEAD")):
            await self._app(scope, receive, send)
            return
        namespace = self._ring.namespace(presented(Headers(scope=scope)))
        if namespace is None:
            await answer(unauthorized()).response()(scope, receive, send)
            return
        scope.setdefault("state", {})["namespace"] = namespace
        await self._app(scope, receive, send)


def presented(headers: Headers) -> str | None:
    """The key of a request: ``Authorization: Bearer KEY``, or ``x-api-key``."""
    scheme, _, key = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and key.strip():
        return key.strip()
    return headers.get("x-api-key")


def unauthorized() -> HttpError:
    return HttpError(
        401, "invalid_api_key", "no valid API key", hint="send it as Authorization: Bearer KEY",
        headers={"www-authenticate": "Bearer"},
    )  # fmt: skip
