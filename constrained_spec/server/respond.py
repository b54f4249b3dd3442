"""From a plan to its answer: submit, follow all outputs at once, and shape what comes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from fastapi import Request
from starlette.responses import JSONResponse, Response

from constrained_spec.api import Piece, Result
from constrained_spec.errors import ConstrainedSpecError, DeadlineError
from constrained_spec.server.answers import answer as whole_answer
from constrained_spec.server.answers_llama import llama_cut
from constrained_spec.server.errors import answer as error_answer
from constrained_spec.server.routes.body import read_object
from constrained_spec.server.routes.state import namespace_of, note, request_id, service_of
from constrained_spec.server.service import Job, Planner, Service
from constrained_spec.server.shapes import Answering, Finished, Json
from constrained_spec.server.sse import DONE, Stream, encode, ends_with_done, open_stream, usage_event
from constrained_spec.server.sse_llama import LlamaStream
from constrained_spec.server.streaming import EventStream, Write, unless_gone

Item = tuple[int, Piece[Any] | Exception]


async def respond(request: Request, planner: Planner) -> Response:
    """The answer to a generating request. Raises what the body, or the engine, is refused for."""
    service = service_of(request)
    facts = service.facts
    plan = await service.plan(planner, await read_object(request))
    job = Job(plan)
    shown = Answering(plan, facts, service.engine.model.vocabulary, service.fingerprint)
    note(request, kind=plan.kind, stream=plan.stream, outputs=len(plan.prompts) * plan.n)
    if plan.warm_up:
        return _at_once(shown, llama_cut(shown, "", 0, 0))
    namespace = namespace_of(request)
    try:
        await unless_gone(request.receive, lambda: service.submit(job, namespace))
        if plan.stream:
            return EventStream(Events(service, job, shown, request).run)
        body = await unless_gone(request.receive, lambda: collect(service, job, shown, request))
    except ConstrainedSpecError as error:
        if _may_cut(job, error):  # before it could start
            return _at_once(shown, llama_cut(shown, "", 0, 0))
        told = error_answer(error, plan.locate)
        if told.status >= 500:
            service.note_failure(error, request_id(request))
        note(request, code=told.code)
        return told.response()
    return JSONResponse(body)


def _at_once(shown: Answering, body: Json) -> Response:
    if not shown.plan.stream:
        return JSONResponse(body)

    async def run(write: Write) -> None:
        await write(encode(body))

    return EventStream(run)


@asynccontextmanager
async def followed(service: Service, job: Job) -> AsyncIterator[MemoryObjectReceiveStream[Item]]:
    """All outputs of ``job`` as (index, piece or the error it ended with), in the order in which they come.

    Leaving gives up what is not finished.
    """
    send, receive = anyio.create_memory_object_stream[Item](0)

    async def pump(index: int, out: MemoryObjectSendStream[Item]) -> None:
        async with out:
            try:
                async for piece in service.follow(job, index):
                    await out.send((index, piece))
            except Exception as error:
                await out.send((index, error))

    async with anyio.create_task_group() as group, receive:
        for index in range(len(job.tickets)):
            group.start_soon(pump, index, send.clone())
        send.close()
        try:
            yield receive
        finally:
            job.cancel()
            group.cancel_scope.cancel()


async def collect(service: Service, job: Job, shown: Answering, request: Request) -> Json:
    """The whole answer. Raises the first error of an output; the others are given up."""
    pieces: list[list[Piece[Any]]] = [[] for _ in job.tickets]
    results: dict[int, Result[Any]] = {}
    cutter = LlamaStream(shown, job.tickets[0].prompt_tokens) if job.plan.kind in ("llama", "infill") else None
    failed: Exception | None = None
    async with followed(service, job) as items:
        async for index, item in items:
            if isinstance(item, Exception):
                failed = item
                break
            pieces[index].append(item)
            if item.result is not None:
                results[index] = item.result
            if cutter is not None:
                cutter.piece(item)
                if cutter.done:
                    return _cut(cutter)
    if failed is not None:
        if cutter is not None and _may_cut(job, failed):
            return _cut(cutter)
        raise failed  # not from within the group, which would wrap it
    note(request, **_figures(list(results.values())))
    return whole_answer(shown, [Finished(i, results[i], pieces[i]) for i in sorted(results)])


def _cut(stream: LlamaStream) -> Json:
    """The whole answer of an output that was given up."""
    return {**stream.cut()[0], "content": stream.text}


def _may_cut(job: Job, error: Exception) -> bool:
    return job.plan.partial_on_timeout and isinstance(error, DeadlineError)


def _figures(results: list[Result[Any]]) -> dict[str, object]:
    return {
        "prompt_tokens": sum(r.usage.prompt_tokens for r in results),
        "completion_tokens": sum(r.usage.completion_tokens for r in results),
        "finish": ",".join(r.finish_reason for r in results),
    }


class Events:
    """The events of one streamed answer."""

    def __init__(self, service: Service, job: Job, shown: Answering, request: Request) -> None:
        self._service = service
        self._job = job
        self._shown = shown
        self._request = request
        self._streams: list[Stream] = [open_stream(shown, i, t.prompt_tokens) for i, t in enumerate(job.tickets)]
        self._results: dict[int, Result[Any]] = {}

    async def run(self, write: Write) -> None:
        """Write everything; an error that comes midway is the last event."""
        self._write = write
        try:
            await self._events([event for stream in self._streams for event in stream.start()])
            async with followed(self._service, self._job) as items:
                async for index, item in items:
                    if not await self._take(index, item):
                        break
            results = [self._results[i] for i in sorted(self._results)]
            note(self._request, **_figures(results))
            if len(results) == len(self._streams):
                await self._events(usage_event(self._shown, results))
        finally:
            self._job.cancel()
        if ends_with_done(self._job.plan):
            await write(DONE)

    async def _take(self, index: int, item: Piece[Any] | Exception) -> bool:
        """Write one item's events. False if it was the last that matters."""
        stream = self._streams[index]
        if isinstance(item, Exception):
            if isinstance(stream, LlamaStream) and _may_cut(self._job, item):
                await self._events(stream.cut())
            else:
                await self._fail(stream, item)
            return False
        try:
            events = stream.piece(item)
            if item.result is not None:
                self._results[index] = item.result
                events += stream.end(item.result)
            elif isinstance(stream, LlamaStream) and stream.done:
                await self._events([*events, *stream.cut()])
                return False
        except Exception as error:  # the answer has begun: nothing but an event can tell of it
            await self._fail(stream, error)
            return False
        await self._events(events)
        return True

    async def _fail(self, stream: Stream, error: Exception) -> None:
        told = error_answer(error, self._job.plan.locate)
        if told.status >= 500:
            self._service.note_failure(error, request_id(self._request))
        note(self._request, code=told.code)
        await self._events(stream.failed(told.body))

    async def _events(self, events: list[Json]) -> None:
        if events:
            await self._write(b"".join(map(encode, events)))
