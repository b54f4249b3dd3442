"""From the options of ``generate`` to a constraint."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from constrained_spec.cli.constraint import output_type
from constrained_spec.errors import ConfigError, ConstrainedSpecError, RequestError
from constrained_spec.grammars.compile import Choice, JsonSchema, Lark, Regex

SCHEMA = {"type": "object", "properties": {"a:b": {"type": "integer"}}}


def options(**given: object) -> object:
    values = {"schema": None, "regex": None, "choice": None, "grammar": None, "type_": None, "whitespace": "one-space"}
    return output_type(**{**values, **given})  # type: ignore[arg-type]  # each test gives the right kinds


def test_no_option_is_free_text() -> None:
    assert options() is None
    assert options(choice=[]) is None


def test_a_schema_is_a_file_or_its_text(tmp_path: Path) -> None:
    file = tmp_path / "schema.json"
    file.write_text(json.dumps(SCHEMA))
    expected = JsonSchema(SCHEMA, "one-space")
    assert options(schema=str(file)) == expected
    assert options(schema=json.dumps(SCHEMA)) == expected
    assert options(schema=json.dumps(SCHEMA), whitespace="compact") == JsonSchema(SCHEMA, "compact")
    assert options(schema="true") == JsonSchema(True)


def test_a_long_schema_text_is_no_file_name() -> None:
    long = {"enum": ["x" * 5000]}
    assert options(schema=json.dumps(long)) == JsonSchema(long)


def test_a_file_name_may_look_like_text(tmp_path: Path) -> None:
    file = tmp_path / "a{b}:c.lark"
    file.write_text('start: "x"')
    assert options(grammar=str(file)) == Lark('start: "x"')
    assert options(grammar='start: "y"') == Lark('start: "y"')


def test_the_other_kinds() -> None:
    assert options(regex="a:{2}") == Regex("a:{2}")
    assert options(regex="") == Regex("")
    assert options(choice=["a", "b"]) == Choice(("a", "b"))
    assert options(type_="int") is int


def test_two_constraints_contradict() -> None:
    with pytest.raises(ConfigError, match="contradict"):
        options(regex="", type_="int")


@pytest.mark.parametrize("text", ["{", '{"a": 1}]', "[1]:", "{" * 100_000])
def test_a_broken_schema_text(text: str) -> None:
    with pytest.raises(RequestError, match="schema"):
        options(schema=text)


def test_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no file"):
        options(schema="absent.json")
    with pytest.raises(ConfigError, match="no file"):
        options(grammar=str(tmp_path))
    with pytest.raises(ConfigError):
        options(schema="nul\0.json")
    latin = tmp_path / "latin.json"
    latin.write_bytes(b'{"\xff": 1}')
    with pytest.raises(ConfigError, match="UTF-8"):
        options(schema=str(latin))


def test_a_type_from_a_module_of_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    Path("caller_types.py").write_text("class Outer:\n    class Inner: pass\n")
    Path("caller_broken.py").write_text("raise ZeroDivisionError('top level')\n")
    found = options(type_="caller_types:Outer.Inner")
    assert isinstance(found, type)
    assert found.__qualname__ == "Outer.Inner"
    monkeypatch.delitem(sys.modules, "caller_types")
    with pytest.raises(ConfigError, match="ZeroDivisionError"):
        options(type_="caller_broken:X")


@pytest.mark.parametrize("name", ["decimal", "os", "exec", "json:nothing", "json:", ":x", "no_module_here:X", ".a:b"])
def test_what_is_no_type(name: str) -> None:
    with pytest.raises(ConstrainedSpecError) as caught:
        options(type_=name)
    assert caught.value.param == "--type"
