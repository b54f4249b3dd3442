"""Chat requests: sampling, messages, delivery, and fields that are refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from constrained_spec.errors import RequestError
from constrained_spec.grammars.compile import compile_constraint
from constrained_spec.grammars.constraints import JsonSchema
from constrained_spec.server.plan import Limits
from tests.server.plan_facts import FACTS, HI, VOCABULARY, chat, facts, legal, refused


def test_defaults() -> None:
    plan = chat()
    assert plan.options == {"temperature": 1.0, "max_tokens": FACTS.capacity}
    assert (plan.kind, plan.model, plan.n, plan.stream, plan.prompts) == ("chat", "m", 1, False, (HI,))
    assert (plan.output_type, plan.tools, plan.reasoning, plan.ignored) == (None, None, False, ())


@pytest.mark.parametrize(
    ("body", "options"),
    [
        ({"temperature": 0}, {"temperature": 0.0}),
        ({"top_p": 0.5, "min_p": 0.1, "top_k": 4}, {"top_p": 0.5, "min_p": 0.1, "top_k": 4}),
        ({"top_k": -1}, {"top_k": 0}),
        ({"repetition_penalty": 1.2, "presence_penalty": -1, "frequency_penalty": 2},
         {"repetition_penalty": 1.2, "presence_penalty": -1.0, "frequency_penalty": 2.0}),
        ({"logit_bias": {"7": -100, "8": 1.5}}, {"logit_bias": {7: -100.0, 8: 1.5}}),
        ({"seed": 3}, {"seed": 3}),
        ({"seed": -1}, {"seed": 2**64 - 1}),
        ({"stop": "x"}, {"stop": ("x",)}),
        ({"stop": ["x", "y"], "include_stop_str_in_output": True}, {"stop": ("x", "y"), "include_stop": True}),
        ({"max_tokens": 5}, {"max_tokens": 5}),
        ({"max_tokens": 5, "max_completion_tokens": 6}, {"max_tokens": 6}),
        ({"min_tokens": 2, "ignore_eos": True}, {"min_tokens": 2, "ignore_eos": True}),
        ({"logprobs": True}, {"logprobs": 0}),
        ({"logprobs": True, "top_logprobs": 3}, {"logprobs": 3}),
        ({"prediction": {"type": "content", "content": "abc"}}, {"prediction": "abc"}),
        ({"prediction": {"type": "content", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}},
         {"prediction": "ab"}),
        ({"prediction": {"type": "content", "content": ""}}, {}),
        ({"extra": {"drafter": "ngram", "gamma": 3, "verifier": "invariant", "speculation": "fixed"}},
         {"drafter": "ngram", "gamma": 3, "verifier": "invariant", "speculation": "fixed"}),
        ({"extra_body": {"speculation": False}}, {"speculation": False}),
        ({"extra": {"tokenization": "canonical", "close_on_length": True, "logprobs_mode": "raw"}},
         {"tokenization": "canonical", "close_on_length": True, "logprobs_mode": "raw"}),
        ({"close_on_length": True, "regex": "a"}, {"close_on_length": True}),
        ({"max_tokens": 4.0}, {"max_tokens": 4}),
        ({"stop_token_ids": [0]}, {}),
    ],
)  # fmt: skip
def test_options(body: dict[str, Any], options: dict[str, Any]) -> None:
    assert chat(**body).options == {"temperature": 1.0, "max_tokens": FACTS.capacity, **options}


def test_n_choices_of_a_greedy_request_are_served() -> None:
    assert chat(n=3, temperature=0).n == 3


def test_delivery() -> None:
    options = {"include_usage": True, "continuous_usage_stats": True, "include_obfuscation": True}
    told = {"return_spec_metrics": True, "return_rounds": True}
    plan = chat(stream=True, stream_options=options, priority=2, timeout=1.5, user="u", **told)
    assert (plan.stream, plan.include_usage, plan.continuous_usage) == (True, True, True)
    # vLLM serves the lowest first, the engine the highest.
    assert (plan.priority, plan.timeout, plan.partial_on_timeout, plan.user) == (-2, 1.5, False, "u")
    assert plan.return_spec_metrics
    assert plan.return_rounds
    assert set(plan.ignored) == {"/stream_options/include_obfuscation", "/user"}
    assert not chat(stream_options={"include_usage": True}).include_usage


def test_fields_of_openai_that_cannot_change_the_text_are_accepted() -> None:
    plan = chat(
        user="u", metadata={"a": "b"}, store=True, service_tier="auto", safety_identifier="s", prompt_cache_key="k",
        prompt_cache_retention="24h", modalities=["text"], verbosity="medium", parallel_tool_calls=True, audio=None,
    )  # fmt: skip
    assert len(plan.ignored) == 7
    assert plan.options == chat().options


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        ({"temprature": 1}, "unknown_field", "/temprature"),
        ({"a/b~c": 1}, "unknown_field", "/a~1b~0c"),
        ({"temperature": "1"}, "invalid_type", "/temperature"),
        ({"temperature": float("nan")}, "invalid_type", "/temperature"),
        ({"temperature": True}, "invalid_type", "/temperature"),
        ({"temperature": -1}, "invalid_value", "/temperature"),
        ({"top_p": 0}, "invalid_value", "/top_p"),
        ({"top_k": -2}, "invalid_value", "/top_k"),
        ({"repetition_penalty": 0}, "invalid_value", "/repetition_penalty"),
        ({"logit_bias": {"260": 1}}, "invalid_value", "/logit_bias/260"),
        ({"logit_bias": {"a": 1}}, "invalid_value", "/logit_bias/a"),
        ({"logit_bias": {"1": "x"}}, "invalid_type", "/logit_bias/1"),
        ({"seed": 2**64}, "invalid_value", "/seed"),
        ({"seed": 1.5}, "invalid_type", "/seed"),
        ({"stop": ["a"] * 17}, "limit_exceeded", "/stop"),
        ({"stop": [""]}, "invalid_value", "/stop/0"),
        ({"stop": 3}, "invalid_type", "/stop"),
        ({"max_tokens": 0}, "invalid_value", "/max_tokens"),
        ({"max_tokens": 3, "min_tokens": 4}, "invalid_value", "/min_tokens"),
        ({"n": 17}, "limit_exceeded", "/n"),
        ({"n": 0}, "invalid_value", "/n"),
        ({"n": 2, "best_of": 3}, "unsupported_value", "/best_of"),
        ({"top_logprobs": 2}, "invalid_value", "/top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "limit_exceeded", "/top_logprobs"),
        ({"logprobs": 2}, "invalid_type", "/logprobs"),
        ({"prediction": {"type": "tokens", "content": "a"}}, "unsupported_value", "/prediction/type"),
        ({"prediction": {"content": [{"type": "image_url"}]}}, "unsupported_value", "/prediction/content/0/type"),
        ({"extra": {"drafter": "magic"}}, "invalid_value", "/extra/drafter"),
        ({"extra": {"gamma": 1000}}, "invalid_value", "/extra/gamma"),
        ({"extra": {"verifier": "magic"}}, "invalid_value", "/extra/verifier"),
        ({"extra": {"speculation": "on"}}, "invalid_value", "/extra/speculation"),
        ({"extra": {"speculation": "off", "drafter": "ngram"}}, "invalid_value", "/extra/drafter"),
        ({"extra": {"temperature": 1}}, "unknown_field", "/extra/temperature"),
        ({"extra": {}, "extra_body": {}}, "invalid_value", "/extra_body"),
        ({"drafter": "ngram"}, "unknown_field", "/drafter"),
        ({"model": "gpt-4o"}, "model_not_found", "/model"),
        ({"timeout": 0}, "invalid_value", "/timeout"),
        ({"stop_token_ids": [5]}, "unsupported_value", "/stop_token_ids/0"),
        ({"bad_words": ["x"]}, "unsupported_value", "/bad_words"),
        ({"prompt_logprobs": 0}, "unsupported_value", "/prompt_logprobs"),
        ({"use_beam_search": True}, "unsupported_value", "/use_beam_search"),
        ({"skip_special_tokens": False}, "unsupported_value", "/skip_special_tokens"),
        ({"chat_template": "x"}, "unsupported_value", "/chat_template"),
        ({"chat_template_kwargs": {"enable_thinking": False}}, "unsupported_value", "/chat_template_kwargs"),
        ({"add_generation_prompt": False}, "unsupported_value", "/add_generation_prompt"),
        ({"reasoning_effort": "high"}, "unsupported_value", "/reasoning_effort"),
        ({"modalities": ["text", "audio"]}, "unsupported_value", "/modalities"),
        ({"functions": [{"name": "f"}]}, "unsupported_value", "/functions"),
        ({"function_call": "auto"}, "unsupported_value", "/function_call"),
        ({"web_search_options": {}}, "unsupported_value", "/web_search_options"),
        ({"echo": True}, "unsupported_value", "/echo"),
        ({"stream_options": {"usage": True}}, "unknown_field", "/stream_options/usage"),
    ],
)  # fmt: skip
def test_refused(body: dict[str, Any], code: str, param: str) -> None:
    assert refused(chat, **body) == (code, param)


def test_a_limit_of_tokens_is_the_default_and_the_most() -> None:
    limits = Limits(max_tokens=10)
    assert chat(limits=limits).options["max_tokens"] == 10
    assert refused(chat, FACTS, limits, max_completion_tokens=11) == ("limit_exceeded", "/max_completion_tokens")
    assert refused(chat, FACTS, limits, generation_config='{"max_new_tokens": 11}')[1] == (
        "/generation_config/max_new_tokens"
    )


def test_names_of_the_model() -> None:
    served = facts(names=("first", "second"))
    assert chat(served).model == "first"
    assert [chat(served, model=name).model for name in ("second", "dummy", "default")] == ["second", "first", "first"]


# ---- messages -----------------------------------------------------------------------------------------------------


def prompt(*messages: dict[str, Any], template: bool = True) -> Any:
    return chat(facts(template_tools=template, template_tool_calls=template), messages=list(messages)).prompts[0]


def test_roles_and_parts() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert prompt(
        {"role": "developer", "content": "d"},
        {"role": "user", "content": parts, "name": "u"},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}], "refusal": None, "audio": None},
        {"role": "assistant", "content": None, "refusal": "never"},
        {"role": "tool", "content": "t", "tool_call_id": "1"},
        {"role": "function", "content": "g", "name": "f"},
    ) == [
        {"role": "system", "content": "d"},
        {"role": "user", "content": "ab", "name": "u"},
        {"role": "assistant", "content": "no"},
        {"role": "assistant", "content": "never"},
        {"role": "tool", "content": "t", "tool_call_id": "1"},
        {"role": "tool", "content": "g", "name": "f"},
    ]


CALLING = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}},
        {"id": "2", "type": "custom", "custom": {"name": "g", "input": "say"}},
    ],
}


def test_earlier_calls_reach_the_template_as_objects() -> None:
    [message] = prompt(CALLING)
    assert [call["function"] for call in message["tool_calls"]] == [
        {"name": "f", "arguments": {"x": 1}},
        {"name": "g", "arguments": {"input": "say"}},
    ]
    assert message["content"] == ""


def test_earlier_calls_are_written_out_for_a_template_without_calls() -> None:
    [message] = prompt({**CALLING, "content": "so"}, template=False)
    assert message["content"] == (
        'so\n<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>\n'
        '<tool_call>\n{"name": "g", "arguments": {"input": "say"}}\n</tool_call>'
    )


@pytest.mark.parametrize(
    ("messages", "code", "param"),
    [
        (None, "missing_field", "/messages"),
        ([], "invalid_value", "/messages"),
        ("hi", "invalid_type", "/messages"),
        (["hi"], "invalid_type", "/messages/0"),
        ([{"content": "x"}], "missing_field", "/messages/0/role"),
        ([{"role": "robot", "content": "x"}], "invalid_value", "/messages/0/role"),
        ([{"role": "user"}], "missing_field", "/messages/0/content"),
        ([{"role": "assistant"}], "missing_field", "/messages/0/content"),
        ([{"role": "user", "content": 3}], "invalid_type", "/messages/0/content"),
        ([{"role": "user", "content": "\udc00"}], "invalid_value", "/messages/0/content"),
        ([*HI, {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}], "unsupported_value",
         "/messages/1/content/0/type"),
        ([{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}], "unsupported_value",
         "/messages/0/content/0/type"),
        ([{"role": "user", "content": [{"type": "file", "file": {}}]}], "unsupported_value",
         "/messages/0/content/0/type"),
        ([{"role": "user", "content": [{"text": "x"}]}], "missing_field", "/messages/0/content/0/type"),
        ([{"role": "user", "content": [{"type": "text"}]}], "missing_field", "/messages/0/content/0/text"),
        ([{"role": "user", "content": "x", "cache_control": {}}], "unknown_field", "/messages/0/cache_control"),
        ([{"role": "assistant", "content": "x", "prefix": True}], "unknown_field", "/messages/0/prefix"),
        ([{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}], "invalid_value",
         "/messages/0/tool_calls/0/function/arguments"),
        ([{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "[]"}}]}], "invalid_type",
         "/messages/0/tool_calls/0/function/arguments"),
    ],
)  # fmt: skip
def test_messages_refused(messages: object, code: str, param: str) -> None:
    assert refused(chat, messages=messages) == (code, param)


def test_too_many_messages() -> None:
    assert refused(chat, limits=Limits(max_messages=1), messages=HI * 2) == ("limit_exceeded", "/messages")


# ---- transformers chat --------------------------------------------------------------------------------------------


def test_generation_config() -> None:
    config = {"do_sample": True, "temperature": 0.7, "top_k": 5, "max_new_tokens": 9, "transformers_version": "5"}
    plan = chat(generation_config=json.dumps(config))
    assert plan.options == {"temperature": 0.7, "top_k": 5, "max_tokens": 9}
    # Without sampling it is greedy; what the body itself says goes first.
    assert chat(generation_config="{}").options["temperature"] == 0
    assert chat(generation_config="{}", temperature=0.5, max_tokens=3).options == {"temperature": 0.5, "max_tokens": 3}


@pytest.mark.parametrize(
    ("config", "code", "param"),
    [
        ("{", "invalid_value", "/generation_config"),
        ("[]", "invalid_type", "/generation_config"),
        ('{"num_beams": 4}', "unsupported_value", "/generation_config/num_beams"),
        ('{"no_repeat_ngram_size": 2}', "unknown_field", "/generation_config/no_repeat_ngram_size"),
        ('{"do_sample": true, "temperature": -1}', "invalid_value", "/generation_config/temperature"),
    ],
)
def test_generation_config_refused(config: str, code: str, param: str) -> None:
    assert refused(chat, generation_config=config) == (code, param)


# ---- reasoning ----------------------------------------------------------------------------------------------------

THINK = ("<think>", "</think>")
PERSON = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


def test_a_constraint_holds_from_the_end_of_the_reasoning_on() -> None:
    plan = chat(facts(think=THINK), json_schema=PERSON)
    assert plan.reasoning
    answer = '{"a": 1}'
    for text in (answer, f"<think>so <b></think>\n\n{answer}", f"<think></think>{answer}"):
        assert legal(plan.output_type, text), text
    for text in ("so", "<think>so</think>", f"so</think>{answer}", f"<think>{answer}", f"<think>a</think>b{answer}"):
        assert not legal(plan.output_type, text), text


def test_a_reasoning_block_that_the_prompt_opened_is_closed() -> None:
    constraint = chat(facts(think=THINK, think_opened=True), json_schema=PERSON).output_type
    answer = '{"a": 1}'
    assert legal(constraint, f"so</think>\n\n{answer}")
    assert not legal(constraint, answer)
    assert not legal(constraint, "so</think>")


def test_markers_without_text_leave_no_room_for_reasoning() -> None:
    assert chat(facts(think=THINK, think_special=True), json_schema=PERSON).output_type == JsonSchema(PERSON)


def test_free_text_of_a_reasoning_model_is_free() -> None:
    plan = chat(facts(think=THINK))
    assert plan.output_type is None
    assert plan.reasoning


def test_errors_of_a_schema_behind_reasoning_keep_their_place() -> None:
    plan = chat(facts(think=THINK), guided_json={"properties": {"x": {"type": 7}}})
    assert plan.output_type is not None
    with pytest.raises(RequestError) as caught:
        compile_constraint(plan.output_type, VOCABULARY)
    assert plan.locate(caught.value.param) == "/guided_json/properties/x/type"


def test_places_of_options() -> None:
    plan = chat(max_completion_tokens=3, extra={"gamma": 2}, stop=["a"])
    located = [plan.locate(p) for p in ("max_tokens", "gamma", "stop", "prompt", "temperature", "other", None)]
    assert located == ["/max_completion_tokens", "/extra/gamma", "/stop", "/messages", "/temperature", "other", None]


def test_an_editors_edit_command() -> None:
    """llama.vscode sends llama.cpp's fields to the chat endpoint too, all of them neutral."""
    body: dict[str, Any] = {
        "max_tokens": -1, "samplers": "edkypmxt",
        "cache_prompt": True, "timings_per_token": False, "repeat_last_n": 64, "repeat_penalty": 1, "typical_p": 1,
        "dynatemp_range": 0, "dynatemp_exponent": 1, "xtc_probability": 0, "xtc_threshold": 0.1,
        "dry_multiplier": 0, "dry_base": 1.75, "dry_allowed_length": 2, "dry_penalty_last_n": -1,
        "temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05,
    }  # fmt: skip
    plan = chat(**body)
    assert plan.options["max_tokens"] == FACTS.capacity
    assert (plan.options["top_k"], plan.options["top_p"], plan.options["min_p"]) == (40, 0.95, 0.05)
    assert refused(chat, **{**body, "xtc_probability": 0.5})[1] == "/xtc_probability"
    assert refused(chat, **{**body, "samplers": "kqt"})[1] == "/samplers/1"
