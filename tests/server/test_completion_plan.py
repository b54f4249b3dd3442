"""Raw completions: OpenAI's, and llama.cpp's /completion."""

from __future__ import annotations

from typing import Any

import pytest

from constrained_spec.grammars.constraints import JsonSchema, Lark, Regex
from constrained_spec.server.completions import DEFAULT_TOKENS, plan_completion, plan_llama
from constrained_spec.server.plan import Limits, ModelFacts, Plan
from tests.server.plan_facts import FACTS, FIM, LIMITS, encode, facts, refused


def completion(facts: ModelFacts = FACTS, limits: Limits = LIMITS, **body: Any) -> Plan:
    return plan_completion({"prompt": "a", **body}, facts, limits)


def llama(facts: ModelFacts = FACTS, limits: Limits = LIMITS, **body: Any) -> Plan:
    return plan_llama({"prompt": "a", **body}, facts, limits)


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [("a", ("a",)), ("", ("",)), (["a", "b"], ("a", "b")), ([1, 2], ([1, 2],)), ([[1], [2, 3]], ([1], [2, 3]))],
)
def test_prompts(prompt: object, prompts: tuple[object, ...]) -> None:
    assert completion(prompt=prompt).prompts == prompts
    assert llama(prompt=prompt).prompts == prompts


@pytest.mark.parametrize(
    ("prompt", "code", "param"),
    [
        (None, "missing_field", "/prompt"),
        ([], "invalid_type", "/prompt"),
        (3, "invalid_type", "/prompt"),
        ([260], "invalid_value", "/prompt/0"),
        ([0, -1], "invalid_value", "/prompt/1"),
        ([1, True], "invalid_type", "/prompt/1"),
        ([[1], ["a"]], "invalid_type", "/prompt/1/0"),
        (["a", None], "invalid_type", "/prompt/1"),
        (["a"] * 65, "limit_exceeded", "/prompt"),
        ("\ud800", "invalid_value", "/prompt"),
    ],
)
def test_prompts_refused(prompt: object, code: str, param: str) -> None:
    assert refused(completion, prompt=prompt) == (code, param)


def test_defaults() -> None:
    plan = completion()
    assert plan.options == {"temperature": 1.0, "max_tokens": DEFAULT_TOKENS}
    assert (plan.kind, plan.echo, plan.logprobs, plan.output_type) == ("completion", False, False, None)


def test_fields() -> None:
    plan = completion(
        n=2, best_of=2, echo=True, stop="x", seed=1, stream=True, stream_options={"include_usage": True},
        repetition_penalty=1.0, ignore_eos=True, min_tokens=2, max_tokens=4, structured_outputs={"regex": "a+"},
    )  # fmt: skip
    assert plan.options == {
        "temperature": 1.0, "max_tokens": 4, "min_tokens": 2, "stop": ("x",), "seed": 1, "repetition_penalty": 1.0,
        "ignore_eos": True,
    }  # fmt: skip
    assert (plan.n, plan.echo, plan.include_usage, plan.output_type) == (2, True, True, Regex("a+"))
    plan = completion(logprobs=0)
    assert (plan.logprobs, plan.top_logprobs, plan.options["logprobs"]) == (True, 0, 0)


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        ({"best_of": 2}, "unsupported_value", "/best_of"),
        ({"echo": True, "logprobs": 1}, "unsupported_value", "/logprobs"),
        ({"logprobs": True}, "invalid_type", "/logprobs"),
        ({"logprobs": 21}, "limit_exceeded", "/logprobs"),
        ({"messages": []}, "unknown_field", "/messages"),
        ({"tools": []}, "unknown_field", "/tools"),
        ({"suffix": "b"}, "fim_not_supported", "/suffix"),
        ({"suffix": 3}, "invalid_type", "/suffix"),
        ({"prompt_embeds": "x"}, "unknown_field", "/prompt_embeds"),
    ],
)
def test_refused(body: dict[str, Any], code: str, param: str) -> None:
    assert refused(completion, **body) == (code, param)


