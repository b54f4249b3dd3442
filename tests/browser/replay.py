"""The playground in Chromium, answered by hand: what a server cannot be asked to do on demand, byte for byte.

``test_playground_server`` holds the page against the real server; the shapes written here are that server's.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from importlib import resources
from typing import Any

from playwright.sync_api import Page, Route

ORIGIN = "http://localhost:9"  # a secure context, so the page may copy
MODEL = "smollm2-135m"
Json = dict[str, Any]


def token(number: int, text: str, origin: str) -> Json:
    return {"id": number, "text": text, "origin": origin}


def place(number: int | None, source: str | None = None, *, accepted: bool = False, **more: Any) -> Json:
    """A judged place; a certain guess unless ``more`` says otherwise."""
    return {
        "draft": number, "source": source, "p": None if number is None else 1.0, "q": None, "coin": None,
        "accepted": accepted, "legal": 3, "top": [], "token": number, **more,
    }  # fmt: skip


def event(**fields: Any) -> str:
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": MODEL}
    return f"data: {json.dumps(head | fields)}\n\n"


def choice(delta: Json, finish: str | None = None) -> list[Json]:
    return [{"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}]


def chunk(tokens: Sequence[Json], places: Sequence[Json], first: int) -> str:
    """The event of one round."""
    text = "".join(t["text"] for t in tokens)
    spec = {"tokens": list(tokens), "round": {"first": first, "places": list(places)}}
    return event(choices=choice({"content": text}), usage=None, spec=spec)


def answer(*rounds: tuple[Sequence[Json], Sequence[Json]], finish: str = "stop") -> str:
    """A whole stream of rounds, each (tokens, places)."""
    sent = [event(choices=choice({"role": "assistant", "content": ""}), usage=None)]
    first = 0
    for tokens, places in rounds:
        sent.append(chunk(tokens, places, first))
        first += len(tokens)
    figures = {"exactness": "exact", "disabled_reason": None, "num_rounds": len(rounds)}
    sent.append(event(choices=choice({}, finish), usage=None))
    usage = {"prompt_tokens": 9, "completion_tokens": first, "total_tokens": 9 + first}
    sent.append(event(choices=[], usage=usage, metrics={"speculative_decoding": figures}))
    return "".join(sent) + "data: [DONE]\n\n"


# {"name": "Ada"} in three rounds: a block that stands, one that falls at its second place, one that stands.
THREE_ROUNDS = answer(
    (
        [token(1, '{"', "forced"), token(2, "name", "forced"), token(3, '":', "bonus")],
        [place(1, "forced", accepted=True), place(2, "forced", accepted=True), place(None, token=3)],
    ),
    (
        [token(4, ' "', "ngram"), token(5, "Ada", "recovered")],
        [
            place(4, "ngram", accepted=True, p=0.75, q=0.5, coin=0.25),
            place(
                8, "ngram", p=0.0001, q=0.5, coin=0.625, legal=41234, token=5, top=[[5, 0.9, "Ada"], [8, 0.05, "Bob"]]
            ),
        ],
    ),
    (
        [token(6, '"}', "suffix"), token(7, "<|im_end|>", "bonus")],
        [place(6, "suffix", accepted=True), place(None, token=7)],
    ),
).replace('"content": "\\"}<|im_end|>"', '"content": "\\"}"')  # a special token is no text

LEGAL: Json = {"ok": True, "error": None, "engine": "DFA", "finite": True, "count": 3, "example": "Paris", "notes": []}


def illegal(message: str, pointer: str | None = None, position: int | None = None, hint: str | None = None) -> Json:
    error = {"message": message, "pointer": pointer, "position": position, "hint": hint}
    return {**LEGAL, "ok": False, "error": error, "engine": None, "finite": None, "count": None, "example": None}


class Replay:
    """The page with hand-written answers. ``reply`` and ``verdict`` make them; ``asked`` and ``checked`` are the bodies
    that the page sent, ``keys`` the ``Authorization`` of every request."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.asked: list[Json] = []
        self.checked: list[Json] = []
        self.keys: list[str | None] = []
        self.reply: Callable[[Json], str | tuple[int, Json]] = lambda body: THREE_ROUNDS
        self.verdict: Callable[[Json], Json] = lambda body: LEGAL
        self.models: tuple[int, Json] = (200, {"object": "list", "data": [{"id": MODEL, "max_model_len": 2048}]})
        page.route("**/*", self._serve)

    def open(self) -> Page:
        self.page.goto(f"{ORIGIN}/")
        return self.page

    def run(self) -> Page:
        """Run what the form says, to the end."""
        self.page.click("#run")
        self.page.wait_for_function("!document.getElementById('run').disabled")
        return self.page

    def _serve(self, route: Route) -> None:
        path = route.request.url.removeprefix(ORIGIN)
        if path == "/":
            page = resources.files("constrained_spec") / "server/static/playground.html"
            route.fulfill(body=page.read_text(encoding="utf-8"), content_type="text/html; charset=utf-8")
            return
        self.keys.append(route.request.headers.get("authorization"))
        if path == "/v1/models":
            status, said = self.models
            route.fulfill(status=status, json=said)
        elif path == "/playground/check":
            self.checked.append(_body(route))
            route.fulfill(json=self.verdict(self.checked[-1]))
        else:
            assert path == "/v1/chat/completions", path
            self.asked.append(_body(route))
            reply = self.reply(self.asked[-1])
            if isinstance(reply, str):
                route.fulfill(body=reply, content_type="text/event-stream")
            else:
                route.fulfill(status=reply[0], json={"error": reply[1]}, headers={"retry-after": "7"})


def _body(route: Route) -> Json:
    body = route.request.post_data_json
    assert isinstance(body, dict)
    return body
