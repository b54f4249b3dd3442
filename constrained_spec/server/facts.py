"""What plans must know of a loaded model, found out once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from constrained_spec.api import Engine
from constrained_spec.errors import ConfigError
from constrained_spec.grammars.tools import SYNTAXES
from constrained_spec.server.plan import FimTokens, Message, ModelFacts, ToolSyntax

DEFAULT_SYNTAX: ToolSyntax = "hermes"
THINK = ("<think>", "</think>")

# (prefix, suffix, middle, order): the tokens by which families of models fill the middle.
FIM_FAMILIES: tuple[tuple[str, str, str | None, Literal["psm", "spm"]], ...] = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "psm"),  # Qwen Coder, CodeGemma
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>", "psm"),  # StarCoder, Granite
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>", "psm"),  # SantaCoder
    ("▁<PRE>", "▁<SUF>", "▁<MID>", "psm"),  # Code Llama
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>", "psm"),  # DeepSeek Coder
    ("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>", "psm"),  # GLM
    ("[PREFIX]", "[SUFFIX]", None, "spm"),  # Codestral
)
_FILE = ("<|file_sep|>", "<file_sep>", "<|file_separator|>")
_REPOSITORY = ("<|repo_name|>", "<repo_name>", "<reponame>")
_PAD = ("<|fim_pad|>", "<fim_pad>", "<fim-pad>")

_PROBE = "probe_of_the_template"
_QUESTION: Message = {"role": "user", "content": "?"}
_TOOL = {
    "type": "function",
    "function": {"name": _PROBE, "description": "?", "parameters": {"type": "object", "properties": {}}},
}
_CALL: Message = {
    "role": "assistant",
    "content": "",
    "tool_calls": [{"id": "call00000", "type": "function", "function": {"name": _PROBE, "arguments": {}}}],
}


def facts_of(
    engine: Engine,
    served_name: str | Sequence[str] | None = None,
    fim_template: str | None = None,
    tool_syntax: str | None = None,
) -> ModelFacts:
    """The facts of ``engine``'s model; ``served_name`` are its names in the API, the first one shown in answers.

    ``fim_template`` holds {prefix} and {suffix} and goes before the model's own tokens; ``tool_syntax`` before what the
    chat template shows. Raises ``ConfigError`` if one of them has no meaning.
    """
    names = (served_name,) if isinstance(served_name, str) else tuple(served_name or ())
    tokenizer, vocabulary = engine.model.tokenizer, engine.model.vocabulary
    template = str(getattr(tokenizer, "chat_template", None) or "")
    opened = _rendered(tokenizer, [_QUESTION]).rstrip().endswith(THINK[0])
    return ModelFacts(
        names=names or (engine.model.name,),
        capacity=engine.model.capacity,
        vocabulary_size=vocabulary.size,
        tool_syntax=tool_syntax_of(template) if tool_syntax is None else _known(tool_syntax),
        template_tools=_PROBE in _rendered(tokenizer, [_QUESTION], [_TOOL]),
        template_tool_calls=_PROBE in _rendered(tokenizer, [_QUESTION, _CALL]),
        fim=fim_of(tokenizer.get_vocab(), vocabulary.special) if fim_template is None else _template(fim_template),
        think=THINK if opened or THINK[1] in template else None,
        think_opened=opened,
        think_special=THINK[0] in vocabulary.special,
        eos_ids=vocabulary.eos_ids,
        bos=tuple(engine.model.encode("")),
        encode=vocabulary.encode,
    )


def tool_syntax_of(template: str) -> ToolSyntax:
    """The syntax of tool calls that a chat template writes; ``DEFAULT_SYNTAX`` if it is none that is known."""
    if "<tool_call>" in template:
        return "hermes"
    if "[TOOL_CALLS]" in template and "[ARGS]" not in template:
        return "mistral"
    if '"parameters": ' in template and '{"name": "' in template:
        return "llama3"
    return DEFAULT_SYNTAX


def fim_of(vocab: Mapping[str, int], special: Mapping[str, int]) -> FimTokens | None:
    """The first family of ``FIM_FAMILIES`` whose tokens ``vocab`` has. ``special`` are the tokens without text."""
    for prefix, suffix, middle, order in FIM_FAMILIES:
        needed = [name for name in (prefix, suffix, middle) if name is not None]
        if all(name in vocab for name in needed):
            file, repository = _first(vocab, _FILE), _first(vocab, _REPOSITORY)
            ends = [*needed, *(name for name in (*_FILE, *_REPOSITORY, *_PAD) if name in vocab)]
            return FimTokens(
                prefix=vocab[prefix],
                suffix=vocab[suffix],
                middle=None if middle is None else vocab[middle],
                order=order,
                file=file,
                repository=repository,
                stops=tuple(name.replace("▁", " ") for name in ends if name not in special),
            )
    return None


def _template(template: str) -> FimTokens:
    if template.count("{prefix}") != 1 or template.count("{suffix}") != 1:
        raise ConfigError(
            "a fill-in-the-middle template holds {prefix} and {suffix} once each",
            param="fim_template",
            hint="for example <PRE>{prefix}<SUF>{suffix}<MID>",
        )
    return FimTokens(template=template)


def _known(syntax: str) -> ToolSyntax:
    for known in SYNTAXES:
        if syntax == known:
            return known  # type: ignore[return-value]
    raise ConfigError(f"unknown tool call syntax {syntax!r}", param="tool_syntax", hint=f"one of {', '.join(SYNTAXES)}")


def _first(vocab: Mapping[str, int], names: Sequence[str]) -> int | None:
    return next((vocab[name] for name in names if name in vocab), None)


def _rendered(tokenizer: Any, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None = None) -> str:
    """The prompt as text; nothing where there is no template, or it refuses these messages."""
    try:
        return str(
            tokenizer.apply_chat_template(
                [dict(m) for m in messages],
                tools=None if tools is None else [dict(t) for t in tools],
                add_generation_prompt=True,
                tokenize=False,
            )
        )
    except Exception:  # a template raises whatever its author chose
        return ""
