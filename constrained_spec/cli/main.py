"""Entry point: one typer application, one file per command."""

from __future__ import annotations

import typer

from constrained_spec import __version__
from constrained_spec.cli.bench import bench
from constrained_spec.cli.bench_drafters import drafters
from constrained_spec.cli.bench_grammars import grammars
from constrained_spec.cli.bench_schemas import bench_schemas
from constrained_spec.cli.check import check
from constrained_spec.cli.conformance import conformance
from constrained_spec.cli.demo import demo
from constrained_spec.cli.doctor import doctor
from constrained_spec.cli.generate import generate
from constrained_spec.cli.train import train

app = typer.Typer(
    name="constrained-spec",
    help="Constrained generation with exact speculative decoding.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.command()(generate)
app.command()(demo)
app.command()(doctor)
app.command()(check)
app.command()(conformance)
bench.command("drafters")(drafters)
bench.command("grammars")(grammars)
bench.command("schemas")(bench_schemas)
app.add_typer(bench, name="bench")
app.add_typer(train, name="train")


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
