"""constrained-spec audit: what it refuses, what it prints, and how it ends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from constrained_spec.audit.subject import Effort
from constrained_spec.cli import audit as command
from constrained_spec.cli.main import app

runner = CliRunner()
SMALL = Effort("small", 60, 400, 1, 8, 1, (2,), (1,), 2, 0.9)


@pytest.fixture(autouse=True)
def _little(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "QUICK", SMALL)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ([], "--target"),
        (["--target", "x"], "--target"),
        (["--target", "x", "--out", "{out}", "--suite", "poems"], "poems"),
        (["--target", "x", "--out", "{out}", "--drafter", "oracle"], "oracle"),
        (["--target", "x", "--out", "{out}", "--verifier", "hope"], "hope"),
        (["--target", "/nowhere", "--out", "{out}"], "/nowhere"),
        (["--target", "x", "--out", "{out}", "--plant", "gremlin"], "gremlin"),
        (["--check", "/nowhere/manifest.json"], "no manifest"),
        (["--base-url", "http://127.0.0.1:9/v1", "--out", "{out}"], "does not list its models"),
    ],
)
def test_mistakes_are_named(arguments: list[str], named: str, tmp_path: Path) -> None:
    done = runner.invoke(app, ["audit", *(a.format(out=tmp_path) for a in arguments)])
    assert done.exit_code == 2, done.output
    assert named in done.output


def _audit(folder: Path, out: Path, *more: str) -> tuple[int, str]:
    arguments = ["audit", "--target", str(folder), "--out", str(out), "--quick", "--slots", "4", "--capacity", "400"]
    done = runner.invoke(app, [*arguments, "--suite", "chat", "--gamma", "4", *more])
    return done.exit_code, done.stdout


def test_an_audit_and_its_check(tiny_folder: Path, tmp_path: Path) -> None:
    code, printed = _audit(tiny_folder, tmp_path, "--json")
    told = json.loads(printed)
    assert told["verdict"] in ("release", "experiment"), told["reasons"]
    assert code == (0 if told["verdict"] == "release" else 1)
    assert Path(told["manifest"]).is_file() and Path(told["report"]).is_file()

    done = runner.invoke(app, ["audit", "--check", told["manifest"], "--json"])
    checked = json.loads(done.stdout)
    assert checked["changed"] == [] and checked["digest"] == told["digest"]
    assert done.exit_code == code

    code, printed = _audit(tiny_folder, tmp_path, "--resume")
    assert f"verdict: {told['verdict']}" in printed


def test_a_planted_fault_ends_non_zero(tiny_folder: Path, tmp_path: Path) -> None:
    code, printed = _audit(tiny_folder, tmp_path, "--plant", "full-p-repair")
    assert code == 1
    assert "verdict: approximate" in printed
