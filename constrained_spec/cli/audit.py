"""constrained-spec audit: the evidence for and against speculating with one target, drafter and verifier."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from constrained_spec.api import Engine
from constrained_spec.audit.manifest import changes, present_facts, read_manifest
from constrained_spec.audit.plants import PLANTS, plant_named
from constrained_spec.audit.subject import FULL, QUICK, Subject, Task
from constrained_spec.backends.load import load_model
from constrained_spec.cli.bench_drafters import SUITES, tasks
from constrained_spec.cli.console import exit_codes, loading, quiet_libraries, stderr
from constrained_spec.cli.environment import environment
from constrained_spec.config import DEFAULT_GAMMA, DRAFTERS, VERIFIERS
from constrained_spec.errors import ConfigError

# What needs scipy or matplotlib is imported where it runs, after ``_require_libraries``.
if TYPE_CHECKING:
    from constrained_spec.audit.run import Outcome
    from constrained_spec.audit.run import Progress as Tell


def audit(
    target: str | None = typer.Option(None, help="Catalogue alias, hub id, local folder or GGUF file."),
    out: Path | None = typer.Option(None, help="Folder for evidence, manifest.json and report.html."),
    check: Path | None = typer.Option(None, help="A manifest: is it intact, and is this still the system it is about?"),
    draft_model: str | None = typer.Option(None, help="A smaller model to draft with."),
    drafter: str = typer.Option("auto", help=f"{', '.join(DRAFTERS)}."),
    verifier: str = typer.Option("coupling", help=f"{', '.join(VERIFIERS)}."),
    gamma: int = typer.Option(DEFAULT_GAMMA, help="At most so many drafts a round."),
    suite: list[str] = typer.Option(["extraction"], help=f"Of {', '.join(SUITES)}; repeat it."),
    quick: bool = typer.Option(False, "--quick", help="Less evidence, in minutes."),
    plant: str | None = typer.Option(None, help=f"Put a fault into the audited system: {', '.join(PLANTS)}."),
    resume: bool = typer.Option(False, "--resume", help="Take evidence of the same system from --out."),
    slots: int = typer.Option(8, min=1, help="Requests at once, at most."),
    capacity: int = typer.Option(1024, help="Context limit in tokens."),
    quantize: str | None = typer.Option(None, help="int8: another target (CPU)."),
    device: str = typer.Option("auto", help="auto, cpu, cuda."),
    dtype: str = typer.Option("auto", help="auto, float32, float16, bfloat16."),
    threads: int | None = typer.Option(None, help="Pin torch's threads; default: the quickest number."),
    base_url: str | None = typer.Option(None, help="An OpenAI-compatible server (…/v1): the black-box part."),
    second_url: str | None = typer.Option(None, help="Another one to compare it with; default: speculation off."),
    served_model: str | None = typer.Option(None, help="The model to ask both servers for; default: their first."),
    key_env: str = typer.Option("OPENAI_API_KEY", help="Environment variable with the servers' key, if they need one."),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object."),
) -> None:
    """Three ledgers (probability, state, performance), one manifest, one verdict. Exit code 0 only for "release"."""
    with exit_codes():
        if check is not None:
            raise typer.Exit(_check(check, as_json))
        _require_libraries()
        if out is None or (target is None and base_url is None):
            raise ConfigError("nothing to audit", param="--target", hint="--target NAME --out DIR, or --check MANIFEST")
        Engine.check(drafter=drafter, verifier=verifier, gamma=gamma)
        _require_suites(suite)
        told: dict[str, Any] = {}
        released = True
        if target is not None:
            outcome = _audit(
                target, out, draft_model=draft_model, drafter=drafter, verifier=verifier, gamma=gamma, suites=suite,
                quick=quick, plant=plant, resume=resume,
                load={"slots": slots, "capacity": capacity, "quantize": quantize, "device": device, "dtype": dtype,
                      "threads": threads},
            )  # fmt: skip
            released = outcome.verdict == "release"
            told |= {key: outcome.manifest[key] for key in ("verdict", "reasons", "gates", "envelope", "digest")}
            told |= {"manifest": str(outcome.path), "report": str(outcome.report)}
        if base_url is not None:
            told["black_box"] = _black_box(base_url, second_url, served_model, os.environ.get(key_env), quick, out)
            released = released and told["black_box"]["passed"]
        typer.echo(json.dumps(told) if as_json else _summary(told))
        if not released:
            raise typer.Exit(1)


def _require_libraries() -> None:
    try:
        import httpx2  # noqa: F401
        import matplotlib  # noqa: F401
        import scipy  # noqa: F401
    except ImportError as error:
        raise ConfigError(f"the audit needs {error.name}", hint="pip install 'constrained-spec[audit]'") from error


def _require_suites(names: list[str]) -> None:
    unknown = [name for name in names if name not in SUITES]
    if unknown:
        raise ConfigError(f"unknown suite {unknown[0]!r}", param="--suite", hint=f"one of {', '.join(SUITES)}")


def _audit(
    target: str, out: Path, *, draft_model: str | None, drafter: str, verifier: str, gamma: int, suites: list[str],
    quick: bool, plant: str | None, resume: bool, load: dict[str, Any],
) -> Outcome:  # fmt: skip
    from constrained_spec.audit.run import run_audit

    fault = None if plant is None else plant_named(plant)
    quiet_libraries()
    with loading(target) as progress:
        model = load_model(target, progress=progress, **load)
        draft = None
        if draft_model is not None:
            draft = load_model(
                draft_model, progress=progress, **{k: v for k, v in load.items() if k not in ("quantize", "capacity")}
            )
    chosen = tuple(Task(t.suite, t.id, t.messages, t.output_type, t.prediction) for t in tasks() if t.suite in suites)
    subject = Subject(model, draft, drafter, verifier, gamma, chosen, QUICK if quick else FULL)
    with _progress() as tell:
        return run_audit(subject, out, environment=environment(), plant=fault, resume=resume, progress=tell)


def _black_box(
    base_url: str, second_url: str | None, model: str | None, key: str | None, quick: bool, out: Path
) -> dict[str, Any]:
    from constrained_spec.audit.blackbox import black_box, connect

    with _progress() as tell, connect(base_url, key=key) as first:
        if second_url is None:
            found = black_box(first, None, model=model, samples=100 if quick else 400, progress=tell)
        else:
            with connect(second_url, key=key) as second:
                found = black_box(first, second, model=model, samples=100 if quick else 400, progress=tell)
    out.mkdir(parents=True, exist_ok=True)
    (out / "blackbox.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return found


def _check(path: Path, as_json: bool) -> int:
    """0 only for an intact manifest of this very system that says "release"."""
    manifest = read_manifest(path)
    target = manifest["target"]
    quiet_libraries()
    with loading(target["name"]) as progress:
        now = present_facts(manifest, progress)
    changed = changes(manifest, now, environment())
    if as_json:
        typer.echo(json.dumps({"verdict": manifest["verdict"], "digest": manifest["digest"], "changed": changed}))
    else:
        typer.echo(f"verdict   {manifest['verdict']}\ncontent   intact ({manifest['digest'][:16]}…)")
        typer.echo("\n".join(f"changed   {line}" for line in changed) or "changed   nothing")
    return 0 if manifest["verdict"] == "release" and not changed else 1


@contextmanager
def _progress() -> Iterator[Tell]:
    columns = (TextColumn("{task.description:38}"), BarColumn(), TextColumn("{task.completed}/{task.total}"))
    with Progress(*columns, TimeElapsedColumn(), console=stderr, disable=not sys.stderr.isatty()) as bar:
        rows: dict[str, Any] = {}

        def tell(section: str, done: int, total: int) -> None:
            # Sections of one audit share a bar; what counts by itself has one of its own.
            name = "cells" if section == "performance: cells" else "audit"
            if name not in rows:
                rows[name] = bar.add_task(section, total=total)
            bar.update(rows[name], description=section, completed=done, total=total)

        yield tell


def _summary(told: dict[str, Any]) -> str:
    lines = []
    for gate in told.get("gates", ()):
        found = gate["found"] if gate["missing"] is None else f"missing evidence: {gate['missing']}"
        lines.append(f"{gate['state']:8} {gate['ledger']:12} {gate['name']:22} {found}")
    for c in told.get("envelope", ()):
        lines.append(f"{c['decision']:8} {c['suite']:12} {c['concurrency']} at once: {c['speedup']:.2f}×")
    if "verdict" in told:
        lines += [f"verdict: {told['verdict']}", *(f"  {r}" for r in told["reasons"]), told["manifest"], told["report"]]
    if "black_box" in told:
        box = told["black_box"]
        words = {True: "ok", False: "FAILED", None: "missing"}
        lines += [f"{words[c['ok']]:8} {name:22} {c['found']}" for name, c in box["checks"].items()]
        lines.append(f"black box: {'passed' if box['passed'] else 'not passed'}, against {box['against']}")
    return "\n".join(lines)
