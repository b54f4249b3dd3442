"""The playground's output: tokens by origin, the round inspector, figures, charts and the comparison."""

from __future__ import annotations

import json
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.browser.replay import THREE_ROUNDS, Replay, answer, event, place, token

pytestmark = pytest.mark.browser


def test_tokens_are_coloured_by_where_they_came_from(replay: Replay) -> None:
    replay.open()
    page = replay.run()
    origins = page.locator("#tokens [role=option]").evaluate_all("all => all.map((one) => one.dataset.origin)")
    assert origins == ["forced", "forced", "bonus", "ngram", "recovered", "suffix", "bonus"]
    assert page.locator("#tokens").inner_text() == '{"name": "Ada"}<|im_end|>'
    styles = page.locator("#tokens [role=option]").evaluate_all(
        "all => all.map((one) => getComputedStyle(one)).map((s) => `${s.backgroundColor} ${s.borderBottomStyle}`)"
    )
    assert len(set(styles)) == 5 and styles[0] == styles[1] and styles[2] == styles[6]
    # Not by hue alone: the lines tell drafts that stood from what was forced, recovered and drawn as bonus.
    assert [s.rpartition(" ")[2] for s in styles[2:6]] == ["dotted", "solid", "dashed", "solid"]
    legend = page.locator("#legend li").all_inner_texts()
    assert [" ".join(entry.split()) for entry in legend] == [
        "1 accepted: ngram", "1 accepted: suffix", "2 bonus", "2 forced", "1 recovered",
    ]  # fmt: skip
    expect(page.locator("#status")).to_have_text("Done: 7 tokens in 3 target passes.")


def test_figures_and_charts(replay: Replay) -> None:
    replay.open()
    page = replay.run()
    figures = dict(zip(page.locator("#figures dt").all_inner_texts(), page.locator("#figures dd").all_inner_texts(),
                       strict=True))  # fmt: skip
    assert figures["tokens"] == "7" and figures["target passes"] == "3" and figures["tokens per pass"] == "2.33"
    assert figures["drafts accepted"] == "80 %" and figures["ended by"] == "stop" and figures["exactness"] == "exact"
    assert float(figures["tokens / s"]) > 0
    chart = page.locator("#positions svg")
    expect(chart).to_have_attribute("aria-label", "Accepted drafts by position. position 1: 3 of 3; position 2: 1 of 2")
    heights = chart.locator("rect").evaluate_all("all => all.map((one) => Number(one.getAttribute('height')))")
    assert heights[1] == pytest.approx(heights[0] / 2)
    rows = [row.split() for row in page.locator("#sources tbody tr").all_inner_texts()]
    assert sorted(rows) == [
        ["forced", "2", "2", "100", "%"], ["ngram", "1", "2", "50", "%"], ["suffix", "1", "1", "100", "%"],
    ]  # fmt: skip


def test_a_click_shows_the_round_of_a_token(replay: Replay) -> None:
    replay.open()
    page = replay.run()
    page.click("#token-4")
    expect(page.locator("#round-title")).to_have_text("Round 2 of 3")
    expect(page.locator("#round > p")).to_have_text("2 tokens committed: 1 of 2 judged drafts accepted, one recovered.")
    cells = [row.locator("td").all_inner_texts() for row in page.locator("#round tbody tr").all()]
    assert cells[0][:8] == ["4", '␣"', "ngram", "0.750", "0.500", "0.250", "accepted", "3"]
    assert cells[1][:6] == ["5", "Bob", "ngram", "1.0e-4", "0.500", "0.625"]
    assert cells[1][6].split() == ["rejected", "→", "Ada"] and cells[1][7] == "41,234"
    assert cells[1][8].split() == ["Ada", "0.900", "Bob", "0.050"]
    selected = page.locator("#tokens [aria-selected=true]")
    expect(selected).to_have_text("Ada")
    expect(selected).to_have_attribute("aria-label", "Ada, recovered, round 2")
    assert page.locator("#tokens .same-round").all_inner_texts() == [' "', "Ada"]
    page.click("#token-2")  # a guess has no q, a bonus no draft
    cells = [row.locator("td").all_inner_texts() for row in page.locator("#round tbody tr").all()]
    assert cells[0][3:7] == ["1", "guess", "–", "accepted"]
    assert cells[2][1:6] == ["none", "–", "–", "–", "–"] and cells[2][6] == '": drawn'


