"""The pages for people, and what the playground asks while a constraint is typed."""

from __future__ import annotations

import functools
from importlib import resources
from typing import Any

import anyio
import anyio.to_thread
from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from constrained_spec.errors import OverloadedError, RequestError
from constrained_spec.grammars.budget import Budget
from constrained_spec.grammars.guard import compile_guarded
from constrained_spec.server import check
from constrained_spec.server.errors import HttpError
from constrained_spec.server.plan import BodyError
from constrained_spec.server.routes.body import read_object
from constrained_spec.server.routes.state import service_of
from constrained_spec.types import Vocabulary

router = APIRouter(include_in_schema=False)

# Checks take turns in one process of their own, so that nobody's typing delays a request.
_TURNS = 1
MAX_WAITING = 16
COMPILE_SECONDS = 5.0
# A page is one file and asks nobody but this server.
_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "cache-control": "no-cache",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


@router.get("/")
async def playground() -> HTMLResponse:
    """The playground."""
    return HTMLResponse(_page("server/static/playground.html"), headers=_HEADERS)


@router.get("/lab")
async def lab() -> HTMLResponse:
    """The lab's page, where the package has it."""
    try:
        return HTMLResponse(_page("lab/page.html"), headers=_HEADERS)
    except FileNotFoundError:
        raise HttpError(404, "not_found", "the lab's page is not installed") from None


@router.post("/playground/check")
async def check_constraint(request: Request) -> dict[str, Any]:
    """``{kind: schema | regex | choice | grammar, text}`` to what ``check.legal`` or ``check.illegal`` say of it."""
    service = service_of(request)
    vocabulary = service.engine.model.vocabulary
    body = await read_object(request)
    for name in body:
        if name not in ("kind", "text"):
            raise BodyError(f"unknown field {name!r}", code="unknown_field", param=f"/{name}")
    kind, text = body.get("kind"), body.get("text")
    if kind not in check.KINDS:
        known = ", ".join(check.KINDS)
        raise BodyError(f"unknown kind {kind!r}", code="invalid_value", param="/kind", hint=f"one of {known}")
    if not isinstance(text, str):
        raise BodyError("text must be a string", code="invalid_type", param="/text")
    turns = _turns(request)
    if turns.statistics().tasks_waiting >= MAX_WAITING:
        raise OverloadedError("too many constraints wait to be checked", retry_after=COMPILE_SECONDS)
    return await anyio.to_thread.run_sync(_check, kind, text, vocabulary, service.settings.budget, limiter=turns)


def _check(kind: str, text: str, vocabulary: Vocabulary, budget: Budget) -> dict[str, Any]:
    try:
        typed = check.read(kind, text)
    except RequestError as error:
        return check.illegal(error, kind, text)
    seconds = min(COMPILE_SECONDS, budget.compile_seconds)
    try:
        compile_guarded(typed.constraint, vocabulary, seconds, budget=budget)
        return check.legal(typed, vocabulary)
    except RequestError as error:
        return check.illegal(error, kind, text, translated=typed.translated)


def _turns(request: Request) -> anyio.CapacityLimiter:
    """One for each application: a limiter belongs to the event loop that it is used in."""
    state = request.app.state
    if not hasattr(state, "playground_turns"):
        state.playground_turns = anyio.CapacityLimiter(_TURNS)
    limiter: anyio.CapacityLimiter = state.playground_turns
    return limiter


@functools.cache
def _page(path: str) -> str:
    return (resources.files("constrained_spec") / path).read_text(encoding="utf-8")
