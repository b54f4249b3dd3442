"""What the tests of all clients ask for, and how they reach a server.

The texts of the tiny model are random bytes, so what is asked for here is finite: a constrained answer always ends.
"""

from __future__ import annotations

import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar

import anyio
import httpx2
import jsonschema
import uvicorn
from fastapi import FastAPI
from openai import AsyncOpenAI
from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolParam
from pydantic import BaseModel, Field

T = TypeVar("T")
MODEL = "tiny"
PLACE = "http://localhost/v1"
USER: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Ada Lovelace died at 36. Who was she?"}]


class Person(BaseModel):
    """A person."""

    name: str = Field(min_length=1, max_length=8)
    age: int = Field(ge=0, le=150)


SCHEMA: dict[str, Any] = {**Person.model_json_schema(), "additionalProperties": False}
TOOL: ChatCompletionToolParam = {
    "type": "function",
    "function": {"name": "person", "description": "Note a person.", "parameters": SCHEMA},
}


def is_person(value: object) -> None:
    """Raises unless ``value`` is a person by the schema."""
    jsonschema.validate(value, SCHEMA)


def only(values: Sequence[T] | None) -> T:
    """The one value."""
    assert values is not None and len(values) == 1
    return values[0]


@asynccontextmanager
async def in_process(app: FastAPI, key: str = "none") -> AsyncIterator[AsyncOpenAI]:
    """openai's client, straight into ``app``."""
    transport = httpx2.ASGITransport(app=app)
    async with httpx2.AsyncClient(transport=transport, timeout=600) as http:
        yield AsyncOpenAI(base_url=PLACE, api_key=key, http_client=http, max_retries=0)


class Talk:
    """``talk(use)``: what ``use`` makes of a client of ``app``."""

    def __init__(self, app: FastAPI, key: str = "none") -> None:
        self.app = app
        self.key = key

    def __call__(self, use: Callable[[AsyncOpenAI], Awaitable[T]]) -> T:
        async def run() -> T:
            async with in_process(self.app, self.key) as client:
                return await use(client)

        return anyio.run(run)


@contextmanager
def on_loopback(app: FastAPI) -> Iterator[str]:
    """The address of ``app``, served on a free port of this machine by a thread."""
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error", lifespan="off"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
