"""The requests that real clients sent, and what becomes of each: the data of a test and of docs/clients.md."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from constrained_spec.errors import RequestError
from constrained_spec.grammars.constraints import Choice, JsonSchema, Lark, Regex, ToolCalls
from constrained_spec.server.chat import plan_chat
from constrained_spec.server.completions import plan_completion, plan_llama
from constrained_spec.server.fim import plan_fim, plan_infill
from constrained_spec.server.plan import Limits, ModelFacts, Plan
from constrained_spec.server.responses import plan_responses

FILE = Path(__file__).with_name("data") / "client_requests.jsonl"
PLANNERS: Mapping[str, Callable[[Any, ModelFacts, Limits], Plan]] = {
    "/v1/chat/completions": plan_chat,
    "/v1/completions": plan_completion,
    "/v1/responses": plan_responses,
    "/v1/fim/completions": plan_fim,
    "/infill": plan_infill,
    "/completion": plan_llama,
}


@dataclass(frozen=True, slots=True)
class Recorded:
    """One request; ``body`` is None for a GET."""

    client: str
    method: str
    path: str
    body: dict[str, Any] | None


def recorded() -> list[Recorded]:
    """All of them, in the order in which they were sent."""
    lines = FILE.read_text().splitlines()
    return [Recorded(**{k: d[k] for k in ("client", "method", "path", "body")}) for d in map(json.loads, lines)]


def outcome(request: Recorded, facts: ModelFacts) -> str:
    """What becomes of a request, in a few words."""
    if request.body is None:
        return "answered"
    try:
        plan = PLANNERS[request.path](request.body, facts, Limits())
    except RequestError as error:
        return f"400 {getattr(error, 'code', '')} at {error.param}"
    return summary(plan)


def summary(plan: Plan) -> str:
    """What a plan enforces, and what else of it is not the default."""
    parts = [_enforced(plan)]
    if plan.stream:
        parts.append("streamed with usage" if plan.include_usage else "streamed")
    if plan.logprobs:
        parts.append(f"logprobs with {plan.top_logprobs} alternatives" if plan.top_logprobs else "logprobs")
    if plan.options.get("prediction"):
        parts.append("prediction drafted")
    for name in ("top_k", "seed", "stop"):
        if name in plan.options:
            parts.append(name)
    if plan.options.get("max_tokens", 0) < 100:
        parts.append(f"at most {plan.options['max_tokens']} tokens")
    return ", ".join(parts)


def _enforced(plan: Plan) -> str:
    constraint = plan.output_type
    if constraint is None:
        return "the middle" if isinstance(plan.prompts[0], list) and plan.kind == "completion" else "free text"
    if isinstance(constraint, JsonSchema):
        schema = constraint.schema
        plain = isinstance(schema, Mapping) and set(schema) == {"type"}
        return "any JSON object" if plain else "the JSON Schema"
    if isinstance(constraint, Regex):
        return f"the regex `{constraint.pattern}`"
    if isinstance(constraint, Lark):
        return "the grammar"
    if isinstance(constraint, Choice):
        return "the choice"
    assert isinstance(constraint, ToolCalls)
    choice = {"auto": "free text or calls", "required": "calls"}.get(
        constraint.choice, f"one call of {constraint.choice}"
    )
    return f"{choice}, arguments by their schema"
