"""One audit from start to manifest: sections of evidence, each kept on disk, then gates, verdict and files."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from constrained_spec import __version__
from constrained_spec.audit import gates, identity, regression, state
from constrained_spec.audit.manifest import build_manifest, target_facts
from constrained_spec.audit.performance import performance
from constrained_spec.audit.plants import PLANTS, Plant
from constrained_spec.audit.replay import exact_replay
from constrained_spec.audit.report import write_report
from constrained_spec.audit.subject import Subject
from constrained_spec.audit.worlds import small_worlds
from constrained_spec.errors import ConfigError, ConstrainedSpecError


class Progress(Protocol):
    """Told of every section: its name, and how much of it is done."""

    def __call__(self, section: str, done: int, total: int) -> None: ...


@dataclass(frozen=True, slots=True)
class Section:
    """One piece of evidence of one ledger."""

    ledger: str
    name: str
    gather: Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an audit came to, and where it lies."""

    manifest: dict[str, Any]
    path: Path
    report: Path

    @property
    def verdict(self) -> str:
        return str(self.manifest["verdict"])


def run_audit(
    subject: Subject, out: Path, *, environment: Mapping[str, Any], plant: Plant | None = None, resume: bool = False,
    progress: Progress = lambda section, done, total: None,
) -> Outcome:  # fmt: skip
    """Gather all evidence into ``out``, judge it, and write manifest.json and report.html there.

    ``plant`` is carried by the audited system throughout. With ``resume`` evidence that ``out`` holds for the very same
    subject, effort, versions and machine is taken from there. A section that fails is evidence too: it closes no gate.
    """
    _require_applicable(plant, subject)
    folder = out / "evidence"
    folder.mkdir(parents=True, exist_ok=True)
    key = _key(subject, environment, plant)
    laws = _laws(subject, folder, key, resume)
    ledgers: dict[str, dict[str, Any]] = {"probability": {}, "state": {}, "performance": {}}
    sections = _sections(subject, laws, progress)
    for number, section in enumerate(sections):
        progress(f"{section.ledger}: {section.name}", number, len(sections))
        path = folder / f"{section.ledger}.{section.name}.json"
        known = _stored(path, key) if resume else None
        if known is None:
            with plant.active() if plant else nullcontext():
                known = _gathered(section)
            if not (isinstance(known, dict) and "error" in known):
                _store(path, key, known)
        ledgers[section.ledger][section.name] = known
    progress("verdict", len(sections), len(sections))
    limits = gates.rules(subject.model.numerics, subject.effort.detectable_tv, state.tolerance(subject.model.dtype))
    judged = gates.judge_gates(ledgers, limits)
    verdict, reasons = gates.verdict(judged, subject.verifier)
    manifest = build_manifest(
        subject, ledgers, judged, verdict, reasons, environment=environment,
        created=datetime.now(UTC).isoformat(timespec="seconds"), plant=plant.name if plant else None,
    )  # fmt: skip
    path = out / "manifest.json"
    _write(path, json.dumps(manifest, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
    report = out / "report.html"
    _write(report, write_report(manifest))
    return Outcome(manifest, path, report)


def _require_applicable(plant: Plant | None, subject: Subject) -> None:
    if subject.drafter == "none" or subject.gamma == 0:
        raise ConfigError("target-only decoding drafts nothing to audit", param="drafter", hint="name a drafter")
    if plant is PLANTS["full-p-repair"] and subject.verifier in ("invariant", "typical"):
        raise ConfigError(
            f"the verifier {subject.verifier!r} has no residual to draw wrongly from",
            param="plant",
            hint="plant it with coupling, block or tree",
        )


def _sections(subject: Subject, laws: dict[str, dict[tuple[int, ...], float]], progress: Progress) -> list[Section]:
    p, s, f = "probability", "state", "performance"
    return [
        Section(p, "small_worlds", lambda: small_worlds(subject.verifier)),
        Section(s, "exact_replay", exact_replay),
        Section(p, "drift", lambda: identity.kernel_drift(subject)),
        Section(p, "identity", lambda: identity.greedy_identity(subject)),
        Section(s, "cuts", lambda: state.every_cut(subject)),
        Section(s, "audited_drafter", lambda: state.audited_drafter(subject)),
        Section(s, "rejected_suffix", lambda: state.rejected_suffix(subject)),
        Section(s, "preemption", lambda: state.preemption(subject)),
        Section(s, "leaks", lambda: state.leaks(subject)),
        Section(p, "regression", lambda: regression.regression(subject, laws)),
        Section(p, "controls", lambda: regression.controls(subject, laws)),
        Section(f, f, lambda: performance(subject, lambda done, total: progress("performance: cells", done, total))),
    ]


def _gathered(section: Section) -> Any:
    try:
        return section.gather()
    except (ConfigError, KeyboardInterrupt):
        raise
    except Exception as error:  # a fault of the audited system, of whatever kind, is a finding
        name = "" if isinstance(error, ConstrainedSpecError) else f"{type(error).__name__}: "
        return {"error": f"{name}{error}" or type(error).__name__}


# ---- what is kept on disk -----------------------------------------------------------------------------------------


def _key(subject: Subject, environment: Mapping[str, Any], plant: Plant | None) -> str:
    draft = subject.draft_model
    parts = {
        "version": __version__, "target": target_facts(subject.model), "environment": dict(environment),
        "draft": None if draft is None else draft.weights_digest(), "drafter": subject.drafter,
        "verifier": subject.verifier, "gamma": subject.gamma, "effort": dataclasses.asdict(subject.effort),
        "tasks": [[t.suite, t.id, repr(t.prompt), repr(t.output_type)] for t in subject.tasks],
        "plant": plant.name if plant else None,
    }  # fmt: skip
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _laws(subject: Subject, folder: Path, key: str, resume: bool) -> dict[str, dict[tuple[int, ...], float]]:
    """The exact laws of the small spaces, from the target alone: no planted fault touches them."""
    path = folder / "exact_laws.json"
    known = _stored(path, key) if resume else None
    if known is None:
        laws = regression.exact_laws(subject)
        known = {name: [[list(k), p] for k, p in law.items()] for name, law in laws.items()}
        _store(path, key, known)
    return {name: {tuple(k): p for k, p in rows} for name, rows in known.items()}


def _stored(path: Path, key: str) -> Any:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return found["evidence"] if found["key"] == key else None
    except (OSError, ValueError, KeyError, TypeError):
        return None  # not there, or not ours: it is gathered again


def _store(path: Path, key: str, evidence: Any) -> None:
    _write(path, json.dumps({"key": key, "evidence": evidence}, allow_nan=False))


def _write(path: Path, text: str) -> None:
    with _beside(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


@contextmanager
def _beside(path: Path) -> Iterator[Path]:
    """A temporary neighbour that takes the place of ``path`` when the block succeeds."""
    temporary = path.with_name(path.name + ".part")
    yield temporary
    os.replace(temporary, path)
