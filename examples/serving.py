"""The server that the examples talk to: the one at CONSTRAINED_SPEC_URL, or else one of their own."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path

KEY = os.environ.get("OPENAI_API_KEY", "none")  # a server on loopback asks for none


@contextmanager
def serving(*flags: str) -> Iterator[str]:
    """The server's URL. ``flags`` go to ``constrained-spec serve``; it listens on a free port of this machine."""
    given = os.environ.get("CONSTRAINED_SPEC_URL")
    if given:
        yield given.rstrip("/")
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    program = Path(sys.executable).with_name("constrained-spec")
    options = [f"--port={port}", "--slots=2", "--capacity=2048", "--log-level=warning", *flags]
    server = subprocess.Popen([program, "serve", "smollm2-135m", *options])
    try:
        while not _ready(port):
            if server.poll() is not None:
                raise RuntimeError(f"the server ended with exit code {server.returncode}")
            time.sleep(0.2)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait()


def _ready(port: int) -> bool:
    connection = HTTPConnection("127.0.0.1", port)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()
