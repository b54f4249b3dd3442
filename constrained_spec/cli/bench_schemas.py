"""constrained-spec bench schemas: a file of schemas with instances, each compiled and each instance judged."""

from __future__ import annotations

import json
import math
import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import typer

from constrained_spec.cli.conformance import Tally, byte_index, outcome
from constrained_spec.cli.console import exit_codes
from constrained_spec.errors import ConfigError
from constrained_spec.grammars.schema_walk import Json

Case = tuple[str, Json, list[tuple[str, Json, bool]]]


def cases(path: Path) -> Iterator[Case]:
    """(id, schema, [(test, value, valid)]) of every JSON line {schema, tests: [{valid, data}]} of ``path``."""
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}", param="data") from None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
            tests = [(f"#{i}", t["data"], bool(t["valid"])) for i, t in enumerate(record.get("tests", ()))]
            yield str(record.get("id", f"line {number}")), record["schema"], tests
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(
                f"line {number} of {path} is not {{schema, tests: [{{valid, data}}]}}: {error}", param="data"
            ) from None


def measure(path: Path) -> tuple[Tally, list[float]]:
    """The tally, and milliseconds of every compilation that succeeded."""
    index, tally, times = byte_index(), Tally(), list[float]()
    for name, schema, tests in cases(path):
        start = time.perf_counter()
        grammar = outcome(schema, index, {})
        spent = (time.perf_counter() - start) * 1e3
        if not isinstance(grammar, str):
            times.append(spent)
        tally.add(name, schema, tests, grammar)
    return tally, times


def report(tally: Tally, times: Sequence[float]) -> dict[str, object]:
    ordered = sorted(times)
    return {
        "schemas": tally.schemas,
        "compiled": tally.compiled,
        "unsatisfiable": tally.unsatisfiable,
        "refused": dict(tally.refused.most_common()),
        "false_accepts": len(tally.false_accepts),
        "false_rejects": len(tally.false_rejects),
        "valid_instances": tally.valid,
        "compile_ms": {
            "median": round(statistics.median(ordered), 3),
            "p99": round(ordered[math.ceil(0.99 * len(ordered)) - 1], 3),
            "max": round(ordered[-1], 3),
        }
        if ordered
        else None,
        "wrong": tally.false_accepts + tally.false_rejects,
    }


def bench_schemas(
    data: Path = typer.Option(..., help="JSON lines: {schema, tests: [{valid, data}]}."),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object on one line."),
) -> None:
    """Compile every schema of a file and judge its instances; fails on any false accept."""
    with exit_codes():
        tally, times = measure(data)
        if not tally.schemas:
            raise ConfigError(f"no schemas in {data}", param="data")
        typer.echo(json.dumps(report(tally, times), ensure_ascii=False, indent=None if as_json else 2))
        if tally.false_accepts:
            raise typer.Exit(1)
