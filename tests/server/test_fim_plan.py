"""Filling in the middle: the prompt from the model's tokens or a template, and what editors send."""

from __future__ import annotations

from typing import Any, Literal

import pytest

from constrained_spec.errors import ConfigError
from constrained_spec.server.facts import FIM_FAMILIES, facts_of, fim_of
from constrained_spec.server.fim import indent_end, plan_fim, plan_infill
from constrained_spec.server.plan import FimTokens, Plan
from tests.server.plan_engine import engine
from tests.server.plan_facts import FACTS, FIM, LIMITS, encode, facts, refused

MODEL = facts(fim=FIM)


def fim(facts: Any = MODEL, **body: Any) -> Plan:
    return plan_fim({"prompt": "a", **body}, facts, LIMITS)


def infill(facts: Any = MODEL, **body: Any) -> Plan:
    return plan_infill({"input_prefix": "a", "input_suffix": "b", **body}, facts, LIMITS)


def test_mistrals_shape() -> None:
    plan = fim(suffix="b", max_tokens=7, stop=["\n\n"], stream=True, random_seed=3)
    assert plan.kind == "fim"
    assert plan.stream
    assert plan.prompts == ([1, *encode("a"), 2, *encode("b"), 3],)
    assert plan.options == {"temperature": 1.0, "max_tokens": 7, "stop": ("\n\n",), "seed": 3}
    assert fim().prompts == ([1, *encode("a"), 2, 3],)


def test_special_tokens_in_the_text_stay_text() -> None:
    [prompt] = fim(prompt="<suf>x", suffix="<eos>").prompts
    assert prompt == [1, *encode("<suf>x"), 2, *encode("<eos>"), 3]


@pytest.mark.parametrize(
    ("tokens", "prompt"),
    [
        (FimTokens(prefix=1, suffix=2, order="spm"), [2, *encode("b"), 1, *encode("a")]),
        (FimTokens(prefix=1, suffix=2, middle=3, order="spm"), [2, *encode("b"), 1, *encode("a"), 3]),
        (FimTokens(template="<{prefix}|{suffix}>"), "<a|b>"),
        (FimTokens(template="{suffix}<{prefix}"), "b<a"),
    ],
)
def test_orders_and_templates(tokens: FimTokens, prompt: object) -> None:
    assert fim(facts(fim=tokens), suffix="b").prompts == (prompt,)


def test_braces_in_the_text_are_no_places_of_the_template() -> None:
    model = facts(fim=FimTokens(template="{prefix}|{suffix}"))
    assert fim(model, prompt="{suffix}", suffix="{prefix}").prompts == ("{suffix}|{prefix}",)


def test_the_ids_before_every_prompt_come_first() -> None:
    assert fim(facts(fim=FIM, bos=(0,))).prompts == ([0, 1, *encode("a"), 2, 3],)


def test_the_middle_ends_before_the_models_own_markers() -> None:
    model = facts(fim=FimTokens(prefix=1, suffix=2, middle=3, stops=("<|file_sep|>",)))
    assert fim(model, stop="x").options["stop"] == ("x", "<|file_sep|>")
    assert infill(model).options["stop"] == ("<|file_sep|>",)


@pytest.mark.parametrize("make", [fim, infill])
def test_a_model_without_tokens_says_what_to_configure(make: Any) -> None:
    assert refused(make, FACTS)[0] == "fim_not_supported"


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        ({"prompt": None}, "missing_field", "/prompt"),
        ({"prompt": ["a"]}, "invalid_type", "/prompt"),
        ({"suffix": 1}, "invalid_type", "/suffix"),
        ({"random_seed": -1}, "invalid_value", "/random_seed"),
        ({"echo": True}, "unknown_field", "/echo"),
    ],
)
def test_refused(body: dict[str, Any], code: str, param: str) -> None:
    assert refused(fim, **body) == (code, param)


# ---- /infill ------------------------------------------------------------------------------------------------------

LLAMA_VSCODE = {
    "input_extra": [{"filename": "x.py", "text": "X = 1"}],
    "prompt": "  ",
    "n_predict": 128,
    "top_k": 40,
    "top_p": 0.99,
    "stream": False,
    "samplers": ["top_k", "top_p", "infill"],
    "cache_prompt": True,
    "n_indent": 2,
    "t_max_prompt_ms": 500,
    "t_max_predict_ms": 2500,
}


