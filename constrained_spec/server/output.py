"""Constraint, tools and reasoning of a request, put together to what the engine enforces."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from constrained_spec.grammars.constraints import (
    AnyOf,
    Choice,
    Constraint,
    Optional,
    Regex,
    Tag,
    Tagged,
    Then,
    ToolCalls,
)
from constrained_spec.server.constraint_parts import Found
from constrained_spec.server.plan import BodyError, ModelFacts
from constrained_spec.server.tools import Tools

_BREAKS = Regex("\\n{0,2}")  # models leave a line free between reasoning and answer


@dataclass(frozen=True, slots=True)
class Output:
    """``constraint`` None is free text. ``places`` are those of ``Plan.places``."""

    constraint: Constraint | None
    places: Mapping[str, str]


def combine(found: Found | None, tools: Tools | None, facts: ModelFacts, *, reasoning: bool) -> Output:
    """What an answer may be.

    With tools that may not be called, the constraint alone. Where a call must come, there is no text that a
    ``response_format`` could speak of: the tools alone. Where calls are possible, either calls or a text that the
    constraint allows. Raises ``BodyError`` for any other constraint where a call must come.
    """
    output = _either(found, tools)
    if not reasoning or output.constraint is None:
        return output
    may_call = tools is not None and tools.plan.choice in ("auto", "none") and found is None
    return Output(after_reasoning(output.constraint, facts, free=may_call), output.places)


def after_reasoning(constraint: Constraint, facts: ModelFacts, *, free: bool = False) -> Constraint:
    """``constraint`` from the end of the reasoning block on.

    Where the prompt opens the block, it must be closed. Else the model may write one block first, or none. ``free``:
    the constraint allows any text, a block of its own included. Where the markers are tokens without text that only the
    model could begin with, a constraint leaves no room for a block.
    """
    if facts.think is None:
        return constraint
    begin, end = facts.think
    if facts.think_opened:
        inner = constraint if free else Then(_BREAKS, constraint)
        return Tagged((Tag(end, inner),), at_least_one=True, stop_after_first=True)
    if free or facts.think_special:
        return constraint
    block = Then(Choice((begin,)), Tagged((Tag(end, _BREAKS),), at_least_one=True, stop_after_first=True))
    return Then(Optional(block), constraint)


def _either(found: Found | None, tools: Tools | None) -> Output:
    if tools is None:
        return Output(None, {}) if found is None else Output(found.constraint, found.places)
    if found is None:
        return Output(tools.output_type, tools.places)
    if tools.plan.choice == "none":
        return Output(found.constraint, {**tools.places, **found.places})
    if tools.plan.choice == "auto":
        assert isinstance(tools.output_type, ToolCalls), "a raw tool is one that must be called"
        calls = dataclasses.replace(tools.output_type, choice="required")
        return Output(AnyOf(found.constraint, calls), {**tools.places, **found.places})
    if not found.at.startswith("/response_format"):
        raise BodyError(
            f"{found.at} constrains the text, but a tool must be called instead",
            code="conflicting_constraints",
            param=found.at,
            hint='send tool_choice "none" or "auto", or leave one of the two out',
        )
    return Output(tools.output_type, tools.places)
