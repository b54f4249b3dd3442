"""What real clients sent is honoured, or refused by name; what is nearly that never breaks the server."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from constrained_spec.errors import ConfigError, RequestError
from constrained_spec.server.plan import Limits, Plan
from tests.server.clients_doc import DOCUMENT, document
from tests.server.plan_facts import FACTS, FIM, facts
from tests.server.recorded import PLANNERS, outcome, recorded

REQUESTS = recorded()
SCHEMA, FREE, AUTO = "the JSON Schema", "free text", "free text or calls, arguments by their schema"
REQUIRED, ONE = "calls, arguments by their schema", "one call of P, arguments by their schema"
STREAMED, USAGE, NO_FIM = ", streamed", ", streamed with usage", "400 fim_not_supported at /suffix"
OUTCOMES = [
    # openai
    SCHEMA, AUTO, FREE + ", logprobs with 2 alternatives, prediction drafted, seed, stop, at most 5 tokens",
    "the regex `[a-z]+`", NO_FIM, FREE + USAGE, SCHEMA + STREAMED, AUTO + STREAMED, FREE, "answered",
    # pydantic-ai
    REQUIRED, SCHEMA, "any JSON object", FREE + USAGE, REQUIRED + USAGE,
    # LangChain
    FREE, SCHEMA, ONE, "any JSON object", FREE + STREAMED, SCHEMA + STREAMED,
    FREE + ", logprobs with 2 alternatives",
    # instructor
    ONE, "any JSON object", SCHEMA, FREE, FREE, ONE, "one call of PartialP, arguments by their schema" + STREAMED,
    # Outlines
    FREE, SCHEMA, "the regex `(a|b)`", "the regex `([0-9]+)`, at most 5 tokens", "the grammar", SCHEMA + STREAMED,
    FREE, SCHEMA, "the regex `(a|b)`", "the regex `([0-9]+)`, at most 5 tokens", "the grammar", SCHEMA + STREAMED,
    FREE, SCHEMA, SCHEMA + STREAMED,
    # Hugging Face
    SCHEMA, FREE + STREAMED,
    # LiteLLM
    FREE, SCHEMA, "the regex `a+`, top_k, seed", FREE + USAGE, FREE, SCHEMA, "the regex `a+`, top_k, seed",
    FREE + USAGE, NO_FIM,
]  # fmt: skip


@pytest.mark.parametrize("i", range(len(REQUESTS)))
def test_recorded_request(i: int) -> None:
    assert outcome(REQUESTS[i], FACTS) == OUTCOMES[i]


def test_every_request_has_an_outcome() -> None:
    assert len(REQUESTS) == len(OUTCOMES) == 55


def test_a_suffix_is_honoured_by_a_model_that_can() -> None:
    model = facts(fim=FIM)
    assert [outcome(r, model) for r, o in zip(REQUESTS, OUTCOMES, strict=True) if o == NO_FIM] == [
        "the middle, at most 8 tokens", "the middle, at most 4 tokens",
    ]  # fmt: skip


def test_the_schema_of_a_body_is_the_constraint() -> None:
    def schemas(value: Any) -> list[Any]:
        if isinstance(value, dict):
            own = [value] if value.get("type") == "object" and "properties" in value else []
            return own + [found for x in value.values() for found in schemas(x)]
        return [found for x in value for found in schemas(x)] if isinstance(value, list) else []

    checked = 0
    for request in REQUESTS:
        if request.body is None or "suffix" in request.body:
            continue
        plan = PLANNERS[request.path](request.body, FACTS, Limits())
        made = schemas([getattr(plan.output_type, "schema", None), *getattr(plan.output_type, "tools", ())])
        assert [json.dumps(s) for s in made] == [json.dumps(s) for s in schemas(request.body)]
        checked += len(made)
    assert checked == 23


def test_the_document_is_current() -> None:
    assert Path(DOCUMENT).read_text() == document(), "run: python -m tests.server.clients_doc"


# ---- mutations ----------------------------------------------------------------------------------------------------

ODD: list[Any] = [
    None,
    True,
    0,
    -1,
    2**70,
    1.5,
    float("nan"),
    float("inf"),
    "",
    "x",
    "\ud800",
    "\x00",
    [],
    {},
    [[]],
    {"": 1},
]
VALUES = st.recursive(
    st.one_of(st.sampled_from(ODD), st.integers(), st.floats(), st.text(max_size=8)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=4), inner, max_size=3)),
    max_leaves=5,
)
FRAGMENTS = [
    {"type": "json_schema", "json_schema": {"schema": {"type": "string"}}}, {"type": "structural_tag"},
    {"triggers": ["<"], "structures": [{"begin": "<a", "schema": {}, "end": ">"}]}, [{"type": "custom", "custom": {}}],
    [{"type": "function", "function": {"name": "f", "parameters": {}}}], {"include_usage": True}, {"7": -1},
    {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}},
    {"type": "function", "function": {"name": "P"}},
    {"type": "content", "content": [{"type": "text", "text": "a"}]}, {"speculation": "off", "gamma": 3}, "root ::= x",
    [{"filename": "a", "text": "b"}], ["top_k", "infill"], {"regex": "a", "whitespace_pattern": ""}, '{"a": 1}',
    [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}], "start: /a/", [1, 2, 3],
]  # fmt: skip
OTHERS: list[tuple[str, dict[str, Any]]] = [
    ("/infill", {"input_prefix": "a", "input_suffix": "b", "prompt": "c", "n_predict": 4, "samplers": ["top_k"],
                 "input_extra": [{"filename": "x", "text": "y"}], "n_indent": 2, "t_max_predict_ms": 10}),
    ("/completion", {"prompt": "a", "n_predict": 3, "stop": ["x"], "repeat_penalty": 1.1, "grammar": 'root ::= "a"'}),
    ("/v1/fim/completions", {"prompt": "a", "suffix": "b", "max_tokens": 3, "stream": True}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "generation_config": '{"top_k": 1}'}),
]  # fmt: skip
BODIES = [(r.path, r.body) for r in REQUESTS if r.body is not None] + OTHERS
NAMES = sorted(
    {name for _, body in BODIES for name in body}
    | {"response_format", "structured_outputs", "guided_json", "guided_choice", "grammar", "json_schema", "tools",
       "tool_choice", "prediction", "extra", "logit_bias", "stop", "functions", "n", "best_of", "timeout", "priority"}
)  # fmt: skip


def places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [at] * bool(at) + [place for key, x in inner for place in places(x, (*at, key))]


@st.composite
def mutated(draw: st.DrawFn) -> tuple[str, Any]:
    path, body = copy.deepcopy(draw(st.sampled_from(BODIES)))
    value = st.one_of(VALUES, st.sampled_from(FRAGMENTS))
    for _ in range(draw(st.integers(1, 3))):
        kind = draw(st.sampled_from(["replace", "replace", "remove", "add"]))
        spots = places(body)
        if kind == "add" or not spots:
            body[draw(st.one_of(st.sampled_from(NAMES), st.text(max_size=3)))] = copy.deepcopy(draw(value))
            continue
        *way, last = draw(st.sampled_from(spots))
        holder = body
        for key in way:
            holder = holder[key]
        if kind == "replace":
            holder[last] = copy.deepcopy(draw(value))
        else:
            del holder[last]
    return path, body


def attempt(path: str, body: Any) -> Plan | RequestError | ConfigError:
    try:
        return PLANNERS[path](body, facts(fim=FIM), Limits())
    except (RequestError, ConfigError) as error:
        return error


@given(request=mutated())
@settings(max_examples=600)
def test_mutated_bodies_are_planned_or_refused(request: tuple[str, Any]) -> None:
    path, body = request
    made = attempt(path, body)
    if isinstance(made, Plan):
        assert made.options["max_tokens"] >= 1
        assert all(place.startswith("/") for place in (*made.places.values(), *made.ignored))
    else:
        assert made.message
        assert made.param is None or made.param.startswith("/")


@given(body=VALUES, path=st.sampled_from(sorted(PLANNERS)))
@settings(max_examples=100)
def test_bodies_of_any_kind_are_refused(body: Any, path: str) -> None:
    with pytest.raises(RequestError):
        PLANNERS[path](body, FACTS, Limits())
