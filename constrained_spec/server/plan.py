"""What one request body asks for, as values. ``chat``, ``completions``, ``fim`` and ``responses`` make plans.

A plan says everything the server does with a request: what it submits to the engine, how often, and in which shape it
answers. ``Plan.locate`` turns the ``param`` of an error of the engine into a JSON pointer into the body.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from constrained_spec.api import Options
from constrained_spec.errors import RequestError
from constrained_spec.grammars.constraints import Constraint
from constrained_spec.grammars.schema_walk import escape

Kind = Literal["chat", "completion", "fim", "infill", "llama", "responses"]
Message = Mapping[str, Any]
ToolSyntax = Literal["hermes", "llama3", "mistral", "json", "raw"]

ANYWHERE = "/*"  # in ``Plan.places``: wherever within a constraint of several schemas


class BodyError(RequestError):
    """A request body that cannot be honoured. ``code`` is the code of the OpenAI error body.

    ``unknown_field`` ``missing_field`` ``invalid_type`` ``invalid_value`` ``unsupported_value``
    ``conflicting_constraints`` ``model_not_found`` (status 404) ``fim_not_supported`` ``limit_exceeded``
    """

    def __init__(self, message: str, *, code: str, param: str | None = None, hint: str | None = None) -> None:
        super().__init__(message, param=param, hint=hint)
        self.code = code


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The largest request that is served; beyond one of them the request is refused."""

    max_body_bytes: int = 4 << 20
    max_schema_bytes: int = 1 << 20
    max_schema_depth: int = 64
    max_regex_chars: int = 10_000
    max_grammar_chars: int = 200_000
    max_choices: int = 100_000
    max_stop: int = 16
    max_n: int = 16
    max_tokens: int | None = None  # None: what the context holds
    max_tools: int = 128
    max_top_logprobs: int = 20
    max_messages: int = 1024
    max_prompts: int = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class FimTokens:
    """How the model is asked to fill the middle: ids of its own tokens, or a ``template`` with {prefix} and {suffix}.

    ``order`` "psm" writes prefix, suffix, middle; "spm" suffix, prefix (then ``middle``, where there is one).
    ``file`` and ``repository`` stand before other files of the same project. ``stops`` are texts of those tokens that
    have one: the middle ends before them.
    """

    prefix: int = -1
    suffix: int = -1
    middle: int | None = None
    order: Literal["psm", "spm"] = "psm"
    file: int | None = None
    repository: int | None = None
    stops: tuple[str, ...] = ()
    template: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """What plans must know of the loaded model; made once by ``facts.facts_of``.

    ``think`` holds the texts around a reasoning block, where the model writes such blocks; ``think_opened`` says that
    the chat template itself opens it, so that the output starts inside, ``think_special`` that the markers are tokens
    without text. ``template_tools`` and ``template_tool_calls``: the chat template shows tools, and earlier calls.
    ``encode`` is the tokeniser without special tokens, ``bos`` the ids that it puts before every prompt.
    """

    names: tuple[str, ...]
    capacity: int
    vocabulary_size: int
    tool_syntax: ToolSyntax = "hermes"
    template_tools: bool = False
    template_tool_calls: bool = False
    fim: FimTokens | None = None
    think: tuple[str, str] | None = None
    think_opened: bool = False
    think_special: bool = False
    eos_ids: tuple[int, ...] = ()
    bos: tuple[int, ...] = ()
    encode: Callable[[str], list[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolPlan:
    """Which calls the grammar allows. ``choice`` is "auto", "none", "required" or the name of the one tool.

    ``tools`` are the callable ones, as {"name", "parameters"}; a custom tool has one parameter, the string ``input``.
    ``custom`` maps the names of custom tools to the constraint of their input (None: any text).
    ``syntax`` "raw": the whole output is the input of the custom tool ``choice``, with nothing around it.
    """

    tools: tuple[Mapping[str, Any], ...]
    choice: str
    parallel: bool
    syntax: ToolSyntax
    custom: Mapping[str, Constraint | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One request, understood. ``options`` are keyword arguments of ``Engine.submit``, without ``choice``,
    ``priority``, ``deadline`` and ``namespace``.

    ``prompts``: one, or several for completions with a list: raw text, token ids, or messages for the chat template,
    which also gets ``chat_tools``. ``reasoning``: reasoning blocks are split from the content (see ``ModelFacts``).
    ``top_logprobs`` alternatives are reported per token if ``logprobs``. ``warm_up``: no token is wanted, the answer is
    empty. ``timeout`` in seconds; with ``partial_on_timeout`` what was written until then is the answer, else the
    request fails. ``n_indent``: the text ends before the first line indented by fewer columns (``fim.indent_end``).
    A higher ``priority`` goes first. ``ignored`` are fields that were accepted and have no effect on the text.
    ``places`` maps the engine's names of options to JSON pointers into ``raw``, the parsed body; "/" is the schema.
    """

    kind: Kind
    model: str
    prompts: tuple[str | list[int] | list[Message], ...]
    options: Options
    output_type: Constraint | None = None
    n: int = 1
    stream: bool = False
    include_usage: bool = False
    continuous_usage: bool = False
    echo: bool = False
    tools: ToolPlan | None = None
    chat_tools: tuple[Mapping[str, Any], ...] = ()
    reasoning: bool = False
    logprobs: bool = False
    top_logprobs: int = 0
    return_spec_metrics: bool = False
    return_rounds: bool = False
    timeout: float | None = None
    partial_on_timeout: bool = False
    priority: int = 0
    user: str | None = None
    warm_up: bool = False
    n_indent: int = 0
    ignored: tuple[str, ...] = ()
    places: Mapping[str, str] = field(default_factory=dict)
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def locate(self, param: str | None) -> str | None:
        """The JSON pointer into the body for the ``param`` of an error; unchanged where it names nothing there."""
        return locate(param, self.places, self.raw)


def locate(param: str | None, places: Mapping[str, str], raw: Mapping[str, Any]) -> str | None:
    """See ``Plan.locate``."""
    if param is None:
        return None
    if param.startswith("/"):
        if "/" in places:
            return places["/"] + param.rstrip("/")
        return places.get(ANYWHERE, param)
    name = param
    while name:
        if name in places:
            return places[name] + param[len(name) :]
        name = name.rpartition("/")[0]
    head = param.partition("[")[0].partition("/")[0]
    return f"/{escape(head)}" if head in raw else param
