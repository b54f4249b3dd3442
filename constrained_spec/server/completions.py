"""POST /v1/completions, with ``suffix`` filling in the middle, and llama.cpp's POST /completion: bodies to plans."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from constrained_spec.server.constraints import read_constraint
from constrained_spec.server.delivery import read_delivery
from constrained_spec.server.fields import Fields, kind_of, text_of
from constrained_spec.server.fim_prompt import fim_prompt, fim_stops
from constrained_spec.server.llama_fields import llama_plan
from constrained_spec.server.plan import BodyError, Limits, ModelFacts, Plan
from constrained_spec.server.sampling import (
    Asked,
    read_extra,
    read_length,
    read_model,
    read_n,
    read_sampling,
)

DEFAULT_TOKENS = 16  # OpenAI's

RawPrompt = str | list[int]


def plan_completion(body: Mapping[str, Any], facts: ModelFacts, limits: Limits) -> Plan:
    """The plan of a completions request. Raises ``BodyError`` or another ``RequestError`` with a pointer into it."""
    fields = Fields(body)
    model = read_model(fields, facts)
    prompts = read_prompts(fields, facts, limits)
    asked = read_sampling(fields, facts, limits)
    read_length(fields, asked, facts, limits, ("max_tokens",), DEFAULT_TOKENS)
    n = read_n(fields, limits)
    echo = fields.flag("echo") or False
    logprobs = _logprobs(fields, asked, limits, echo)
    delivery = read_delivery(fields)
    suffix = fields.text("suffix")
    extra = read_extra(fields, asked)
    found = read_constraint(fields, limits, extra)
    fields.finish()
    if suffix:  # an empty one is none
        prompts = [fim_prompt(prompt, suffix, facts, fields.pointer("suffix")) for prompt in prompts]
        fim_stops(asked, facts)
    if found is not None:
        asked.places |= found.places
    return Plan(
        kind="completion",
        model=model,
        prompts=tuple(prompts),
        output_type=None if found is None else found.constraint,
        options=asked.checked(body),
        n=n,
        echo=echo,
        logprobs=logprobs is not None,
        top_logprobs=logprobs or 0,
        ignored=tuple(fields.ignored),
        places={**asked.places, "prompt": "/prompt"},
        raw=body,
        **delivery,
    )


def plan_llama(body: Mapping[str, Any], facts: ModelFacts, limits: Limits) -> Plan:
    """The plan of a raw completion."""
    fields = Fields(body)
    prompts = read_prompts(fields, facts, limits)
    return llama_plan("llama", fields, tuple(prompts), facts, limits, {"prompt": "/prompt"})


def read_prompts(fields: Fields, facts: ModelFacts, limits: Limits) -> list[RawPrompt]:
    """``prompt``: a string, a list of strings, a list of token ids, or a list of such lists."""
    fields.need("prompt")
    value, at = fields.value("prompt"), fields.pointer("prompt")
    if isinstance(value, str):
        return [text_of(value, at)]
    if not isinstance(value, list) or not value:
        raise BodyError("a prompt is a string or a list, and not empty", code="invalid_type", param=at)
    if all(isinstance(x, int) for x in value):
        return [_ids(value, at, facts)]
    if len(value) > limits.max_prompts:
        raise BodyError(
            f"{len(value)} prompts, at most {limits.max_prompts} are served", code="limit_exceeded", param=at
        )
    return [
        _ids(x, f"{at}/{i}", facts) if isinstance(x, list) else text_of(x, f"{at}/{i}") for i, x in enumerate(value)
    ]


def _ids(value: list[Any], at: str, facts: ModelFacts) -> list[int]:
    for i, token in enumerate(value):
        if not isinstance(token, int) or isinstance(token, bool):
            raise BodyError(f"a token id is an integer, not {kind_of(token)}", code="invalid_type", param=f"{at}/{i}")
        if not 0 <= token < facts.vocabulary_size:
            raise BodyError(
                "no token id of the model",
                code="invalid_value",
                param=f"{at}/{i}",
                hint=f"ids are 0 to {facts.vocabulary_size - 1}",
            )
    return value


def _logprobs(fields: Fields, asked: Asked, limits: Limits, echo: bool) -> int | None:
    top = fields.integer("logprobs", least=0)
    if top is None:
        return None
    if top > limits.max_top_logprobs:
        raise BodyError(
            f"logprobs is {top}, at most {limits.max_top_logprobs} are served", code="limit_exceeded", param="/logprobs"
        )
    if echo:
        raise BodyError(
            "the prompt's own log-probabilities are not offered",
            code="unsupported_value",
            param="/logprobs",
            hint="leave out echo or logprobs",
        )
    asked.set("logprobs", top, "/logprobs")
    return top
