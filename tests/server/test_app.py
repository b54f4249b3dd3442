"""The endpoints that tell about the server, and one answer of each that generates."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from constrained_spec import __version__
from constrained_spec.api import Engine
from constrained_spec.server.errors import HttpError
from constrained_spec.server.service import Service
from constrained_spec.server.settings import Settings

ASK = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 12, "temperature": 0}
SCHEMA = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}},
    "required": ["ok"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}


def test_health_says_when_requests_are_served(api: Any) -> None:
    answer = api.get("/health")
    assert answer.status_code == 200
    assert answer.json()["status"] == "ok"


def test_until_the_model_is_loaded_the_answer_is_503(loading_api: Any) -> None:
    assert loading_api.get("/health").json()["status"] == "loading"
    for method, path in (("GET", "/health"), ("GET", "/v1/models"), ("POST", "/v1/chat/completions")):
        answer = loading_api.ask(method, path, json=ASK if method == "POST" else None)
        assert answer.status_code == 503, path
    error = loading_api.post("/v1/chat/completions", ASK)
    assert error.json()["error"]["code"] == "server_loading"
    assert error.headers["retry-after"] == "1"


def test_a_model_that_cannot_be_loaded_is_told(tmp_path: Path) -> None:
    service = Service(Settings(model=str(tmp_path / "absent"), log_level="error", log_format="json"))
    failed = threading.Event()
    service.start(failed.set)
    assert failed.wait(60)
    assert service.state == "failed" and "absent" in (service.reason or "")
    with pytest.raises(HttpError, match="could not be loaded"):
        _ = service.engine


def test_models_say_how_much_fits(api: Any) -> None:
    listed = api.get("/v1/models").json()
    assert listed["object"] == "list"
    assert listed["data"][0]["id"] == "tiny"
    assert listed["data"][0]["max_model_len"] == 2048
    assert api.get("/v1/models/tiny").json()["id"] == "tiny"
    missing = api.get("/v1/models/other")
    assert missing.status_code == 404 and missing.json()["error"]["code"] == "model_not_found"


def test_served_names_replace_the_models_own(make_api: Callable[..., Any]) -> None:
    api = make_api(served_model_name=("ours", "alias"))
    assert [m["id"] for m in api.get("/v1/models").json()["data"]][:2] == ["ours", "alias"]
    assert api.post("/v1/chat/completions", {**ASK, "model": "alias"}).status_code == 200
    assert api.post("/v1/chat/completions", {**ASK, "model": "absent"}).status_code == 404


def test_version_and_props(api: Any) -> None:
    assert api.get("/version").json() == {"version": __version__}
    props = api.get("/props").json()
    assert props["total_slots"] == 4
    assert "messages" in props["chat_template"]


@pytest.mark.parametrize("text", ["", "plain", "Zoë ☕ 😀", "a\nb\x00c"])
def test_tokens_there_and_back(api: Any, text: str) -> None:
    told = api.post("/tokenize", {"prompt": text}).json()
    assert told["count"] == len(told["tokens"]) == len(text.encode())
    assert told["max_model_len"] == 2048
    back = api.post("/detokenize", {"tokens": told["tokens"]}).json()
    assert back == {"prompt": text, "content": text}


def test_tokens_of_a_conversation_are_those_of_the_template(api: Any, server_engine: Engine) -> None:
    told = api.post("/tokenize", {"messages": ASK["messages"], "with_pieces": True}).json()
    assert told["tokens"] == server_engine.model.chat_prompt(ASK["messages"])  # type: ignore[arg-type]
    assert "".join(told["token_strs"]).startswith("<user>hello")


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        ({}, "invalid_value", "/prompt"),
        ({"prompt": "a", "content": "b"}, "invalid_value", "/prompt"),
        ({"prompt": 7}, "invalid_type", "/prompt"),
        ({"prompt": "a", "spice": 1}, "unknown_field", "/spice"),
        ({"prompt": "a", "model": "other"}, "model_not_found", "/model"),
    ],
)
def test_what_cannot_be_tokenised_is_named(api: Any, body: dict[str, Any], code: str, param: str) -> None:
    error = api.post("/tokenize", body).json()["error"]
    assert (error["code"], error["param"]) == (code, param)


def test_ids_that_mean_nothing_are_refused(api: Any) -> None:
    for ids in ([264], [-1], [True], [1.5], "text"):
        assert api.post("/detokenize", {"tokens": ids}).status_code == 400


def test_a_chat_answer_obeys_its_schema(api: Any) -> None:
    answer = api.post("/v1/chat/completions", {**ASK, "max_tokens": 64, "response_format": FORMAT})
    assert answer.status_code == 200, answer.text
    body = answer.json()
    jsonschema.validate(json.loads(body["choices"][0]["message"]["content"]), SCHEMA)
    assert body["usage"]["total_tokens"] == body["usage"]["prompt_tokens"] + body["usage"]["completion_tokens"]


def test_the_same_text_from_the_engine_itself(api: Any, server_engine: Engine) -> None:
    told = api.post("/v1/chat/completions", {**ASK, "seed": 5, "temperature": 1}).json()
    messages: Any = ASK["messages"]
    # A request with a seed is verified so that its text does not depend on what was drafted.
    own = server_engine.generate(messages, max_tokens=12, temperature=1.0, seed=5, verifier="invariant", drafter="none")
    assert told["choices"][0]["message"]["content"] == own.text


def test_choices_differ_and_repeat(api: Any) -> None:
    ask = {**ASK, "n": 3, "seed": 11, "temperature": 1.5}
    first, again = (api.post("/v1/chat/completions", ask).json()["choices"] for _ in range(2))
    texts = [c["message"]["content"] for c in first]
    assert [c["index"] for c in first] == [0, 1, 2]
    assert len(set(texts)) == 3
    assert texts == [c["message"]["content"] for c in again]


def test_several_prompts_number_their_choices(api: Any) -> None:
    ask = {"prompt": ["one", "two"], "n": 2, "max_tokens": 4, "seed": 1, "temperature": 1}
    choices = api.post("/v1/completions", ask).json()["choices"]
    assert [c["index"] for c in choices] == [0, 1, 2, 3]
    alone = api.post("/v1/completions", {**ask, "prompt": "two"}).json()["choices"]
    assert [c["text"] for c in choices[2:]] == [c["text"] for c in alone]


def test_more_outputs_than_the_server_holds_are_refused(make_api: Callable[..., Any]) -> None:
    api = make_api(slots=1, queue=1)
    error = api.post("/v1/chat/completions", {**ASK, "n": 3}).json()["error"]
    assert (error["code"], error["param"]) == ("limit_exceeded", "/n")


def test_llama_cpps_endpoint(api: Any) -> None:
    body = api.post("/completion", {"prompt": "one", "n_predict": 5, "temperature": 0}).json()
    assert body["stop"] is True and body["tokens_predicted"] <= 5
    assert isinstance(body["content"], str)


def test_responses(api: Any) -> None:
    answer = api.post("/v1/responses", {"input": "hello", "max_output_tokens": 8, "temperature": 0})
    assert answer.status_code == 200, answer.text
    assert answer.json()["object"] == "response"


def test_the_document_knows_no_422(api: Any) -> None:
    document = api.get("/openapi.json").json()
    generating = ("/v1/chat/completions", "/v1/completions", "/v1/fim/completions", "/infill", "/completion")
    assert set(generating) <= set(document["paths"])
    for path, methods in document["paths"].items():
        for operation in methods.values():
            assert "422" not in operation["responses"], path
    for path in generating:
        reference = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]["$ref"]
        assert reference.removeprefix("#/components/schemas/") in document["components"]["schemas"]
