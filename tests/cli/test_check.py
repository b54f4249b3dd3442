"""The command check: exit codes, the published JSON, and where a text leaves the language."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from constrained_spec.cli import check as command
from constrained_spec.cli.check import examine
from constrained_spec.cli.check_view import around, ranges, visible
from constrained_spec.cli.main import app
from constrained_spec.grammars.compile import Choice, Constraint, JsonSchema, Lark, Regex
from constrained_spec.grammars.inspect_grammar import MAX_COUNTED
from constrained_spec.types import Vocabulary

runner = CliRunner()
PERSON = {
    "type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"], "additionalProperties": False,
}  # fmt: skip


def byte_vocabulary(*pieces: bytes) -> Vocabulary:
    tokens = (None, *(bytes([b]) for b in range(256)), *pieces)
    return Vocabulary(tokens, (0,), {"<eos>": 0}, lambda text: [b + 1 for b in text.encode()])


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "load_vocabulary", lambda name, progress=None: byte_vocabulary(b"ab", b"tru"))


def run(*arguments: str) -> tuple[int, dict[str, Any]]:
    result = runner.invoke(app, ["check", *arguments, "--json"])
    return result.exit_code, json.loads(result.stdout)


@pytest.mark.parametrize(
    ("constraint", "size", "count", "example"),
    [
        (Regex("[a-c]{2,4}"), "finite", 9 + 27 + 81, "aa"),
        (Regex("a?b?|ab|a"), "finite", 4, ""),
        (Regex("a{0,5000}"), "finite", 5001, ""),
        (Regex("x[ab]{0,20}"), "finite", None, "x"),  # 2,097,151 texts
        (Regex("x+y"), "infinite", None, "xy"),
        (Regex("é|ü{2}"), "finite", 2, "é"),
        (Choice(("b", "abc", "b", "é")), "finite", 3, "b"),
        (Choice(tuple(map(str, range(3000)))), "finite", 3000, "0"),
        (JsonSchema({"const": 5}), "finite", 1, "5"),
        (JsonSchema({"enum": ["a", "b", None]}), "finite", 3, None),
        (JsonSchema({"type": "boolean"}), "finite", 2, None),
        (JsonSchema({"type": "string"}), "unknown", None, '""'),
        (Lark('start: "a" start "b" | "ab"'), "unknown", None, "ab"),
    ],
)
def test_the_size_of_a_language_and_a_text_of_it(
    constraint: Constraint, size: str, count: int | None, example: str | None
) -> None:
    report = examine(constraint, byte_vocabulary())
    assert (report["language"], report["error"]) == ({"size": size, "count": count}, None)
    if example is not None:
        assert report["example"] == example
    again = examine(constraint, byte_vocabulary(), report["example"])
    assert again["text"]["complete"]


def test_the_count_is_capped() -> None:
    most = f"a{{0,{MAX_COUNTED.bit_length()}}}"
    assert examine(Regex("[ab]{20}"), byte_vocabulary())["language"] == {"size": "finite", "count": None}
    assert examine(Regex(most), byte_vocabulary())["language"]["count"] == MAX_COUNTED.bit_length() + 1


@pytest.mark.parametrize(
    ("constraint", "text", "byte", "char", "allowed", "may_stop"),
    [
        (Regex("é[0-9]"), "éx", 2, 1, b"0123456789", False),
        (Regex("é[0-9]"), "é", 2, 1, b"0123456789", False),
        (Regex("é[0-9]"), "", 0, 0, b"\xc3", False),
        (Regex("[éü]"), "ß", 1, 0, b"\xa9\xbc", False),  # half of the character is right
        (Regex("a+"), "aab", 2, 2, b"a", True),
        (Choice(("ab", "ac")), "ad", 1, 1, b"bc", False),
        (Choice(("ab",)), "abc", 2, 2, b"", True),
        (JsonSchema(PERSON), '{"name": "é", "age": x}', 22, 21, b"-0123456789", False),
        (JsonSchema(PERSON), '{"name": "é", "age": 1', 23, 22, None, False),
        (JsonSchema(PERSON), '{"age": 1}', 2, 2, b"n", False),
        (Lark('start: "a" start "b" | "ab"'), "aabbb", 4, 4, b"", True),
    ],
)
def test_where_a_text_leaves_the_language(
    constraint: Constraint, text: str, byte: int, char: int, allowed: bytes | None, may_stop: bool
) -> None:
    place = examine(constraint, byte_vocabulary(b"name", b"12"), text)["text"]
    assert not place["complete"]
    assert (place["byte"], place["char"], place["may_stop"]) == (byte, char, may_stop)
    assert place["cut_short"] == (byte == len(text.encode()))
    if allowed is not None:
        assert bytes(place["allowed_bytes"]) == allowed
    assert {token.encode()[:1] for token in place["allowed_tokens"]} <= {bytes([b]) for b in place["allowed_bytes"]} | {
        b"\\"  # half a character is written as an escape
    }


@pytest.mark.usefixtures("small")
def test_exit_codes() -> None:
    assert run("--regex", "a+", "aaa")[0] == 0
    assert run("--regex", "a+")[0] == 0
    assert run("--regex", "a+", "aab")[0] == 1
    assert run("--regex", "a+", "")[0] == 1
    assert run("--type", "bool", "true")[0] == 0
    assert run("--schema", json.dumps(PERSON), '{"name": "x", "age": 3}')[0] == 0
    assert run("--grammar", 'start: "a"', "b")[0] == 1
    assert run("--regex", "a(")[0] == 2
    assert run("--regex", "a+", "--timeout", "60")[0] == 0
    for arguments in ([], ["--type", "str"], ["--regex", "a", "--choice", "b"], ["--schema", "no-such-file"]):
        result = runner.invoke(app, ["check", *arguments])
        assert result.exit_code == 2 and "error:" in result.stderr


@pytest.mark.usefixtures("small")
def test_a_grammar_in_any_notation_and_from_the_library(tmp_path: Path) -> None:
    file = tmp_path / "twice.gbnf"
    file.write_text('root ::= "a" tail\ntail ::= [0-9]+')
    for grammar in (str(file), 'start = "a", digit, { digit };\ndigit = "0" | "1" | "9";', 'start: "a" /[0-9]+/'):
        assert run("--grammar", grammar, "a19")[0] == 0, grammar
        assert run("--grammar", grammar, "a")[0] == 1
    assert run("--grammar", "library:semver", "1.2.3-rc.1")[0] == 0
    assert run("--grammar", "library:semver", "1.2")[0] == 1
    code, report = run("--grammar", "library:sem")
    assert code == 2 and report["error"]["param"] == "library"
    code, report = run("--grammar", "start : (")
    assert code == 2 and report["error"]["type"] == "GrammarSyntaxError"


@pytest.mark.usefixtures("small")
def test_all_refused_keywords_are_named_with_their_place() -> None:
    schema = {"properties": {"a": {"contentEncoding": "base64", "$dynamicRef": "#x"}, "b/c": {"$dynamicRef": "#y"}}}
    code, report = run("--schema", json.dumps(schema))
    assert code == 2
    assert report["error"]["pointer"] == report["refused"][0]["pointer"]
    assert {"/properties/a/$dynamicRef", "/properties/b~1c/$dynamicRef"} <= {r["pointer"] for r in report["refused"]}
    assert all(r["keyword"] and r["message"] for r in report["refused"])


@pytest.mark.usefixtures("small")
def test_what_is_only_checked_afterwards_is_named() -> None:
    schema = json.dumps({"type": "object", "properties": {"a": {"type": "string", "format": "regex"}}})
    assert run("--schema", schema, "--on-unsupported", "error")[0] == 2
    code, report = run("--schema", schema, "--on-unsupported", "validate")
    assert code == 0
    assert report["relaxed"] == [{"keyword": "format", "pointer": "/properties/a/format"}]
    result = runner.invoke(app, ["check", "--schema", schema, "--on-unsupported", "validate"])
    assert "/properties/a/format is not enforced" in result.stdout
    assert runner.invoke(app, ["check", "--schema", schema, "--on-unsupported", "ignore"]).exit_code == 2


@pytest.mark.usefixtures("small")
def test_the_depth_and_the_alphabet_of_json() -> None:
    tree = json.dumps({"type": "array", "items": {"$ref": "#"}})
    assert run("--schema", tree, "--max-depth", "2", "[[], []]")[0] == 0
    code, report = run("--schema", tree, "--max-depth", "2", "[[], [[]]]")
    assert code == 1 and report["text"]["byte"] == 6
    code, report = run("--schema", tree, "--max-depth", "0")
    assert code == 2 and (report["error"]["type"], report["error"]["param"]) == ("UnsatisfiableError", "max_depth")
    assert run("--schema", tree, "--max-depth", "-1")[1]["error"]["param"] == "max_depth"
    text = json.dumps({"const": "é"})
    assert run("--schema", text, "--ensure-ascii", r'"\u00e9"')[0] == 0
    assert run("--schema", text, "--ensure-ascii", '"é"')[0] == 1
    assert run("--type", "list", "--max-depth", "1", "[[]]")[0] == 1
    for option in (("--ensure-ascii",), ("--max-depth", "3")):
        result = runner.invoke(app, ["check", "--regex", "a", *option])
        assert result.exit_code == 2 and option[0] in result.stderr


@pytest.mark.usefixtures("small")
def test_an_empty_language_is_said_to_be_empty() -> None:
    schemas: list[object] = [{"type": "integer", "minimum": 5, "maximum": 3}, {"enum": []}, False]
    for schema in schemas:
        code, report = run("--schema", json.dumps(schema))
        assert code == 2
        assert report["language"] == {"size": "empty", "count": 0}
        assert report["error"]["type"] == "UnsatisfiableError"


@pytest.mark.usefixtures("small")
def test_hostile_constraints_end_soon_with_an_answer(tmp_path: Path) -> None:
    huge = tmp_path / "huge.json"
    huge.write_text(json.dumps({"enum": ["x" * 1000 + str(i) for i in range(10_000)]}))
    assert huge.stat().st_size > 10_000_000
    code, report = run("--schema", str(huge))
    assert code == 2 and report["error"]["type"] == "GrammarBudgetError" and report["error"]["limit"] == "text_bytes"
    large = tmp_path / "large.json"
    large.write_text(json.dumps({"enum": ["x" * 1000 + str(i) for i in range(2_000)]}))
    code, report = run("--schema", str(large))
    assert code == 2 and report["error"]["limit"] == "max_schema_bytes"
    code, report = run("--regex", "(a|b)*a(a|b){20}", "ab")
    assert code == 1 and report["engine"] == "llguidance" and report["text"]["cut_short"]
    code, report = run("--regex", "a{0,5000}", "aaa")
    assert code == 0 and report["engine"] == "DFA" and report["states"] == 5001


@pytest.mark.usefixtures("small")
def test_for_people(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    result = runner.invoke(app, ["check", "--regex", "日[0-9]+x", "日本x"])
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    assert "\x1b" not in result.stdout
    at = lines.index("  日本x")
    assert lines[at + 1] == "    ^"  # a wide character takes two columns
    assert "'0'-'9'" in lines[at + 2] and "byte 3, character 1" in lines[at - 1]
    result = runner.invoke(app, ["check", "--schema", '{"$dynamicRef": "#x"}'])
    assert result.exit_code == 2 and "/$dynamicRef" in result.stdout
    result = runner.invoke(app, ["check", "--choice", "", "--choice", "[b]", "[b]"])
    assert result.exit_code == 0
    assert "the empty text" in result.stdout and "in the language" in result.stdout and "2 texts" in result.stdout


def test_the_shown_line_is_a_window_without_control_characters() -> None:
    assert around("ab\ncd\nef", 4) == ("c", "d", "")
    assert around("ab\ncd", 2) == ("ab", "␊", "")
    assert around("ab", 2) == ("ab", "", "")
    before, bad, after = around("x" * 1000 + "y" + "z" * 1000, 1000)
    assert (before[0], bad, after[-1]) == ("…", "y", "…") and len(before) == len(after) == 61
    assert visible("\x1b[2J\x7f\x9b") == "␛[2J␡␡"


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        ([], []),
        ([*range(0x61, 0x7B)], ["'a'-'z'"]),
        ([0x2D, *range(0x30, 0x3A)], ["'-'", "'0'-'9'"]),
        ([0x0A, 0x7E, 0x7F, 0x80], ["0x0A", "'~'", "0x7F-0x80"]),
        ([0x1F, 0x20], ["0x1F", "' '"]),
    ],
)
def test_bytes_as_ranges(values: list[int], shown: list[str]) -> None:
    assert ranges(values) == shown


@pytest.mark.model
def test_the_real_vocabulary_without_the_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    from constrained_spec.backends.catalogue import ensure
    from constrained_spec.backends.load import load_model
    from constrained_spec.backends.vocabulary_only import load_vocabulary

    alone = load_vocabulary("smollm2-135m")
    whole = load_model("smollm2-135m", capacity=16).vocabulary
    assert alone.digest == whole.digest and alone.eos_ids == (0, 2)
    assert load_vocabulary(str(ensure("smollm2-135m"))).digest == alone.digest
    code, report = run("--schema", json.dumps(PERSON), '{"name": "Ada", "age": x}')
    assert code == 1 and report["text"]["char"] == 23 and report["vocabulary"] == 49152


@pytest.mark.model
def test_a_folder_of_a_tokenizer_alone(tmp_path: Path) -> None:
    from constrained_spec.backends.catalogue import ensure
    from constrained_spec.backends.vocabulary_only import load_vocabulary
    from constrained_spec.errors import ModelError

    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((ensure("smollm2-135m") / name).read_bytes())
    vocabulary = load_vocabulary(str(tmp_path))
    assert vocabulary.size == 49152 and vocabulary.eos_ids == (2,)
    refused: list[Callable[[], Vocabulary]] = [
        lambda: load_vocabulary(str(tmp_path / "nowhere")),
        lambda: load_vocabulary(str(tmp_path.parent)),
    ]
    for load in refused:
        with pytest.raises(ModelError) as caught:
            load()
        assert caught.value.param == "model"


@pytest.mark.model
def test_bench_grammars_prints_what_was_promised() -> None:
    names = ["json-person", "choice-1000", "lark-sql"]
    only = [argument for name in names for argument in ("--only", name)]
    result = runner.invoke(app, ["bench", "grammars", "--json", "--repeats", "1", *only])
    assert result.exit_code == 0, result.stderr
    about = json.loads(result.stdout)["vocabularies"]["smollm2-135m"]
    assert about["size"] == 49152 and set(about["engines"]) == {"first_s", "cached_s"}
    assert list(about["constraints"]) == names
    for figures in about["constraints"].values():
        for name in (
            "compile_ms", "mask_us_median", "mask_us_p99", "raw_llguidance_us_median", "rollback_us", "fork_us",
            "draft_masks_us",
        ):  # fmt: skip
            assert figures[name] > 0, name
    assert about["constraints"]["choice-1000"]["mask_us_p99_cold"] > 0
    assert runner.invoke(app, ["bench", "grammars", "--only", "nothing"]).exit_code == 2
