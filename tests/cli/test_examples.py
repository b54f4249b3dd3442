"""Each example, and the README's own, runs as it stands in a fresh interpreter."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def run(code: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *code], capture_output=True, text=True, check=False, cwd=ROOT)


@pytest.mark.model
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example(path: Path) -> None:
    done = run([str(path)])
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_fits_the_eye(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 40


@pytest.mark.model
def test_the_library_example_of_the_readme() -> None:
    [code] = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    done = run(["-c", code])
    assert done.returncode == 0, done.stderr
    assert "Ada" in done.stdout
    assert "age=36" in done.stdout
