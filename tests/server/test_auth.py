"""API keys: who gets in, and what is shared between callers."""

from __future__ import annotations

import hmac
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from constrained_spec.api import Engine
from constrained_spec.server.auth import KeyRing

ASK = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 4, "temperature": 0}
KEYS = ("first-key", "second-key")


@pytest.fixture(scope="module")
def locked(make_api: Callable[..., Any]) -> Any:
    return make_api(api_key=KEYS)


@pytest.mark.parametrize("key", KEYS)
def test_every_key_opens(locked: Any, key: str) -> None:
    for headers in ({"authorization": f"Bearer {key}"}, {"authorization": f"bearer  {key}"}, {"x-api-key": key}):
        assert locked.post("/v1/chat/completions", ASK, headers=headers).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Bearer "},
        {"authorization": "Bearer wrong"},
        {"authorization": "Bearer first-key2"},
        {"authorization": "first-key"},
        {"authorization": "Basic first-key"},
        {"x-api-key": "first"},
    ],
)
def test_nothing_else_does(locked: Any, headers: dict[str, str]) -> None:
    for method, path in (
        ("POST", "/v1/chat/completions"), ("GET", "/v1/models"), ("GET", "/metrics"), ("GET", "/openapi.json"),
        ("POST", "/tokenize"), ("GET", "/absent"), ("POST", "/health"), ("GET", "/props"), ("POST", "/infill"),
    ):  # fmt: skip
        answer = locked.ask(method, path, headers=headers)
        assert answer.status_code == 401, path
        error = answer.json()["error"]
        assert (error["type"], error["code"]) == ("invalid_request_error", "invalid_api_key")
        assert answer.headers["www-authenticate"] == "Bearer"
        assert answer.headers["x-request-id"]


def test_health_needs_no_key_and_metrics_only_on_request(locked: Any, make_api: Callable[..., Any]) -> None:
    assert locked.get("/health").status_code == 200
    assert make_api(api_key=KEYS, public_metrics=True).get("/metrics").status_code == 200


def test_without_keys_all_is_open_in_one_namespace() -> None:
    ring = KeyRing(())
    assert not ring
    assert ring.namespace(None) == ring.namespace("anything") == ""


def test_each_key_has_a_namespace_that_does_not_show_it() -> None:
    ring = KeyRing(KEYS)
    spaces = [ring.namespace(key) for key in KEYS]
    assert None not in spaces and len(set(spaces)) == 2
    assert not any(key in str(space) for key, space in zip(KEYS, spaces, strict=True))
    assert spaces == [KeyRing(reversed(KEYS)).namespace(key) for key in KEYS]
    assert ring.namespace("third") is None and ring.namespace(None) is None and ring.namespace("") is None


def test_every_key_is_compared_every_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[bytes] = []
    plain = hmac.compare_digest

    def count(one: bytes, other: bytes) -> bool:
        compared.append(other)
        return plain(one, other)

    ring = KeyRing(("a", "b", "c"))
    monkeypatch.setattr(hmac, "compare_digest", count)
    for key in ("a", "c", "absent", None):
        compared.clear()
        ring.namespace(key)
        assert len(compared) == 3
        assert {len(digest) for digest in compared} == {32}


def test_an_empty_key_in_the_settings_opens_nothing(tmp_path: Path) -> None:
    ring = KeyRing(("",))
    assert ring and ring.namespace("") is None


def test_prefixes_are_not_shared_between_keys(make_api: Callable[..., Any], server_engine: Engine) -> None:
    """A second caller must not learn from ``cached_tokens`` what the first one sent."""
    api = make_api(api_key=KEYS)
    ask = {"prompt": "a secret that only one caller knows, quite long", "max_tokens": 2, "temperature": 0}

    def cached(key: str) -> int:
        answer = api.post("/v1/completions", ask, headers={"x-api-key": key})
        return int(answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"])

    assert cached(KEYS[0]) == 0
    assert cached(KEYS[0]) > 0
    assert cached(KEYS[1]) == 0
