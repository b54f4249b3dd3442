"""The library of constraints: one data file each, with examples of what it holds and what it does not."""

from __future__ import annotations

import difflib
import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Literal

from constrained_spec.errors import RequestError
from constrained_spec.grammars.constraints import Lark, Regex

_SUFFIX = ".json"


@dataclass(frozen=True, slots=True)
class Entry:
    """``valid`` texts satisfy the constraint as a whole, ``invalid`` ones do not."""

    name: str
    description: str
    kind: Literal["regex", "lark"]
    text: str
    valid: tuple[str, ...]
    invalid: tuple[str, ...]

    @property
    def constraint(self) -> Regex | Lark:
        return Regex(self.text) if self.kind == "regex" else Lark(self.text)


@cache
def names() -> tuple[str, ...]:
    """Every name, sorted."""
    folder = files("constrained_spec.grammars") / "data"
    return tuple(sorted(path.name.removesuffix(_SUFFIX) for path in folder.iterdir() if path.name.endswith(_SUFFIX)))


def get(name: str) -> Regex | Lark:
    """The constraint called ``name``. Raises ``RequestError`` for an unknown name."""
    return describe(name).constraint


@cache
def describe(name: str) -> Entry:
    """All that is known of ``name``. Raises ``RequestError`` for an unknown name."""
    if name not in names():
        close = difflib.get_close_matches(str(name), names(), 3, 0.5)
        hint = f"did you mean {' or '.join(close)}" if close else f"one of {', '.join(names())}"
        raise RequestError(f"there is no grammar {name!r} in the library", param="library", hint=hint)
    path = files("constrained_spec.grammars") / "data" / f"{name}{_SUFFIX}"
    data = json.loads(path.read_text(encoding="utf-8"))
    # A regex is one line cut for reading, a grammar has real lines.
    text = ("" if data["kind"] == "regex" else "\n").join(data["text"])
    return Entry(data["name"], data["description"], data["kind"], text, tuple(data["valid"]), tuple(data["invalid"]))
