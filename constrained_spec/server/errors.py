"""Any error as an answer of the API: a status, and the body that OpenAI's clients read."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from constrained_spec.errors import (
    ConfigError,
    ConstrainedSpecError,
    DeadEndError,
    DeadlineError,
    GrammarBudgetError,
    GrammarSyntaxError,
    OverloadedError,
    RequestCancelled,
    RequestError,
    UnsatisfiableError,
    UnsupportedSchemaError,
    VocabularyMismatchError,
)

INVALID = "invalid_request_error"
_NO_RETRY = {"x-should-retry": "false"}


class HttpError(ConstrainedSpecError):
    """What only the HTTP side knows of: no key, too large a body, not ready."""

    def __init__(
        self, status: int, code: str, message: str, *, param: str | None = None, hint: str | None = None,
        type_: str = INVALID, headers: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(message, param=param, hint=hint)
        self.status = status
        self.code = code
        self.type = type_
        self.headers = dict(headers or {})


@dataclass(frozen=True, slots=True)
class ErrorAnswer:
    """``type``, ``code`` and ``param`` are for programs, ``message`` for people. ``param`` is a JSON pointer."""

    status: int
    type: str
    code: str
    message: str
    param: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def body(self) -> dict[str, Any]:
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}

    def response(self) -> JSONResponse:
        return JSONResponse(self.body, self.status, dict(self.headers))


# The first line that fits counts. A constraint that the engine runs into the end of was the caller's, like its options.
_CODES: tuple[tuple[type[ConstrainedSpecError], int, str], ...] = (
    (UnsupportedSchemaError, 400, "unsupported_schema"),
    (GrammarSyntaxError, 400, "invalid_grammar"),
    (UnsatisfiableError, 400, "unsatisfiable_constraint"),
    (GrammarBudgetError, 400, "constraint_too_large"),
    (VocabularyMismatchError, 400, "vocabulary_mismatch"),
    (RequestError, 400, "invalid_request"),
    (ConfigError, 400, "invalid_value"),
    (DeadEndError, 400, "dead_end"),
    (RequestCancelled, 499, "cancelled"),
)
# Where one of them names no place, it means the constraint as a whole.
_OF_CONSTRAINT = (
    UnsupportedSchemaError, GrammarSyntaxError, UnsatisfiableError, GrammarBudgetError, VocabularyMismatchError,
    DeadEndError,
)  # fmt: skip


def answer(error: BaseException, locate: Callable[[str | None], str | None] | None = None) -> ErrorAnswer:
    """``locate`` turns the ``param`` of an error of the engine into a pointer into the request (``Plan.locate``)."""
    if isinstance(error, HttpError):
        return ErrorAnswer(error.status, error.type, error.code, _text(error), error.param, error.headers)
    if isinstance(error, OverloadedError):
        headers = {"retry-after": str(max(1, math.ceil(error.retry_after)))}
        return ErrorAnswer(429, "rate_limit_error", "overloaded", _text(error), None, headers)
    if isinstance(error, DeadlineError):
        return ErrorAnswer(408, "timeout_error", "timeout", _text(error), "/timeout", _NO_RETRY)
    if isinstance(error, HTTPException):
        code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "invalid_request")
        return ErrorAnswer(error.status_code, INVALID, code, str(error.detail), None, dict(error.headers or {}))
    if isinstance(error, ConstrainedSpecError):
        for kind, status, default in _CODES:
            if isinstance(error, kind):
                code = getattr(error, "code", None) or default
                return ErrorAnswer(_status(code, status), INVALID, code, _text(error), _param(error, locate))
    # What went wrong inside may quote the request; the log has it, under the request's id.
    return ErrorAnswer(500, "server_error", "internal_error", "the server failed on this request; its log says why")


def _status(code: str, default: int) -> int:
    return {"model_not_found": 404, "too_large": 413}.get(code, default)


def _text(error: ConstrainedSpecError) -> str:
    return f"{error.message}; {error.hint}" if error.hint else error.message


def _param(error: ConstrainedSpecError, locate: Callable[[str | None], str | None] | None) -> str | None:
    found = error.param if locate is None else locate(error.param)
    if found is None and locate is not None and isinstance(error, _OF_CONSTRAINT):
        found = locate("output_type")
        if found == "output_type":  # the request states none: it is a dead end of another kind
            return None
    return None if found is None else "/" + found.removeprefix("/")
