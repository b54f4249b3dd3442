"""What is found out about a model when the server starts."""

from __future__ import annotations

import pytest

from constrained_spec.api import Engine
from constrained_spec.errors import ConfigError
from constrained_spec.server.facts import facts_of, tool_syntax_of
from tests.server.plan_engine import engine

PLAIN = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
TOOLS = (
    "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}{% for m in messages %}{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}{% endfor %}"
)
OPENED = PLAIN + "{% if add_generation_prompt %}assistant: <think>\n{% endif %}"


def test_a_plain_template() -> None:
    facts = facts_of(engine(PLAIN))
    assert facts.names == ("tiny",)
    assert (facts.capacity, facts.vocabulary_size, facts.eos_ids, facts.bos) == (64, 258, (1,), (0,))
    assert not (facts.template_tools or facts.template_tool_calls or facts.think_opened)
    assert (facts.fim, facts.think, facts.tool_syntax) == (None, None, "hermes")
    assert facts.encode("<bos>") == facts_of(engine(PLAIN)).encode("<bos>")
    assert len(facts.encode("<bos>")) == 5


def test_names() -> None:
    assert facts_of(engine(PLAIN), "a").names == ("a",)
    assert facts_of(engine(PLAIN), ("a", "b")).names == ("a", "b")


def test_without_a_template() -> None:
    facts = facts_of(engine(None))
    assert not facts.template_tools
    assert facts.think is None


def test_a_template_with_tools() -> None:
    facts = facts_of(engine(TOOLS))
    assert facts.template_tools
    assert facts.template_tool_calls


@pytest.mark.parametrize(
    ("template", "syntax"),
    [
        (TOOLS, "hermes"),
        ("{{ '[TOOL_CALLS] ' }}", "mistral"),
        ("{{ '[TOOL_CALLS]' + name + '[ARGS]' }}", "hermes"),
        ("{{ '{\"name\": \"' + name + '\", ' }}{{ '\"parameters\": ' }}", "llama3"),
        (PLAIN, "hermes"),
        ("", "hermes"),
    ],
)
def test_tool_syntax(template: str, syntax: str) -> None:
    assert tool_syntax_of(template) == syntax


def test_a_given_syntax_goes_first() -> None:
    assert facts_of(engine(TOOLS), tool_syntax="json").tool_syntax == "json"
    with pytest.raises(ConfigError):
        facts_of(engine(TOOLS), tool_syntax="xml")


def test_reasoning() -> None:
    opened = facts_of(engine(OPENED, words=("<think>", "</think>")))
    assert (opened.think, opened.think_opened, opened.think_special) == (("<think>", "</think>"), True, False)
    mentioned = facts_of(engine(PLAIN + "{# </think> #}", special=("<think>", "</think>")))
    assert (mentioned.think, mentioned.think_opened, mentioned.think_special) == (("<think>", "</think>"), False, True)


def test_fill_in_the_middle() -> None:
    words = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|fim_pad|>")
    made = engine(PLAIN, words=words, special=("<|repo_name|>",))
    fim = facts_of(made).fim
    assert fim is not None
    vocab = made.model.tokenizer.get_vocab()
    assert (fim.prefix, fim.suffix, fim.middle) == tuple(vocab[word] for word in words[:3])
    assert (fim.repository, fim.file) == (vocab["<|repo_name|>"], None)
    assert set(fim.stops) == set(words)


@pytest.mark.model
def test_smollm2() -> None:
    facts = facts_of(Engine.load("smollm2-135m", capacity=64))
    assert not (facts.template_tools or facts.template_tool_calls)
    assert (facts.fim, facts.think, facts.tool_syntax, facts.eos_ids, facts.bos) == (None, None, "hermes", (0, 2), ())
