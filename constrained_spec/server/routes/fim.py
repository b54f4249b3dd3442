"""Fill in the middle, as code editors ask for it."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from constrained_spec.server.fim import plan_fim, plan_infill
from constrained_spec.server.respond import respond
from constrained_spec.server.routes.documents import (
    ChatAnswer,
    FimRequest,
    InfillRequest,
    LlamaAnswer,
    document,
    streamed,
)

router = APIRouter(tags=["generation"])


@router.post(
    "/v1/fim/completions", response_class=Response, responses=streamed(ChatAnswer), openapi_extra=document(FimRequest)
)
async def fim(request: Request) -> Response:
    """The text between ``prompt`` and ``suffix``."""
    return await respond(request, plan_fim)


@router.post("/infill", response_class=Response, responses=streamed(LlamaAnswer), openapi_extra=document(InfillRequest))
async def infill(request: Request) -> Response:
    """llama.cpp's own endpoint. Without a token to predict (``n_predict`` 0) it answers at once."""
    return await respond(request, plan_infill)
