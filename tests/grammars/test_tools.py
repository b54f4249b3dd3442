"""Tool calls: grammars whose every text parses back, with arguments that the tools' schemas accept."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import jsonschema
import numpy as np
import pytest

from constrained_spec.errors import RequestError, UnsupportedSchemaError
from constrained_spec.grammars.base import Grammar, Matcher
from constrained_spec.grammars.compile import Lazy, Regex, Then, ToolCalls, compile_constraint
from constrained_spec.grammars.tokens import is_set
from constrained_spec.grammars.tools import SYNTAXES, parse_tool_calls
from constrained_spec.types import Vocabulary

POINT = {
    "type": "object",
    "properties": {"x": {"$ref": "#/$defs/n"}, "tag": {"enum": ["a", "</tool_call>"]}},
    "required": ["x"],
    "additionalProperties": False,
    "$defs": {"n": {"type": "integer", "minimum": 0, "maximum": 9}},
}
TOOLS: tuple[Mapping[str, object], ...] = (
    {"type": "function", "function": {"name": "move", "description": "d", "parameters": POINT}},
    {"name": "move_all", "parameters": {"properties": {"ok": {"type": "boolean"}}, "additionalProperties": False}},
    {"name": "stop"},
)
SCHEMAS = {"move": POINT, "move_all": {**TOOLS[1]["parameters"], "type": "object"}, "stop": {"maxProperties": 0}}  # type: ignore[dict-item]
CALLS: list[tuple[str, dict[str, object]]] = [("move", {"x": 3}), ("move_all", {"ok": True}), ("stop", {})]


def mask(matcher: Matcher, vocabulary: Vocabulary) -> list[int]:
    row = np.full(vocabulary.mask_words, -1, np.int32)
    matcher.mask_into(row)
    return [i for i in range(vocabulary.size) if is_set(row, i)]


def accepts(grammar: Grammar, text: str) -> bool:
    matcher = grammar.matcher()
    return all(matcher.advance(5 + b) for b in text.encode()) and matcher.is_complete


def written(calls: list[tuple[str, dict[str, object]]], syntax: str) -> str:
    key = "parameters" if syntax == "llama3" else "arguments"
    texts = [json.dumps({"name": name, key: arguments}) for name, arguments in calls]
    if syntax == "hermes":
        return "\n".join(f"<tool_call>\n{t}\n</tool_call>" for t in texts)
    if syntax == "llama3":
        return "; ".join(texts)
    return ("[TOOL_CALLS] " if syntax == "mistral" else "") + f"[{', '.join(texts)}]"


@pytest.mark.parametrize("syntax", SYNTAXES)
def test_choice_and_parallel(syntax: str, vocabulary: Vocabulary) -> None:
    base = ToolCalls(TOOLS, syntax=syntax)  # type: ignore[arg-type]
    one: list[tuple[str, dict[str, object]]] = [("move", {"x": 3})]
    texts = {
        "free": "say {hi} [1] <b>",
        "one": written(one, syntax),
        "stop": written([("stop", {})], syntax),
        "two": written([*one, ("stop", {})], syntax),
        "wrong": written([("move", {"x": 10})], syntax),
        "unknown": written([("fly", {})], syntax),
    }
    expected = {
        ("auto", True): {"free", "one", "stop", "two"},
        ("auto", False): {"free", "one", "stop"},
        ("required", True): {"one", "stop", "two"},
        ("required", False): {"one", "stop"},
        ("stop", False): {"stop"},
        ("none", True): {"free"},
    }
    for (choice, parallel), legal in expected.items():
        grammar = compile_constraint(replace(base, choice=choice, parallel=parallel), vocabulary)
        assert {name for name, text in texts.items() if accepts(grammar, text)} == legal, (choice, parallel)


@pytest.mark.parametrize("syntax", SYNTAXES)
@pytest.mark.parametrize("choice", ["auto", "required", "move_all"])
def test_every_text_of_a_random_model_parses_back(syntax: str, choice: str, vocabulary: Vocabulary) -> None:
    grammar = compile_constraint(ToolCalls(TOOLS, choice, syntax=syntax), vocabulary)  # type: ignore[arg-type]
    called = 0
    for seed in range(12):
        rng, matcher, ids = random.Random(f"{syntax}{choice}{seed}"), grammar.matcher(), list[int]()
        # Half of the runs start on a call, which chance would rarely begin.
        start = written([("move", {"x": 3})], syntax)[: rng.randrange(10, 34)] if choice == "auto" and seed % 2 else ""
        for token in vocabulary.encode(start):
            assert matcher.advance(token)
            ids.append(token)
        while not (matcher.is_complete and rng.random() < 0.2) and len(ids) < 400:
            ids.append(rng.choice([t for t in mask(matcher, vocabulary) if t > 1]))
            assert matcher.advance(ids[-1])
            if matcher.is_finished:
                break
        if not matcher.is_complete:
            continue
        try:
            text = vocabulary.bytes_of(ids).decode()
        except UnicodeDecodeError:
            pytest.fail("a complete text is UTF-8")
        content, calls = parse_tool_calls(text, syntax)
        assert content == "" or choice == "auto"
        assert calls or choice == "auto"
        called += bool(calls)
        for name, arguments in calls:
            jsonschema.validate(arguments, SCHEMAS[name])
            assert choice in ("auto", "required", name)
    assert called


@pytest.mark.parametrize("syntax", SYNTAXES)
def test_parsing(syntax: str) -> None:
    assert parse_tool_calls("just {text}", syntax) == ("just {text}", [])
    assert parse_tool_calls(written(CALLS, syntax), syntax) == ("", CALLS)
    whole = written(CALLS[:1], syntax)
    for end in range(len(whole) - 14, len(whole)):
        with pytest.raises(RequestError):
            parse_tool_calls(whole[:end], syntax)


def test_free_text_around_hermes_calls() -> None:
    call = written(CALLS[:1], "hermes")
    assert parse_tool_calls(f"a{call}b", "hermes") == ("ab", CALLS[:1])
    quoted = written([("move", {"x": 1, "tag": "</tool_call>"})], "hermes")
    assert parse_tool_calls(quoted, "hermes")[1] == [("move", {"x": 1, "tag": "</tool_call>"})]
    assert parse_tool_calls("so [TOOL_CALLS][]", "mistral") == ("so ", [])


def test_markers_may_be_special_tokens(vocabulary: Vocabulary) -> None:
    special = replace_special(vocabulary, {"<tool_call>": 2, "</tool_call>": 3})
    grammar = compile_constraint(ToolCalls(TOOLS), special)
    inner = [5 + b for b in b'\n{"name": "stop", "arguments": {}}\n']
    free = [5 + b for b in b"hi "]
    for ids in ([2, *inner, 3], [*free, 2, *inner, 3, *free, 2, *inner, 3]):
        matcher = grammar.matcher()
        assert all(matcher.advance(t) for t in ids) and matcher.is_complete
    matcher = grammar.matcher()
    assert matcher.advance(2) and not matcher.advance(2) and not matcher.is_complete
    assert mask(matcher, special) == [5 + 10, *[i for i, t in enumerate(special.tokens) if t == b"\n" and i != 15]]
    assert accepts(grammar, written(CALLS, "hermes"))


def replace_special(vocabulary: Vocabulary, special: dict[str, int]) -> Vocabulary:
    return Vocabulary(vocabulary.tokens, vocabulary.eos_ids, {"<|eos|>": 0, "<|end|>": 1, **special}, vocabulary.encode)


def test_tool_calls_inside_another_constraint(vocabulary: Vocabulary) -> None:
    grammar = compile_constraint(
        Then(Regex("[a-z]*:"), ToolCalls(TOOLS, "stop", parallel=False, syntax="json")), vocabulary
    )
    assert accepts(grammar, 'ok:[{"name": "stop", "arguments": {}}]')
    late = compile_constraint(Lazy("</think>", ToolCalls(TOOLS)), vocabulary)
    assert accepts(late, "hm <tool_call> </think>" + written(CALLS, "hermes"))
    assert not accepts(late, "hm </think><tool_call>x")


@pytest.mark.parametrize(
    ("constraint", "param"),
    [
        (ToolCalls((), "required"), "tools"),
        (ToolCalls(TOOLS, "fly"), "tool_choice"),
        (ToolCalls(({"name": ""},)), "tools/0"),
        (ToolCalls((*TOOLS, {"name": "stop"})), "tools/3/name"),
        (ToolCalls(({"type": "search", "function": {}},)), "tools/0/type"),
        (ToolCalls(({"name": "f", "parameters": {"type": "array"}},)), "tools/0/parameters"),
        (ToolCalls(({"name": "f", "parameters": 5},)), "tools/0/parameters"),
        (ToolCalls(({"name": "f", "parameters": {"type": "objekt"}},)), "tools/0/parameters/type"),
        (ToolCalls(TOOLS, syntax="xml"), "syntax"),  # type: ignore[arg-type]
    ],
)
def test_bad_tools_are_refused_with_their_place(constraint: ToolCalls, param: str, vocabulary: Vocabulary) -> None:
    with pytest.raises(RequestError) as caught:
        compile_constraint(constraint, vocabulary)
    assert caught.value.param == param


def test_a_schema_that_cannot_be_enforced_is_refused(vocabulary: Vocabulary) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "format": "no such format"}}}
    with pytest.raises(UnsupportedSchemaError) as caught:
        compile_constraint(ToolCalls(({"name": "f", "parameters": schema},)), vocabulary)
    assert caught.value.pointer == "/properties/a" or "/properties/a" in str(caught.value)


def test_the_heads_of_many_tools_are_not_compared_automaton_by_automaton(
    vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    """128 tools compile; the work grows with their number, not with its square."""
    from constrained_spec.grammars import combine_tree

    counted = 0
    compare = combine_tree._goes_on

    def counting(*args: Any) -> bool:
        nonlocal counted
        counted += 1
        return compare(*args)

    monkeypatch.setattr(combine_tree, "_goes_on", counting)
    tools = [{"name": f"tool_{i}", "parameters": {"type": "object", "additionalProperties": False}} for i in range(128)]
    grammar = compile_constraint(ToolCalls(tuple(tools), "auto", True, "hermes"), vocabulary)
    assert grammar.matcher() is not None
    assert counted < 20 * 128
