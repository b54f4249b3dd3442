"""The playground's form: what is sent, live validation, errors at their fields, code to copy, the API key."""

from __future__ import annotations

import ast
import json
import shlex
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from constrained_spec.config import DRAFTERS, VERIFIERS
from tests.browser.replay import LEGAL, MODEL, ORIGIN, Replay, illegal

pytestmark = pytest.mark.browser

ALWAYS = {
    "model": MODEL, "stream": True, "stream_options": {"include_usage": True}, "return_spec_metrics": True,
    "return_rounds": True,
}  # fmt: skip


def choose(page: Page, kind: str, text: str | None = None) -> None:
    page.click(f"#tab-{kind}")
    if text is not None:
        page.fill(f"#{kind}", text)


def test_what_is_sent(replay: Replay) -> None:
    page = replay.open()
    page.fill("#system", "Be brief.")
    page.fill("#user", "Who?")
    choose(page, "none")
    for field, value in (("temperature", "0.5"), ("max_tokens", "7"), ("seed", "0"), ("gamma", "0")):
        page.fill(f"#{field}", value)
    page.select_option("#drafter", "prediction")
    page.select_option("#verifier", "block")
    page.select_option("#speculation", "fixed")
    page.click("#prediction-box summary")
    page.fill("#prediction", "Ada\n")
    replay.run()
    wanted = {
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Who?"}],
        "temperature": 0.5, "max_tokens": 7, "seed": 0, "prediction": {"type": "content", "content": "Ada\n"},
        "extra": {"drafter": "prediction", "verifier": "block", "speculation": "fixed", "gamma": 0},
    }  # fmt: skip
    assert replay.asked == [ALWAYS | wanted]


@pytest.mark.parametrize(
    ("kind", "text", "sent"),
    [
        ("none", None, {}),
        (
            "schema", '{"type": "integer"}',
            {"response_format": {"type": "json_schema",
                                 "json_schema": {"name": "answer", "strict": True, "schema": {"type": "integer"}}}},
        ),
        ("regex", r"a\d+", {"structured_outputs": {"regex": r"a\d+"}}),
        ("choice", "yes\n\nno ", {"structured_outputs": {"choice": ["yes", "no "]}}),
        ("grammar", 'start: "a"', {"structured_outputs": {"grammar": 'start: "a"'}}),
    ],
)  # fmt: skip
def test_every_kind_of_constraint(replay: Replay, kind: str, text: str | None, sent: dict[str, Any]) -> None:
    page = replay.open()
    choose(page, kind, text)
    page.fill("#user", "Hi")
    replay.run()
    settings = {"messages": [{"role": "user", "content": "Hi"}], "temperature": 0, "max_tokens": 128}
    assert replay.asked == [ALWAYS | settings | sent]


def test_every_drafter_and_verifier_is_offered(replay: Replay) -> None:
    page = replay.open()
    values = "all => all.map((one) => one.value)"
    assert page.locator("#drafter option").evaluate_all(values) == ["", "auto", *(d for d in DRAFTERS if d != "auto")]
    assert page.locator("#verifier option").evaluate_all(values) == ["", *VERIFIERS]


# ---- live validation ------------------------------------------------------------------------------------------------


def test_a_constraint_is_checked_once_it_is_quiet(replay: Replay) -> None:
    replay.page.clock.install(time=0)
    page = replay.open()
    choose(page, "regex")
    expect(page.locator("#regex-verdict")).to_have_text("✓ legalDFA · 3 textsfor example Paris")
    replay.checked.clear()
    page.clock.pause_at(3_600_000)
    for key in "ab(c":
        page.locator("#regex").press(key)
        page.clock.run_for(250)
    expect(page.locator("#regex-verdict")).to_have_text("Checking …")
    assert replay.checked == []
    page.clock.run_for(50)
    expect(page.locator("#regex-verdict")).to_contain_text("✓ legal")
    assert [body["kind"] for body in replay.checked] == ["regex"]
    assert replay.checked[0]["text"] == page.input_value("#regex")


