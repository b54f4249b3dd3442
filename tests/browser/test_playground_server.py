"""The playground on the real server and the real model, over loopback."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from typing import Literal

import jsonschema
import pytest
import uvicorn
from fastapi import FastAPI
from playwright.sync_api import Page, expect
from pydantic import SecretStr

from constrained_spec.api import Engine
from constrained_spec.server.app import create_app
from constrained_spec.server.settings import Settings

pytestmark = [pytest.mark.browser, pytest.mark.model]

PATIENCE = 300_000  # ms; the real model on a busy machine


def serve(app: FastAPI, lifespan: Literal["auto", "off"] = "auto") -> tuple[uvicorn.Server, threading.Thread, str]:
    """``app`` on a free port of this machine."""
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error", lifespan=lifespan))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    return server, thread, f"http://127.0.0.1:{port}/"


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[Engine, str]]:
    """The engine and the address of its server."""
    engine = Engine.load("smollm2-135m", slots=2, capacity=2048)
    server, thread, address = serve(create_app(Settings(log_level="error", shutdown_seconds=1), engine))
    yield engine, address
    server.should_exit = True
    thread.join()


@pytest.fixture
def opened(page: Page, served: tuple[Engine, str]) -> Page:
    page.goto(served[1])
    page.set_default_timeout(PATIENCE)
    expect(page.locator("#model")).to_contain_text("smollm2-135m")
    return page


def run(page: Page) -> None:
    page.click("#run")
    expect(page.locator("#run")).to_be_enabled(timeout=PATIENCE)
    expect(page.locator("#alert")).to_be_hidden()
    expect(page.locator("#status")).to_contain_text("Done:")


def text_of(page: Page) -> str:
    return str(page.evaluate("run.text"))


def figures(page: Page) -> dict[str, str]:
    names, values = (page.locator(f"#figures {tag}").all_inner_texts() for tag in ("dt", "dd"))
    return dict(zip(names, values, strict=True))


def test_a_schema_from_the_form_to_the_inspector(opened: Page) -> None:
    page = opened
    expect(page.locator("#schema-verdict")).to_contain_text("✓ legal", timeout=PATIENCE)
    page.check("#compare")
    page.select_option("#drafter", "auto")
    run(page)
    jsonschema.validate(json.loads(text_of(page)), json.loads(page.input_value("#schema")))
    seen = figures(page)
    tokens = page.evaluate("run.tokens")
    assert int(seen["tokens"]) == len(tokens) > int(seen["target passes"])
    assert seen["ended by"] == "stop" and seen["exactness"] == "exact"
    assert {"forced", "bonus"} <= {token["origin"] for token in tokens}
    assert "".join(token["text"] for token in tokens if not token["text"].startswith("<|")) == text_of(page)
    expect(page.locator("#compare-verdict")).to_contain_text("The same text")
    rounds = page.evaluate("run.rounds")
    assert [round_["first"] for round_ in rounds] == [round_["begin"] for round_ in rounds]
    for round_ in rounds:  # every place says what was committed there
        committed = [token["id"] for token in tokens[round_["begin"] : round_["end"]]]
        places = round_["places"][: len(committed)]  # a block may reach beyond the end of the text
        assert [place["token"] for place in places] == committed
        assert all(place["legal"] >= 1 and 1 <= len(place["top"]) <= 5 for place in places)
        assert all(place["accepted"] for place in round_["places"][:-1])
    page.focus("#tokens")
    page.keyboard.press("Home")
    expect(page.locator("#round-title")).to_have_text(f"Round 1 of {len(rounds)}")
    assert page.locator("#round tbody tr").count() == len(rounds[0]["places"])
    page.click("#tab-json")
    assert json.loads(page.locator("#json").inner_text()) == json.loads(text_of(page))


@pytest.mark.parametrize(
    ("kind", "verdict", "legal"),
    [
        ("regex", "DFA", r"[A-Z][a-z]{1,20} is \d{1,3} years old\."),
        ("choice", "DFA · 3 texts", "London|Paris|Berlin"),
        ("grammar", "llguidance", r"[0-9+()]*"),
    ],
)
def test_the_other_constraints(opened: Page, kind: str, verdict: str, legal: str) -> None:
    page = opened
    page.click(f"#tab-{kind}")
    expect(page.locator(f"#{kind}-verdict")).to_contain_text(verdict, timeout=PATIENCE)
    page.fill("#max_tokens", "48")
    run(page)
    assert page.evaluate(f"new RegExp(String.raw`^(?:{legal})$`).test(run.text)")


def test_seeded_sampling_with_the_invariant_verifier_gives_the_same_text(opened: Page) -> None:
    page = opened
    page.click("#tab-none")
    page.fill("#temperature", "0.8")
    page.fill("#max_tokens", "40")
    page.select_option("#verifier", "invariant")
    page.select_option("#drafter", "ngram")
    page.check("#compare")
    run(page)
    expect(page.locator("#compare-verdict")).to_contain_text("The same text")
    coins = page.evaluate("run.rounds.flatMap((r) => r.places).filter((p) => p.draft !== null).map((p) => p.coin)")
    assert all(0 <= coin < 1 for coin in coins)


def test_wrong_constraints_are_told_with_their_place(opened: Page) -> None:
    page = opened
    page.fill("#schema", '{\n  "properties": {"a": {"type": "strin"}}\n}')
    expect(page.locator("#schema-verdict .error")).to_contain_text("at /properties/a/type:", timeout=PATIENCE)
    expect(page.get_by_role("button", name="line 2, column 24")).to_be_visible()
    page.click("#tab-regex")
    page.fill("#regex", "a(b")
    expect(page.get_by_role("button", name="line 1, column 2")).to_be_visible(timeout=PATIENCE)
    page.click("#run")
    expect(page.locator("#regex-verdict .error")).to_contain_text("unclosed group")
    expect(page.locator("#run")).to_be_enabled()


def test_an_option_that_cannot_be_honoured_is_told_at_its_field(opened: Page) -> None:
    page = opened
    page.select_option("#drafter", "model")
    page.click("#run")
    expect(page.locator("#drafter-error")).to_contain_text("needs a draft model")
    page.select_option("#drafter", "")
    page.fill("#gamma", "1000")
    page.click("#run")
    expect(page.locator("#gamma-error")).to_contain_text("gamma")
    page.fill("#gamma", "")
    page.fill("#temperature", "-1")
    page.click("#run")
    expect(page.locator("#temperature-error")).to_contain_text("temperature")


def test_stop_cancels_on_the_server(opened: Page, served: tuple[Engine, str]) -> None:
    page, engine = opened, served[0]
    before = engine.snapshot().finished.get("cancelled", 0)
    page.click("#tab-none")
    page.fill("#user", "Write a long story.")
    page.fill("#temperature", "1")
    page.fill("#max_tokens", "1500")
    page.click("#run")
    expect(page.locator("#token-3")).to_be_visible(timeout=PATIENCE)
    page.keyboard.press("Escape")
    expect(page.locator("#status")).to_have_text("Stopped.")
    for _ in range(3000):
        if engine.snapshot().finished.get("cancelled", 0) > before:
            break
        time.sleep(0.01)
    assert engine.snapshot().finished["cancelled"] == before + 1
    assert engine.snapshot().running == 0
    assert page.locator("#tokens [role=option]").count() > 3


def test_a_prediction_is_drafted(opened: Page) -> None:
    page = opened
    page.click("#tab-choice")
    page.fill("#choice", "The quick brown fox jumps over the lazy dog.\nThe quick brown fox jumps over the lazy cat.")
    page.click("#prediction-box summary")
    page.fill("#prediction", "The quick brown fox jumps over the lazy cow.")
    page.select_option("#drafter", "prediction")
    run(page)
    assert "prediction" in {token["origin"] for token in page.evaluate("run.tokens")}


def test_the_pages_are_locked_down(page: Page, served: tuple[Engine, str]) -> None:
    for path in ("", "lab"):
        response = page.goto(served[1] + path)
        assert response is not None and response.status == 200
        policy = response.headers["content-security-policy"]
        assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy


def test_a_key_is_asked_for(page: Page, served: tuple[Engine, str]) -> None:
    app = create_app(Settings(log_level="error", api_key=(SecretStr("sk-test"),)), served[0])
    app.state.service.start()
    server, thread, address = serve(app, lifespan="off")  # the engine outlives this application
    try:
        page.goto(address)
        expect(page.locator("#model")).to_have_text("The server wants an API key.")
        page.fill("#key", "sk-test")
        page.press("#key", "Enter")
        expect(page.locator("#model")).to_contain_text("smollm2-135m")
        expect(page.locator("#schema-verdict")).to_contain_text("✓ legal", timeout=PATIENCE)
    finally:
        server.should_exit = True
        thread.join()
        app.state.service.release()
