"""The black-box checks against a small server that keeps the contract, or breaks one part of it."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import httpx2
import pytest

from constrained_spec.audit.blackbox import black_box, connect, homogeneity
from constrained_spec.errors import ConfigError

WORDS = ("sea", "red", "one", "two", "of", "and", "blue", "the")
Fault = str | None


class Server:
    """Answers from a hash of the question: one word is one token."""

    def __init__(self, fault: Fault = None, *, reads_extra: bool = True, colours: tuple[str, ...] = ()) -> None:
        self.fault, self.reads_extra = fault, reads_extra
        self.colours = colours or ("red", "green", "blue")

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        if request.url.path.endswith("/models"):
            return httpx2.Response(200, json={"data": [{"id": "toy"}]})
        body = json.loads(request.content)
        mode = body.get("extra", {}).get("speculation")
        if self.reads_extra and mode not in (None, "off", "auto"):
            return httpx2.Response(400, json={"error": {"message": "unknown speculation"}})
        text, tokens, reason = self._answer(body, off=self.reads_extra and mode == "off")
        usage = {"prompt_tokens": 5, "completion_tokens": tokens, "total_tokens": 5 + tokens}
        if self.fault == "usage":
            usage["total_tokens"] += 1
        if body.get("stream"):
            return self._stream(text, usage)
        choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": reason}
        return httpx2.Response(200, json={"choices": [choice], "usage": usage})

    def _answer(self, body: dict[str, Any], *, off: bool) -> tuple[str, int, str]:
        prompt, limit = body["messages"][0]["content"], body["max_tokens"]
        if "response_format" in body:
            options = self.colours if body["temperature"] > 0 and not off else ("red", "green", "blue")
            colour = options[_number(prompt, body.get("seed")) % len(options)]
            return json.dumps({"colour": colour}), 5, "stop"
        salt = 1 if self.fault == "identity" and not off else 0
        words = [WORDS[_number(prompt, i, salt) % len(WORDS)] for i in range(limit)]
        text = " ".join(words)
        for stop in body.get("stop", ()):
            if stop in text:
                end = text.index(stop) + (len(stop) if self.fault == "stop" else 0)
                return text[:end], len(words), "stop"
        return text, len(words) + (1 if self.fault == "limit" else 0), "length"

    def _stream(self, text: str, usage: dict[str, int]) -> httpx2.Response:
        shown = text[:-1] if self.fault == "stream" else text
        chunks: list[dict[str, Any]] = [{"choices": [{"index": 0, "delta": {"content": c}}]} for c in shown]
        chunks.append({"choices": [], "usage": usage})
        events = [*map(json.dumps, chunks), "[DONE]"]
        return httpx2.Response(200, text="".join(f"data: {event}\n\n" for event in events))


def _number(*parts: object) -> int:
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=4).digest(), "little")


def _client(server: Callable[[httpx2.Request], httpx2.Response]) -> httpx2.Client:
    return connect("http://toy/v1", transport=httpx2.MockTransport(server))


def test_a_sound_server_passes() -> None:
    found = black_box(_client(Server()), None, samples=60)
    assert found["passed"], found
    assert found["model"] == "toy" and found["against"] == "the server with speculation off"


@pytest.mark.parametrize(
    ("fault", "check"),
    [
        ("stop", "stop contract"),
        ("usage", "usage contract"),
        ("limit", "usage contract"),
        ("stream", "stream contract"),
        ("identity", "greedy identity"),
    ],
)
def test_a_broken_contract_is_seen(fault: str, check: str) -> None:
    found = black_box(_client(Server(fault)), None, samples=20)
    assert not found["passed"] and found["checks"][check]["ok"] is False
    others = [name for name, row in found["checks"].items() if name != check and row["ok"] is not True]
    assert not others, found


def test_a_biased_server_is_seen() -> None:
    """Blue once more often than it should be: .25 / .25 / .5 against thirds."""
    found = black_box(_client(Server(colours=("red", "green", "blue", "blue"))), None, samples=400)
    assert found["checks"]["sampled regression"]["ok"] is False
    assert found["checks"]["greedy identity"]["ok"] is True


def test_a_server_that_ignores_the_switch_leaves_evidence_missing() -> None:
    found = black_box(_client(Server(reads_extra=False)), None, samples=20)
    assert found["against"] is None and not found["passed"]
    assert found["checks"]["greedy identity"]["ok"] is None
    assert "second-url" in found["checks"]["sampled regression"]["found"]


def test_two_servers_are_compared() -> None:
    first, second = _client(Server(reads_extra=False)), _client(Server(reads_extra=False))
    assert black_box(first, second, samples=60)["passed"]
    other = _client(Server("identity", reads_extra=False))
    assert black_box(first, other, samples=20)["checks"]["greedy identity"]["ok"] is False


def test_a_failing_server_is_a_finding_and_an_absent_one_an_error() -> None:
    def broken(request: httpx2.Request) -> httpx2.Response:
        if request.url.path.endswith("/models"):
            return httpx2.Response(200, json={"data": [{"id": "toy"}]})
        return httpx2.Response(500, text="no")

    found = black_box(_client(broken), None, samples=5)
    assert not found["passed"] and "500" in found["checks"]["usage contract"]["found"]
    with pytest.raises(ConfigError, match="does not list its models"):
        black_box(_client(lambda request: httpx2.Response(404)), None)


def test_homogeneity_by_hand() -> None:
    assert homogeneity(Counter(a=50, b=50), Counter(a=50, b=50)) == pytest.approx(1)
    assert homogeneity(Counter(a=90, b=10), Counter(a=10, b=90)) < 1e-10
    assert homogeneity(Counter(a=9), Counter(a=9)) == 1.0
