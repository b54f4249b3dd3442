"""Text cut anywhere gives the same deltas, and the same calls as ``parse_tool_calls`` reads from the whole text."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from constrained_spec.grammars.tools import SYNTAXES, parse_tool_calls
from constrained_spec.server.events import (
    ContentDelta,
    Delta,
    OutputSplitter,
    ReasoningDelta,
    ToolArguments,
    ToolStart,
)

THINK = ("<think>", "</think>")
Call = tuple[str, object]

keys = st.text(st.sampled_from('ab"\\{}[]:é😀\n<'), max_size=4)
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-99, 99)
    | st.text(st.sampled_from('x"\\{}[]</tool_call>é😀\n,:;'), max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=6,
)
calls = st.lists(
    st.tuples(st.sampled_from(["f", "get_weather", 'q"uo\\te', "größe"]), st.dictionaries(keys, values)), max_size=3
)
plain = st.text(st.sampled_from("ab <>/tolca_[]TOOL{}\n"), max_size=12).filter(lambda t: "<tool_call>" not in t)


def counted() -> Callable[[], str]:
    numbers = itertools.count()
    return lambda: f"call_{next(numbers)}"


def splitter(syntax: str | None = None, **options: object) -> OutputSplitter:
    return OutputSplitter(syntax=syntax, new_id=counted(), **options)  # type: ignore[arg-type]


def run(made: OutputSplitter, pieces: list[str]) -> list[Delta]:
    found = [delta for piece in pieces for delta in made.feed(piece)]
    return found + made.finish()


def cut(text: str, places: list[int]) -> list[str]:
    marks = [0, *sorted(p % (len(text) + 1) for p in places), len(text)]
    return [text[a:b] for a, b in itertools.pairwise(marks)]


def content(deltas: list[Delta]) -> str:
    return "".join(d.text for d in deltas if isinstance(d, ContentDelta))


def reasoning(deltas: list[Delta]) -> str:
    return "".join(d.text for d in deltas if isinstance(d, ReasoningDelta))


def called(deltas: list[Delta]) -> list[tuple[str, str]]:
    starts = [d for d in deltas if isinstance(d, ToolStart)]
    assert [s.index for s in starts] == list(range(len(starts)))
    return [
        (s.name, "".join(d.text for d in deltas if isinstance(d, ToolArguments) and d.index == s.index)) for s in starts
    ]


def written(syntax: str, found: list[Call], before: str, ascii_only: bool, compact: bool) -> str:
    separators = (",", ":") if compact else (", ", ": ")

    def text(call: Call) -> str:
        key = "parameters" if syntax == "llama3" else "arguments"
        body = json.dumps({"name": call[0], key: call[1]}, ensure_ascii=ascii_only, separators=separators)
        return f"<tool_call>\n{body}\n</tool_call>" if syntax == "hermes" else body

    texts = [text(call) for call in found]
    if syntax == "hermes":
        return before + "\n".join(texts)
    if syntax == "llama3":
        return "; ".join(texts)
    array = f"[{separators[0].join(texts)}]"
    return f"{before}[TOOL_CALLS] {array}" if syntax == "mistral" else array


@pytest.mark.parametrize("syntax", SYNTAXES)
@given(st.data())
def test_calls_are_those_of_the_whole_text_however_it_is_cut(syntax: str, data: st.DataObject) -> None:
    found = data.draw(calls)
    before = data.draw(plain.filter(lambda t: "[TOOL_CALLS]" not in t + "["))
    text = written(syntax, found, before, data.draw(st.booleans()), data.draw(st.booleans())) if found else before
    if syntax == "hermes" and found:
        text += data.draw(st.sampled_from(["", "\n", " and more", "\n\nend <tool"]))
    pieces = cut(text, data.draw(st.lists(st.integers(0, 400), max_size=12)))
    deltas = run(splitter(syntax), pieces)
    expected_content, expected_calls = parse_tool_calls(text, syntax)
    assert content(deltas) == expected_content
    assert [(name, json.loads(arguments)) for name, arguments in called(deltas)] == expected_calls
    assert all(arguments in text for _, arguments in called(deltas)), "arguments are the model's own text"
    if expected_calls and syntax != "hermes":
        assert isinstance(deltas[-1], ToolArguments)


@pytest.mark.parametrize("syntax", SYNTAXES)
@given(st.data())
def test_a_text_cut_off_gives_a_prefix_and_loses_nothing(syntax: str, data: st.DataObject) -> None:
    whole = written(syntax, data.draw(calls.filter(bool)), "", False, False)
    text = whole[: data.draw(st.integers(0, len(whole)))]
    by_character, at_once = run(splitter(syntax), list(text)), run(splitter(syntax), [text])
    assert (content(by_character), called(by_character)) == (content(at_once), called(at_once))
    full = called(run(splitter(syntax), [whole]))
    for (name, arguments), (full_name, full_arguments) in zip(called(at_once), full, strict=False):
        assert name == full_name
        assert full_arguments.startswith(arguments)
    if not called(at_once):
        assert content(at_once) == text


def test_the_name_comes_before_the_arguments_are_complete() -> None:
    made = splitter("hermes")
    assert made.feed('Well.<tool_call>\n{"name": "f", "argu') == [ContentDelta("Well.")]
    assert made.feed('ments": {"a') == [ToolStart(0, "call_0", "f", "function"), ToolArguments(0, '{"a')]
    assert made.feed('": 1}') == [ToolArguments(0, '": 1}')]
    assert made.feed("}\n</tool_") == []
    assert made.feed("call>") == []
    assert made.finish() == []
    assert made.calls == 1


def test_a_possible_marker_is_held_back_and_released_when_it_is_none() -> None:
    made = splitter("hermes")
    assert made.feed("a <tool_") == [ContentDelta("a ")]
    assert made.feed("box>") == [ContentDelta("<tool_box>")]
    assert made.feed("<tool") == []
    assert made.finish() == [ContentDelta("<tool")]


@pytest.mark.parametrize("syntax", ["llama3", "json"])
def test_json_that_is_no_call_is_content(syntax: str) -> None:
    for text in ('{"name": "Ada", "age": 36}', '[{"name": "Ada", "age": {"years": 36}}]', "[1, 2]", "{}", "", "plain"):
        assert content(run(splitter(syntax), list(text))) == text
        assert called(run(splitter(syntax), list(text))) == []


def test_the_marker_of_llama3_announces_a_call() -> None:
    deltas = run(splitter("llama3"), ["<|python", '_tag|>{"name": "f", "parameters": {}}'])
    assert (content(deltas), called(deltas)) == ("", [("f", "{}")])


def test_without_a_syntax_all_text_is_content() -> None:
    text = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
    assert run(splitter(), [text]) == [ContentDelta(text)]


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=20), st.booleans(), st.lists(st.integers(0, 200)))
def test_the_input_of_a_custom_tool_is_decoded_as_it_comes(value: str, ascii_only: bool, places: list[int]) -> None:
    text = written("hermes", [("shell", {"input": value})], "", ascii_only, False)
    made = splitter("hermes", custom={"shell"})
    deltas = run(made, cut(text, places))
    assert called(deltas) == [("shell", value)]
    assert all(d.kind == "custom" for d in deltas if isinstance(d, ToolStart))


def test_half_a_surrogate_pair_becomes_a_replacement_character() -> None:
    for escaped, shown in (
        (r"\ud83d", "\ufffd"),
        (r"\ude00x", "\ufffdx"),
        (r"\ud83d\u0041", "\ufffdA"),
        (r"\ud83d\ude00", "😀"),
    ):
        text = f'{{"name": "t", "parameters": {{"input": "{escaped}"}}}}'
        assert called(run(splitter("llama3", custom={"t"}), list(text))) == [("t", shown)]


@given(
    st.text(st.sampled_from("ab\n</think>"), max_size=12).filter(lambda t: "</think>" not in t and "<think>" not in t),
    st.text(st.sampled_from("ab\n</think>"), max_size=12).filter(lambda t: "</think>" not in t),
    st.booleans(),
    st.lists(st.integers(0, 60), max_size=8),
)
def test_reasoning_is_split_off_however_it_is_cut(thought: str, answer: str, opened: bool, places: list[int]) -> None:
    text = f"{'' if opened else '<think>'}{thought}</think>{answer}"
    deltas = run(splitter(think=THINK, opened=opened), cut(text, places))
    if not (opened and thought.lstrip().startswith("<think>")):
        assert reasoning(deltas) == thought.strip("\n")
    assert content(deltas) == answer.removeprefix("\n").removeprefix("\n")


def test_a_model_may_repeat_the_marker_that_the_prompt_opened() -> None:
    for opened in (False, True):
        deltas = run(splitter(think=THINK, opened=opened), list("<think>\nhm\n</think>\n\nyes"))
        assert (reasoning(deltas), content(deltas)) == ("hm", "yes")


@pytest.mark.parametrize("syntax", ["llama3", "json"])
def test_calls_that_must_come_may_follow_the_reasoning_after_line_breaks(syntax: str) -> None:
    text = "<think>hm</think>\n\n" + written(syntax, [("f", {"a": 1})], "", False, False)
    deltas = run(splitter(syntax, think=THINK, required=True), list(text))
    assert (reasoning(deltas), content(deltas), called(deltas)) == ("hm", "", [("f", '{"a": 1}')])


@pytest.mark.parametrize("syntax", ["llama3", "json"])
def test_what_looks_like_a_call_where_the_grammar_lets_any_text_pass_is_content(syntax: str) -> None:
    call = written(syntax, [("f", {"a": 1})], "", False, False)
    deltas = run(splitter(syntax, think=THINK), list(f"<think>hm</think>{call}"))
    assert (content(deltas), called(deltas)) == (call, [])
    deltas = run(splitter(syntax, think=THINK, opened=True), list(f"hm</think>{call}"))
    assert (content(deltas), called(deltas)) == ("", [("f", '{"a": 1}')])


def test_reasoning_that_never_ends_is_no_content() -> None:
    for opened, text in ((False, "<think>so </thi"), (True, "so </thi")):
        deltas = run(splitter(think=THINK, opened=opened), list(text))
        assert (reasoning(deltas), content(deltas)) == ("so </thi", "")


def test_a_text_without_a_block_is_content() -> None:
    deltas = run(splitter(think=THINK), list(" <thin ice </think>"))
    assert (reasoning(deltas), content(deltas)) == ("", " <thin ice </think>")


def test_a_call_may_follow_the_reasoning() -> None:
    text = '<think>\nhm\n</think>\n\n<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
    deltas = run(splitter("hermes", think=THINK), list(text))
    assert (reasoning(deltas), content(deltas), called(deltas)) == ("hm", "", [("f", '{"a": 1}')])
