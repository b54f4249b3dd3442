"""What a request knows: the server it came to, whose it is, and what the log should say of it."""

from __future__ import annotations

from typing import cast

from fastapi import Request

from constrained_spec.server.service import Service


def service_of(request: Request) -> Service:
    return cast(Service, request.app.state.service)


def namespace_of(request: Request) -> str:
    return cast(str, request.scope["state"].get("namespace", ""))


def request_id(request: Request) -> str:
    return cast(str, request.scope["state"]["request_id"])


def note(request: Request, **details: object) -> None:
    """Add to the request's line in the log. Never the caller's text."""
    cast("dict[str, object]", request.scope["state"]["log"]).update(details)