def test_a_wrong_constraint_shows_its_place(replay: Replay) -> None:
    text = '{"é😀": 1,\n  "type": "strin"}'  # the server counts characters, the text field UTF-16 units
    at = text.index('"type"')
    wrong, right = illegal("no such type", "/type", at, "use string"), {**LEGAL, "notes": ["/x: not enforced"]}
    replay.verdict = lambda body: wrong if body["text"] == text else right
    page = replay.open()
    expect(page.locator("#schema-verdict")).to_contain_text("/x: not enforced")
    page.fill("#schema", text)
    expect(page.locator("#schema-verdict .error")).to_have_text("at /type: no such type")
    expect(page.locator("#schema-verdict")).to_contain_text("use string")
    expect(page.locator("#schema")).to_have_attribute("aria-invalid", "true")
    page.get_by_role("button", name="line 2, column 3").click()
    assert page.evaluate("[document.activeElement.id, getSelection().toString()]") == ["schema", '"']
    units = page.evaluate("document.getElementById('schema').selectionStart")
    assert units == at + 1
    page.fill("#schema", "{}")
    expect(page.locator("#schema")).to_have_attribute("aria-invalid", "false")


# ---- errors ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("param", "field"),
    [
        ("/temperature", "temperature"), ("/max_tokens", "max_tokens"), ("/max_completion_tokens", "max_tokens"),
        ("/seed", "seed"), ("/extra/drafter", "drafter"), ("/extra/gamma", "gamma"), ("/extra/verifier", "verifier"),
        ("/extra/speculation", "speculation"), ("/prediction/content", "prediction"), ("/messages/0/content", "user"),
    ],
)  # fmt: skip
def test_an_error_is_shown_at_its_field(replay: Replay, param: str, field: str) -> None:
    replay.reply = lambda body: (400, {"message": "not so", "param": param, "code": "invalid_value"})
    replay.open()
    page = replay.run()
    expect(page.locator(f"#{field}-error")).to_have_text("not so Try again in 7 s.")
    expect(page.locator(f"#{field}-error")).to_be_visible()
    expect(page.locator(f"#{field}")).to_have_attribute("aria-describedby", f"{field}-error")
    assert page.evaluate("document.activeElement.id") == field
    expect(page.locator("#alert")).to_be_hidden()
    replay.reply = lambda body: ""
    replay.run()
    expect(page.locator(f"#{field}-error")).to_be_hidden()


def test_an_error_of_the_constraint_is_shown_in_its_tab(replay: Replay) -> None:
    error = {"message": "cannot be enforced", "code": "unsupported_schema"}
    replay.reply = lambda body: (400, error | {"param": "/response_format/json_schema/schema/properties/a~1b"})
    replay.open()
    page = replay.run()
    expect(page.locator("#schema-verdict .error")).to_contain_text("at /properties/a~1b: cannot be enforced")
    choose(page, "grammar")
    replay.reply = lambda body: (400, error | {"param": "/structured_outputs/grammar"})
    replay.run()
    expect(page.locator("#grammar-verdict .error")).to_contain_text("cannot be enforced")


def test_an_error_without_a_field(replay: Replay) -> None:
    replay.reply = lambda body: (429, {"message": "the queue is full", "param": None, "code": "overloaded"})
    replay.open()
    page = replay.run()
    expect(page.get_by_role("alert")).to_have_text("the queue is full Try again in 7 s. (overloaded)")


@pytest.mark.parametrize(
    ("field", "text"), [("temperature", "warm"), ("max_tokens", "1.5"), ("seed", "9007199254740992"), ("gamma", "x")]
)
def test_what_is_no_number_is_not_sent(replay: Replay, field: str, text: str) -> None:
    page = replay.open()
    page.fill(f"#{field}", text)
    replay.run()
    expect(page.locator(f"#{field}-error")).to_be_visible()
    assert replay.asked == []


