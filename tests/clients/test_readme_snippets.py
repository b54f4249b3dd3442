"""The README's requests to the server, run as they are printed against the real model."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
FENCE = re.compile(r"^```(bash|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PRINTED = "http://127.0.0.1:8000"
BLOCKS = FENCE.findall(README)
CURL = [text for language, text in BLOCKS if language == "bash" and "curl" in text]
PYTHON = [text for language, text in BLOCKS if language == "python" and "from openai" in text]


def output(command: list[str], url: str) -> str:
    """What ``command`` writes; the server's printed address in it stands for ``url``."""
    assert PRINTED in command[-1]
    ran = subprocess.run(
        [*command[:-1], command[-1].replace(PRINTED, url)], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_the_section_on_the_server_has_both() -> None:
    assert "## Server" in README and CURL and PYTHON


@pytest.mark.model
@pytest.mark.parametrize("text", CURL)
def test_curl(text: str, smollm2_url: str) -> None:
    answer: Any = json.loads(output(["bash", "-c", text], smollm2_url))
    choice = answer["choices"][0]
    assert choice["finish_reason"] == "stop"
    sent = re.search(r"(?:-d|--data) '(.*?)'", text, re.DOTALL)
    assert sent
    shape = json.loads(sent[1]).get("response_format")
    if shape is not None:
        jsonschema.validate(json.loads(choice["message"]["content"]), shape["json_schema"]["schema"])


@pytest.mark.model
@pytest.mark.parametrize("text", PYTHON)
def test_openai_python(text: str, smollm2_url: str) -> None:
    printed = output([sys.executable, "-c", text], smollm2_url)
    assert re.fullmatch(r"name='.+' age=-?\d+ \d+\n", printed), printed
