"""A request's JSON body, read strictly."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from typing import Any

from fastapi import Request
from starlette.datastructures import Headers

from constrained_spec.server.errors import HttpError

_JSON = re.compile(r"application/(?:[\w.+-]+\+)?json", re.IGNORECASE)


async def read_object(request: Request) -> dict[str, Any]:
    """The body as a JSON object. Raises ``HttpError``: 415 for a body that says it is no plain JSON text; 400 for no
    JSON, no object, a key twice, a text that is none."""
    _check_type(request.headers)
    return parse_object(await request.body())


def _check_type(headers: Headers) -> None:
    """A body without a type passes."""
    given, coding = headers.get("content-type"), headers.get("content-encoding", "identity")
    if given is not None and not _JSON.fullmatch(given.partition(";")[0].strip()):
        raise HttpError(
            415, "unsupported_media_type", f"the body is JSON, not {given[:80]!r}",
            hint="send the header content-type: application/json",
        )  # fmt: skip
    if coding.lower() != "identity":
        raise HttpError(
            415, "unsupported_media_type", f"a body coded as {coding[:80]!r} is not read", hint="send it plain"
        )


def parse_object(data: bytes) -> dict[str, Any]:
    """See ``read_object``."""
    try:
        value = json.loads(
            data.decode("utf-8"), object_pairs_hook=_object, parse_constant=_constant, parse_float=_number
        )
        if b"\\u" in data:  # a lone surrogate can be escaped, and no tokenizer can read it
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except (ValueError, RecursionError) as error:
        reason = "it nests too deeply" if isinstance(error, RecursionError) else _reason(error)
        raise HttpError(400, "invalid_json", f"the body is not JSON: {reason}") from None
    if not isinstance(value, dict):
        raise HttpError(400, "invalid_json", "the body must be a JSON object")
    return value


def _reason(error: ValueError) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg}, line {error.lineno} column {error.colno}"
    if isinstance(error, UnicodeError):
        return "it is not UTF-8" if isinstance(error, UnicodeDecodeError) else "it holds half a surrogate pair"
    return str(error)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        # Not by counting each: an object may have half a million keys.
        twice, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise ValueError(f"the key {twice[:40]!r} stands there twice")
    return found


def _constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON number")


def _number(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{text[:40]} is too large a number")
    return value
