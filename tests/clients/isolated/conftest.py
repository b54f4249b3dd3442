"""Tests of clients that need an environment of their own. ``run_isolated.py`` starts the server, and tells where."""

from __future__ import annotations

import os

import pytest


@pytest.fixture(scope="session")
def url() -> str:
    """The server's address."""
    return os.environ["CLIENT_TEST_URL"]


@pytest.fixture(scope="session")
def model() -> str:
    """The served model's name."""
    return os.environ["CLIENT_TEST_MODEL"]
