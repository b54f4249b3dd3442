"""Entry point: one typer application, one file per command, imported when it is run."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

from constrained_spec import __version__

# Command -> module and what it is there: a function, or a group of commands.
COMMANDS = {
    "generate": "generate:generate",
    "serve": "serve:serve",
    "demo": "demo:demo",
    "check": "check:check",
    "doctor": "doctor:doctor",
    "bench": "bench_all:bench",
    "audit": "audit:audit",
    "lab": "lab:lab",
    "train": "train:train",
    "conformance": "conformance:conformance",
}
# Extra that a command needs.
EXTRAS = {"serve": "server", "audit": "audit"}


class _Commands(TyperGroup):
    """Imports a command when it is named: loading torch and a server takes seconds that `--version` need not wait."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return _load(cmd_name) if cmd_name in COMMANDS else None


def _load(name: str) -> Any:
    """The command ``name``. Where its extra is missing: one that says so."""
    module, _, member = COMMANDS[name].partition(":")
    try:
        found = getattr(import_module(f"constrained_spec.cli.{module}"), member)
    except ModuleNotFoundError as error:
        if name not in EXTRAS or (error.name or "").startswith("constrained_spec"):
            raise
        return _missing(name, error.name)
    if not isinstance(found, typer.Typer):
        function, found = found, typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        found.command(name)(function)
    command = get_command(found)
    command.name = name
    return command


def _missing(name: str, module: str | None) -> Any:
    own = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    help_ = f"Needs an extra: pip install 'constrained-spec[{EXTRAS[name]}]'"

    def refuse() -> None:
        typer.echo(f"error: {name} needs the module {module}; pip install 'constrained-spec[{EXTRAS[name]}]'", err=True)
        raise typer.Exit(2)

    settings = {"ignore_unknown_options": True, "allow_extra_args": True}
    own.command(name, help=help_, context_settings=settings)(refuse)
    return get_command(own)


app = typer.Typer(
    name="constrained-spec",
    help="Constrained generation with exact speculative decoding.",
    cls=_Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)


def _version(value: bool) -> None:
    if value:
        typer.echo(f"constrained-spec {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
) -> None:
    """Constrained generation with exact speculative decoding."""


def main() -> None:
    """Run the command line; exits with 0, 1 or 2."""
    app()
