"""How a command ends, whatever happens inside it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import typer
from typer.testing import CliRunner

from constrained_spec.cli.console import TRACEBACK, exit_codes, loading
from constrained_spec.errors import (
    AuditFailure,
    ConfigError,
    DeadEndError,
    GrammarSyntaxError,
    ModelError,
    RequestError,
    TransactionError,
    VocabularyMismatchError,
)


def command(body: Callable[[], None]) -> typer.Typer:
    app = typer.Typer(pretty_exceptions_enable=False)

    @app.command()
    def run() -> None:
        with exit_codes():
            body()

    return app


def failing(error: BaseException) -> Callable[[], None]:
    def body() -> None:
        raise error

    return body


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("x", param="gamma"), 2),
        (RequestError("x"), 2),
        (GrammarSyntaxError("x", position=3), 2),
        (VocabularyMismatchError("x"), 2),
        (ModelError("x"), 2),
        (DeadEndError("x"), 1),
        (TransactionError("x"), 1),
        (AuditFailure("x"), 1),
        (RuntimeError("out of memory"), 1),
        (AssertionError("impossible"), 1),
        (RecursionError(), 1),
        (KeyboardInterrupt(), 130),
        (typer.Exit(0), 0),
        (typer.BadParameter("x"), 2),
    ],
)
def test_every_error_has_its_exit_code_and_none_a_traceback(error: BaseException, code: int) -> None:
    result = CliRunner().invoke(command(failing(error)), [])
    assert result.exit_code == code
    assert "Traceback" not in result.output


def test_an_unexpected_failure_says_how_to_see_more(monkeypatch: pytest.MonkeyPatch) -> None:
    result = CliRunner().invoke(command(failing(ValueError("odd"))), [])
    assert TRACEBACK in result.stderr
    assert "odd" in result.stderr
    monkeypatch.setenv(TRACEBACK, "1")
    assert "Traceback" in CliRunner().invoke(command(failing(ValueError("odd"))), []).stderr


def test_a_message_with_a_lone_surrogate_can_be_printed() -> None:
    result = CliRunner().invoke(command(failing(ConfigError("no file '\udcff'"))), [])
    assert result.exit_code == 2
    assert r"\udcff" in result.stderr


def test_no_progress_without_a_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    with loading("some-model") as progress:
        progress("convert", 1, 3)
    assert capfd.readouterr() == ("", "")
