"""What axe-core, the accessibility checker that browsers' tools and audits run, says of each page: nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.browsers import chromium, missing
from tests.report.conftest import SAMPLES
from tests.report.document_samples import PAGES
from tests.report.document_samples import page as page_of
from tests.report.test_browser import DESKTOP, PHONE

from whystall.report.html import render_html

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as opened:
        yield opened


@pytest.fixture(scope="module")
def axe() -> str:
    """The source of axe-core, as a package from PyPI carries it."""
    try:
        import axe_playwright_python
    except ImportError:
        missing("axe-playwright-python is not installed")
    return (Path(axe_playwright_python.__file__).parent / "axe.min.js").read_text(encoding="utf-8")


def violations(browser: Browser, axe: str, page: Path, **options: Any) -> list[str]:
    context = browser.new_context(**options)
    opened = context.new_page()
    opened.goto(page.as_uri())
    opened.evaluate("document.querySelectorAll('details').forEach((details) => { details.open = true; })")
    opened.evaluate(axe)
    found = opened.evaluate("axe.run(document)")
    context.close()
    assert len(found["passes"]) > 20, "axe looked at the page"
    return [f"{rule['id']}: {node['html'][:200]}" for rule in found["violations"] for node in rule["nodes"]]


@pytest.mark.parametrize("name", ["gpu", "diagnosed", "cpu", "empty", "two-ranks", "hostile"])
@pytest.mark.parametrize(("viewport", "scheme"), [(DESKTOP, "light"), (PHONE, "dark")], ids=["desktop", "phone"])
def test_axe_finds_nothing(
    browser: Browser, axe: str, tmp_path: Path, name: str, viewport: dict[str, int], scheme: str
) -> None:
    page = tmp_path / "report.html"
    page.write_text(render_html(SAMPLES[name]()), encoding="utf-8")
    assert violations(browser, axe, page, viewport=viewport, color_scheme=scheme) == []


@pytest.mark.parametrize("name", PAGES)
def test_pages_of_other_verbs_fit_and_axe_finds_nothing(browser: Browser, axe: str, tmp_path: Path, name: str) -> None:
    path = tmp_path / "page.html"
    path.write_text(page_of(name), encoding="utf-8")
    assert violations(browser, axe, path, viewport=DESKTOP, color_scheme="light") == []
    assert violations(browser, axe, path, viewport=PHONE, color_scheme="dark") == []
    context = browser.new_context(viewport=PHONE)  # type: ignore[arg-type]
    opened = context.new_page()
    said: list[str] = []
    opened.on("console", lambda message: said.append(message.text))
    opened.on("request", lambda request: said.append(request.url))
    opened.goto(path.as_uri())
    assert opened.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    assert opened.evaluate("window.pwned") is None
    assert opened.locator("#theme").is_visible(), "the scripts run under the policy"
    assert set(said) <= {path.as_uri(), "data:,"}
    context.close()


def test_axe_would_find_something(browser: Browser, axe: str, tmp_path: Path) -> None:
    """The same page with its language and a heading's text taken away."""
    page = tmp_path / "report.html"
    html = render_html(SAMPLES["diagnosed"]())
    page.write_text(html.replace('<html lang="en"', "<html", 1), encoding="utf-8")
    assert any(found.startswith("html-has-lang") for found in violations(browser, axe, page, viewport=DESKTOP))
