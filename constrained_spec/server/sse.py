"""Answers as server-sent events: what to send at the start, for each piece, and at the end of every output.

    stream = open_stream(answering, index, prompt_tokens)    # one per output
    stream.start(); stream.piece(piece) ...; stream.end(result)
    usage_event(answering, results)                          # once, after the ends
    encode(event), and DONE where ``ends_with_done(plan)``

All starts come first, in order of index: clients number the outputs by the order in which they meet them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from constrained_spec.api.result import Piece, Result
from constrained_spec.server.answers import call_start, finish_reason
from constrained_spec.server.answers_completions import LogprobTable, completion_head, echo
from constrained_spec.server.events import ContentDelta, Delta, ReasoningDelta, ToolStart, markers, splitter_of
from constrained_spec.server.plan import Plan
from constrained_spec.server.reasoning import MarkedText
from constrained_spec.server.responses_events import ResponsesStream
from constrained_spec.server.shapes import Answering, Json, law, spec_metrics, usage_so_far
from constrained_spec.server.sse_llama import LlamaStream

DONE = b"data: [DONE]\n\n"


class Stream(Protocol):
    """The events of one output. The last piece goes to ``piece`` like all others, then its result to ``end``."""

    def start(self) -> list[Json]: ...

    def piece(self, piece: Piece[Any]) -> list[Json]: ...

    def end(self, result: Result[Any]) -> list[Json]: ...

    def failed(self, error: Json) -> list[Json]:
        """The last events when the output fails midway. ``error`` is the body of the error answer."""
        ...


def open_stream(a: Answering, index: int, prompt_tokens: int) -> Stream:
    """The stream of output ``index``, in the shape of the plan's endpoint."""
    if a.plan.kind == "completion":
        return CompletionStream(a, index, prompt_tokens)
    if a.plan.kind == "responses":
        return ResponsesStream(a)
    if a.plan.kind in ("llama", "infill"):
        return LlamaStream(a, prompt_tokens)
    return ChatStream(a, index, prompt_tokens)


def ends_with_done(plan: Plan) -> bool:
    """Does ``[DONE]`` close the stream? Not in the Responses API, nor in llama.cpp's own endpoints."""
    return plan.kind in ("chat", "completion", "fim")


def encode(event: Mapping[str, Any]) -> bytes:
    """One event on the wire. Events of the Responses API also carry their type as the event's name."""
    name = event.get("type")
    head = f"event: {name}\n" if isinstance(name, str) else ""
    return f"{head}data: {json.dumps(event, ensure_ascii=False, separators=(',', ':'))}\n\n".encode()


def usage_event(a: Answering, results: Sequence[Result[Any]]) -> list[Json]:
    """The chunk without choices that tells the usage, where the client asked for it; else nothing."""
    if not a.plan.include_usage or not ends_with_done(a.plan):
        return []
    head = completion_head(a) if a.plan.kind == "completion" else _chat_head(a)
    return [{**head, "choices": [], "usage": a.usage(results)}]


class ChatStream:
    """Chunks of ``/v1/chat/completions`` and ``/v1/fim/completions``."""

    def __init__(self, a: Answering, index: int, prompt_tokens: int) -> None:
        self._a = a
        self._index = index
        self._tally = _Tally(a, prompt_tokens)
        self._splitter = splitter_of(a.plan, a.facts)
        self._text = MarkedText(a.vocabulary, markers(a.plan, a.facts))

    def start(self) -> list[Json]:
        """The role. Where only calls can follow, the content is null."""
        tools = self._a.plan.tools
        calls_only = tools is not None and tools.choice not in ("auto", "none")
        return [self._chunk({"role": "assistant", "content": None if calls_only else ""})]

    def piece(self, piece: Piece[Any]) -> list[Json]:
        """A chunk per delta. Probabilities and rounds go with the first, or on their own where there is no text."""
        self._tally.add(piece)
        deltas: list[Json] = [_delta(delta) for delta in self._splitter.feed(self._text.take(piece))]
        plan = self._a.plan
        logprobs = self._a.logprobs(piece.logprobs, piece.result)
        told = bool(piece.tokens) and (plan.return_rounds or bool(logprobs and logprobs["content"]))
        if not deltas and told:
            deltas = [{}]
        chunks = [self._chunk(delta, logprobs if i == 0 else None) for i, delta in enumerate(deltas)]
        if plan.return_rounds and chunks:
            chunks[0]["spec"] = self._a.spec(piece)
        return chunks

    def end(self, result: Result[Any]) -> list[Json]:
        """What was held back, then the reason."""
        chunks = [self._chunk(_delta(delta)) for delta in self._splitter.finish()]
        last = self._chunk({}, reason=finish_reason(result, self._splitter.calls))
        last["choices"][0].update(law(result))
        if self._a.plan.return_spec_metrics:
            last["metrics"] = spec_metrics([result])
        return [*chunks, last]

    def failed(self, error: Json) -> list[Json]:
        """OpenAI's clients raise on an event with ``error``."""
        return [error]

    def _chunk(self, delta: Json, logprobs: Json | None = None, reason: str | None = None) -> Json:
        choice = {"index": self._index, "delta": delta, "logprobs": logprobs, "finish_reason": reason}
        return self._tally.chunk(_chat_head(self._a), choice)


