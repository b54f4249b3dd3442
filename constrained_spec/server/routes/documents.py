"""The OpenAPI document: what requests may hold, and what answers hold.

Request bodies are read by ``server/chat.py`` and its neighbours, not by these models: a field they refuse is answered
in OpenAI's shape, with a pointer and a code. The models say the same in a document.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.json_schema import models_json_schema

_COMPONENTS = "#/components/schemas/"


class _Request(BaseModel):
    model_config = ConfigDict(extra="forbid", protected_namespaces=())


class _Answer(BaseModel):
    model_config = ConfigDict(extra="allow", protected_namespaces=())


class Extra(_Request):
    """This server's own options."""

    drafter: str | None = None
    gamma: int | None = Field(None, ge=0, le=64)
    verifier: str | None = None
    speculation: Literal["auto", "fixed", "off"] | bool | None = None


class Sampled(_Request):
    """Fields of every generating endpoint."""

    model: str | None = None
    stream: bool | None = None
    stream_options: dict[str, Any] | None = Field(None, description="include_usage, continuous_usage_stats")
    n: int | None = Field(None, ge=1)
    seed: int | None = None
    temperature: float | None = Field(None, ge=0)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=-1)
    min_p: float | None = Field(None, ge=0, le=1)
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = Field(None, gt=0)
    logit_bias: dict[str, float] | None = None
    stop: str | list[str] | None = None
    max_tokens: int | None = Field(None, ge=1)
    min_tokens: int | None = Field(None, ge=0)
    ignore_eos: bool | None = None
    prediction: dict[str, Any] | None = Field(None, description="{type: content, content: text or text parts}")
    extra: Extra | None = None
    return_spec_metrics: bool | None = None
    user: str | None = None


class Constrained(Sampled):
    """All spellings of one constraint; two different ones are refused."""

    response_format: dict[str, Any] | None = None
    structured_outputs: dict[str, Any] | None = Field(
        None, description="json, regex, choice, grammar, json_object, structural_tag, whitespace_pattern"
    )
    guided_json: dict[str, Any] | str | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    guided_whitespace_pattern: str | None = None
    regex: str | None = None
    ebnf: str | None = None
    grammar: str | None = Field(None, description="Lark, GBNF or EBNF")
    json_schema: dict[str, Any] | str | None = None


class ChatRequest(Constrained):
    """POST /v1/chat/completions."""

    messages: list[dict[str, Any]] = Field(min_length=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0)
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    return_rounds: bool | None = Field(None, description="Each chunk carries what its round judged.")


class CompletionRequest(Constrained):
    """POST /v1/completions. With ``suffix`` the model fills the middle."""

    prompt: str | list[str] | list[int] | list[list[int]]
    suffix: str | None = None
    echo: bool | None = None
    logprobs: int | None = Field(None, ge=0)
    best_of: int | None = Field(None, ge=1)


class FimRequest(Constrained):
    """POST /v1/fim/completions."""

    prompt: str
    suffix: str | None = None


class InfillRequest(_Request):
    """POST /infill, in llama.cpp's names."""

    model_config = ConfigDict(extra="allow", protected_namespaces=())

    input_prefix: str | None = None
    input_suffix: str | None = None
    input_extra: list[dict[str, str]] | None = None
    prompt: str | None = None
    n_predict: int | None = None
    stream: bool | None = None


class LlamaRequest(_Request):
    """POST /completion, in llama.cpp's names."""

    model_config = ConfigDict(extra="allow", protected_namespaces=())

    prompt: str | list[int]
    n_predict: int | None = None
    stream: bool | None = None


class ResponsesRequest(_Request):
    """POST /v1/responses."""

    model: str | None = None
    input: str | list[dict[str, Any]]
    instructions: str | None = None
    text: dict[str, Any] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    max_output_tokens: int | None = Field(None, ge=1)
    temperature: float | None = Field(None, ge=0)
    top_p: float | None = Field(None, gt=0, le=1)
    stream: bool | None = None


