"""The application: routes, middleware, and the life of its engine."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import import_module
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect

from constrained_spec import __version__
from constrained_spec.api import Engine
from constrained_spec.errors import ConfigError, ConstrainedSpecError, RequestCancelled
from constrained_spec.server.auth import PUBLIC, Auth, KeyRing
from constrained_spec.server.errors import answer
from constrained_spec.server.middleware import BodyLimit, OriginGuard, RequestContext
from constrained_spec.server.routes import chat, completions, fim, meta, playground, responses, tokens
from constrained_spec.server.routes.documents import add_schemas
from constrained_spec.server.routes.state import note
from constrained_spec.server.service import Service
from constrained_spec.server.settings import Settings

ROUTERS = (chat, completions, fim, responses, tokens, meta, playground)


def create_app(settings: Settings, engine: Engine | None = None) -> FastAPI:
    """The ASGI application. Without ``engine`` it loads one when it starts, and answers 503 until then.

    ``app.state.service`` is its ``Service``; ``app.state.on_failure``, if set, is called when loading fails. Raises
    ``ConfigError`` for settings that cannot be met.
    """
    ring = KeyRing(settings.keys)
    service = Service(settings, engine)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service.start(getattr(app.state, "on_failure", None))
        yield
        await service.close()

    app = FastAPI(
        title="constrained-spec",
        version=__version__,
        description="Constrained generation with exact speculative decoding, in OpenAI's shapes.",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        middleware=_middleware(settings, service, ring),
        telemetry=_telemetry(settings),
    )
    app.state.service = service
    app.add_exception_handler(ConstrainedSpecError, _answer)
    app.add_exception_handler(HTTPException, _answer)
    app.add_exception_handler(ClientDisconnect, _answer)
    for module in ROUTERS:
        app.include_router(module.router)
    _document(app)
    return app


def _middleware(settings: Settings, service: Service, ring: KeyRing) -> list[Middleware]:
    """Outermost first."""
    found = [
        Middleware(
            RequestContext, log=service.log, observe=service.metrics.answered, prompts=settings.log_prompts
        ),
        Middleware(
            OriginGuard, origins=settings.cors_origins,
            local_only=settings.loopback and not ring and not settings.insecure,
        ),
    ]  # fmt: skip
    if settings.cors_origins:
        found.append(
            Middleware(
                CORSMiddleware, allow_origins=list(settings.cors_origins), allow_methods=["GET", "POST"],
                allow_headers=["authorization", "content-type", "x-api-key", "x-request-id"],
                expose_headers=["x-request-id", "retry-after"],
            )
        )  # fmt: skip
    public = PUBLIC | {"/metrics"} if settings.public_metrics else PUBLIC
    found.append(Middleware(Auth, ring=ring, public=public))
    found.append(Middleware(BodyLimit, limit=settings.max_body_bytes))
    return found


def _telemetry(settings: Settings) -> Any:
    """FastAPI's own OpenTelemetry support: one span a request, no bodies. Off means off."""
    if settings.otel:
        try:
            for name in ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http"):
                import_module(name)
        except ImportError as error:
            raise ConfigError(
                "traces need OpenTelemetry's SDK", param="otel", hint="pip install 'constrained-spec[otel]'"
            ) from error
    return {"tracing": settings.otel, "metrics": False, "logs": False, "auto_configure": settings.otel}


async def _answer(request: Request, error: Exception) -> JSONResponse:
    told = answer(RequestCancelled("the client went away") if isinstance(error, ClientDisconnect) else error)
    note(request, code=told.code)
    return told.response()


def _document(app: FastAPI) -> None:
    plain = app.openapi

    def documented() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = add_schemas(plain())
        return app.openapi_schema

    app.openapi = documented  # type: ignore[method-assign]  # FastAPI's documented way to extend the document
