"""The input items of the Responses API as chat messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from constrained_spec.server.fields import Fields
from constrained_spec.server.plan import BodyError

_TEXTS = ("input_text", "output_text", "text")
_ROLES = ("user", "assistant", "system", "developer")

Pointers = dict[str, str]  # JSON pointers into the chat body -> into the body of the request


class Conversation:
    """Chat messages, and where in the request each of them comes from."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self.pointers: Pointers = {}
        self.ignored: list[str] = []
        self._reasoning: str | None = None  # of the assistant's message that follows

    def say(self, role: str, content: object, at: str, **more: object) -> None:
        """Add a message that ``at`` points to."""
        message: dict[str, Any] = {"role": role, "content": content, **more}
        if role == "assistant" and self._reasoning:
            message["reasoning_content"] = self._reasoning
        self._reasoning = None
        place = f"/messages/{len(self.messages)}"
        self.pointers[place] = at
        self.messages.append(message)

    def instructions(self, text: str) -> None:
        """The system message before all input."""
        self.say("system", text, "/instructions")
        self.pointers["/messages/0/content"] = "/instructions"

    def text(self, text: str) -> None:
        """Input that is one string."""
        self.say("user", text, "/input")
        self.pointers[f"/messages/{len(self.messages) - 1}/content"] = "/input"

    def item(self, item: Fields) -> None:
        """One input item. Raises ``BodyError`` for an item that cannot be honoured."""
        kind = item.text("type") or "message"
        takers: dict[str, Callable[[Fields], None]] = {
            "message": self._message,
            "function_call": self._function_call,
            "custom_tool_call": self._custom_call,
            "function_call_output": self._output,
            "custom_tool_call_output": self._output,
            "reasoning": self._thought,
        }
        if kind not in takers:
            raise BodyError(
                f"items of type {kind!r} are not offered",
                code="unsupported_value",
                param=item.pointer("type"),
                hint=f"one of {', '.join(takers)}",
            )
        item.ignore("id", "status")
        takers[kind](item)
        item.finish()
        self.ignored += item.ignored

    def _message(self, item: Fields) -> None:
        item.need("role")
        role = item.one_of("role", _ROLES)
        assert role is not None
        item.ignore("phase")
        self.say(role, self._content(item, "content"), item.at)

    def _function_call(self, item: Fields) -> None:
        function = {"name": _needed(item, "name"), "arguments": _needed(item, "arguments")}
        self._call({"id": _needed(item, "call_id"), "type": "function", "function": function}, item.at)

    def _custom_call(self, item: Fields) -> None:
        custom = {"name": _needed(item, "name"), "input": _needed(item, "input")}
        self._call({"id": _needed(item, "call_id"), "type": "custom", "custom": custom}, item.at)

    def _call(self, call: dict[str, Any], at: str) -> None:
        """Calls that follow each other, or the assistant's text, belong to one message."""
        if self._reasoning is not None or not self.messages or self.messages[-1]["role"] != "assistant":
            self.say("assistant", None, at)
        calls = self.messages[-1].setdefault("tool_calls", [])
        place = f"/messages/{len(self.messages) - 1}/tool_calls/{len(calls)}"
        self.pointers[place] = self.pointers[f"{place}/{call['type']}"] = at
        calls.append(call)

    def _output(self, item: Fields) -> None:
        call_id = _needed(item, "call_id")
        self.say("tool", self._content(item, "output"), item.at, tool_call_id=call_id)
        self.pointers[f"/messages/{len(self.messages) - 1}/content"] = item.pointer("output")

    def _thought(self, item: Fields) -> None:
        item.ignore("summary", "encrypted_content")
        texts = []
        for i, value in enumerate(item.listed("content") or ()):
            part = Fields(value, f"{item.pointer('content')}/{i}")
            part.one_of("type", ("reasoning_text",))
            texts.append(_needed(part, "text"))
            part.finish()
        self._reasoning = "".join(texts) or None

    def _content(self, item: Fields, name: str) -> object:
        item.need(name)
        if isinstance(item.body[name], str):
            return item.text(name)
        return [self._part(value, f"{item.pointer(name)}/{i}") for i, value in enumerate(item.listed(name) or ())]

    def _part(self, value: object, at: str) -> dict[str, Any]:
        part = Fields(value, at)
        part.need("type")
        kind = part.text("type")
        if kind == "refusal":
            found = {"type": "text", "text": _needed(part, "refusal")}
        elif kind in _TEXTS:
            found = {"type": "text", "text": _needed(part, "text")}
            part.ignore("annotations", "logprobs")
        else:
            raise BodyError(
                f"parts of type {kind!r} are not offered: the model reads text",
                code="unsupported_value",
                param=part.pointer("type"),
            )
        part.finish()
        self.ignored += part.ignored
        return found


def _needed(fields: Fields, name: str) -> str:
    fields.need(name)
    text = fields.text(name)
    assert text is not None
    return text
