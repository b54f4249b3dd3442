"""Chromium, and the playground's page in it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from tests.browser.replay import Replay


# Playwright's event loop runs in this thread: for a module only, so that tests elsewhere can run their own.
@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    path = shutil.which("chromium")
    assert path is not None, "the browser tests need Chromium: apt-get install chromium"
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path)
        yield browser
        browser.close()


@pytest.fixture
def window() -> dict[str, Any]:
    """Options of the browser's context; a test may ask for others with ``parametrize``."""
    return {"viewport": {"width": 1280, "height": 900}}


@pytest.fixture
def page(chromium: Browser, window: dict[str, Any]) -> Iterator[Page]:
    """An empty page. A script error, or a complaint of the console, fails the test."""
    context = chromium.new_context(**window)
    page = context.new_page()
    page.set_default_timeout(20_000)
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda message: complaints.append(message.text))
    yield page
    context.close()
    # The browser itself notes every answer that is an error; tests ask for those.
    assert [c for c in complaints if not c.startswith("Failed to load resource")] == []


@pytest.fixture
def replay(page: Page) -> Replay:
    return Replay(page)
