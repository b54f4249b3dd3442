"""The lab page in Chromium: its numbers are Python's, and keys, a narrow screen and a manifest work."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from constrained_spec.cli.lab import page_server
from constrained_spec.lab import PRESETS, Costs, Preset, best_gamma, break_even, end_to_end, speedup
from constrained_spec.lab.world import DRAFT, TARGET
from constrained_spec.verify import expected_committed
from constrained_spec.verify.law import coupling_rule, full_p_repair_rule

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with page_server(0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()
        thread.join()


@pytest.fixture(params=[{}])
def tab(request: pytest.FixtureRequest, chromium: Browser, address: str) -> Iterator[Page]:
    """The page, loaded. Any script error or console message, and any request beside the page itself, fails the test."""
    context = chromium.new_context(**{"viewport": {"width": 1200, "height": 900}, **request.param})
    tab = context.new_page()
    complaints: list[str] = []
    tab.on("pageerror", lambda error: complaints.append(str(error)))
    tab.on("console", lambda message: complaints.append(message.text))
    tab.on("request", lambda sent: complaints.extend([] if sent.url == address else [sent.url]))
    tab.goto(address)
    yield tab
    context.close()
    assert [c for c in complaints if not c.startswith("data:")] == []


NARROW = {"viewport": {"width": 360, "height": 700}}
DARK = {"color_scheme": "dark"}


def as_page(preset: Preset) -> dict[str, float]:
    """A preset in the page's names."""
    c = preset.costs
    return {
        "alpha": preset.alpha, "gamma": preset.gamma, "B": c.baseline, "D": c.draft, "V": c.verify, "slope": c.slope,
        "H": c.overhead, "prefill": preset.prefill, "length": preset.length,
    }  # fmt: skip


WORKLOADS = (
    *PRESETS,
    Preset("nothing is accepted", 0.0, 3, Costs(10, 0.5, 11, 0.2), prefill=5, length=1),
    Preset("everything is", 1.0, 16, Costs(10, 0.0, 10), prefill=0, length=700),
    Preset("no acceptance pays", 0.9, 2, Costs(1, 1, 3, 0.5, slope=0.25), prefill=12, length=33),
)


@pytest.mark.parametrize("preset", WORKLOADS, ids=lambda preset: preset.name)
def test_the_speed_model_is_pythons(tab: Page, preset: Preset) -> None:
    found = tab.evaluate(
        "s => ({n: expectedCommitted(s.alpha, s.gamma), speedup: speedup(s), whole: endToEnd(s), best: bestGamma(s),"
        " even: Array.from({length: 16}, (_, i) => breakEven(s, i + 1))})",
        as_page(preset),
    )
    alpha, gamma, costs = preset.alpha, preset.gamma, preset.costs
    whole = end_to_end(alpha, gamma, costs, prefill=preset.prefill, length=preset.length)
    assert found["n"] == pytest.approx(expected_committed(alpha, gamma), rel=1e-12)
    assert found["speedup"] == pytest.approx(speedup(alpha, gamma, costs), rel=1e-12)
    assert found["whole"] == pytest.approx(
        {"baseline": whole.baseline, "speculative": whole.speculative, "speedup": whole.speedup}, rel=1e-12
    )
    assert found["best"] == best_gamma(alpha, costs)
    for gamma, even in enumerate(found["even"], 1):
        expected = break_even(gamma, costs)
        assert even is None if expected is None else even == pytest.approx(expected, abs=1e-12)


def test_the_presets_are_pythons(tab: Page) -> None:
    assert tab.evaluate("PRESETS") == {preset.name: as_page(preset) for preset in PRESETS}
    for preset, verdict in zip(PRESETS, ("It pays: 2.09 × end to end.", "Off: "), strict=True):
        button = tab.get_by_role("button", name=preset.name)
        button.click()
        assert button.get_attribute("aria-pressed") == "true"
        assert tab.inner_text("#verdict").startswith(verdict)
    assert tab.inner_text("#decode") == "0.67 ×"
    assert tab.inner_text("#whole") == "0.67 ×"
    assert tab.inner_text("#best") == "0, off"


