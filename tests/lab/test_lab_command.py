"""constrained-spec lab: what it prints, writes and serves."""

from __future__ import annotations

import json
import re
import threading
from pathlib import Path

import httpx2
import pytest
from typer.testing import CliRunner

from constrained_spec.cli.lab import lab, page_server
from constrained_spec.errors import ConfigError
from constrained_spec.lab import page, simulate

runner = CliRunner()


def test_simulate_prints_json() -> None:
    result = runner.invoke(lab, ["simulate"])
    assert result.exit_code == 0
    assert json.loads(result.stdout) == simulate()


def test_the_page_is_written(tmp_path: Path) -> None:
    out = tmp_path / "lab.html"
    result = runner.invoke(lab, ["page", "--out", str(out)])
    assert result.exit_code == 0
    assert result.stdout == f"{out}\n"
    assert out.read_text("utf-8") == page()


@pytest.mark.parametrize("arguments", [[], ["--out", "x.html", "--serve", "0"], ["--out", "no/such/folder/x.html"]])
def test_where_the_page_goes_is_said_once_and_can_be_written(arguments: list[str]) -> None:
    result = runner.invoke(lab, ["page", *arguments])
    assert result.exit_code == 2
    assert "out" in result.stderr
    assert "Traceback" not in result.stderr


def test_the_page_is_served_and_nothing_else() -> None:
    with page_server(0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            url = f"http://127.0.0.1:{server.server_address[1]}"
            found = httpx2.get(f"{url}/", trust_env=False)
            assert found.text == page()
            assert found.headers["content-type"] == "text/html; charset=utf-8"
            assert httpx2.get(f"{url}/page.html", trust_env=False).status_code == 404
        finally:
            server.shutdown()
            thread.join()


def test_a_taken_port_is_a_typed_error() -> None:
    with page_server(0) as server, pytest.raises(ConfigError, match="cannot be used"):
        page_server(int(server.server_address[1]))


def test_the_page_fetches_nothing() -> None:
    text = page()
    addresses = set(re.findall(r"""(?:https?:)?//[\w.]+[^\s"'`]*""", re.sub(r"(?m)//[ -].*$", "", text)))
    assert addresses == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"<script[^>]+src|@import|url\(|fetch\(|XMLHttpRequest", text)
