"""The Responses API."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from constrained_spec.server.respond import respond
from constrained_spec.server.responses import plan_responses
from constrained_spec.server.routes.documents import ResponsesAnswer, ResponsesRequest, document, streamed

router = APIRouter(tags=["generation"])


@router.post(
    "/v1/responses", response_class=Response, responses=streamed(ResponsesAnswer),
    openapi_extra=document(ResponsesRequest),
)  # fmt: skip
async def responses(request: Request) -> Response:
    """An answer to text or items. Nothing is stored."""
    return await respond(request, plan_responses)
