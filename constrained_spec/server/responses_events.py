"""The Responses API's events and its answer, which is what the last event holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from constrained_spec.server.events import (
    ContentDelta,
    Delta,
    ReasoningDelta,
    ToolArguments,
    ToolStart,
    markers,
    splitter_of,
)
from constrained_spec.server.reasoning import MarkedText
from constrained_spec.server.shapes import Answering, Finished, Json, law, new_id, spec_metrics
from constrained_spec.state.sequence import TokenLogprob

if TYPE_CHECKING:
    from constrained_spec.api.result import Piece, Result

_ECHOED = ("instructions", "max_output_tokens", "max_tool_calls", "safety_identifier", "prompt_cache_key", "user")
# Kind of item: (prefix of its id, its events, the field that grows)
_ITEMS = {
    "message": ("msg_", "response.output_text", "text"),
    "reasoning": ("rs_", "response.reasoning_text", "text"),
    "function_call": ("fc_", "response.function_call_arguments", "arguments"),
    "custom_tool_call": ("ctc_", "response.custom_tool_call_input", "input"),
}


def responses_answer(a: Answering, output: Finished) -> Json:
    """The ``response`` object: that of the stream's last event, so the two never differ."""
    stream = ResponsesStream(a)
    stream.text(MarkedText(a.vocabulary, markers(a.plan, a.facts)).take(output.result))
    stream.probabilities(output.result.logprobs, output.result)
    response: Json = stream.end(output.result)[-1]["response"]
    return response


class ResponsesStream:
    """Typed, numbered events. One output item is open at a time."""

    def __init__(self, a: Answering) -> None:
        self._a = a
        self._number = 0
        self._events: list[Json] = []
        self._items: list[Json] = []
        self._open: Json | None = None
        self._waiting: list[Json] = []  # probabilities that no text has taken along yet
        self._splitter = splitter_of(a.plan, a.facts)
        self._marked = MarkedText(a.vocabulary, markers(a.plan, a.facts))

    def start(self) -> list[Json]:
        """The response, still empty."""
        self._emit("response.created", response=self._response("in_progress"))
        self._emit("response.in_progress", response=self._response("in_progress"))
        return self._drain()

    def piece(self, piece: Piece[Any]) -> list[Json]:
        """What ``piece`` adds."""
        self.probabilities(piece.logprobs, piece.result)
        self.text(self._marked.take(piece))
        return self._drain()

    def end(self, result: Result[Any]) -> list[Json]:
        """What was held back, the end of the last item, and the finished response."""
        complete = result.finish_reason == "stop"
        self._tell(self._splitter.finish())
        if not self._items:
            self._begin("message")
        self._close("completed" if complete else "incomplete")
        response = self._response("completed" if complete else "incomplete")
        response["usage"] = _usage(self._a.usage([result]))
        response.update(law(result))
        if not complete:
            response["incomplete_details"] = {"reason": "max_output_tokens"}
        if self._a.plan.return_spec_metrics:
            response["metrics"] = spec_metrics([result])
        self._emit("response.completed" if complete else "response.incomplete", response=response)
        return self._drain()

    def failed(self, error: Json) -> list[Json]:
        """A response that failed midway."""
        self._close("incomplete")
        response = self._response("failed")
        response["error"] = {"code": "server_error", "message": error["error"]["message"]}
        self._emit("response.failed", response=response)
        return self._drain()

    def text(self, text: str) -> None:
        """Take more of the output, special markers written out."""
        self._tell(self._splitter.feed(text))

    def probabilities(self, logprobs: Sequence[TokenLogprob], result: Result[Any] | None) -> None:
        """Take the probabilities of the tokens that come, if they are asked for."""
        if self._a.plan.logprobs:
            self._waiting += [self._a.logprob(entry) for entry in self._a.shown(logprobs, result)]

    # ---- items ----------------------------------------------------------------------------------------------------

    def _tell(self, deltas: Sequence[Delta]) -> None:
        for delta in deltas:
            if isinstance(delta, ToolStart):
                self._begin("custom_tool_call" if delta.kind == "custom" else "function_call", delta)
            elif isinstance(delta, ToolArguments):
                self._grow(delta.text)
            else:
                kind = "reasoning" if isinstance(delta, ReasoningDelta) else "message"
                if self._open is None or self._open["type"] != kind:
                    self._begin(kind)
                self._grow(delta.text, text=isinstance(delta, ContentDelta))

    def _begin(self, kind: str, start: ToolStart | None = None) -> None:
        self._close("completed")
        prefix, _, field = _ITEMS[kind]
        item: Json = {"type": kind, "id": new_id(prefix)}
        if kind != "custom_tool_call":  # which has no status
            item["status"] = "in_progress"
        if start is not None:
            item |= {"call_id": start.id, "name": start.name, field: ""}
        elif kind == "message":
            item |= {"role": "assistant", "content": []}
        else:
            item |= {"summary": [], "content": []}
        self._items.append(item)
        self._open = item
        self._emit("response.output_item.added", output_index=len(self._items) - 1, item=_copy(item))
        if start is None:
            part: Json = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
            item["content"].append(part if kind == "message" else {"type": "reasoning_text", "text": ""})
            self._emit("response.content_part.added", **self._place(), part=_copy(item["content"][0]))

    def _grow(self, delta: str, *, text: bool = False) -> None:
        assert self._open is not None
        _, event, field = _ITEMS[self._open["type"]]
        holder = self._open["content"][0] if "content" in self._open else self._open
        holder[field] += delta
        more: Json = {}
        if text:
            waiting, self._waiting = self._waiting, []
            holder["logprobs"] += [_with_bytes(entry) for entry in waiting]
            more = {"logprobs": [_without_bytes(entry) for entry in waiting]}
        self._emit(f"{event}.delta", **self._place(), delta=delta, **more)

    def _close(self, status: str) -> None:
        if self._open is None:
            return
        item = self._open
        _, event, field = _ITEMS[item["type"]]
        holder = item["content"][0] if "content" in item else item
        more: Json = {}
        if item["type"] == "message":
            # The token that ended the text may have come without any.
            waiting, self._waiting = self._waiting, []
            holder["logprobs"] += [_with_bytes(entry) for entry in waiting]
            more = {"logprobs": [_without_bytes(entry) for entry in holder["logprobs"]]}
        elif item["type"] == "function_call":
            more = {"name": item["name"]}
        self._emit(f"{event}.done", **self._place(), **{field: holder[field]}, **more)
        if "content" in item:
            self._emit("response.content_part.done", **self._place(), part=_copy(holder))
        if "status" in item:
            item["status"] = status
        self._emit("response.output_item.done", output_index=len(self._items) - 1, item=_copy(item))
        self._open = None

    def _place(self) -> Json:
        assert self._open is not None
        place: Json = {"item_id": self._open["id"], "output_index": len(self._items) - 1}
        return {**place, "content_index": 0} if "content" in self._open else place

    # ---- the response ---------------------------------------------------------------------------------------------

    def _response(self, status: str) -> Json:
        raw, plan = self._a.plan.raw, self._a.plan
        reasoning = raw.get("reasoning") or {}
        return {
            "id": self._a.id,
            "object": "response",
            "created_at": self._a.created,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": None,
            **{name: raw.get(name) for name in _ECHOED},
            "metadata": raw.get("metadata") or {},
            "model": plan.model,
            "output": [_copy(item) for item in self._items],
            "parallel_tool_calls": raw.get("parallel_tool_calls") is not False,
            "previous_response_id": None,
            "reasoning": {"effort": reasoning.get("effort"), "summary": None},
            "store": False,
            "temperature": plan.options.get("temperature", 1.0),
            "text": {"format": (raw.get("text") or {}).get("format") or {"type": "text"}},
            "tool_choice": raw.get("tool_choice") or "auto",
            "tools": [_tool(tool) for tool in raw.get("tools") or ()],
            "top_logprobs": plan.top_logprobs,
            "top_p": plan.options.get("top_p", 1.0),
            "truncation": "disabled",
            "usage": None,
            "system_fingerprint": self._a.fingerprint,
        }

    def _emit(self, type_: str, **fields: Any) -> None:
        self._events.append({"type": type_, "sequence_number": self._number, **fields})
        self._number += 1

    def _drain(self) -> list[Json]:
        found, self._events = self._events, []
        return found


