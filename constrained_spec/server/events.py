"""From text to deltas: what a client is told, piece by piece.

    splitter = splitter_of(plan, facts)
    deltas = splitter.feed(text) ... splitter.finish()

The text passes the stages reasoning → tool calls → content. Every stage holds back what may still become a marker, so
nothing is ever retracted, and the deltas of a text, joined, do not depend on how it was cut.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from constrained_spec.server.reasoning import ReasoningStream
from constrained_spec.server.tool_stream import CALL_MARKERS, Arguments, CallStream, Opened, RawCall

if TYPE_CHECKING:
    from constrained_spec.server.plan import ModelFacts, Plan


Kind = Literal["function", "custom"]

_BREAKS = 2  # as many as the grammar allows after a reasoning block (``output``)


@dataclass(frozen=True, slots=True)
class ContentDelta:
    """Text of the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """Text between the reasoning markers."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolStart:
    """A call begins. ``index`` counts the calls of one answer from 0, ``id`` names this one."""

    index: int
    id: str
    name: str
    kind: Kind


@dataclass(frozen=True, slots=True)
class ToolArguments:
    """More of a call's arguments: JSON text of a function, decoded input text of a custom tool."""

    index: int
    text: str
    kind: Kind = "function"


Delta = ContentDelta | ReasoningDelta | ToolStart | ToolArguments


def call_id() -> str:
    """A fresh id of a tool call."""
    return f"call_{secrets.token_hex(12)}"


class OutputSplitter:
    """Reasoning, content and tool calls of one output.

    ``syntax`` is one of the tool call syntaxes, or None when no tool may be called; ``custom`` names the custom tools.
    ``raw`` names the custom tool whose input the whole answer is, with nothing around it.
    ``think`` holds the reasoning markers, or None for no reasoning; ``opened`` says that the prompt has already opened
    the block; up to two line breaks after it belong to it. ``required``: nothing but calls can follow. Special tokens
    that are markers come as their text (see ``reasoning.MarkedText``).
    """

    def __init__(
        self,
        *,
        syntax: str | None = None,
        custom: Collection[str] = (),
        raw: str | None = None,
        think: tuple[str, str] | None = None,
        opened: bool = False,
        required: bool = False,
        new_id: Callable[[], str] = call_id,
    ) -> None:
        self._reasoning = None if think is None else ReasoningStream(think, opened)
        self._calls = RawCall(raw) if raw is not None else None if syntax is None else CallStream(syntax)
        self._custom = frozenset(custom if raw is None else {raw})
        self._new_id = new_id
        self._required = required
        # The grammar of these syntaxes speaks of the beginning of the output: after a block of the model's own it lets
        # any text pass, and what looks like a call there has not been checked.
        self._checked_first = syntax in ("llama3", "json") and not opened and not required
        self._breaks = 0 if think is None else _BREAKS  # that may still be dropped
        self._count = 0
        self._kind: Kind = "function"  # of the call that is being written

    @property
    def calls(self) -> int:
        """Number of tool calls so far."""
        return self._count

    def feed(self, text: str) -> list[Delta]:
        """The deltas that ``text`` makes certain."""
        if self._reasoning is None:
            return self._joined(self._answer(text))
        thought, rest = self._reasoning.feed(text)
        return self._joined([*self._thought(thought), *self._answer(rest)])

    def finish(self) -> list[Delta]:
        """The rest, when no text follows."""
        found: list[Delta] = []
        if self._reasoning is not None:
            thought, rest = self._reasoning.finish()
            found += [*self._thought(thought), *self._answer(rest)]
        if self._calls is not None and (self._reasoning is None or self._reasoning.over):
            found += self._told(self._calls.finish())
        return self._joined(found)

    def _thought(self, text: str) -> list[Delta]:
        return [ReasoningDelta(text)] if text else []

    def _answer(self, text: str) -> list[Delta]:
        if not text:
            return []
        if self._checked_first and self._reasoning is not None and self._reasoning.seen:
            self._calls = None
        if self._required:
            text = self._without_breaks(text)
        return self._content(text) if self._calls is None else self._told(self._calls.feed(text))

    def _told(self, events: list[str | Opened | Arguments]) -> list[Delta]:
        found: list[Delta] = []
        for event in events:
            if isinstance(event, str):
                found += self._content(event)
            elif isinstance(event, Opened):
                self._kind = "custom" if event.name in self._custom else "function"
                found.append(ToolStart(self._count, self._new_id(), event.name, self._kind))
                self._count += 1
            else:
                text = event.decoded if self._kind == "custom" else event.text
                found += [ToolArguments(self._count - 1, text, self._kind)] if text else []
        return found

    def _content(self, text: str) -> list[Delta]:
        text = self._without_breaks(text)
        return [ContentDelta(text)] if text else []

    def _without_breaks(self, text: str) -> str:
        """``text`` without the line breaks that end a reasoning block."""
        if not self._breaks or self._reasoning is None or not self._reasoning.seen:
            return text
        rest = text
        while self._breaks and rest.startswith("\n"):
            rest, self._breaks = rest[1:], self._breaks - 1
        if rest:
            self._breaks = 0
        return rest

    @staticmethod
    def _joined(deltas: list[Delta]) -> list[Delta]:
        """Neighbours of one kind as one delta."""
        found: list[Delta] = []
        for delta in deltas:
            last = found[-1] if found else None
            if isinstance(delta, ContentDelta) and isinstance(last, ContentDelta):
                found[-1] = ContentDelta(last.text + delta.text)
            elif isinstance(delta, ReasoningDelta) and isinstance(last, ReasoningDelta):
                found[-1] = ReasoningDelta(last.text + delta.text)
            elif isinstance(delta, ToolArguments) and isinstance(last, ToolArguments) and last.index == delta.index:
                found[-1] = ToolArguments(delta.index, last.text + delta.text, delta.kind)
            else:
                found.append(delta)
        return found


def splitter_of(plan: Plan, facts: ModelFacts, new_id: Callable[[], str] = call_id) -> OutputSplitter:
    """The splitter of one output of ``plan``."""
    tools = plan.tools if plan.tools is not None and plan.tools.choice != "none" else None
    raw = tools is not None and tools.syntax == "raw"
    return OutputSplitter(
        syntax=None if tools is None or raw else tools.syntax,
        custom=() if tools is None else tools.custom,
        raw=tools.choice if tools is not None and raw else None,
        think=facts.think if plan.reasoning else None,
        opened=facts.think_opened,
        required=tools is not None and tools.choice != "auto",
        new_id=new_id,
    )


def markers(plan: Plan, facts: ModelFacts) -> tuple[str, ...]:
    """The special tokens that an output of ``plan`` may be written with."""
    thinking = facts.think if plan.reasoning and facts.think is not None else ()
    return (*thinking, *(CALL_MARKERS if plan.tools is not None else ()))