class CompletionStream:
    """Chunks of ``/v1/completions``."""

    def __init__(self, a: Answering, index: int, prompt_tokens: int) -> None:
        self._a = a
        self._index = index
        self._tally = _Tally(a, prompt_tokens)
        self._echo = echo(a, index)
        self._table = LogprobTable(a, len(self._echo))

    def start(self) -> list[Json]:
        """The prompt, if it is to be repeated."""
        return [self._chunk(self._echo)] if self._echo else []

    def piece(self, piece: Piece[Any]) -> list[Json]:
        """One chunk, unless there is nothing to tell."""
        self._tally.add(piece)
        logprobs = self._table.take(self._a.shown(piece.logprobs, piece.result))
        told = piece.tokens and (self._a.plan.return_rounds or (logprobs is not None and logprobs["tokens"]))
        if not piece.text and not told:
            return []
        chunk = self._chunk(piece.text, logprobs)
        if self._a.plan.return_rounds:
            chunk["spec"] = self._a.spec(piece)
        return [chunk]

    def end(self, result: Result[Any]) -> list[Json]:
        """The reason."""
        last = self._chunk("", reason=result.finish_reason)
        last["choices"][0].update(law(result))
        if self._a.plan.return_spec_metrics:
            last["metrics"] = spec_metrics([result])
        return [last]

    def failed(self, error: Json) -> list[Json]:
        """As in chat."""
        return [error]

    def _chunk(self, text: str, logprobs: Json | None = None, reason: str | None = None) -> Json:
        choice = {"index": self._index, "text": text, "logprobs": logprobs, "finish_reason": reason}
        return self._tally.chunk(completion_head(self._a), choice)


class _Tally:
    """The usage that goes with every chunk, if any does."""

    def __init__(self, a: Answering, prompt_tokens: int) -> None:
        self._plan = a.plan
        self._prompt = prompt_tokens
        self._completion = 0

    def add(self, piece: Piece[Any]) -> None:
        self._completion += len(piece.tokens)

    def chunk(self, head: Json, choice: Json) -> Json:
        chunk = {**head, "choices": [choice]}
        if self._plan.continuous_usage:
            chunk["usage"] = usage_so_far(self._prompt, self._completion)
        elif self._plan.include_usage:
            chunk["usage"] = None
        return chunk


def _chat_head(a: Answering) -> Json:
    return {
        "id": a.id,
        "object": "chat.completion.chunk",
        "created": a.created,
        "model": a.plan.model,
        "system_fingerprint": a.fingerprint,
    }


def _delta(delta: Delta) -> Json:
    if isinstance(delta, ContentDelta):
        return {"content": delta.text}
    if isinstance(delta, ReasoningDelta):
        return {"reasoning_content": delta.text}
    if isinstance(delta, ToolStart):
        return {"tool_calls": [{"index": delta.index, **call_start(delta)}]}
    return {"tool_calls": [{"index": delta.index, **_more(delta.kind, delta.text)}]}


def _more(kind: str, text: str) -> Json:
    return {"custom": {"input": text}} if kind == "custom" else {"function": {"arguments": text}}