def _copy(item: Json) -> Json:
    """A copy that later growth does not reach."""
    copied = dict(item)
    if "content" in copied:
        copied["content"] = [_copy(part) for part in copied["content"]]
    if "logprobs" in copied:
        copied["logprobs"] = list(copied["logprobs"])
    return copied


def _with_bytes(entry: Json) -> Json:
    """The form in a part of a message, where bytes are always a list."""
    top = [{**t, "bytes": t["bytes"] or []} for t in entry["top_logprobs"]]
    return {**entry, "bytes": entry["bytes"] or [], "top_logprobs": top}


def _without_bytes(entry: Json) -> Json:
    """The form in an event."""
    top = [{"token": t["token"], "logprob": t["logprob"]} for t in entry["top_logprobs"]]
    return {"token": entry["token"], "logprob": entry["logprob"], "top_logprobs": top}


def _tool(tool: Json) -> Json:
    """A tool as it was sent, with the defaults that OpenAI shows."""
    return {"parameters": None, "strict": False, **tool} if tool.get("type") == "function" else tool


def _usage(usage: Json) -> Json:
    return {
        "input_tokens": usage["prompt_tokens"],
        "input_tokens_details": {
            "cached_tokens": usage["prompt_tokens_details"]["cached_tokens"],
            "cache_write_tokens": 0,
        },
        "output_tokens": usage["completion_tokens"],
        "output_tokens_details": {
            "reasoning_tokens": usage["completion_tokens_details"]["reasoning_tokens"],
            "accepted_prediction_tokens": usage["completion_tokens_details"]["accepted_prediction_tokens"],
            "rejected_prediction_tokens": usage["completion_tokens_details"]["rejected_prediction_tokens"],
        },
        "total_tokens": usage["total_tokens"],
    }