def test_the_coupled_draw_is_pythons(tab: Page) -> None:
    p, q = TARGET[()], DRAFT[()]
    assert tab.evaluate("[P, Q]") == [list(p), list(q)]
    for repair, rule in (("RESIDUAL", coupling_rule), ("P", full_p_repair_rule)):
        law = [sum(b.weight for b in rule(p, q) if b.token == token) for token in range(len(p))]
        assert tab.evaluate(f"lawOf({repair})") == pytest.approx(law, abs=1e-12)
    # The middles of a grid of coins integrate the draw itself: acceptance needs sixtieths, the others tenths.
    counts = tab.evaluate(
        "() => { const n = {exact: [0, 0, 0], wrong: [0, 0, 0]};"
        " for (let i = 0; i < 10; i++) for (let j = 0; j < 60; j++) for (let k = 0; k < 10; k++) {"
        " const d = coupledDraw([(i + .5) / 10, (j + .5) / 60, (k + .5) / 10]);"
        " n.exact[d.exact]++; n.wrong[d.wrong]++; } return n; }"
    )
    assert [n / 6000 for n in counts["exact"]] == pytest.approx([0.5, 0.3, 0.2], abs=1e-12)
    assert [n / 6000 for n in counts["wrong"]] == pytest.approx([0.6, 0.16, 0.24], abs=1e-12)


def test_the_steps_are_walked_with_the_keyboard(tab: Page) -> None:
    tab.focus("#next")
    assert not tab.is_visible("#told-keep")
    tab.keyboard.press("Enter")
    assert tab.is_visible("#told-keep")
    tab.keyboard.press("Enter")
    assert "Exact: b; wrong: a." in tab.inner_text("#step-told")
    assert tab.evaluate("document.activeElement.id") == "back"  # the last step leaves no dead focus
    tab.keyboard.press("Enter")
    assert not tab.is_visible("#told-exact")
    tab.focus("#coin-accept-range")
    tab.keyboard.press("Home")
    assert tab.inner_text("#told-keep").endswith("a stands.")
    tab.click("#next")
    assert tab.inner_text("#told-exact") == tab.inner_text("#told-wrong") == "Not needed: the token is a."
    tab.click("#toss")
    assert not tab.is_visible("#told-draft")


def test_a_slider_moves_with_the_arrow_keys_and_the_field_follows(tab: Page) -> None:
    tab.focus("#gamma-range")
    tab.keyboard.press("ArrowRight")
    assert tab.input_value("#gamma") == "5"
    expected = expected_committed(0.78, 5)
    assert tab.inner_text("#expected") == f"{expected:.5f}"


@pytest.mark.parametrize(
    ("field", "value"), [("alpha", "1.2"), ("gamma", "2.5"), ("B", "0"), ("D", "-1"), ("length", "")]
)
def test_a_value_that_cannot_be_is_told_and_not_used(tab: Page, field: str, value: str) -> None:
    before = tab.inner_text("#expected"), tab.inner_text("#whole")
    tab.fill(f"#{field}", value)
    assert tab.get_attribute(f"#{field}", "aria-invalid") == "true"
    assert tab.inner_text("#speed-error") != ""
    assert (tab.inner_text("#expected"), tab.inner_text("#whole")) == before
    tab.get_by_role("button", name="code assistant").click()
    assert tab.inner_text("#speed-error") == ""
    assert tab.get_attribute(f"#{field}", "aria-invalid") is None


@pytest.mark.parametrize("kept", [0, 1, 2])
def test_state_kept_ahead_ends_in_invalid_json_and_state_rolled_back_does_not(tab: Page, kept: int) -> None:
    tab.check(f"input[name=cut][value='{kept}']")
    rolled, ahead = tab.evaluate("kept => [boundary(kept, true), boundary(kept, false)]", kept)
    assert rolled["text"] == ahead["text"]
    assert rolled["state"] == rolled["text"]
    assert rolled["counted"] == rolled["truly"]
    assert rolled["cached"] == rolled["rows"]
    json.loads(rolled["final"])
    assert not ahead["accepted"]
    with pytest.raises(json.JSONDecodeError):
        json.loads(ahead["final"])
    assert "invalid" in tab.inner_text("#ahead")
    assert "invalid" not in tab.inner_text("#rolled")


def test_without_a_rejection_both_agree(tab: Page) -> None:
    tab.check("input[name=cut][value='4']")
    assert tab.inner_text("#ahead") == tab.inner_text("#rolled")
    assert tab.evaluate("boundary(4, false).final") == '{"tags":["x","y"]}'


MODEL = {"alpha": 0.7, "gamma": 5, "B": 18.4, "D": 0.2, "V": 20.1, "H": 1.1, "measured_speedup": 2.31}


def load(tab: Page, folder: Path, text: str) -> None:
    path = folder / "manifest.json"
    path.write_text(text, "utf-8")
    tab.set_input_files("#manifest", str(path))


