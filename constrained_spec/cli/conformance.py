"""constrained-spec conformance: the official JSON Schema suite against our grammars, value by value."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tarfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

import typer

from constrained_spec.cli.console import exit_codes, stderr
from constrained_spec.errors import ConfigError, ConstrainedSpecError, UnsatisfiableError, UnsupportedSchemaError
from constrained_spec.grammars.base import Grammar, Matcher
from constrained_spec.grammars.json_schema import compile_json_schema
from constrained_spec.grammars.schema_walk import Json, subschemas
from constrained_spec.grammars.store import cache_root
from constrained_spec.grammars.tokens import TokenIndex, token_index
from constrained_spec.types import Vocabulary

SUITE_PACKAGE = "jsonschema==4.26.0"  # its source distribution carries the suite under json/
MAX_TRIES = 1_000  # orders of keys tried for one instance, before it counts as refused


def byte_index() -> TokenIndex:
    """A vocabulary of the 256 single bytes and an end token: any text is its bytes."""
    tokens: tuple[bytes | None, ...] = (*(bytes([b]) for b in range(256)), None)
    return token_index(Vocabulary(tokens, (256,), {"<eos>": 256}, lambda text: list(text.encode())))


def accepts(grammar: Grammar, value: Json, order: Mapping[str, int] | None = None) -> bool:
    """Whether ``value`` has a spelling in ``grammar``, with keys in any order and numbers at their shortest.

    A grammar fixes the order of declared keys; a value is accepted if one order of its keys is. ``order`` ranks the
    keys by where the schema declares them: that order is tried first.
    """
    ranks = order or {}
    for first in ({}, ranks):  # as the value has them, then as declared, then whatever is left
        matcher = grammar.matcher()
        if _spell(matcher, (value, None), first, []):
            return True
    matcher = grammar.matcher()
    # Ways not yet tried, each from a place of the matcher; what is left to spell is a linked list.
    ways: list[tuple[int, Todo]] = [(matcher.mark(), (value, None))]
    for _ in range(MAX_TRIES):
        if not ways:
            break
        mark, todo = ways.pop()
        matcher.rollback(mark)
        if _spell(matcher, todo, ranks, ways):
            return True
    return False


@dataclass(frozen=True, slots=True)
class _Text:
    text: str


@dataclass(frozen=True, slots=True)
class _Keys:
    """The members of ``value`` under ``names`` come next, in some order."""

    value: dict[str, Json]
    names: tuple[str, ...]
    start: str


Todo = tuple["Json | _Text | _Keys", "Todo"] | None


def _spell(matcher: Matcher, todo: Todo, order: Mapping[str, int], ways: list[tuple[int, Todo]]) -> bool:
    """Feeds what is left until it is done or refused; other choices of a key are added to ``ways``."""
    while todo is not None:
        item, todo = todo
        if isinstance(item, _Keys):
            choices: list[Todo] = []
            for name in item.names:
                others = _Keys(item.value, tuple(n for n in item.names if n != name), ", ")
                after: Todo = (others, todo) if others.names else (_Text("}"), todo)
                head = _Text(f"{item.start}{json.dumps(name, ensure_ascii=False)}: ")
                choices.append((head, (item.value[name], after)))
            mark = matcher.mark()
            ways += [(mark, choice) for choice in reversed(choices[1:])]
            todo = choices[0]
        elif isinstance(item, list) and item:
            todo = (_Text("]"), todo)
            for i in range(len(item) - 1, -1, -1):
                todo = (_Text(", " if i else "["), (item[i], todo))
        elif isinstance(item, dict) and item:
            names = tuple(sorted(item, key=lambda n: order.get(n, len(order))))
            todo = (_Keys(item, names, "{"), todo)
        else:
            text = item.text if isinstance(item, _Text) else shortest(item)
            if not all(matcher.advance(b) for b in text.encode("utf-8", "surrogatepass")):
                return False
    return matcher.is_complete


def shortest(value: Json) -> str:
    """JSON text of ``value``; a number with zero fraction is written as the integer that it equals."""
    if isinstance(value, float):
        if value.is_integer() and abs(value) < 1e300:
            return str(int(value))
        return format(Decimal(repr(value)), "f")
    return json.dumps(value, ensure_ascii=False)


def declared_order(schema: Json) -> dict[str, int]:
    """Rank of every declared property name, from top to bottom of ``schema``."""
    order: dict[str, int] = {}
    for _, node in subschemas(schema):
        for keyword in ("properties", "required"):
            names = node.get(keyword)
            for name in names if isinstance(names, dict | list) else ():
                order.setdefault(str(name), len(order))
    return order


@dataclass(slots=True)
class Tally:
    """What became of schemas and their instances."""

    schemas: int = 0
    compiled: int = 0
    unsatisfiable: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    valid: int = 0
    false_accepts: list[str] = field(default_factory=list)
    false_rejects: list[str] = field(default_factory=list)

    def add(self, name: str, schema: Json, tests: Sequence[tuple[str, Json, bool]], grammar: Grammar | str) -> None:
        """``grammar``: compiled, "" if unsatisfiable, or the keyword that was refused."""
        self.schemas += 1
        if isinstance(grammar, str):
            if grammar:
                self.refused[grammar] += 1
                return
            self.unsatisfiable += 1
            self.false_rejects += [f"{name}: {test}" for test, _, valid in tests if valid]
            self.valid += sum(valid for _, _, valid in tests)
            return
        self.compiled += 1
        order = declared_order(schema)
        for test, value, valid in tests:
            self.valid += valid
            if accepts(grammar, value, order) != valid:
                (self.false_rejects if valid else self.false_accepts).append(f"{name}: {test}")


def outcome(schema: Json, index: TokenIndex, registry: Mapping[str, Json]) -> Grammar | str:
    """The grammar, "" if nothing satisfies the schema, or what it was refused for."""
    try:
        return compile_json_schema(cast(Any, schema), index, "", registry=cast(Any, registry))
    except UnsatisfiableError:
        return ""
    except UnsupportedSchemaError as error:
        return error.keyword or "(engine)"
    except ConstrainedSpecError as error:
        return type(error).__name__


def suite_folder(cache: Path | None = None) -> Path:
    """The suite's folder in the user's cache; on first use ``pip download`` fetches the source distribution."""
    cache = cache or cache_root() / "json-schema-suite"
    folder = cache / "tests" / "draft2020-12"
    if folder.is_dir():
        return cache
    cache.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", "jsonschema"]
    with stderr.status(f"fetching {SUITE_PACKAGE}"):
        done = subprocess.run(
            [*command, "--dest", str(cache), SUITE_PACKAGE], capture_output=True, text=True, check=False
        )
    archives = sorted(cache.glob("jsonschema-*.tar.gz"))
    if not archives:
        reason = done.stderr.strip().splitlines()[-1:] or ["no archive"]
        raise ConfigError(f"the suite cannot be fetched: {reason[0]}", param="data", hint="pass its folder with --data")
    _unpack(archives[-1], cache)
    if not folder.is_dir():
        raise ConfigError(f"{archives[-1].name} holds no suite", param="data", hint="pass its folder with --data")
    return cache


def _unpack(archive: Path, folder: Path) -> None:
    with tarfile.open(archive) as tar:
        for member in tar:
            inside = re.match(r"[^/]+/json/((?:tests|remotes)/.+\.json)$", member.name)
            source = tar.extractfile(member) if inside and ".." not in member.name else None
            if inside and source is not None:
                path = folder / inside[1]
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(source.read())


def remotes(folder: Path) -> dict[str, Json]:
    """The suite's remote schemas by the URI that its tests use; none where the folder is not there."""
    root = folder / "remotes"
    return {
        f"http://localhost:1234/{path.relative_to(root).as_posix()}": json.loads(path.read_text("utf-8"))
        for path in sorted(root.rglob("*.json"))
        if not re.match(r"draft(?!2020)", path.relative_to(root).as_posix())
    }


