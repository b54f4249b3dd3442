"""The command line: exit codes, what goes to which stream, and the published JSON."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from constrained_spec.api import Engine
from constrained_spec.cli.main import app

runner = CliRunner()


@pytest.fixture(autouse=True)
def _load_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every command loads its model; in one process the same one need not be read from disk again."""
    monkeypatch.setattr(Engine, "load", _load)


@functools.cache
def _cached(name: str, capacity: int | None, quantize: str | None) -> Engine:
    return _LOAD(name, capacity=capacity, quantize=quantize)


def _load(name: str, *, capacity: int | None = None, quantize: str | None = None, **options: object) -> Engine:
    return _cached(name, capacity, quantize)


_LOAD = Engine.load
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 20}, "age": {"type": "integer", "maximum": 200}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--temperature", "-1"], "temperature"),
        (["--temperature", "nan"], "temperature"),
        (["--top-p", "0"], "top_p"),
        (["--top-p", "1.5"], "top_p"),
        (["--min-p", "2"], "min_p"),
        (["--presence-penalty", "nan"], "presence_penalty"),
        (["--repetition-penalty", "0"], "repetition_penalty"),
        (["--max-tokens", "0"], "max_tokens"),
        (["--min-tokens", "9", "--max-tokens", "3"], "min_tokens"),
        (["--gamma", "-1"], "gamma"),
        (["--gamma", "1000"], "gamma"),
        (["--drafter", "oracle"], "drafter"),
        (["--verifier", "hope"], "verifier"),
        (["--stop", ""], "stop"),
        (["--seed", "-3"], "seed"),
        (["--whitespace", "wide"], "whitespace"),
        (["--tokenization", "odd"], "tokenization"),
        (["--regex", "(", "--choice", "a"], "--choice"),
        (["--schema", "{"], "--schema"),
        (["--schema", "[]{"], "--schema"),
        (["--schema", "no-such-file"], "--schema"),
        (["--type", "decimal"], "--type"),
        (["--type", "no_such_module:X"], "--type"),
        (["--stream", "--json"], "--stream"),
        (["--model", "no-such-file.gguf"], "model"),
    ],
)
def test_a_bad_option_ends_with_two_and_names_itself(arguments: list[str], named: str) -> None:
    result = runner.invoke(app, ["generate", "hello", *arguments])
    assert result.exit_code == 2
    assert named in result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout == ""


def test_an_unknown_option_is_refused() -> None:
    assert runner.invoke(app, ["generate", "hello", "--gama", "3"]).exit_code == 2


def test_version() -> None:
    result = runner.invoke(app, ["--version"])
    assert result.exit_code == 0
    assert result.stdout.startswith("constrained-spec ")


@pytest.mark.model
@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--regex", "("], "regex"),
        (["--grammar", "start: ("], "grammar"),
        (["--schema", '{"type": 5}'], "/type"),
        (["--schema", '{"type": "array", "uniqueItems": true}'], "uniqueItems"),
        (["--raw", "--capacity", "4", "--max-tokens", "2"], "prompt"),
        (["--drafter", "model"], "drafter"),
    ],
)
def test_a_bad_constraint_or_prompt_ends_with_two(arguments: list[str], named: str) -> None:
    result = runner.invoke(app, ["generate", "one two three four five six seven", *arguments])
    assert result.exit_code == 2
    assert named in result.stderr