def test_what_lies_behind_the_end_is_not_counted(replay: Replay) -> None:
    """A block may reach beyond the end of the text; and the text of a draft that fell may be known from elsewhere."""
    judged = [
        place(1, "ngram", accepted=True),
        place(2, "ngram", accepted=True, legal=None),
        place(9, "ngram", token=2),
    ]
    fell = [place(7, "ngram", token=6, draft_text=" told"), place(None, token=5)]
    first = [place(5, "ngram", token=6, top=[[6, 0.9, "x"], [5, 0.1, " known"]])]
    replay.reply = lambda body: answer(
        ([token(6, "x", "recovered")], first),
        ([token(6, "x", "recovered")], fell[:1]),
        ([token(1, "a", "ngram")], judged),
    )
    replay.open()
    page = replay.run()
    drafts = []
    for index in range(2):
        page.click(f"#token-{index}")
        drafts.append(page.locator("#round td[data-label=draft]").inner_text())
    assert drafts == ["␣known", "␣told"]
    page.click("#token-2")
    outcomes = page.locator("#round td[data-label=outcome]").all_inner_texts()
    assert outcomes == ["accepted", *["behind the end, not committed"] * 2]
    assert page.locator("#round td[data-label=legal]").all_inner_texts()[1] == "all"
    expect(page.locator("#round > p")).to_have_text("1 token committed: 1 of 1 judged draft accepted.")
    assert page.locator("#sources tbody tr").inner_text().split() == ["ngram", "1", "3", "33", "%"]


def test_arrow_keys_walk_over_tokens_and_rounds(replay: Replay) -> None:
    replay.open()
    page = replay.run()
    page.focus("#tokens")
    walk = [("ArrowRight", 0, 1), ("ArrowRight", 1, 1), ("ArrowDown", 3, 2), ("ArrowDown", 5, 3), ("ArrowDown", 5, 3),
            ("ArrowLeft", 4, 2), ("ArrowUp", 0, 1), ("ArrowUp", 0, 1), ("End", 6, 3), ("Home", 0, 1)]  # fmt: skip
    for key, index, round_ in walk:
        page.keyboard.press(key)
        expect(page.locator("#tokens")).to_have_attribute("aria-activedescendant", f"token-{index}")
        expect(page.locator("#round-title")).to_have_text(f"Round {round_} of 3")
        assert page.evaluate("document.activeElement.id") == "tokens"
    page.click("#next")
    expect(page.locator("#round-title")).to_have_text("Round 2 of 3")
    expect(page.locator("#previous")).to_be_enabled()
    page.click("#next")
    expect(page.locator("#next")).to_be_disabled()


def test_text_and_json_views(replay: Replay) -> None:
    page = replay.open()
    page.click("#tab-json")
    expect(page.locator("#json-note")).to_have_text("No text yet.")
    replay.run()
    assert page.locator("#json").inner_text() == json.dumps({"name": "Ada"}, indent=2)
    page.click("#tab-text")
    assert page.locator("#text").inner_text() == '{"name": "Ada"}'
    replay.reply = lambda body: answer(([token(1, '{"na', "bonus")], [place(None, token=1)]), finish="length")
    replay.run()
    page.click("#tab-json")
    expect(page.locator("#json-note")).to_have_text("Cut short by max tokens: no whole JSON value.")
    expect(page.locator("#json")).to_be_hidden()


