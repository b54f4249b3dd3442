"""Requests made from the OpenAPI document: whatever it allows is answered, and never with a failure of ours."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.server.visitor import without_life

OPERATIONS = (
    ("post", "/v1/chat/completions"), ("post", "/v1/completions"), ("post", "/completion"),
    ("post", "/v1/fim/completions"), ("post", "/infill"), ("post", "/v1/responses"), ("post", "/tokenize"),
    ("post", "/detokenize"), ("get", "/health"), ("get", "/version"), ("get", "/metrics"), ("get", "/v1/models"),
    ("get", "/v1/models/{name}"), ("get", "/props"), ("post", "/load_model"),
)  # fmt: skip
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]


@pytest.fixture(scope="module")
def document(make_api: Callable[..., Any]) -> Any:
    # Schemathesis calls the app by a name of its own; a prompt of the tiny model rarely finds an end by itself.
    api = make_api(insecure=True, request_timeout=0.2)
    return schemathesis.openapi.from_asgi("/openapi.json", without_life(api.app))


def test_every_operation_is_asked(document: Any) -> None:
    found = [operation.ok() for operation in document.get_all_operations()]
    assert {(operation.method, operation.path) for operation in found} == set(OPERATIONS)


@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_what_the_document_allows_is_answered(document: Any, method: str, path: str) -> None:
    operation = document[path][method.upper()]

    @settings(max_examples=40, suppress_health_check=list(HealthCheck))
    @given(case=operation.as_strategy())
    def run(case: Any) -> None:
        answer = case.call()
        case.validate_response(answer, checks=CHECKS)
        assert answer.status_code != 422

    run()