@pytest.mark.model
def test_speculation_changes_the_passes_and_not_the_text(tmp_path: Path) -> None:
    schema = tmp_path / "person.json"
    schema.write_text(json.dumps(PERSON))
    answers = {}
    for drafter in ("auto", "none"):
        result = runner.invoke(
            app, ["generate", "--schema", str(schema), "--json", "--drafter", drafter, "Ada Lovelace died at 36."]
        )
        assert result.exit_code == 0, result.stderr
        answers[drafter] = json.loads(result.stdout)
    fast, plain = answers["auto"], answers["none"]
    assert fast["text"] == plain["text"]
    assert fast["parsed"] == json.loads(fast["text"])
    assert fast["speculation"]["target_passes"] < plain["speculation"]["target_passes"]
    assert fast["exactness"] == "exact"
    assert fast["finish_reason"] == "stop"
    assert set(fast["usage"]) == {
        "prompt_tokens", "completion_tokens", "cached_tokens", "accepted_prediction_tokens",
        "rejected_prediction_tokens",
    }  # fmt: skip
    assert set(fast["speculation"]) >= {
        "drafter", "verifier", "gamma", "rounds", "target_passes", "proposed", "accepted", "forced", "recovered",
        "bonus", "disabled_reason",
    }  # fmt: skip
    s = fast["speculation"]
    assert s["accepted"] + s["recovered"] + s["bonus"] == fast["usage"]["completion_tokens"]


@pytest.mark.model
def test_the_prompt_may_come_from_standard_input_and_stream_to_output() -> None:
    result = runner.invoke(
        app, ["generate", "--choice", "red", "--choice", "blue", "--stream"], input="Which colour is the sky?"
    )
    assert result.exit_code == 0
    assert result.stdout.strip() in ("red", "blue")


@pytest.mark.model
def test_doctor_finds_the_installation_sound() -> None:
    result = runner.invoke(app, ["doctor", "--json"])
    assert result.exit_code == 0
    report = json.loads(result.stdout)
    assert all(check["ok"] for check in report["checks"].values())
    assert report["eos_ids"] == [0, 2]


@pytest.mark.model
def test_doctor_says_what_int8_changes() -> None:
    result = runner.invoke(app, ["doctor", "--quantize", "int8", "--json"])
    assert result.exit_code == 0, result.stderr
    report = json.loads(result.stdout)
    assert all(check["ok"] for check in report["checks"].values())
    assert report["numerics"] == "int8" and report["memory"]["weights"] < 200_000_000
    assert "perplexity" in report["checks"]["int8 against float32"]["detail"]
    assert report["checks"]["block against single steps"]["detail"].startswith("largest logit difference 0.00e+00")


@pytest.mark.model
def test_generate_says_whose_law_it_followed() -> None:
    for extra, numerics in (([], "float32"), (["--quantize", "int8"], "int8")):
        result = runner.invoke(app, ["generate", "--choice", "a", "--choice", "b", "--json", *extra, "a or b?"])
        target = json.loads(result.stdout)["target"]
        assert (target["name"], target["numerics"]) == ("smollm2-135m", numerics)
        assert (target["weights"] is None) == (not extra)


@pytest.mark.model
def test_bench_step_prints_the_table() -> None:
    result = runner.invoke(app, ["bench", "step", "--json", "--repeats", "3"])
    assert result.exit_code == 0, result.stderr
    report = json.loads(result.stdout)
    assert report["step"]["specialised"] is True
    for path in ("ours", "stock"):
        assert set(report[path]) == {"1", "2", "4", "8", "16", "32"} and min(report[path].values()) > 0
    assert 0 < report["non_matmul_share"] < 1


@pytest.mark.model
def test_demo_prints_valid_json() -> None:
    result = runner.invoke(app, ["demo"])
    assert result.exit_code == 0, result.stderr
    assert isinstance(json.loads(result.stdout), dict)
    assert "identical tokens: yes" in result.stderr


@pytest.mark.model
def test_bench_prints_the_promised_figures() -> None:
    result = runner.invoke(app, ["bench", "decode", "--json", "--limit", "1", "--repeats", "1"])
    assert result.exit_code == 0, result.stderr
    report = json.loads(result.stdout)
    assert "torch" in report["environment"]
    figures = report["suites"]["extraction"]
    assert figures["identical"] is True
    assert figures["tokens_per_pass"] > 1
    for name in ("speedup_vs_target_only", "overhead_ms_per_round", "target_only_vs_transformers"):
        assert figures[name] > 0