def test_model_text_is_text(replay: Replay) -> None:
    hostile = "<img src=x onerror=document.title='bad'>\n&amp;"
    drafted = place(1, "<b>src</b>", top=[[1, 1.0, hostile]])
    replay.reply = lambda body: answer(([token(1, hostile, "<b>src</b>")], [drafted]))
    replay.open()
    page = replay.run()
    page.click("#token-0")
    assert page.locator("img, b").count() == 0
    assert page.title() == "constrained_spec playground"
    page.click("#tab-text")
    assert page.locator("#text").inner_text() == hostile


# ---- against target-only --------------------------------------------------------------------------------------------


def other(text: str) -> str:
    return answer(*[([token(i, letter, "bonus")], [place(None, token=i)]) for i, letter in enumerate(text)])


def target_only(body: dict[str, Any]) -> bool:
    return bool(body.get("extra", {}).get("speculation") == "off")


def test_the_same_text_target_only(replay: Replay) -> None:
    replay.reply = lambda body: other('{"name": "Ada"}') if target_only(body) else THREE_ROUNDS
    page = replay.open()
    page.click("#prediction-box summary")
    page.fill("#prediction", "x")
    page.select_option("#drafter", "mixture")
    page.fill("#gamma", "5")
    page.check("#compare")
    replay.run()
    first, second = replay.asked
    assert first["extra"] == {"drafter": "mixture", "gamma": 5} and "prediction" in first
    assert second == {k: v for k, v in first.items() if k != "prediction"} | {"extra": {"speculation": "off"}}
    expect(page.locator("#compare-verdict")).to_have_text("The same text, 15 characters.")
    expect(page.locator("#compare-promise")).to_have_text("Greedy: exactness promises the same text.")
    rows = [row.split("\t") for row in page.locator("#compare-rows tr").all_inner_texts()]
    assert ["target passes", "3", "15"] in rows and ["tokens per pass", "2.33", "1.00"] in rows


def test_the_first_difference_is_marked_in_both(replay: Replay) -> None:
    replay.reply = lambda body: other('{"name": "Alan"}') if target_only(body) else THREE_ROUNDS
    page = replay.open()
    page.check("#compare")
    replay.run()
    expect(page.locator("#compare-verdict")).to_have_text("The texts differ from character 12 on (marked in both).")
    assert page.locator("#tokens .differs").all_inner_texts() == ["Ada"]
    page.click("#compare-box summary")
    assert page.locator("#compare-text").inner_text() == '{"name": "Alan"}'
    assert page.locator("#compare-text mark").inner_text() == "l"


@pytest.mark.parametrize(
    ("verifier", "says"),
    [("invariant", "promises the same text"), ("", "the same law, not the same draw"), ("typical", "is approximate")],
)
def test_what_sampled_texts_promise(replay: Replay, verifier: str, says: str) -> None:
    page = replay.open()
    page.fill("#temperature", "0.7")
    page.select_option("#verifier", verifier)
    page.check("#compare")
    replay.run()
    first, second = replay.asked
    assert first["seed"] == second["seed"] >= 0  # chosen by the page, or the two draws could not be compared
    assert second["extra"] == ({"verifier": verifier} if verifier else {}) | {"speculation": "off"}
    expect(page.locator("#compare-promise")).to_contain_text(says)


# ---- streams that end badly -----------------------------------------------------------------------------------------


def test_an_error_in_the_stream_keeps_what_came(replay: Replay) -> None:
    error = {"message": "the engine stopped", "type": "server_error", "param": None, "code": "internal_error"}
    start = THREE_ROUNDS.split("data: ")
    replay.reply = lambda body: "data: ".join(start[:3]) + f"data: {json.dumps({'error': error})}\n\n"
    replay.open()
    page = replay.run()
    expect(page.locator("#alert")).to_have_text("the engine stopped (internal_error)")
    assert page.locator("#tokens").inner_text() == '{"name":'
    expect(page.locator("#status")).to_have_text("Failed.")
    replay.reply = lambda body: event(choices=[], usage=None)
    replay.run()
    expect(page.locator("#alert")).to_have_text("the stream ended before the answer did")
