"""The two harnesses over schemas: what they count, and how they end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from constrained_spec.cli.bench_schemas import bench_schemas
from constrained_spec.cli.conformance import accepts, byte_index, conformance, shortest
from constrained_spec.grammars.json_schema import compile_json_schema

GROUPS = [
    {"description": "fine", "schema": {"type": "integer"}, "tests": [
        {"description": "an integer", "data": 1, "valid": True}, {"description": "1.0", "data": 1.0, "valid": True},
        {"description": "a string", "data": "a", "valid": False}]},
    {"description": "empty", "schema": False, "tests": [{"description": "any", "data": 1, "valid": False}]},
    {"description": "refused", "schema": {"contains": {"const": 1}}, "tests": []},
]  # fmt: skip


def run(command: Any, *arguments: str) -> Any:
    app = typer.Typer()
    app.command()(command)
    return CliRunner().invoke(app, arguments)


def suite(folder: Path, groups: Any) -> str:
    path = folder / "tests" / "draft2020-12"
    path.mkdir(parents=True)
    (path / "some.json").write_text(json.dumps(groups), "utf-8")
    (path / "format.json").write_text("not read", "utf-8")
    return str(folder)


def test_conformance_counts(tmp_path: Path) -> None:
    result = run(conformance, "--data", suite(tmp_path, GROUPS), "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout) == {
        "groups": 3, "compiled": 1, "unsatisfiable": 1, "refused": {"contains": 1}, "valid_instances": 2,
        "false_accepts": [], "false_rejects": [],
    }  # fmt: skip


def test_a_false_accept_fails_the_run(tmp_path: Path) -> None:
    wrong = [{"description": "g", "schema": {}, "tests": [{"description": "t", "data": 1, "valid": False}]}]
    result = run(conformance, "--data", suite(tmp_path, wrong))
    assert result.exit_code == 1
    assert "some: g: t" in result.stdout


def test_a_folder_without_tests_is_named(tmp_path: Path) -> None:
    result = run(conformance, "--data", str(tmp_path))
    assert result.exit_code == 2


def test_bench_schemas_counts(tmp_path: Path) -> None:
    path = tmp_path / "schemas.jsonl"
    lines = [
        {"id": "x", "schema": {"type": "string"}, "tests": [{"valid": True, "data": "a"}, {"valid": False, "data": 1}]},
        {"schema": {"type": "array", "items": {"type": "string"}, "uniqueItems": True}, "tests": []},
    ]
    path.write_text("\n".join(map(json.dumps, lines)), "utf-8")
    result = run(bench_schemas, "--data", str(path), "--json")
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert (report["schemas"], report["compiled"], report["refused"]) == (2, 1, {"uniqueItems": 1})
    assert (report["false_accepts"], report["false_rejects"], report["valid_instances"]) == (0, 0, 1)
    assert set(report["compile_ms"]) == {"median", "p99", "max"}


@pytest.mark.parametrize("text", ["{", '{"tests": []}', "[1]"])
def test_bench_schemas_names_the_broken_line(text: str, tmp_path: Path) -> None:
    path = tmp_path / "schemas.jsonl"
    path.write_text(text, "utf-8")
    assert run(bench_schemas, "--data", str(path)).exit_code == 2


def test_any_order_of_keys_is_found() -> None:
    names = [f"k{i}" for i in range(12)]
    schema: Any = {"type": "object", "properties": {n: {"type": "integer"} for n in names}, "required": names}
    grammar = compile_json_schema(schema, byte_index(), "")
    ranks = {n: i for i, n in enumerate(names)}
    assert accepts(grammar, dict.fromkeys(reversed(names), 1), ranks)
    assert not accepts(grammar, dict.fromkeys(names[1:], 1), ranks)


@pytest.mark.parametrize(
    ("value", "text"), [(1.0, "1"), (1e20, "1" + "0" * 20), (0.5, "0.5"), (1e-7, "0.0000001"), ("é", '"é"')]
)
def test_numbers_are_written_at_their_shortest(value: Any, text: str) -> None:
    assert shortest(value)[:22] == text[:22]
