"""Flags, environment, file, defaults: who wins, what is refused, and what is printed."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from constrained_spec.cli.main import app
from constrained_spec.errors import ConfigError
from constrained_spec.server.settings import PREFIX, Settings, as_toml, load_settings
from constrained_spec.server.vllm_keys import from_vllm

runner = CliRunner()


@pytest.fixture(autouse=True)
def _bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(PREFIX)]:
        if name.removeprefix(PREFIX) not in ("CACHE", "TRACEBACK"):
            monkeypatch.delenv(name)


def _file(folder: Path, text: str) -> Path:
    path = folder / "server.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_flag_before_variable_before_file_before_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = _file(tmp_path, 'port = 1\nslots = 1\nqueue = 1\nmodel = "from-file"\n')
    monkeypatch.setenv("CONSTRAINED_SPEC_PORT", "2")
    monkeypatch.setenv("CONSTRAINED_SPEC_SLOTS", "2")
    s = load_settings({"port": 3}, config=path)
    assert (s.port, s.slots, s.queue, s.model, s.host) == (3, 2, 1, "from-file", "127.0.0.1")


def test_the_file_may_be_named_by_a_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONSTRAINED_SPEC_CONFIG", str(_file(tmp_path, "gamma = 7\n")))
    assert load_settings().gamma == 7


def test_lists_in_every_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = _file(tmp_path, 'served_model_name = ["a", "b"]\n')
    monkeypatch.setenv("CONSTRAINED_SPEC_API_KEY", "k1, k2")
    s = load_settings({"cors_origins": ["https://x.example"]}, config=path)
    assert s.served_model_name == ("a", "b")
    assert s.keys == ("k1", "k2")
    assert s.cors_origins == ("https://x.example",)


def test_unknown_names_are_refused_wherever_they_stand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="slotz") as in_file:
        load_settings(config=_file(tmp_path, "slotz = 3\n"))
    assert in_file.value.hint == "did you mean slots"
    monkeypatch.setenv("CONSTRAINED_SPEC_SLOTZ", "3")
    with pytest.raises(ConfigError, match="CONSTRAINED_SPEC_SLOTZ") as in_environment:
        load_settings()
    assert in_environment.value.hint == "did you mean CONSTRAINED_SPEC_SLOTS"


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ({"port": 99999}, "port"),
        ({"slots": 0}, "slots"),
        ({"gamma": 65}, "gamma"),
        ({"drafter": "oracle"}, "drafter"),
        ({"verifier": "hope"}, "verifier"),
        ({"log_level": "loud"}, "log_level"),
        ({"max_n": 0}, "max_n"),
        ({"request_timeout": 0}, "request_timeout"),
    ],
)
def test_wrong_values_name_their_setting(flags: dict[str, object], named: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_settings(flags)
    assert caught.value.param == named


def test_a_broken_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load_settings(config=_file(tmp_path, "port = "))
    with pytest.raises(ConfigError, match="cannot be read"):
        load_settings(config=tmp_path / "absent.toml")


def test_vllms_keys_become_settings() -> None:
    s = load_settings({"speculative": '{"method": "ngram", "num_speculative_tokens": 4}'})
    assert (s.drafter, s.gamma, s.speculative) == ("ngram", 4, None)
    s = load_settings({"speculative": {"model": "tiny", "num_speculative_tokens": 3}})
    assert (s.drafter, s.draft_model, s.gamma) == ("model", "tiny", 3)
    assert from_vllm({"method": "eagle3", "model": "heads"}) == {"drafter": "eagle", "parts": "heads"}
    assert from_vllm({"model": "[ngram]"}) == {"drafter": "ngram"}
    assert from_vllm({"method": "suffix", "rejection_sample_method": "standard"}) == {"drafter": "suffix"}


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ("nonsense", "speculative"),
        ("[1]", "speculative"),
        ({"method": "ngram", "prompt_lookup_max": 4}, "speculative/prompt_lookup_max"),
        ({"method": "mtp"}, "speculative/method"),
        ({"method": "ngram", "model": "x"}, "speculative/model"),
        ({"method": "draft_model"}, "speculative/model"),
        ({"method": "ngram", "rejection_sample_method": "synthetic"}, "speculative/rejection_sample_method"),
        ({"method": "ngram", "draft_tensor_parallel_size": 2}, "speculative/draft_tensor_parallel_size"),
    ],
)
def test_what_vllms_keys_cannot_mean_is_refused_by_name(given: object, named: str) -> None:
    with pytest.raises(ConfigError) as caught:
        from_vllm(given)
    assert caught.value.param == named


def test_vllms_keys_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONSTRAINED_SPEC_SPECULATIVE", '{"method": "suffix"}')
    assert load_settings().drafter == "suffix"
    monkeypatch.setenv("CONSTRAINED_SPEC_SPECULATIVE", "{")
    with pytest.raises(ConfigError, match="not JSON"):
        load_settings()


def test_two_settings_that_contradict_each_other() -> None:
    with pytest.raises(ConfigError, match="gamma"):
        load_settings({"gamma": 5, "speculative": '{"method": "ngram", "num_speculative_tokens": 4}'})
    same = load_settings({"gamma": 4, "speculative": '{"method": "ngram", "num_speculative_tokens": 4}'})
    assert same.gamma == 4


def test_other_machines_need_a_key() -> None:
    for host in ("127.0.0.1", "::1", "localhost", "127.8.8.8"):
        load_settings({"host": host}).check_bind()
    for host in ("0.0.0.0", "::", "192.0.2.7", "example.org"):
        with pytest.raises(ConfigError, match="API key") as caught:
            load_settings({"host": host}).check_bind()
        assert caught.value.param == "host"
        load_settings({"host": host, "api_key": ["k"]}).check_bind()
        load_settings({"host": host, "insecure": True}).check_bind()


def test_keys_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("# ours\none\n\ntwo\n", encoding="utf-8")
    assert load_settings({"api_key_file": path, "api_key": ["two", "three"]}).keys == ("two", "three", "one")
    path.write_text("\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="holds no key"):
        _ = load_settings({"api_key_file": path}).keys


def test_the_printed_configuration_gives_the_same_settings(tmp_path: Path) -> None:
    s = load_settings(
        {"slots": 3, "cors_origins": ["https://x.example"], "api_key": ["secret"], "fim_template": 'é"\n'}
    )
    text = as_toml(s)
    assert "secret" not in text
    again = load_settings({"api_key": ["secret"]}, config=_file(tmp_path, text))
    assert again.model_dump(exclude={"api_key"}) == s.model_dump(exclude={"api_key"})
    assert set(tomllib.loads(text)) <= set(Settings.model_fields)


def test_limits_and_budget_come_from_the_settings() -> None:
    s = load_settings({"max_n": 2, "compile_seconds": 1.5})
    assert s.limits.max_n == 2 and s.limits.max_stop == 16
    assert s.budget.compile_seconds == 1.5


def test_serve_prints_its_configuration_and_ends() -> None:
    done = runner.invoke(app, ["serve", "some-model", "--slots", "3", "--no-prefix-reuse", "--print-config"])
    assert done.exit_code == 0, done.output
    values = tomllib.loads(done.output)
    assert (values["model"], values["slots"], values["prefix_reuse"]) == ("some-model", 3, False)


def test_serve_names_every_variable_in_its_help() -> None:
    done = runner.invoke(app, ["serve", "--help"], env={"COLUMNS": "400", "NO_COLOR": "1", "TERM": "dumb"})
    assert done.exit_code == 0
    for name in Settings.model_fields:
        assert f"(env: {PREFIX}{name.upper()})" in done.output, name


def test_serve_refuses_before_it_loads_anything() -> None:
    open_to_all = runner.invoke(app, ["serve", "absent-model", "--host", "0.0.0.0"])
    assert open_to_all.exit_code == 2 and "--insecure" in open_to_all.output
    unknown = runner.invoke(app, ["serve", "--speculative", '{"method": "ngram", "spice": 1}'])
    assert unknown.exit_code == 2 and "spice" in unknown.output
