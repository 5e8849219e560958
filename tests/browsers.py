"""Headless Chromium for the tests that look at pages; skipped without it, or failed where it is asked for."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser

ARGUMENTS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]


def missing(reason: str) -> NoReturn:
    if os.environ.get("WHYSTALL_REQUIRE_BROWSER") == "1":
        pytest.fail(f"WHYSTALL_REQUIRE_BROWSER=1, but {reason}")
    pytest.skip(reason)


@contextmanager
def chromium() -> Iterator[Browser]:
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        missing("playwright is not installed")
    executable = shutil.which("chromium")
    if executable is None:
        missing("chromium is not installed: apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=ARGUMENTS)
        yield browser
        browser.close()
