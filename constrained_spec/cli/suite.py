"""The extraction suite that demo and bench run: 12 jobs of instruction, text and schema."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.resources import files
from typing import Any


@dataclass(frozen=True, slots=True)
class Job:
    """One extraction job."""

    id: str
    instruction: str
    text: str
    schema: dict[str, Any]

    @property
    def messages(self) -> list[dict[str, str]]:
        return [{"role": "user", "content": f"{self.instruction}\n\n{self.text}"}]


def extraction_suite() -> list[Job]:
    """The jobs in file order."""
    data = (files("constrained_spec.cli") / "data" / "extraction.jsonl").read_text(encoding="utf-8")
    return [Job(**json.loads(line)) for line in data.splitlines() if line.strip()]
