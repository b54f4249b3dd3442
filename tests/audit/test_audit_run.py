"""Whole audits of a tiny model: evidence, manifest, report, envelope, and every planted fault refused."""

from __future__ import annotations

import copy
import dataclasses
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import jsonschema
import pytest

from constrained_spec.audit import envelope
from constrained_spec.audit.manifest import changes, content_digest, read_manifest, schema, target_facts
from constrained_spec.audit.plants import PLANTS
from constrained_spec.audit.plots import FIGURES
from constrained_spec.audit.report import write_report
from constrained_spec.audit.run import Outcome, run_audit
from constrained_spec.audit.subject import Effort, Subject
from constrained_spec.backends.transformers import TransformersModel
from constrained_spec.errors import ConfigError
from tests.audit.conftest import EFFORT, TASKS

ENVIRONMENT = {"python": "3", "cores": 2}
# Enough to see a planted fault, not to close every gate.
SMALL = Effort("small", 60, 150, 1, 8, 1, (2,), (1,), 2, 0.9)


@pytest.fixture(scope="module")
def audited(tiny: TransformersModel, tmp_path_factory: pytest.TempPathFactory) -> tuple[Subject, Outcome, Path]:
    subject = Subject(tiny, None, "auto", "coupling", 8, TASKS, EFFORT)
    out = tmp_path_factory.mktemp("audit")
    told: list[str] = []
    outcome = run_audit(subject, out, environment=ENVIRONMENT, progress=lambda name, done, of: told.append(name))
    assert told[-1] == "verdict" and "probability: regression" in told
    return subject, outcome, out


def test_correctness_closes_and_speed_alone_decides(audited: tuple[Subject, Outcome, Path]) -> None:
    manifest = audited[1].manifest
    open_ = [g for g in manifest["gates"] if g["state"] != "closed" and g["ledger"] != "performance"]
    assert open_ == []
    assert audited[1].verdict in ("release", "experiment")
    assert {row["plant"] for row in manifest["ledgers"]["state"]["leaks"]} == {
        name for name, plant in PLANTS.items() if plant.ledger == "state"
    }


def test_the_manifest_names_everything(audited: tuple[Subject, Outcome, Path]) -> None:
    subject, outcome, _ = audited
    manifest = read_manifest(outcome.path)
    jsonschema.Draft202012Validator.check_schema(schema())
    assert manifest == outcome.manifest
    assert manifest["target"]["weights_digest"] == subject.model.weights_digest()
    assert manifest["speculation"]["drafter"] == "auto" and manifest["plant"] is None
    assert manifest["distribution"]["pipeline"][0] == "repetition_penalty"
    cell = manifest["ledgers"]["performance"]["performance"]["cells"][0]
    assert cell["latency_s"]["target_only"]["p50"] > 0
    suites = manifest["ledgers"]["performance"]["performance"]["suites"]
    assert suites["shapes"]["committed_per_round"] >= 1 and suites["shapes"]["model_speedup"] > 0
    assert [(c["suite"], c["concurrency"]) for c in manifest["envelope"]] == [("shapes", 1), ("shapes", 2)]


def test_a_manifest_changed_by_hand_is_refused(audited: tuple[Subject, Outcome, Path], tmp_path: Path) -> None:
    forged = copy.deepcopy(audited[1].manifest)
    forged["verdict"] = "release" if forged["verdict"] != "release" else "experiment"
    path = tmp_path / "m.json"
    path.write_text(json.dumps(forged))
    with pytest.raises(ConfigError, match="was changed after it was written"):
        read_manifest(path)
    path.write_text("{}")
    with pytest.raises(ConfigError, match="is no manifest"):
        read_manifest(path)
    with pytest.raises(ConfigError, match="is no manifest"):
        read_manifest(tmp_path / "absent.json")


def test_changes_are_told(audited: tuple[Subject, Outcome, Path]) -> None:
    subject, outcome, _ = audited
    now = target_facts(subject.model)
    assert changes(outcome.manifest, now, ENVIRONMENT) == []
    told = changes(outcome.manifest, now | {"weights_digest": "00"}, {**ENVIRONMENT, "cores": 64})
    assert len(told) == 2 and "weights_digest" in told[0] and "was 2, is 64" in told[1]


def test_evidence_is_kept_and_used_for_the_same_subject_only(
    audited: tuple[Subject, Outcome, Path], tmp_path: Path
) -> None:
    subject, _, out = audited
    evidence = out / "evidence"
    copied = tmp_path / "evidence"
    copied.mkdir()
    for path in evidence.iterdir():
        stored = json.loads(path.read_text())
        if path.name == "probability.drift.json":
            stored["evidence"]["argmax_flips"] = 777
        (copied / path.name).write_text(json.dumps(stored))
    again = run_audit(subject, tmp_path, environment=ENVIRONMENT, resume=True)
    assert again.manifest["ledgers"]["probability"]["drift"]["argmax_flips"] == 777
    other = dataclasses.replace(subject, gamma=2, effort=SMALL)
    fresh = run_audit(other, tmp_path, environment=ENVIRONMENT, resume=True)
    assert fresh.manifest["ledgers"]["probability"]["drift"]["argmax_flips"] != 777


class _Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [
            v or "" for k, v in attrs if k in ("src", "href", "xlink:href") and not (v or "").startswith("#")
        ]
        assert tag != "script"


