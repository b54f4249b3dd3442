"""POST /v1/chat/completions: a body to a plan."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from constrained_spec.grammars.output_types import JsonOptions
from constrained_spec.server.constraint_parts import Reader
from constrained_spec.server.constraints import read_constraint
from constrained_spec.server.delivery import read_delivery
from constrained_spec.server.fields import Fields
from constrained_spec.server.generation_config import read_generation_config
from constrained_spec.server.llama_fields import read_llama_sampling
from constrained_spec.server.messages import read_content, read_messages, with_system
from constrained_spec.server.output import combine
from constrained_spec.server.plan import BodyError, Limits, Message, ModelFacts, Plan
from constrained_spec.server.sampling import (
    Asked,
    read_extra,
    read_length,
    read_model,
    read_n,
    read_sampling,
)
from constrained_spec.server.tool_text import describe_tools
from constrained_spec.server.tools import Tools, chat_tool_choice, chat_tools, plan_tools

# Fields of OpenAI's and of other servers' chat that are offered with the values that mean what happens anyway.
NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "add_generation_prompt": (True,),
    "audio": (),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "continue_final_message": (False,),
    "documents": ([],),
    "echo": (False,),
    "function_call": (),
    "functions": (),
    "include_reasoning": (True,),
    "mm_processor_kwargs": ({},),
    "modalities": (["text"],),
    "moderation": (),
    "reasoning_effort": (),
    "separate_reasoning": (True,),
    "stream_reasoning": (True,),
    "verbosity": ("medium",),
    "web_search_options": (),
}
HINTS = {
    "function_call": "use tool_choice",
    "functions": "use tools",
    "reasoning_effort": "leave it out: the model decides how long it thinks",
}


def plan_chat(body: Mapping[str, Any], facts: ModelFacts, limits: Limits) -> Plan:
    """The plan of a chat request. Raises ``BodyError`` or another ``RequestError``, ``param`` a pointer into it."""
    fields = Fields(body)
    model = read_model(fields, facts)
    messages = read_messages(fields, facts, limits)
    asked = read_sampling(fields, facts, limits)
    read_llama_sampling(fields, asked)
    read_length(fields, asked, facts, limits, ("max_completion_tokens", "max_tokens"))
    read_generation_config(fields, asked, limits)
    read_prediction(fields, asked)
    logprobs, top = _logprobs(fields, asked, limits)
    for name, neutral in NEUTRAL.items():
        fields.only(name, *neutral, hint=HINTS.get(name))
    n = read_n(fields, limits)
    delivery = read_delivery(fields)
    extra = read_extra(fields, asked)
    found = read_constraint(fields, limits, extra)
    tools = plan_tools(
        chat_tools(fields, Reader(limits, JsonOptions())),
        chat_tool_choice(fields),
        fields.flag("parallel_tool_calls"),
        facts,
        limits,
    )
    fields.finish()
    reasoning = facts.think is not None
    output = combine(found, tools, facts, reasoning=reasoning)
    asked.places |= output.places
    return Plan(
        kind="chat",
        model=model,
        prompts=(shown_messages(messages, tools, facts),),
        output_type=output.constraint,
        options=asked.checked(body),
        n=n,
        tools=None if tools is None else tools.plan,
        chat_tools=tools.shown if tools is not None and facts.template_tools else (),
        reasoning=reasoning,
        logprobs=logprobs,
        top_logprobs=top,
        ignored=tuple(fields.ignored),
        places={**asked.places, "messages": "/messages", "prompt": "/messages"},
        raw=body,
        **delivery,
    )


def shown_messages(messages: list[Message], tools: Tools | None, facts: ModelFacts) -> list[Message]:
    """The messages that the chat template gets: with the tools written out where it does not show them."""
    if tools is None or facts.template_tools:
        return messages
    return with_system(messages, describe_tools(tools.shown, tools.plan))


def read_prediction(fields: Fields, asked: Asked) -> None:
    """``prediction``: {"type": "content", "content": text or text parts}; an empty one predicts nothing."""
    given = fields.inside("prediction")
    if given is None:
        return
    given.only("type", "content")
    given.need("content")
    asked.set("prediction", read_content(given) or None, given.pointer("content"))
    given.finish()


def _logprobs(fields: Fields, asked: Asked, limits: Limits) -> tuple[bool, int]:
    wanted = fields.flag("logprobs") or False
    top = fields.integer("top_logprobs", least=0)
    if top and not wanted:
        raise BodyError(
            "top_logprobs needs logprobs", code="invalid_value", param="/top_logprobs", hint="send logprobs: true"
        )
    if top is not None and top > limits.max_top_logprobs:
        raise BodyError(
            f"top_logprobs is {top}, at most {limits.max_top_logprobs} are served",
            code="limit_exceeded",
            param="/top_logprobs",
        )
    if wanted:
        asked.set("logprobs", top or 0, "/top_logprobs")
    return wanted, top or 0