def test_what_llama_vscode_sends() -> None:
    plan = infill(**LLAMA_VSCODE)
    assert plan.options == {"temperature": 1.0, "max_tokens": 128, "top_k": 40, "top_p": 0.99}
    assert plan.prompts == ([1, *encode("x.py\nX = 1\n\na"), 2, *encode("b"), 3, *encode("  ")],)
    assert (plan.n_indent, plan.timeout, plan.partial_on_timeout, plan.warm_up) == (2, 2.5, True, False)
    assert plan.ignored == ("/samplers/2", "/cache_prompt", "/t_max_prompt_ms")


def test_the_warm_up_of_llama_vscode() -> None:
    assert infill(**{**LLAMA_VSCODE, "n_predict": 0, "samplers": []}).warm_up


def test_other_files_stand_behind_the_models_tokens_for_them() -> None:
    model = facts(fim=FimTokens(prefix=1, suffix=2, middle=3, file=0, repository=7))
    assert infill(model, input_extra=[{"filename": "x", "text": "X"}]).prompts == (
        [
            7, *encode("project\n"), 0, *encode("x\nX\n"), 0, *encode("filename\n"),
            1, *encode("a"), 2, *encode("b"), 3,
        ],
    )  # fmt: skip
    assert infill(model).prompts == ([1, *encode("a"), 2, *encode("b"), 3],)


def test_a_template_gets_other_files_and_the_beginning_as_text() -> None:
    model = facts(fim=FimTokens(template="<{prefix}|{suffix}>"))
    [prompt] = infill(model, input_extra=[{"filename": "x", "text": "X"}], prompt="m").prompts
    assert prompt == "<x\nX\n\na|b>m"


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        ({"input_prefix": 1}, "invalid_type", "/input_prefix"),
        ({"input_extra": [{"filename": "x"}]}, "missing_field", "/input_extra/0/text"),
        ({"input_extra": [{"text": "x", "kind": 1}]}, "unknown_field", "/input_extra/0/kind"),
        ({"n_indent": -1}, "invalid_value", "/n_indent"),
        ({"suffix": "x"}, "unknown_field", "/suffix"),
    ],
)
def test_infill_refused(body: dict[str, Any], code: str, param: str) -> None:
    assert refused(infill, **body) == (code, param)


@pytest.mark.parametrize(
    ("text", "n", "end"),
    [
        ("x = 1\n  y\nz", 2, 9),
        ("x = 1\n  y\n\n  z", 2, None),
        ("x\n y", 2, 1),
        ("x\n\ty", 1, None),
        ("x\n ", 2, None),  # the line may still grow
        ("x\ny", 0, None),
        ("x\n\n\ny", 1, 3),
        ("", 4, None),
    ],
)
def test_where_the_indentation_ends_the_text(text: str, n: int, end: int | None) -> None:
    assert indent_end(text, n) == end
    # What has been decided stays so when more comes.
    if end is not None:
        assert indent_end(text + "more\n    more", n) == end


# ---- which tokens -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FIM_FAMILIES)
def test_families(family: tuple[str, str, str | None, Literal["psm", "spm"]]) -> None:
    prefix, suffix, middle, order = family
    vocab = {prefix: 10, suffix: 11, **({} if middle is None else {middle: 12}), "<|file_sep|>": 13, "<fim_pad>": 14}
    special = {name: i for name, i in vocab.items() if name != "<|file_sep|>"}
    assert fim_of(vocab, special) == FimTokens(
        prefix=10, suffix=11, middle=None if middle is None else 12, order=order, file=13, stops=("<|file_sep|>",)
    )
    del vocab[suffix]
    assert fim_of(vocab, special) is None


def test_a_template_needs_both_places() -> None:
    for template in ("{prefix}", "{prefix}{suffix}{suffix}", ""):
        with pytest.raises(ConfigError):
            facts_of(engine(), fim_template=template)
    assert facts_of(engine(), fim_template="{prefix}~{suffix}").fim == FimTokens(template="{prefix}~{suffix}")