def test_a_schema_that_is_no_json_is_not_sent(replay: Replay) -> None:
    page = replay.open()
    page.fill("#schema", "{")
    replay.run()
    expect(page.locator("#schema-verdict")).to_contain_text("the schema is not JSON")
    assert replay.asked == []


# ---- the API key ----------------------------------------------------------------------------------------------------


def test_the_key_is_sent_and_stays_in_memory(replay: Replay) -> None:
    known, replay.models = replay.models, (401, {"error": {"message": "no valid API key", "code": "invalid_api_key"}})
    page = replay.open()
    expect(page.locator("#model")).to_have_text("The server wants an API key.")
    expect(page.locator("#key")).to_be_visible()
    replay.reply = lambda body: (401, {"message": "no valid API key", "param": None, "code": "invalid_api_key"})
    replay.run()
    expect(page.locator("#key-error")).to_contain_text("no valid API key")
    replay.models = known
    replay.keys.clear()
    page.fill("#key", "sk-secret")
    page.press("#key", "Enter")
    expect(page.locator("#model")).to_have_text(f"{MODEL}, 2,048 tokens")
    replay.run()
    assert set(replay.keys) == {"Bearer sk-secret"}
    page.click("#code-box summary")
    for language in ("curl", "python"):
        page.click(f"#tab-{language}")
        assert "sk-secret" not in page.locator("#code").inner_text()
        assert "CONSTRAINED_SPEC_API_KEY" in page.locator("#code").inner_text()
    assert page.evaluate("[localStorage.length, sessionStorage.length, document.cookie]") == [0, 0, ""]
    assert "sk-secret" not in page.url


# ---- the request as code --------------------------------------------------------------------------------------------

PROMPT = 'It\'s "quoted" $HOME `ls` \\ \n line two, é 😀'


def fill_everything(page: Page) -> None:
    page.fill("#user", PROMPT)
    choose(page, "schema", '{"type": "object", "additionalProperties": false, "default": null}')
    page.fill("#temperature", "0.5")
    page.select_option("#drafter", "ngram")
    page.click("#code-box summary")


def without_own_fields(body: dict[str, Any]) -> dict[str, Any]:
    own = ("stream", "stream_options", "return_spec_metrics", "return_rounds")
    return {name: value for name, value in body.items() if name not in own}


def test_copy_as_curl(replay: Replay) -> None:
    page = replay.open()
    page.context.grant_permissions(["clipboard-read", "clipboard-write"], origin=ORIGIN)
    fill_everything(page)
    page.click("#copy")
    expect(page.locator("#copied")).to_have_text("Copied.")
    words = shlex.split(page.evaluate("navigator.clipboard.readText()"))
    replay.run()
    assert words[:2] == ["curl", "-s"] and words[2] == f"{ORIGIN}/v1/chat/completions"
    assert json.loads(words[words.index("-d") + 1]) == without_own_fields(replay.asked[0])


def test_copy_as_openai_python(replay: Replay) -> None:
    page = replay.open()
    fill_everything(page)
    page.click("#tab-python")
    tree = ast.parse(page.locator("#code").inner_text())
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    create = next(c for c in calls if isinstance(c.func, ast.Attribute) and c.func.attr == "create")
    sent = {str(k.arg): ast.literal_eval(k.value) for k in create.keywords}
    replay.run()
    more = sent.pop("extra_body")  # what openai's client does not know goes in here, and is merged into the body
    assert sent | more == without_own_fields(replay.asked[0])
    client = next(c for c in calls if isinstance(c.func, ast.Name) and c.func.id == "OpenAI")
    given = {k.arg: ast.literal_eval(k.value) for k in client.keywords}
    assert given == {"base_url": f"{ORIGIN}/v1", "api_key": "none"}
