"""Requests that the OpenAPI document forbids, and many that it allows: no failure of ours, and answers as published.

``test_app_document.py`` sends some of those it allows; here they are wrong in one place or another.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.server.visitor import without_life

POSTS = (
    "/v1/chat/completions", "/v1/completions", "/completion", "/v1/fim/completions", "/infill", "/v1/responses",
    "/tokenize", "/detokenize",
)  # fmt: skip
SHAPE = [
    not_a_server_error, status_code_conformance, content_type_conformance, response_headers_conformance,
    response_schema_conformance,
]  # fmt: skip


@pytest.fixture(scope="module")
def document(make_api: Callable[..., Any]) -> Any:
    # Schemathesis calls the app by a name of its own; a prompt of the tiny model rarely finds an end by itself.
    api = make_api(insecure=True, request_timeout=0.2, compile_seconds=2)
    return schemathesis.openapi.from_asgi("/openapi.json", without_life(api.app))


def _fuzz(operation: Any, mode: GenerationMode, count: int) -> None:
    @settings(max_examples=count, suppress_health_check=list(HealthCheck), database=None)
    @given(case=operation.as_strategy(generation_mode=mode))
    def run(case: Any) -> None:
        answer = case.call()
        assert answer.status_code != 422
        assert answer.headers["x-request-id"]
        if answer.status_code >= 400:
            assert answer.json()["error"]["code"] != "internal_error"
        case.validate_response(answer, checks=[*SHAPE, negative_data_rejection])

    run()


@pytest.mark.parametrize("path", POSTS)
def test_what_the_document_forbids_is_refused(document: Any, path: str) -> None:
    _fuzz(document[path]["POST"], GenerationMode.NEGATIVE, 60)


@pytest.mark.full
@pytest.mark.parametrize("path", POSTS)
@pytest.mark.parametrize("mode", [GenerationMode.NEGATIVE, GenerationMode.POSITIVE], ids=["forbidden", "allowed"])
def test_much_of_both(document: Any, path: str, mode: GenerationMode) -> None:
    _fuzz(document[path]["POST"], mode, 600)