def test_a_suffix_asks_for_the_middle() -> None:
    model = facts(fim=FIM)
    assert completion(model, suffix="b").prompts == ([1, *encode("a"), 2, *encode("b"), 3],)
    assert completion(model, suffix="").prompts == ("a",)
    prompts = completion(model, prompt=[encode("x"), encode("y")], suffix="b").prompts
    assert prompts[1] == [1, *encode("y"), 2, *encode("b"), 3]


# ---- llama.cpp ----------------------------------------------------------------------------------------------------


def test_what_continue_sends() -> None:
    plan = llama(stream=True, n_predict=9, stop=["x"], top_k=40, top_p=0.9, min_p=0.05, temperature=0.2)
    assert plan.kind == "llama"
    assert plan.stream
    assert plan.options == {
        "temperature": 0.2, "max_tokens": 9, "stop": ("x",), "top_k": 40, "top_p": 0.9, "min_p": 0.05,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("body", "options"),
    [
        ({}, {}),
        ({"n_predict": -1}, {}),
        ({"n_predict": -2}, {}),
        ({"max_tokens": 3}, {"max_tokens": 3}),
        ({"seed": -1}, {}),
        ({"seed": 4}, {"seed": 4}),
        ({"top_k": 0}, {"top_k": 0}),
        ({"temperature": -1}, {"temperature": 0.0}),
        ({"repeat_penalty": 1.1}, {"repetition_penalty": 1.1}),
        ({"repeat_penalty": 1.1, "repeat_last_n": -1}, {"repetition_penalty": 1.1}),
        ({"repeat_penalty": 1.0, "repeat_last_n": 64}, {"repetition_penalty": 1.0}),
        ({"logit_bias": []}, {}),
        ({"mirostat": 0, "mirostat_tau": 5, "typical_p": 1.0, "dry_multiplier": 0, "dry_base": 1.75, "lora": []}, {}),
        ({"samplers": ["top_k", "infill"], "top_k": 4, "top_p": 0.9, "temperature": 0.5},
         {"top_k": 4, "temperature": 1.0}),
        ({"samplers": ["temperature", "penalties"], "temperature": 0.5, "presence_penalty": 1, "min_p": 0.1},
         {"temperature": 0.5, "presence_penalty": 1.0}),
        ({"samplers": []}, {"temperature": 1.0}),
    ],
)  # fmt: skip
def test_llama_options(body: dict[str, Any], options: dict[str, Any]) -> None:
    assert llama(**body).options == {"temperature": 1.0, "max_tokens": FACTS.capacity, **options}


def test_llama_constraints() -> None:
    assert llama(json_schema={"type": "object"}).output_type == JsonSchema({"type": "object"})
    assert isinstance(llama(grammar='root ::= "a"').output_type, Lark)


def test_llama_delivery() -> None:
    plan = llama(n_predict=0, cache_prompt=True, id_slot=-1, n_keep=0, t_max_predict_ms=500, timeout=2)
    assert (plan.warm_up, plan.timeout, plan.partial_on_timeout) == (True, 0.5, True)
    assert plan.ignored == ("/cache_prompt", "/id_slot", "/n_keep")
    assert plan.locate("max_tokens") == "/n_predict"
    assert not llama(t_max_predict_ms=0).partial_on_timeout


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        ({"mirostat": 2}, "unsupported_value", "/mirostat"),
        ({"n_probs": 3}, "unsupported_value", "/n_probs"),
        ({"repeat_penalty": 1.1, "repeat_last_n": 64}, "unsupported_value", "/repeat_last_n"),
        ({"samplers": ["magic"]}, "invalid_value", "/samplers/0"),
        ({"n_predict": -3}, "invalid_value", "/n_predict"),
        ({"grammar": 'root ::= "a"', "json_schema": {}}, "conflicting_constraints", "/json_schema"),
        ({"image_data": [1]}, "unsupported_value", "/image_data"),
        ({"magic": 1}, "unknown_field", "/magic"),
        ({"top_p": 2}, "invalid_value", "/top_p"),
    ],
)
def test_llama_refused(body: dict[str, Any], code: str, param: str) -> None:
    assert refused(llama, **body) == (code, param)


def test_llama_limit() -> None:
    limits = Limits(max_tokens=5)
    assert refused(llama, FACTS, limits, n_predict=6) == ("limit_exceeded", "/n_predict")
    assert llama(limits=limits, n_predict=-1).options["max_tokens"] == 5
