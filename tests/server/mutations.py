"""Recorded request bodies, damaged at random: the same damage for the same number, on every run."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tests.server.recorded import recorded

Node = Any
Place = tuple[Any, Any]  # a container, and the key or index of one of its members

_TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
# What no client was recorded with.
OTHERS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("/infill", {"input_prefix": "def f(", "input_suffix": ")", "n_predict": 3, "input_extra": [
        {"filename": "a.py", "text": "x = 1"}], "samplers": ["top_k"], "t_max_predict_ms": 50, "n_indent": 2}),
    ("/completion", {"prompt": "one two", "n_predict": 4, "grammar": 'root ::= "a" | "b"', "n_probs": 2}),
    ("/completion", {"prompt": [5, 6, 7], "n_predict": 2, "json_schema": {"type": "boolean"}, "stream": True}),
    ("/v1/fim/completions", {"prompt": "def f(", "suffix": "return", "max_tokens": 3, "stop": ["\n"]}),
    ("/v1/completions", {"prompt": ["a", "b"], "max_tokens": 3, "n": 2, "logprobs": 2, "echo": True}),
    ("/v1/responses", {"input": [{"role": "user", "content": [{"type": "input_text", "text": "hi"}]}], "text": {
        "format": {"type": "json_schema", "name": "x", "schema": {"type": "object"}}}, "max_output_tokens": 4,
        "stream": True}),
    ("/v1/responses", {"input": "hi", "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}}],
        "tool_choice": "required", "max_output_tokens": 4}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], "tools": [_TOOL], "tool_choice": {
        "type": "function", "function": {"name": "f"}}, "max_tokens": 5, "n": 2, "seed": 1, "stream": True}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], "logprobs": True, "top_logprobs": 3,
        "extra": {"drafter": "ngram", "gamma": 3, "verifier": "coupling", "speculation": "fixed"}, "max_tokens": 5,
        "return_rounds": True, "return_spec_metrics": True, "stream": True}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 5, "structured_outputs": {
        "structural_tag": {"structures": [{"begin": "<f>", "schema": {"type": "object"}, "end": "</f>"}],
        "triggers": ["<f>"]}}}),
    ("/tokenize", {"prompt": "hello", "return_token_strs": True}),
    ("/tokenize", {"messages": [{"role": "user", "content": "hi"}]}),
    ("/detokenize", {"tokens": [72, 105]}),
    ("/playground/check", {"kind": "schema", "text": '{"type": "object", "properties": {"a": {"type": "integer"}}}'}),
    ("/playground/check", {"kind": "grammar", "text": 'start: "a" | "b" start'}),
)  # fmt: skip
PATHS = tuple(sorted({path for path, _ in OTHERS}))
STREAMED = ("/v1/chat/completions", "/v1/completions", "/v1/fim/completions", "/v1/responses", "/completion", "/infill")
LENGTHS = ("max_tokens", "max_completion_tokens", "max_output_tokens", "n_predict")

VALUES: tuple[Node, ...] = (
    None, True, False, 0, -1, 1, 2, 1.5, 1e-320, 1e308, -1e308, 2**31, 2**63, -(2**63), 2**64, 10**30, 10**400, "", " ",
    "\x00", "a\x00b", "é😀\u202e", "\ufeff", "a" * 5000, "auto", "none", "required", "text", "json_object",
    "json_schema", "(a+)+$", "(", "[", "\\", "[a-z]{1,3}", 'root ::= "a"', "start: /b+/", "x = 'a';", "{",
    '{"type": "object"}', "null", [], {}, [[]], [{}], [None], [""], ["a", "b"], {"": 1}, {"type": "object"},
    {"type": "string", "pattern": "^a+$"},
    {"type": ["string", "null"]}, {"$ref": "#"}, {"enum": []}, {"enum": [1, "a", None]}, {"not": {}}, {"allOf": [{}]},
    {"type": "function"}, {"type": "text"}, {"type": "content", "content": "abc"}, [1, 2, 3], [[1], [2]],
    list(range(300)),
)  # fmt: skip
RAW: tuple[bytes, ...] = (
    b"\x00", b"\xff", b"\xed\xa0\x80", b"\\ud800", b"\\u0000", b"1e999", b"-", b"{", b"}", b"[" * 2000, b'"', b",",
    b"NaN", b"\xef\xbb\xbf", b"9" * 5000, b'"a":1,"a":2,', b"\\", b"/**/",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Damaged:
    """A request. ``data`` is often no JSON any more."""

    number: int
    path: str
    data: bytes

    def __str__(self) -> str:
        return f"number {self.number}: {self.path} {self.data[:3000]!r}"


def corpus() -> list[tuple[str, dict[str, Any]]]:
    """Paths and whole bodies, each asking for a few tokens only."""
    found = [(r.path, r.body) for r in recorded() if r.body is not None]
    return [(path, _short(path, copy.deepcopy(body))) for path, body in (*found, *OTHERS)]


def _short(path: str, body: dict[str, Any]) -> dict[str, Any]:
    given = [name for name in LENGTHS if name in body]
    for name in given:
        body[name] = min(body[name], 6)
    if not given and path in STREAMED:
        own = {"/v1/responses": "max_output_tokens", "/completion": "n_predict", "/infill": "n_predict"}
        body[own.get(path, "max_tokens")] = 6
    return body


def damaged(number: int, bodies: list[tuple[str, dict[str, Any]]]) -> Damaged:
    """One of ``bodies`` with one to four changes; one in six goes to an endpoint that it was not made for."""
    rng = random.Random(f"damage {number}")
    path, body = rng.choice(bodies)
    body = copy.deepcopy(body)
    for _ in range(rng.choice((1, 1, 2, 4))):
        rng.choice(_CHANGES)(rng, body, bodies)
    if rng.random() < 1 / 6:
        path = rng.choice(PATHS)
    data = json.dumps(body, ensure_ascii=rng.random() < 0.5).encode()
    return Damaged(number, path, _torn(rng, data) if rng.random() < 1 / 5 else data)


def _places(node: Node) -> Iterator[Place]:
    members = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, value in list(members):
        yield node, key
        yield from _places(value)


def _any_place(rng: random.Random, body: Node) -> Place | None:
    places = list(_places(body))
    return rng.choice(places) if places else None


def _replace(rng: random.Random, body: Node, bodies: Node) -> None:
    place = _any_place(rng, body)
    if place is not None:
        place[0][place[1]] = copy.deepcopy(rng.choice(VALUES))


def _remove(rng: random.Random, body: Node, bodies: Node) -> None:
    place = _any_place(rng, body)
    if place is not None:
        del place[0][place[1]]


def _rename(rng: random.Random, body: Node, bodies: Node) -> None:
    place = _any_place(rng, body)
    if place is not None and isinstance(place[0], dict):
        place[0][rng.choice(("", "x", "type", "\x00", "a/b~c", str(place[1]) + "s"))] = place[0].pop(place[1])


def _borrow(rng: random.Random, body: Node, bodies: Node) -> None:
    """A member of the top of another body."""
    other = rng.choice(bodies)[1]
    name = rng.choice(list(other))
    if name not in LENGTHS:
        body[name] = copy.deepcopy(other[name])


def _transplant(rng: random.Random, body: Node, bodies: Node) -> None:
    """A part of another body, anywhere."""
    place, taken = _any_place(rng, body), _any_place(rng, rng.choice(bodies)[1])
    if place is not None and taken is not None:
        place[0][place[1]] = copy.deepcopy(taken[0][taken[1]])


def _wrap(rng: random.Random, body: Node, bodies: Node) -> None:
    place = _any_place(rng, body)
    if place is not None:
        value = place[0][place[1]]
        for _ in range(rng.choice((1, 1, 3, 70, 400))):
            value = [value] if rng.random() < 0.5 else {"type": value}
        place[0][place[1]] = value


def _repeat(rng: random.Random, body: Node, bodies: Node) -> None:
    place = _any_place(rng, body)
    if place is not None and isinstance(place[0][place[1]], list | str):
        place[0][place[1]] = place[0][place[1]] * rng.choice((2, 3, 40))


def _cut(rng: random.Random, body: Node, bodies: Node) -> None:
    place = _any_place(rng, body)
    if place is not None and isinstance(place[0][place[1]], str) and place[0][place[1]]:
        text = place[0][place[1]]
        at = rng.randrange(len(text))
        place[0][place[1]] = text[:at] + rng.choice(("", "\x00", '"', "\\", "(", "{", "}", "😀")) + text[at + 1 :]


_CHANGES: tuple[Callable[[random.Random, Node, Node], None], ...] = (
    _replace, _replace, _replace, _remove, _rename, _borrow, _transplant, _wrap, _repeat, _cut,
)  # fmt: skip


def _torn(rng: random.Random, data: bytes) -> bytes:
    """Damage to the bytes themselves."""
    at = rng.randrange(len(data))
    kind = rng.randrange(4)
    if kind == 0:
        return data[:at]
    if kind == 1:
        return data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1 :]
    if kind == 2:
        return data[:at] + rng.choice(RAW) + data[at:]
    return data[:at] + data[at + rng.randrange(20) :]
