"""Completions of raw text, in OpenAI's shape and in llama.cpp's."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from constrained_spec.server.completions import plan_completion, plan_llama
from constrained_spec.server.respond import respond
from constrained_spec.server.routes.documents import (
    CompletionAnswer,
    CompletionRequest,
    LlamaAnswer,
    LlamaRequest,
    document,
    streamed,
)

router = APIRouter(tags=["generation"])


@router.post(
    "/v1/completions", response_class=Response, responses=streamed(CompletionAnswer),
    openapi_extra=document(CompletionRequest),
)  # fmt: skip
async def completions(request: Request) -> Response:
    """Text, token ids, or several of them, continued; with ``suffix``, the text between."""
    return await respond(request, plan_completion)


@router.post(
    "/completion", response_class=Response, responses=streamed(LlamaAnswer), openapi_extra=document(LlamaRequest)
)
@router.post("/completions", response_class=Response, responses=streamed(LlamaAnswer), include_in_schema=False)
async def completion(request: Request) -> Response:
    """llama.cpp's own endpoint."""
    return await respond(request, plan_llama)
