"""The playground's routes: its pages, and what they answer while a constraint is typed."""

from __future__ import annotations

from importlib import resources
from typing import Any

import pytest


def test_the_pages_are_single_files_that_ask_nobody_else(api: Any) -> None:
    for path, file in (("/", "server/static/playground.html"), ("/lab", "lab/page.html")):
        answer = api.get(path)
        assert answer.status_code == 200
        assert answer.headers["content-type"] == "text/html; charset=utf-8"
        assert "connect-src 'self'" in answer.headers["content-security-policy"]
        assert answer.text == (resources.files("constrained_spec") / file).read_text(encoding="utf-8")
        assert "http://" not in answer.text.replace("http://www.w3.org/2000/svg", "").replace("http://127.0.0.1", "")


def test_a_constraint_is_checked(api: Any) -> None:
    said = api.post("/playground/check", {"kind": "regex", "text": "[ab]{2}"})
    assert said.status_code == 200
    assert said.json() == {
        "ok": True, "error": None, "engine": "DFA", "finite": True, "count": 4, "example": "aa", "notes": [],
    }  # fmt: skip
    wrong = api.post("/playground/check", {"kind": "schema", "text": '{"type": "strin"}'}).json()
    assert wrong["ok"] is False and wrong["error"]["pointer"] == "/type" and wrong["error"]["position"] == 1


def test_a_constraint_beyond_the_budget_is_told(api: Any) -> None:
    said = api.post("/playground/check", {"kind": "regex", "text": "a" * 1_100_000}).json()
    assert said["ok"] is False and "the budget is" in said["error"]["message"]


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({"kind": "xml", "text": ""}, "/kind", "invalid_value"),
        ({"kind": ["regex"], "text": ""}, "/kind", "invalid_value"),
        ({"kind": "regex"}, "/text", "invalid_type"),
        ({"kind": "regex", "text": 5}, "/text", "invalid_type"),
        ({"kind": "regex", "text": "", "more": 1}, "/more", "unknown_field"),
        ([], None, "invalid_json"),
    ],
)
def test_other_bodies_are_refused(api: Any, body: object, param: str | None, code: str) -> None:
    answer = api.post("/playground/check", body)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["param"], error["code"]) == (param, code)


def test_before_the_model_is_there_the_page_is(loading_api: Any) -> None:
    assert loading_api.get("/").status_code == 200
    assert loading_api.post("/playground/check", {"kind": "regex", "text": "a"}).status_code == 503


def test_a_key_opens_the_check_but_not_the_page(make_api: Any) -> None:
    api = make_api(api_key=("sk-test",))
    assert api.get("/").status_code == api.get("/lab").status_code == 200
    body = {"kind": "choice", "text": "a\nb"}
    assert api.post("/playground/check", body).status_code == 401
    answer = api.post("/playground/check", body, headers={"authorization": "Bearer sk-test"})
    assert answer.json()["count"] == 2
