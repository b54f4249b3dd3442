"""Whatever goes wrong is answered in OpenAI's shape, with a pointer into the request and a code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from starlette.exceptions import HTTPException

from constrained_spec import errors as kinds
from constrained_spec.api import Engine
from constrained_spec.server.errors import HttpError, answer
from constrained_spec.server.plan import BodyError
from constrained_spec.server.routes.body import parse_object

ASK = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 4, "temperature": 0}


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (kinds.RequestError("x"), 400, "invalid_request"),
        (kinds.ConfigError("x"), 400, "invalid_value"),
        (kinds.GrammarSyntaxError("x"), 400, "invalid_grammar"),
        (kinds.UnsupportedSchemaError("x", pointer="/a", keyword="b"), 400, "unsupported_schema"),
        (kinds.UnsatisfiableError("x"), 400, "unsatisfiable_constraint"),
        (kinds.GrammarBudgetError("x", limit="states"), 400, "constraint_too_large"),
        (kinds.VocabularyMismatchError("x"), 400, "vocabulary_mismatch"),
        (kinds.DeadEndError("x"), 400, "dead_end"),
        (kinds.OverloadedError("x", retry_after=0.2), 429, "overloaded"),
        (kinds.DeadlineError("x"), 408, "timeout"),
        (kinds.EngineError("x"), 500, "internal_error"),
        (kinds.TransactionError("x"), 500, "internal_error"),
        (kinds.ModelError("x"), 500, "internal_error"),
        (BodyError("x", code="unknown_field"), 400, "unknown_field"),
        (BodyError("x", code="model_not_found"), 404, "model_not_found"),
        (HttpError(413, "too_large", "x"), 413, "too_large"),
        (HTTPException(404), 404, "not_found"),
        (HTTPException(405), 405, "method_not_allowed"),
        (ValueError("secret"), 500, "internal_error"),
    ],
)
def test_every_error_has_a_status_and_a_code(error: Exception, status: int, code: str) -> None:
    told = answer(error)
    assert (told.status, told.code) == (status, code)
    assert set(told.body["error"]) == {"message", "type", "param", "code"}


def test_what_failed_inside_is_not_told() -> None:
    for error in (ValueError("secret"), kinds.EngineError("secret"), kinds.ModelError("secret")):
        assert "secret" not in str(answer(error).body)


def test_a_full_queue_says_when_to_come_again() -> None:
    assert answer(kinds.OverloadedError("x", retry_after=0.2)).headers["retry-after"] == "1"
    assert answer(kinds.OverloadedError("x", retry_after=7.1)).headers["retry-after"] == "8"


def test_a_passed_deadline_is_not_tried_again_by_clients() -> None:
    assert answer(kinds.DeadlineError("x")).headers["x-should-retry"] == "false"


def test_params_are_pointers() -> None:
    assert answer(kinds.ConfigError("x", param="gamma")).param == "/gamma"
    assert answer(kinds.RequestError("x", param="/a/b")).param == "/a/b"
    assert answer(kinds.RequestError("x")).param is None
    assert answer(kinds.RequestError("x", param="/p"), lambda p: f"/schema{p}").param == "/schema/p"


def test_the_hint_is_part_of_the_message() -> None:
    assert answer(kinds.RequestError("bad", hint="do better")).message == "bad; do better"


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "not JSON"),
        (b"{", "line 1"),
        (b"[]", "object"),
        (b"null", "object"),
        (b'"text"', "object"),
        (b'{"a": NaN}', "NaN"),
        (b'{"a": -Infinity}', "Infinity"),
        (b'{"a": 1, "a": 2}', "twice"),
        (b'{"a": {"b": 1, "b": 1}}', "twice"),
        (b'{"a": "\xff"}', "UTF-8"),
        ('{"a": 1}'.encode("utf-16"), "UTF-8"),
        (b'{"a": "\\ud800"}', "surrogate"),
        (b'{"\\udc00": 1}', "surrogate"),
        (b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nests"),
        (b'{"a": ' + b"9" * 10_000 + b"}", "digits"),
    ],
)
def test_a_body_is_strict_json(data: bytes, says: str) -> None:
    with pytest.raises(HttpError, match=says) as caught:
        parse_object(data)
    assert (caught.value.status, caught.value.code) == (400, "invalid_json")


def test_a_body_keeps_its_characters() -> None:
    assert parse_object('{"a": "é\\ud83d\\ude00\\u0000"}'.encode()) == {"a": "é😀\x00"}


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/absent", 404, "not_found"),
        ("GET", "/load_model", 405, "method_not_allowed"),
        ("POST", "/load_model", 400, "invalid_json"),
        ("GET", "/v1/chat/completions", 405, "method_not_allowed"),
        ("POST", "/v1/models", 405, "method_not_allowed"),
        ("POST", "/v1/chat/completions", 400, "invalid_json"),
    ],
)
def test_wrong_paths_and_methods(api: Any, method: str, path: str, status: int, code: str) -> None:
    told = api.ask(method, path)
    assert told.status_code == status
    assert told.json()["error"]["code"] == code


def test_an_error_of_a_schema_points_into_the_request(api: Any) -> None:
    schema = {"type": "object", "properties": {"x": {"type": "number", "exclusiveMinimum": "three"}}, "required": ["x"]}
    ask = {**ASK, "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}}
    told = api.post("/v1/chat/completions", ask)
    assert told.status_code == 400, told.text
    assert told.json()["error"]["param"].startswith("/response_format/json_schema/schema")


def test_an_option_out_of_range_is_named(api: Any) -> None:
    error = api.post("/v1/chat/completions", {**ASK, "temperature": -1}).json()["error"]
    assert error["param"] == "/temperature"


def test_a_prompt_that_does_not_fit(api: Any) -> None:
    told = api.post("/v1/completions", {"prompt": "x" * 5000, "max_tokens": 1})
    assert told.status_code == 400
    assert told.json()["error"]["param"] == "/prompt"


def test_a_failure_of_ours_is_500_with_an_id(
    make_api: Callable[..., Any], server_engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*given: object, **more: object) -> None:
        raise RuntimeError("a secret of the prompt")

    api = make_api()
    monkeypatch.setattr(server_engine, "submit", broken)
    told = api.post("/v1/chat/completions", ASK, headers={"x-request-id": "mine-1"})
    assert told.status_code == 500
    assert told.headers["x-request-id"] == "mine-1"
    assert told.json()["error"]["type"] == "server_error"
    assert "secret" not in told.text