def test_the_report_is_one_file_with_every_figure(audited: tuple[Subject, Outcome, Path]) -> None:
    page = audited[1].report.read_text()
    links = _Links()
    links.feed(page)
    assert links.found == []
    assert page.count("<svg") == len(FIGURES)
    for caption, _ in FIGURES:
        assert f"<figcaption>{caption}</figcaption>" in page
    assert "url(http" not in page and not re.search(r"\$\w", page)


def test_text_in_the_report_is_escaped(audited: tuple[Subject, Outcome, Path]) -> None:
    manifest = copy.deepcopy(audited[1].manifest)
    manifest["target"]["name"] = "<script>alert(1)</script>"
    manifest["plant"] = "<b>"
    page = write_report(manifest)
    assert "<script>" not in page and "&lt;script&gt;" in page and "&lt;b&gt;" in page


def test_a_report_without_evidence_says_so(audited: tuple[Subject, Outcome, Path]) -> None:
    manifest = copy.deepcopy(audited[1].manifest)
    manifest["ledgers"] = {"probability": {}, "state": {}, "performance": {}}
    manifest["envelope"] = []
    assert write_report(manifest).count("no evidence") == len(FIGURES)


def _released(outcome: Outcome, path: Path) -> envelope.Envelope:
    """The same manifest as it would be if the machine had been quiet: released at 1, off at 2."""
    manifest = copy.deepcopy(outcome.manifest)
    manifest["verdict"] = "release"
    for cell in manifest["envelope"]:
        cell["decision"] = "release" if cell["concurrency"] == 1 else "off"
    manifest["digest"] = content_digest(manifest)
    path.write_text(json.dumps(manifest))
    return envelope.load(path)


def test_the_envelope_refuses_what_lies_outside(audited: tuple[Subject, Outcome, Path], tmp_path: Path) -> None:
    subject, outcome, _ = audited
    allowed = _released(outcome, tmp_path / "m.json")
    with subject.engine() as engine:
        facts = envelope.facts_of(engine)
    assert allowed.allows(facts, "auto", "coupling", 1) == envelope.Decision(True, "released at concurrency 1")
    for decision, word in (
        (allowed.allows(facts, "auto", "coupling", 2), "off at concurrency 2"),
        (allowed.allows(facts, "auto", "coupling", 3), "beyond the envelope"),
        (allowed.allows(facts, "ngram", "coupling", 1), "drafter"),
        (allowed.allows(facts, "auto", "block", 1), "verifier"),
        (allowed.allows(facts, "auto", "coupling", 1, gamma=9), "gamma 9"),
        (allowed.allows(facts, "auto", "coupling", 1, workload="poems"), "poems"),
        (allowed.allows(facts, "auto", "coupling", 1, custom_processors=True), "custom processors"),
        (allowed.allows(dataclasses.replace(facts, weights_digest="00"), "auto", "coupling", 1), "target weights"),
        (allowed.allows(dataclasses.replace(facts, draft_digest="00"), "auto", "coupling", 1), "draft weights"),
        (allowed.allows(dataclasses.replace(facts, numerics="int8"), "auto", "coupling", 1), "numerics"),
        (dataclasses.replace(allowed, verdict="experiment").allows(facts, "auto", "coupling", 1), "'experiment'"),
    ):
        assert not decision.ok and word in decision.reason, decision


@pytest.mark.parametrize("name", PLANTS)
def test_every_planted_fault_is_refused(tiny: TransformersModel, tmp_path: Path, name: str) -> None:
    subject = Subject(tiny, None, "auto", "coupling", 4, TASKS, SMALL)
    outcome = run_audit(subject, tmp_path, environment=ENVIRONMENT, plant=PLANTS[name])
    assert outcome.verdict in ("approximate", "blocked"), outcome.manifest["gates"]
    if PLANTS[name].ledger == "state":
        assert outcome.verdict == "blocked"
    assert outcome.manifest["plant"] == name and name in outcome.report.read_text()


def test_a_fault_that_cannot_be_carried_is_refused(tiny: TransformersModel, tmp_path: Path) -> None:
    subject = Subject(tiny, None, "auto", "invariant", 4, TASKS, SMALL)
    with pytest.raises(ConfigError, match="no residual"):
        run_audit(subject, tmp_path, environment=ENVIRONMENT, plant=PLANTS["full-p-repair"])


@pytest.mark.parametrize("change", [{"drafter": "none"}, {"gamma": 0}])
def test_target_only_is_nothing_to_audit(tiny: TransformersModel, tmp_path: Path, change: dict[str, object]) -> None:
    subject = dataclasses.replace(Subject(tiny, None, "auto", "coupling", 4, TASKS, SMALL), **change)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="nothing to audit"):
        run_audit(subject, tmp_path, environment=ENVIRONMENT)


@pytest.mark.parametrize("verifier", ["block", "tree", "invariant"])
def test_other_exact_verifiers_close_their_ledgers(tiny: TransformersModel, tmp_path: Path, verifier: str) -> None:
    subject = Subject(tiny, None, "auto", verifier, 4, TASKS, dataclasses.replace(SMALL, control_samples=400))
    outcome = run_audit(subject, tmp_path, environment=ENVIRONMENT)
    assert outcome.verdict in ("release", "experiment"), outcome.manifest["reasons"]


def test_an_approximate_verifier_is_never_released(tiny: TransformersModel, tmp_path: Path) -> None:
    subject = Subject(tiny, None, "auto", "typical", 4, TASKS, SMALL)
    outcome = run_audit(subject, tmp_path, environment=ENVIRONMENT)
    assert outcome.verdict == "approximate"
    assert "approximate by name" in outcome.manifest["reasons"][0]
