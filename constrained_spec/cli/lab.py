"""constrained-spec lab: the world small enough to enumerate, and the interactive page."""

from __future__ import annotations

import json
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import typer

from constrained_spec.cli.console import exit_codes
from constrained_spec.errors import ConfigError
from constrained_spec.lab import page, simulate

lab = typer.Typer(help="What speculation does to the law of a text, and what it is worth.", no_args_is_help=True)

HOST = "127.0.0.1"
OUT = typer.Option(None, "--out", help="Write the page to this file.")
SERVE = typer.Option(
    None, "--serve", min=0, max=65535, help="Serve the page on this port of this machine; 0 picks one."
)


@lab.command("simulate")
def simulate_command() -> None:
    """Print, as JSON, sampled and exact figures of three decoders in a world of three tokens."""
    with exit_codes():
        typer.echo(json.dumps(simulate(), indent=2))


@lab.command("page")
def page_command(out: Path | None = OUT, serve: int | None = SERVE) -> None:
    """Write the interactive page to a file, or serve it until interrupted."""
    with exit_codes():
        if (out is None) == (serve is None):
            raise ConfigError("say where the page goes", param="out", hint="give one of --out FILE and --serve PORT")
        if out is not None:
            try:
                out.write_text(page(), "utf-8")
            except OSError as error:
                raise ConfigError(f"cannot write {out}: {error.strerror}", param="out") from None
            typer.echo(out)
        elif serve is not None:
            with page_server(serve) as server:
                typer.echo(f"http://{HOST}:{server.server_address[1]}/")
                server.serve_forever()


def page_server(port: int) -> ThreadingHTTPServer:
    """A server of the page alone, on the loopback interface. Raises ``ConfigError`` for a port that is taken."""
    body = page().encode()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path.split("?")[0] != "/":
                self.send_error(HTTPStatus.NOT_FOUND)
                return
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Keeps requests out of the terminal."""

    try:
        return ThreadingHTTPServer((HOST, port), Handler)
    except OSError as error:
        raise ConfigError(f"port {port} cannot be used: {error.strerror}", param="serve") from None
