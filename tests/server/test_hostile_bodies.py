"""Bodies and headers made to do harm: each is refused in OpenAI's shape, with a status of the caller's fault."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import anyio
import httpx2
import pytest

from constrained_spec.server.routes.body import parse_object

POSTS = (
    "/v1/chat/completions", "/v1/completions", "/v1/fim/completions", "/v1/responses", "/completion", "/completions",
    "/infill", "/tokenize", "/detokenize", "/playground/check",
)  # fmt: skip
GETS = ("/health", "/version", "/metrics", "/v1/models", "/v1/models/tiny", "/props", "/openapi.json", "/", "/lab")
CHAT = "/v1/chat/completions"
ASK: dict[str, Any] = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 2, "temperature": 0}


def _refused(answer: httpx2.Response, *statuses: int) -> dict[str, Any]:
    """The error of an answer with one of ``statuses``."""
    assert answer.status_code in statuses, f"{answer.status_code} {answer.text[:500]}"
    error: dict[str, Any] = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error" and error["message"] and error["code"]
    assert answer.headers["x-request-id"]
    return error


# ---- JSON that is none, or too much of it -------------------------------------------------------------------------

BODIES = {
    "nothing": b"",
    "one NUL": b"\x00",
    "no object": b"[]",
    "invalid UTF-8": b'{"prompt": "\xff\xfe"}',
    "overlong UTF-8": b'{"prompt": "\xc0\xaf"}',
    "a surrogate as UTF-8": b'{"prompt": "\xed\xa0\x80"}',
    "half a surrogate pair": b'{"prompt": "\\ud800"}',
    "the other half": b'{"prompt": "\\udfff"}',
    "halves the wrong way round": b'{"prompt": "\\udc00\\ud800"}',
    "half a pair as a key": b'{"\\ud800": 1}',
    "UTF-16": '{"prompt": "a"}'.encode("utf-16"),
    "a byte order mark": b'\xef\xbb\xbf{"prompt": "a"}',
    "a raw NUL": b'{"prompt": "\x00"}',
    "NaN": b'{"prompt": "a", "temperature": NaN}',
    "infinity": b'{"prompt": "a", "temperature": 1e999}',
    "minus infinity, deep inside": b'{"prompt": "a", "metadata": {"x": [-1e400]}}',
    "a number of many digits": b'{"prompt": "a", "seed": ' + b"9" * 5000 + b"}",
    "a key twice": b'{"prompt": "a", "prompt": "b"}',
    "a key twice, deep inside": b'{"prompt": "a", "metadata": {"x": {"y": 1, "y": 1}}}',
    "deep lists": b'{"prompt": ' + b"[" * 200_000 + b"]" * 200_000 + b"}",
    "deep objects": b'{"prompt": ' + b'{"a":' * 100_000 + b"1" + b"}" * 100_000 + b"}",
    "deep and unclosed": b"[" * 1_000_000,
    "rubbish behind": b'{"prompt": "a"} {"prompt": "b"}',
    "cut": b'{"prompt": "a',
    "single quotes": b"{'prompt': 'a'}",
    "a comment": b'{"prompt": "a" /* b */}',
}


@pytest.mark.parametrize("path", POSTS)
def test_what_is_no_json_is_refused_everywhere(api: Any, path: str) -> None:
    for what, data in BODIES.items():
        answer = api.ask("POST", path, content=data, headers={"content-type": "application/json"})
        assert _refused(answer, 400)["code"] == "invalid_json", what
    assert api.post(CHAT, ASK).status_code == 200


def test_one_key_twice_among_many_is_found() -> None:
    """In a time that grows with their number, not with its square: 300,000 keys would take hours."""
    many = json.dumps({f"k{i}": 0 for i in range(300_000)})[:-1] + ', "z": 1, "z": 2}'
    with pytest.raises(Exception, match="'z' stands there twice"):
        parse_object(many.encode())


@pytest.mark.parametrize("depth", [60, 200, 500, 900])
def test_deep_values_that_are_json(api: Any, depth: int) -> None:
    """Whatever field holds them: no recursion of ours ends in a failure."""
    nested: tuple[Any, Any] = [], 1
    for _ in range(depth):
        nested = [nested[0]], {"a": nested[1]}
    for name in (
        "metadata", "response_format", "guided_json", "logit_bias", "stop", "tools", "tool_choice", "messages", "extra",
        "prediction", "structured_outputs", "stream_options", "user",
    ):  # fmt: skip
        for value in nested:
            answer = api.post(CHAT, {**ASK, name: value})
            if answer.status_code != 200:
                _refused(answer, 400)
    for value in nested:
        schema = {"type": "object", "properties": {"x": {"const": value}}, "required": ["x"]}
        answer = api.post(CHAT, {**ASK, "guided_json": schema})
        if answer.status_code != 200:
            _refused(answer, 400)
        call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": json.dumps({"a": value})}}
        messages = [{"role": "assistant", "tool_calls": [call]}, {"role": "user", "content": "go on"}]
        answer = api.post(CHAT, {**ASK, "messages": messages})
        if answer.status_code != 200:
            _refused(answer, 400)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", 10**400), ("temperature", -1), ("temperature", "1"), ("top_p", 0), ("top_p", 1.0001),
        ("seed", 2**64), ("seed", -(2**63) - 1), ("seed", 1.5), ("n", 0), ("n", 10**9), ("n", True), ("max_tokens", 0),
        ("max_tokens", -5), ("max_tokens", 0.5), ("min_tokens", -1), ("top_k", -2), ("min_p", 2),
        ("repetition_penalty", 0), ("presence_penalty", 10**400), ("logit_bias", {"999999999": 1}),
        ("logit_bias", {"-1": 1}), ("logit_bias", {"5": 1e308}), ("logit_bias", {"٣": 1}), ("stop", ["a"] * 17),
        ("stop", [""]), ("top_logprobs", 21), ("timeout", 0), ("timeout", -1), ("priority", 2**40), ("model", "absent"),
        ("extra", {"gamma": 10**9}), ("extra", {"drafter": "/etc/passwd"}), ("extra", {"verifier": "none"}),
        ("messages", []), ("messages", [{"role": "root", "content": "a"}]), ("messages", [{}] * 1025),
    ],
)  # fmt: skip
def test_values_out_of_range_are_named(api: Any, field: str, value: Any) -> None:
    error = _refused(api.post(CHAT, {**ASK, field: value}), 400, 404)
    assert error["param"].startswith(f"/{field}")


# ---- constraints --------------------------------------------------------------------------------------------------

CONSTRAINTS: tuple[Mapping[str, Any], ...] = (
    {"guided_json": {"$ref": "#"}},
    {"guided_json": {"$ref": "http://169.254.169.254/latest"}},
    {"guided_json": {"$ref": "file:///etc/passwd"}},
    {"guided_json": {"type": "string", "minLength": 10**30}},
    {"guided_json": {"type": "integer", "maximum": 10**400}},
    {"guided_json": {"type": "integer", "multipleOf": 99999999999999}},
    {"guided_json": {"type": "number", "minimum": 1e308, "maximum": -1e308}},
    {"guided_json": {"$defs": {f"a{i}": {"$ref": f"#/$defs/a{i + 1}"} for i in range(5000)}, "$ref": "#/$defs/a0"}},
    {"regex": "(" * 4000 + ")" * 4000},
    {"regex": "(?P<x>a)(?P=x)"},
    {"regex": "(?=a)b"},
    {"regex": "\\"},
    {"regex": "a" * 10_001},
    {"grammar": "start: start"},
    {"grammar": "start: \x00"},
    {"grammar": "root ::= root"},
    {"grammar": "root ::= " + "(" * 60_000},
    {"grammar": "x = " * 5000},
    {"grammar": "a" * 200_001},
    {"guided_choice": []},
    {"regex": "a", "guided_choice": ["b"]},
)


@pytest.mark.parametrize("constraint", CONSTRAINTS, ids=range(len(CONSTRAINTS)))
def test_constraints_that_cannot_be_met_are_refused_at_their_place(api: Any, constraint: Mapping[str, Any]) -> None:
    error = _refused(api.post(CHAT, {**ASK, **constraint}), 400)
    assert error["param"].startswith(tuple(f"/{name}" for name in constraint))


@pytest.mark.parametrize(
    "constraint",
    [
        {"regex": "\x00"}, {"guided_choice": ["\x00", "a\x00b"]}, {"guided_json": {"const": "\x00"}},
        {"guided_json": {"type": "string", "pattern": "^\\u0000$"}}, {"regex": "(a+)+$"}, {"regex": "(a|a)*b?"},
        {"guided_json": {"properties": {"\x00": {}}, "type": "object"}}, {"regex": "(a|b)*a(a|b){12}"},
        {"grammar": "start: /(a+)+/"}, {"guided_json": {"type": "array", "minItems": 10**9}},
    ],
)  # fmt: skip
def test_constraints_that_only_look_hostile_are_met(api: Any, constraint: Mapping[str, Any]) -> None:
    answer = api.post(CHAT, {**ASK, **constraint})
    assert answer.status_code == 200, answer.text


# ---- paths, methods, types, headers -------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "BREW"])
def test_wrong_methods(api: Any, method: str) -> None:
    for path in POSTS:
        answer = api.ask(method, path)
        assert answer.status_code == 405 and answer.headers["allow"] == "POST", path
        if method != "HEAD":
            assert _refused(answer, 405)["code"] == "method_not_allowed"
    if method not in ("GET", "HEAD"):
        for path in GETS:
            _refused(api.ask(method, path), 405)


@pytest.mark.parametrize(
    "path",
    [
        "/absent", "/v1", "/v1/", "/v1/chat", "//v1/chat/completions", "/V1/chat/completions", "/v1/embeddings",
        "/../../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "/static/../settings.py", "/docs", "/redoc", "/v1/models/%00",
        "/v1/models/..%2f..", "/%ff%fe", "/" + "a" * 60_000, "/v1/models/" + "a/" * 2000, "/.env", "/lab/x",
    ],
)  # fmt: skip
def test_wrong_paths(api: Any, path: str) -> None:
    for method in ("GET", "POST"):
        answer = api.ask(method, path)
        _refused(answer, 404) if answer.status_code == 404 else _refused(answer, 405)


@pytest.mark.parametrize(
    "given",
    [
        "text/plain", "multipart/form-data; boundary=x", "application/x-www-form-urlencoded", "application/xml", "json",
        "application/jsonp", "text/plain; application/json", "application/json, text/plain", "",
    ],
)  # fmt: skip
def test_wrong_types_of_body(api: Any, given: str) -> None:
    for path in POSTS:
        answer = api.ask("POST", path, content=json.dumps(ASK), headers={"content-type": given})
        assert _refused(answer, 415)["code"] == "unsupported_media_type", path


@pytest.mark.parametrize("coding", ["gzip", "br", "deflate", "identity, gzip"])
def test_coded_bodies_are_not_unpacked(api: Any, coding: str) -> None:
    headers = {"content-type": "application/json", "content-encoding": coding}
    assert _refused(api.ask("POST", CHAT, content=json.dumps(ASK), headers=headers), 415)


@pytest.mark.parametrize("given", ["application/json", "application/json; charset=utf-8", "Application/JSON", None])
def test_json_may_say_so(api: Any, given: str | None) -> None:
    headers = {} if given is None else {"content-type": given}
    assert api.ask("POST", CHAT, content=json.dumps(ASK), headers=headers).status_code == 200


def test_a_large_body_is_refused_on_every_path(make_api: Callable[..., Any]) -> None:
    api = make_api(max_body_bytes=2000)
    for path in POSTS:
        assert _refused(api.post(path, {**ASK, "user": "x" * 2000}), 413)["code"] == "too_large"
    assert api.post(CHAT, ASK).status_code == 200


@pytest.mark.parametrize(
    "length", [b"99999999999999999999999999", b"1" * 5000, "٣٣٣٣٣٣٣".encode(), b"-1", b"0x10", b"", b"+5", b"1e9"]
)
def test_odd_lengths_do_no_harm(api: Any, length: bytes) -> None:
    """The server in front checks the header; here it only ever leads to a refusal."""
    status, _, body = _raw(api.app, [(b"content-length", length)], json.dumps(ASK).encode())
    assert status in (200, 413), body


@pytest.mark.parametrize(
    "given",
    [
        b"a\r\nset-cookie: x=1", b"a\nb", b"a\x00b", b"a" * 100_000, b"<script>", b"\xff\xfe", b"a;b", b"../../etc",
        b"{}", b"%0d%0a", b" a", b"a ",
    ],
)  # fmt: skip
def test_no_header_is_written_by_the_caller(api: Any, given: bytes) -> None:
    for path, expected in ((CHAT, 200), ("/absent", 404)):
        status, headers, _ = _raw(api.app, [(b"x-request-id", given)], json.dumps(ASK).encode(), path)
        assert status == expected
        assert headers[b"x-request-id"].startswith(b"req_")
        assert b"set-cookie" not in headers
        assert not any(b"\r" in value or b"\n" in value for value in headers.values())


@pytest.mark.parametrize(
    "value", [b"Bearer " + b"k" * 100_000, b"Bearer \xff\xfe", b"Bearer \x00", b"Bearer", b"Bearer  ", b"\xe2\x98\x83"]
)
def test_odd_keys_open_nothing(make_api: Callable[..., Any], value: bytes) -> None:
    app = make_api(api_key=("k",)).app
    for name in (b"authorization", b"x-api-key"):
        status, _, body = _raw(app, [(name, value)], json.dumps(ASK).encode())
        assert status == 401 and json.loads(body)["error"]["code"] == "invalid_api_key"


def test_two_keys_in_one_request_do_not_add_up(make_api: Callable[..., Any]) -> None:
    """A wrong Bearer key is not made up for by the other header, and of one header the first counts."""
    app = make_api(api_key=("k",)).app
    wrong, right = (b"authorization", b"Bearer x"), (b"authorization", b"Bearer k")
    body = json.dumps(ASK).encode()
    assert _raw(app, [wrong, (b"x-api-key", b"k")], body)[0] == 401
    assert _raw(app, [wrong, right], body)[0] == 401
    assert _raw(app, [right, wrong], body)[0] == 200


def _raw(
    app: Any, headers: list[tuple[bytes, bytes]], body: bytes, path: str = CHAT
) -> tuple[int, dict[bytes, bytes], bytes]:
    """A POST whose headers no client would send. Status, headers, body."""
    scope = {
        "type": "http", "asgi": {"version": "3.0", "spec_version": "2.4"}, "http_version": "1.1", "method": "POST",
        "scheme": "http", "path": path, "raw_path": path.encode(), "query_string": b"", "root_path": "",
        "headers": [(b"host", b"localhost"), *headers], "client": ("127.0.0.1", 1), "server": ("localhost", 80),
    }  # fmt: skip
    sent: list[Any] = []
    parts = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> dict[str, Any]:
        if parts:
            return parts.pop()
        await anyio.sleep_forever()
        raise AssertionError

    async def send(message: Any) -> None:
        sent.append(message)

    anyio.run(app, scope, receive, send)
    return sent[0]["status"], dict(sent[0]["headers"]), b"".join(m.get("body", b"") for m in sent[1:])
