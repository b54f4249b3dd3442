"""How the playground looks and is operated: narrow screens, both colour schemes, contrast, motion, names and keys."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.browser.replay import Replay

pytestmark = pytest.mark.browser

WIDE, NARROW = {"width": 1280, "height": 900}, {"width": 360, "height": 740}
WINDOWS = [
    {"viewport": size, "color_scheme": scheme} for size in (WIDE, NARROW) for scheme in ("light", "dark")
]  # fmt: skip

# Ratio of contrast (WCAG 2) of every visible text to what is painted behind it.
CONTRAST = """() => {
  const parse = (c) => c.match(/[\\d.]+/g).map(Number);
  const light = (c) => { const [r, g, b] = c.map((v) => v / 255).map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const behind = (e) => { for (; e; e = e.parentElement) { const c = parse(getComputedStyle(e).backgroundColor); if (c[3] === undefined || c[3] === 1) return c.slice(0, 3); } return [255, 255, 255]; };
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const e = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || !e.checkVisibility() || e.closest("script, style, .unseen, button:disabled, .skip")) continue;
    const style = getComputedStyle(e);
    const [a, b] = [light(parse(e.namespaceURI.endsWith("svg") ? style.fill : style.color)), light(behind(e))].sort((x, y) => y - x);
    found.push([(a + 0.05) / (b + 0.05), e.tagName, e.className.baseVal ?? e.className, walker.currentNode.data.slice(0, 40)]);
  }
  return found;
}"""  # noqa: E501

# Every control without a name: a label, text of its own, or aria-label.
NAMELESS = """() => [...document.querySelectorAll("input, select, textarea, button, [role=tab], [role=listbox], [tabindex='0']")]
  .filter((e) => !(e.labels?.length || e.getAttribute("aria-label") || e.getAttribute("aria-labelledby") || e.textContent.trim()))
  .map((e) => e.outerHTML)"""  # noqa: E501

# What can be seen and sticks out of the window.
OUTSIDE = """() => [...document.querySelectorAll("body *")].filter((e) => {
  const box = e.getBoundingClientRect();
  const shown = e.checkVisibility() && box.width > 0 && !e.closest(".skip, .unseen");
  return shown && (box.right > innerWidth + 1 || box.left < 0);
}).map((e) => e.outerHTML.slice(0, 80))"""

MOVING = """() => [...document.querySelectorAll("*")]
  .filter((e) => getComputedStyle(e).transitionDuration !== "0s").map((e) => e.outerHTML.slice(0, 80))"""


def show_everything(replay: Replay) -> Page:
    """A run with its comparison, a round, all boxes open."""
    page = replay.open()
    page.check("#compare")
    replay.run()
    page.click("#token-4")
    for box in page.locator("details > summary").all():
        box.click()
    return page


@pytest.mark.parametrize("window", WINDOWS)
def test_nothing_is_cut_off(replay: Replay) -> None:
    page = show_everything(replay)
    width = page.viewport_size["width"] if page.viewport_size else 0
    for tab in page.locator("[role=tab]").all():
        tab.click()
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(OUTSIDE) == []


@pytest.mark.parametrize("window", WINDOWS[:2])
def test_text_has_contrast(replay: Replay) -> None:
    page = show_everything(replay)
    seen = page.evaluate(CONTRAST)
    page.click("#tab-regex")
    replay.verdict = lambda body: {
        "ok": False,
        "error": {"message": "wrong", "pointer": None, "position": 0, "hint": "h"},
    }
    page.fill("#regex", "(")
    expect(page.locator("#regex-verdict .error")).to_be_visible()
    seen += page.evaluate(CONTRAST)
    assert len(seen) > 100
    assert [entry for entry in seen if entry[0] < 4.5] == []


@pytest.mark.parametrize("window", [{"viewport": WIDE, "reduced_motion": "reduce"}, {"viewport": WIDE}])
def test_motion_is_reduced_where_that_is_asked_for(replay: Replay, window: dict[str, Any]) -> None:
    page = replay.open()
    page.evaluate("document.getElementById('status').append(h('span', { class: 'running' }))")
    name = page.locator(".running").evaluate("(one) => getComputedStyle(one).animationName")
    assert name == ("none" if "reduced_motion" in window else "pulse")
    assert page.evaluate(MOVING) == []


def test_every_control_has_a_name(replay: Replay) -> None:
    assert show_everything(replay).evaluate(NAMELESS) == []


def test_tabs_by_keyboard(replay: Replay) -> None:
    page = replay.open()
    page.focus("#tab-schema")
    order = [("ArrowRight", "regex"), ("ArrowRight", "choice"), ("End", "grammar"), ("ArrowRight", "none"),
             ("ArrowLeft", "grammar"), ("Home", "none")]  # fmt: skip
    for key, kind in order:
        page.keyboard.press(key)
        assert page.evaluate("document.activeElement.id") == f"tab-{kind}"
        assert page.locator("#kinds [aria-selected=true]").all_inner_texts() == [kind.capitalize()]
        assert page.locator("#kinds [tabindex='0']").count() == 1
        assert [p.get_attribute("id") for p in page.locator("#form [role=tabpanel]:visible").all()] == [f"panel-{kind}"]
        expect(page.locator(f"#panel-{kind}")).to_have_attribute("aria-labelledby", f"tab-{kind}")


def test_the_whole_form_by_keyboard(replay: Replay) -> None:
    page = replay.open()
    page.focus("#system")
    passed = []
    for _ in range(20):
        passed.append(page.evaluate("document.activeElement.id"))
        page.keyboard.press("Tab")
        outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outline != "none" or page.evaluate("document.activeElement === document.body")
    assert passed[:16] == [
        "system", "user", "tab-schema", "schema", "temperature", "max_tokens", "seed", "speculation", "drafter",
        "gamma", "verifier", "", "compare", "run", "tab-tokens", "tokens",
    ]  # fmt: skip
    page.focus("#seed")
    page.keyboard.press("Control+Enter")
    expect(page.locator("#status")).to_contain_text("Done: 7 tokens")


@pytest.mark.parametrize("window", [{"viewport": NARROW}])
def test_a_run_brings_the_output_into_view(replay: Replay) -> None:
    replay.open()
    page = replay.run()
    expect(page.locator("#output-title")).to_be_in_viewport()
