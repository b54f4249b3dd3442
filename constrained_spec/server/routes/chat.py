"""Chat completions."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from constrained_spec.server.chat import plan_chat
from constrained_spec.server.respond import respond
from constrained_spec.server.routes.documents import ChatAnswer, ChatRequest, document, streamed

router = APIRouter(tags=["generation"])


@router.post(
    "/v1/chat/completions", response_class=Response, responses=streamed(ChatAnswer), openapi_extra=document(ChatRequest)
)
async def chat(request: Request) -> Response:
    """An answer to a conversation: constrained, with tools, with a prediction; whole, or streamed."""
    return await respond(request, plan_chat)
