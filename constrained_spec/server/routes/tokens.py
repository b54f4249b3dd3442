"""Text to ids and back, as vLLM's and llama.cpp's clients ask for it."""

from __future__ import annotations

from typing import Any

import anyio.to_thread
from fastapi import APIRouter, Request

from constrained_spec.api import Engine
from constrained_spec.server.fields import Fields
from constrained_spec.server.plan import BodyError
from constrained_spec.server.routes.body import read_object
from constrained_spec.server.routes.documents import (
    REFUSALS,
    Detokenized,
    DetokenizeRequest,
    Tokenized,
    TokenizeRequest,
    document,
)
from constrained_spec.server.routes.state import service_of
from constrained_spec.server.service import Service

router = APIRouter(tags=["tokens"])
_TEXTS = ("prompt", "content", "messages")


@router.post("/tokenize", responses=REFUSALS, openapi_extra=document(TokenizeRequest))
async def tokenize(request: Request) -> Tokenized:
    """Ids of ``prompt`` (or ``content``), or of ``messages`` through the chat template."""
    service = service_of(request)
    engine = service.engine
    fields = Fields(await read_object(request))
    _model(fields, service)
    given = [name for name in _TEXTS if fields.has(name)]
    if len(given) != 1:
        raise BodyError(f"give one of {', '.join(_TEXTS)}", code="invalid_value", param="/prompt")
    # llama.cpp adds no special token unless asked to, vLLM does.
    special = _switch(fields, "add_special_tokens", "add_special", given[0] != "content")
    shown = _switch(fields, "return_token_strs", "with_pieces", False)
    messages, tools = _objects(fields, "messages"), _objects(fields, "tools")
    text = fields.text("prompt") or fields.text("content") or ""
    fields.finish()

    def encode() -> list[int]:
        with service.tokenizer:
            if messages is not None:
                return engine.model.chat_prompt(messages, tools)
            return engine.encode(text) if special else engine.model.vocabulary.encode(text)

    ids = await anyio.to_thread.run_sync(encode)
    pieces = [_text(engine, [i]) for i in ids] if shown else None
    return Tokenized(count=len(ids), max_model_len=engine.model.capacity, tokens=ids, token_strs=pieces)


@router.post("/detokenize", responses=REFUSALS, openapi_extra=document(DetokenizeRequest))
async def detokenize(request: Request) -> Detokenized:
    """Text of ``tokens``: special tokens have none, and half a character reads as U+FFFD."""
    service = service_of(request)
    engine = service.engine
    fields = Fields(await read_object(request))
    _model(fields, service)
    fields.need("tokens")
    ids = fields.listed("tokens") or []
    fields.finish()
    size = engine.model.vocabulary.size
    if not all(type(i) is int and 0 <= i < size for i in ids):
        raise BodyError(f"tokens must be ids below {size}", code="invalid_value", param="/tokens")
    text = _text(engine, ids)
    return Detokenized(prompt=text, content=text)


def _text(engine: Engine, ids: list[int]) -> str:
    return engine.model.vocabulary.bytes_of(ids).decode("utf-8", errors="replace")


def _objects(fields: Fields, name: str) -> list[dict[str, Any]] | None:
    values = fields.listed(name)
    if values is not None and not all(isinstance(value, dict) for value in values):
        raise BodyError(f"{name} must be a list of objects", code="invalid_type", param=f"/{name}")
    return values


def _switch(fields: Fields, one: str, other: str, default: bool) -> bool:
    """A switch under vLLM's name or llama.cpp's."""
    values = [value for value in (fields.flag(one), fields.flag(other)) if value is not None]
    return values[0] if values else default


def _model(fields: Fields, service: Service) -> None:
    given = fields.text("model")
    if given is not None and given not in service.facts.names:
        raise BodyError("there is no such model here", code="model_not_found", param="/model")
