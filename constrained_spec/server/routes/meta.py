"""What a server tells about itself."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST

from constrained_spec import __version__
from constrained_spec.server.errors import HttpError
from constrained_spec.server.fields import Fields
from constrained_spec.server.routes.body import read_object
from constrained_spec.server.routes.documents import (
    NOT_READY,
    REFUSALS,
    ErrorBody,
    Health,
    LoadModelRequest,
    Model,
    ModelList,
    Props,
    Version,
    document,
)
from constrained_spec.server.routes.state import service_of
from constrained_spec.server.sampling import read_model
from constrained_spec.server.sse import encode

router = APIRouter(tags=["server"])


@router.get("/health", responses={503: {"model": Health}})
async def health(request: Request) -> Health:
    """200 once requests are served; 503 while the model is loaded, and when the engine is down."""
    service = service_of(request)
    status, reason, restarts = service.state, service.reason, 0
    if status == "ready":
        engine = service.engine.health()
        reason, restarts = engine.reason, engine.restarts
        status = "failed" if engine.status != "ready" else "ready"
    told = Health(status="ok" if status == "ready" else status, model=service.metrics.model, reason=reason,
                  restarts=restarts)  # fmt: skip
    if status == "ready":
        return told
    return JSONResponse(told.model_dump(), 503)  # type: ignore[return-value]  # FastAPI passes a response on


@router.get("/version")
async def version() -> Version:
    """Version of this package."""
    return Version(version=__version__)


@router.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
async def metrics(request: Request) -> Response:
    """Prometheus metrics."""
    return Response(service_of(request).metrics.text(), media_type=CONTENT_TYPE_LATEST)


@router.get("/v1/models", responses=NOT_READY)
async def models(request: Request) -> ModelList:
    """The served model, once for each of its names."""
    return ModelList(data=_models(request))


@router.get("/v1/models/{name:path}", responses={404: {"model": ErrorBody}, **NOT_READY})
async def model(request: Request, name: str) -> Model:
    """One of the names."""
    for found in _models(request):
        if found.id == name:
            return found
    raise HttpError(404, "model_not_found", f"there is no model {name!r} here", param="/model")


def _models(request: Request) -> list[Model]:
    service = service_of(request)
    facts = service.facts
    root = service.engine.model.name
    return [Model(id=n, created=service.created, root=root, max_model_len=facts.capacity) for n in facts.names]


@router.post(
    "/load_model",
    response_class=Response,
    responses={200: {"content": {"text/event-stream": {}}}, **REFUSALS},
    openapi_extra=document(LoadModelRequest),
)
async def load_model(request: Request) -> Response:
    """What `transformers chat` asks for first. One event says that the served model is there; no other is loaded."""
    facts = service_of(request).facts
    fields = Fields(await read_object(request))
    name = read_model(fields, facts)
    fields.finish()
    return Response(encode({"status": "ready", "model": name, "cached": True}), media_type="text/event-stream")


@router.get("/props", responses=NOT_READY)
async def props(request: Request) -> Props:
    """What llama.cpp's clients ask a server for. Read-only."""
    service = service_of(request)
    model = service.engine.model
    template: Any = getattr(model.tokenizer, "chat_template", None)
    return Props(
        total_slots=model.slots, model_alias=service.facts.names[0], model_path=model.name,
        chat_template=template if isinstance(template, str) else "", build_info=f"constrained-spec {__version__}",
        default_generation_settings={
            "n_ctx": model.capacity,
            "speculative": service.settings.speculation != "off",
            "drafter": service.settings.drafter,
            "gamma": service.settings.gamma,
            "verifier": service.settings.verifier,
        },
        modalities={"vision": False, "audio": False},
    )  # fmt: skip