def test_a_manifest_shows_its_measured_point(tab: Page, tmp_path: Path) -> None:
    load(tab, tmp_path, json.dumps({"verdict": "release", "performance": {"model": MODEL, "else": 1}}))
    tab.wait_for_selector("#chart-speed .measured")
    model = speedup(0.7, 5, Costs(18.4, 0.2, 20.1, 1.1))
    told = tab.inner_text("#manifest-told")
    assert "Measured 2.31 × at γ 5 " in told
    assert f"the model says {model:.2f} ×" in told
    assert "Verdict: release" in told
    assert tab.input_value("#V") == "20.1"
    assert tab.locator("#chart-even .measured").count() == 1


def test_a_nested_ledger_with_a_mean_draft_length(tab: Page, tmp_path: Path) -> None:
    ledger = {"closed": True, "evidence": {"model": {**MODEL, "gamma": 4.627}}}
    load(tab, tmp_path, json.dumps({"target": {"model": "a name"}, "ledgers": {"performance": ledger}}))
    tab.wait_for_selector("#chart-speed .measured")
    assert tab.input_value("#gamma") == "5"
    assert "at γ 4.63" in tab.inner_text("#manifest-told")


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("{", "JSON"),
        ("[]", "performance.model"),
        (json.dumps({"performance": {"model": {**MODEL, "B": "fast"}}}), "performance.model.B"),
        (json.dumps({"performance": {"model": {**MODEL, "alpha": 7}}}), "performance.model.alpha"),
        (json.dumps({"performance": {"model": {**MODEL, "gamma": 0}}}), "performance.model.gamma"),
        (json.dumps({"performance": {"model": {**MODEL, "measured_speedup": "<b>2</b>"}}}), "measured_speedup"),
    ],
)
def test_a_manifest_that_cannot_be_used_is_told(tab: Page, tmp_path: Path, text: str, named: str) -> None:
    load(tab, tmp_path, text)
    tab.wait_for_function("document.getElementById('manifest-error').textContent !== ''")
    assert named in tab.inner_text("#manifest-error")
    assert tab.input_value("#V") == "21"
    assert tab.locator(".measured").count() == 0


@pytest.mark.parametrize(
    "tab", [NARROW, {**NARROW, **DARK}, DARK], indirect=True, ids=["narrow", "narrow-dark", "dark"]
)
def test_nothing_reaches_beyond_the_screen(tab: Page) -> None:
    tab.click("#next")
    tab.click("#next")
    width = tab.evaluate("innerWidth")
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    beyond = tab.evaluate(
        "() => [...document.querySelectorAll('main *')].filter(e => e.getBoundingClientRect().right > innerWidth + 1)"
        ".map(e => e.outerHTML.slice(0, 80))"
    )
    assert beyond == []


@pytest.mark.parametrize("tab", [{}, DARK], indirect=True, ids=["light", "dark"])
def test_text_stands_out_from_its_ground(tab: Page) -> None:
    """Contrast of 4.5 to 1 and more (WCAG 2.2, 1.4.3), for every colour of text on every ground it stands on."""
    script = """() => {
      const style = getComputedStyle(document.documentElement);
      const probe = document.body.appendChild(document.createElement('i'));
      const light = name => {
        probe.style.color = style.getPropertyValue(name);
        const [r, g, b] = getComputedStyle(probe).color.match(/[0-9.]+/g).map(v => v / 255)
          .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
      };
      return ['fg', 'muted', 'accent', 'good', 'bad'].flatMap(text => ['bg', 'panel'].map(on => [text, on]))
        .concat([['on-accent', 'accent'], ['fg', 'a'], ['fg', 'b'], ['fg', 'c']])
        .map(([text, on]) => [text, on, light('--' + text), light('--' + on)])
        .map(([text, on, x, y]) => [text, on, (Math.max(x, y) + .05) / (Math.min(x, y) + .05)]);
    }"""
    weak = [pair for pair in tab.evaluate(script) if pair[2] < 4.5]
    assert weak == []


@pytest.mark.parametrize("tab", [{"reduced_motion": "reduce"}], indirect=True)
def test_nothing_moves_where_motion_is_unwanted(tab: Page) -> None:
    assert tab.evaluate("getComputedStyle(document.documentElement).scrollBehavior") == "auto"


def test_every_control_has_a_name(tab: Page) -> None:
    nameless = tab.evaluate(
        "() => [...document.querySelectorAll('input, button')].filter(e => !e.labels?.length"
        " && !e.getAttribute('aria-label') && !e.textContent.trim()).map(e => e.outerHTML)"
    )
    assert nameless == []


def test_the_curves_follow_the_window(tab: Page) -> None:
    before = tab.get_attribute("#chart-speed svg", "viewBox")
    tab.set_viewport_size({"width": 700, "height": 900})
    tab.wait_for_function(
        "old => document.querySelector('#chart-speed svg').getAttribute('viewBox') !== old", arg=before
    )