class TokenizeRequest(_Request):
    """POST /tokenize: one of prompt, content, messages."""

    model: str | None = None
    prompt: str | None = None
    content: str | None = None
    messages: list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    add_special_tokens: bool | None = Field(None, description="Default true for prompt.")
    add_special: bool | None = Field(None, description="Default false for content.")
    return_token_strs: bool | None = None
    with_pieces: bool | None = None


class DetokenizeRequest(_Request):
    """POST /detokenize."""

    model: str | None = None
    tokens: list[int]


class LoadModelRequest(_Request):
    """POST /load_model."""

    model: str | None = None


class ErrorDetail(BaseModel):
    message: str
    type: str
    param: str | None = Field(description="JSON pointer into the request.")
    code: str | None


class ErrorBody(BaseModel):
    error: ErrorDetail


class Health(BaseModel):
    status: Literal["ok", "loading", "failed", "closing"]
    model: str
    reason: str | None
    restarts: int


class Version(BaseModel):
    version: str


class Model(BaseModel):
    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "constrained-spec"
    root: str
    parent: str | None = None
    max_model_len: int


class ModelList(BaseModel):
    object: Literal["list"] = "list"
    data: list[Model]


class Props(BaseModel):
    model_config = ConfigDict(protected_namespaces=())

    default_generation_settings: dict[str, Any]
    total_slots: int
    model_alias: str
    model_path: str
    chat_template: str
    build_info: str
    modalities: dict[str, bool]


class Tokenized(BaseModel):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class Detokenized(BaseModel):
    prompt: str
    content: str


class Usage(_Answer):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class ChatAnswer(_Answer):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[dict[str, Any]]
    usage: Usage


class CompletionAnswer(_Answer):
    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[dict[str, Any]]
    usage: Usage


class ResponsesAnswer(_Answer):
    id: str
    object: Literal["response"]
    status: str
    model: str
    output: list[dict[str, Any]]


class LlamaAnswer(_Answer):
    content: str
    stop: bool
    tokens_predicted: int


REQUESTS: tuple[type[BaseModel], ...] = (
    ChatRequest, CompletionRequest, FimRequest, InfillRequest, LlamaRequest, ResponsesRequest, TokenizeRequest,
    DetokenizeRequest, LoadModelRequest,
)  # fmt: skip
_WORDS = {
    400: "The request cannot be honoured as asked; `param` points at why.",
    401: "No valid API key.",
    404: "No such model.",
    408: "The time limit passed first.",
    413: "The body is too large.",
    415: "The body says that it is no JSON.",
    429: "Too many requests wait; see `retry-after`.",
    503: "The model is not loaded.",
}
REFUSALS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorBody, "description": words} for status, words in _WORDS.items()
}
NOT_READY: dict[int | str, dict[str, Any]] = {503: REFUSALS[503], 401: REFUSALS[401]}


def document(body: type[BaseModel]) -> dict[str, Any]:
    """``openapi_extra`` of a route that reads its body itself."""
    schema = {"$ref": _COMPONENTS + body.__name__}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def streamed(answer: type[BaseModel]) -> dict[int | str, dict[str, Any]]:
    """``responses`` of a route that answers with ``answer``, or with server-sent events."""
    event = {"type": "object", "properties": {"data": {"type": "string"}, "event": {"type": "string"}}}
    events = {"text/event-stream": {"schema": {**event, "required": ["data"]}}}
    return {200: {"model": answer, "content": events, "description": "The answer, or its events."}, **REFUSALS}


def add_schemas(document: dict[str, Any]) -> dict[str, Any]:
    """``document`` with the request models among its components, and without FastAPI's 422, which is never answered."""
    _, found = models_json_schema([(model, "validation") for model in REQUESTS], ref_template=_COMPONENTS + "{model}")
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    schemas.update(found.get("$defs", {}))
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    for methods in document["paths"].values():
        for operation in methods.values():
            operation["responses"].pop("422", None)
    return document
