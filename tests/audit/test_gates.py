"""From evidence to verdict: every way a gate can stand, and what follows."""

from __future__ import annotations

from typing import Any

import pytest

from constrained_spec.audit.gates import Gate, Rule, drift_limit, judge_gates, rules, verdict


def gate(ledger: str, state: Any = "closed", missing: str | None = None) -> Gate:
    return Gate("g", ledger, f"{ledger}.s", "t", state, "found", missing)


ALL = ("probability", "state", "performance")


@pytest.mark.parametrize(
    ("states", "verifier", "wanted"),
    [
        (("closed", "closed", "closed"), "coupling", "release"),
        (("closed", "closed", "failed"), "coupling", "experiment"),
        (("closed", "closed", "missing"), "coupling", "experiment"),
        (("failed", "closed", "closed"), "coupling", "approximate"),
        (("missing", "closed", "closed"), "coupling", "approximate"),
        (("closed", "failed", "closed"), "coupling", "blocked"),
        (("closed", "missing", "closed"), "coupling", "blocked"),
        (("failed", "failed", "failed"), "coupling", "blocked"),
        (("closed", "closed", "closed"), "typical", "approximate"),
    ],
)
def test_verdicts(states: tuple[str, ...], verifier: str, wanted: str) -> None:
    found, reasons = verdict([gate(name, s) for name, s in zip(ALL, states, strict=True)], verifier)
    assert found == wanted and reasons


def test_missing_evidence_is_named() -> None:
    rule = Rule("law", "probability", "small_worlds", "t", lambda e: (True, "fine"))
    [absent] = judge_gates({}, [rule])
    assert absent.state == "missing" and absent.missing == "small_worlds"
    [untold] = judge_gates({"probability": {"small_worlds": {"missing": "no device"}}}, [rule])
    assert untold.missing == "small_worlds: no device"
    _, reasons = verdict([untold], "coupling")
    assert reasons == ["law: missing evidence: small_worlds: no device"]


def test_a_section_that_failed_closes_nothing() -> None:
    rule = Rule("law", "probability", "small_worlds", "t", lambda e: (True, "fine"))
    [failed] = judge_gates({"probability": {"small_worlds": {"error": "boom"}}}, [rule])
    assert failed.state == "failed" and failed.found == "boom"


def test_every_ledger_has_gates_and_none_is_read_twice() -> None:
    found = rules("float32", 0.1, 1e-3)
    assert {rule.ledger for rule in found} == set(ALL)
    assert len({rule.name for rule in found}) == len(found)


def _read(name: str, evidence: Any) -> tuple[bool, str]:
    return next(rule for rule in rules("float32", 0.1, 1e-3) if rule.name == name).read(evidence)


def test_a_switched_off_drafter_fails_the_regression() -> None:
    sound = {"worst_p_adjusted": 0.5, "disabled": [], "cases": [{"impossible": 0}]}
    assert _read("sampled regression", sound)[0]
    off = _read("sampled regression", sound | {"disabled": ["model: broke"]})
    assert not off[0] and "model: broke" in off[1]
    assert not _read("sampled regression", sound | {"cases": [{"impossible": 1}]})[0]
    assert not _read("sampled regression", sound | {"worst_p_adjusted": 1e-4})[0]


def test_an_undetected_plant_fails_its_gate() -> None:
    seen = [{"plant": n, "detected": True} for n in ("full-p-repair", "mask-missing-on-draft", "skipped-penalty")]
    assert _read("planted biases", seen)[0]
    missed = _read("planted biases", [*seen[:2], {"plant": "skipped-penalty", "detected": False}])
    assert not missed[0] and "skipped-penalty" in missed[1]


def test_rejections_must_have_happened() -> None:
    clean = {"failed": 0, "compared": 9, "rejections": 4, "mismatches": [], "max_logprob_difference": 1e-6}
    assert _read("forced rejections", clean)[0]
    assert not _read("forced rejections", clean | {"rejections": 0})[0]
    assert not _read("next distribution", clean | {"max_logprob_difference": 0.1})[0]


def test_what_numerics_may_drift() -> None:
    assert drift_limit("float32", 20.0) == pytest.approx(0.02)
    assert drift_limit("bfloat16", 1.0) == pytest.approx(0.05)
    assert drift_limit("int8", 20.0) == 0.0