def groups(folder: Path) -> Iterator[tuple[str, Json, list[tuple[str, Json, bool]]]]:
    """(name, schema, [(test, value, valid)]) of the required tests of 2020-12. Formats are remarks there: left out."""
    for path in sorted((folder / "tests" / "draft2020-12").glob("*.json")):
        if path.stem == "format":
            continue
        for group in json.loads(path.read_text("utf-8")):
            tests = [(t["description"], t["data"], t["valid"]) for t in group["tests"]]
            yield f"{path.stem}: {group['description']}", group["schema"], tests


def run_suite(folder: Path) -> Tally:
    index, registry, tally = byte_index(), remotes(folder), Tally()
    for name, schema, tests in groups(folder):
        tally.add(name, schema, tests, outcome(schema, index, registry))
    if not tally.schemas:
        raise ConfigError(f"no tests under {folder}", param="data", hint="the folder that holds tests/draft2020-12")
    return tally


def conformance(
    data: Path | None = typer.Option(
        None, help="Folder with tests/draft2020-12; default: fetched once, kept in the cache."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object."),
) -> None:
    """Run the official JSON Schema suite (2020-12, required, formats aside); fails on any false accept."""
    with exit_codes():
        tally = run_suite(data if data is not None else suite_folder())
        report = {
            "groups": tally.schemas, "compiled": tally.compiled, "unsatisfiable": tally.unsatisfiable,
            "refused": dict(tally.refused.most_common()), "valid_instances": tally.valid,
            "false_accepts": tally.false_accepts, "false_rejects": tally.false_rejects,
        }  # fmt: skip
        if as_json:
            typer.echo(json.dumps(report, ensure_ascii=False))
        else:
            for key, value in report.items():
                lines = [f"{k} {v}" for k, v in value.items()] if isinstance(value, dict) else value
                if isinstance(lines, list):
                    typer.echo(f"{key}: {sum(value.values()) if isinstance(value, dict) else len(lines)}")
                    for line in lines:
                        typer.echo(f"  {line}")
                else:
                    typer.echo(f"{key}: {lines}")
        if tally.false_accepts:
            raise typer.Exit(1)
