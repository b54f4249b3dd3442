"""Each example, and the README's own, runs as it stands in a fresh interpreter; the settings mean what is served."""

from __future__ import annotations

import configparser
import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from constrained_spec.server.app import create_app
from constrained_spec.server.settings import Settings

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples"
HELPER = FOLDER / "serving.py"
EXAMPLES = sorted(set(FOLDER.glob("*.py")) - {HELPER})
OWN_SERVER = "server_fim"  # starts its server itself, as all do outside this file; the others share one
CLIENTS = [path for path in EXAMPLES if "from serving import" in path.read_text() and path.stem != OWN_SERVER]
ALONE = [path for path in EXAMPLES if path not in CLIENTS]


def run(code: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *code],
        capture_output=True, text=True, check=False, cwd=ROOT, env={**os.environ, **environment},
    )  # fmt: skip


def loaded(name: str) -> Any:
    """A module that is no package's and may be missing or without types."""
    return importlib.import_module(name)


@pytest.fixture(scope="module")
def server_url() -> Iterator[str]:
    """One server for the examples that need no special one."""
    spec = importlib.util.spec_from_file_location("examples_serving", HELPER)
    assert spec is not None and spec.loader is not None
    helper = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(helper)
    with helper.serving() as url:
        yield url


@pytest.mark.model
@pytest.mark.parametrize("path", ALONE, ids=lambda path: path.stem)
def test_example(path: Path) -> None:
    done = run([str(path)])
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


@pytest.mark.model
@pytest.mark.parametrize("path", CLIENTS, ids=lambda path: path.stem)
def test_example_on_a_server(path: Path, server_url: str) -> None:
    done = run([str(path)], CONSTRAINED_SPEC_URL=server_url)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_a_server_that_cannot_start_ends_the_example() -> None:
    code = "from serving import serving\nwith serving('--gamma=-1'): raise SystemExit('it runs')"
    done = run(["-c", code], PYTHONPATH=str(FOLDER))
    assert "RuntimeError: the server ended with exit code 2" in done.stderr
    assert "gamma" in done.stderr


@pytest.mark.parametrize("path", [*EXAMPLES, HELPER], ids=lambda path: path.stem)
def test_an_example_fits_the_eye(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 50


def test_the_table_lists_every_file() -> None:
    listed = re.findall(r"\]\(([^)]+)\)", (FOLDER / "README.md").read_text())
    files = [p for p in FOLDER.rglob("*") if p.is_file() and p.name != "README.md" and "__pycache__" not in p.parts]
    assert sorted(listed) == sorted(str(path.relative_to(FOLDER)) for path in files)


def test_the_editors_settings_lead_to_what_is_served() -> None:
    paths = create_app(Settings(model="tiny", log_level="error")).openapi()["paths"]
    text = (FOLDER / "settings" / "continue.yaml").read_text()
    models = loaded("yaml").safe_load(text)["models"]
    assert {model["model"] for model in models} == set(re.findall(r"--served-model-name (\S+)", text))
    # Where these providers of Continue send each role, below apiBase.
    endpoints = {"openai": "/chat/completions", "mistral": "/fim/completions"}
    for model in models:
        base = model["apiBase"].removeprefix("http://127.0.0.1:8000")
        assert base + endpoints[model["provider"]] in paths
        assert (model["provider"] == "mistral") == (model["roles"] == ["autocomplete"])

    lines = (FOLDER / "settings" / "llama.vscode.jsonc").read_text().splitlines()
    settings = json.loads("\n".join(line for line in lines if not line.lstrip().startswith("//")))
    for name, path in (("endpoint", "/infill"), ("endpoint_chat", "/v1/chat/completions")):
        assert settings[f"llama-vscode.{name}"].removeprefix("http://127.0.0.1:8000") + path in paths


def test_the_systemd_unit_names_flags_that_exist_and_waits_for_open_requests() -> None:
    unit = configparser.ConfigParser(interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(FOLDER / "constrained-spec.service")
    service = unit["Service"]
    flags = {flag.replace("-", "_") for flag in re.findall(r"--([a-z-]+)", service["ExecStart"])}
    assert flags - {"config"} <= Settings.model_fields.keys()
    assert float(service["TimeoutStopSec"]) > Settings.model_fields["shutdown_seconds"].default


@pytest.mark.model
def test_the_library_examples_of_the_readme() -> None:
    """The second goes on where the first ends. (Clients of the server have their own test.)"""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    first, second = [block for block in blocks if "openai" not in block]
    done = run(["-c", f"{first}\nprint('----')\n{second}\nprint(people)"])
    assert done.returncode == 0, done.stderr
    one, _, many = done.stdout.partition("----")
    assert "Ada" in one
    assert "age=36" in one
    assert many.count("Person(") == 3
    assert "forced" in many
