"""The page in headless Chromium: it opens alone, adds up on screen, sorts, zooms, and keeps out what names try."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from tests.browsers import chromium
from tests.report.conftest import SAMPLES

from whystall.diagnosis.catalogue import causes
from whystall.diagnosis.finding import Diagnosis, Gain, Verdict
from whystall.diagnosis.telling import perhaps_words
from whystall.diagnosis.verdict import finding_verdict
from whystall.report.html import render_html

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.sync_api import Browser, Page

    from whystall.report.schema import Report

pytestmark = pytest.mark.browser

DESKTOP = {"width": 1440, "height": 900}
PHONE = {"width": 390, "height": 844}

Opener = Callable[..., "Page"]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as opened:
        yield opened


@pytest.fixture(scope="module")
def pages(samples: dict[str, Report], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    paths = {name: folder / f"{name}.html" for name in samples}
    for name, path in paths.items():
        path.write_text(render_html(samples[name]), encoding="utf-8")
    return paths


@pytest.fixture
def opened(browser: Browser, pages: dict[str, Path]) -> Iterator[Opener]:
    """Opens a sample's page; fails if it said anything on the console or asked for anything but itself."""
    contexts: list[Any] = []
    complaints: list[str] = []

    def open_page(name: str, *, viewport: dict[str, int] = DESKTOP, **options: Any) -> Page:
        context = browser.new_context(viewport=viewport, **options)  # type: ignore[arg-type]
        contexts.append(context)
        page = context.new_page()
        url = pages[name].as_uri()
        page.on("console", lambda message: complaints.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: complaints.append(f"error: {error}"))
        page.on("dialog", lambda dialog: complaints.append(f"dialog: {dialog.message}"))
        page.on(
            "request", lambda request: None if own(request.url, url) else complaints.append(f"request: {request.url}")
        )
        page.goto(url)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert complaints == []


def own(requested: str, url: str) -> bool:
    return requested.split("#", maxsplit=1)[0] == url or requested == "data:,"


@pytest.mark.parametrize("name", ["gpu", "diagnosed", "cpu", "empty", "two-ranks", "hostile"])
@pytest.mark.parametrize("viewport", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_every_page_opens_alone_and_fits_the_screen(opened: Opener, name: str, viewport: dict[str, int]) -> None:
    page = opened(name, viewport=viewport)
    assert page.locator("h1").inner_text()
    page.evaluate("document.querySelectorAll('details').forEach((details) => { details.open = true; })")
    assert page.evaluate("document.documentElement.scrollWidth") <= viewport["width"]


@pytest.mark.parametrize("width", [1280, 1440])
def test_the_headline_of_every_cause_takes_two_lines(opened: Opener, width: int) -> None:
    """With the longest that a gain and times make it."""
    gain = Gain(floor=1.1, expected=10.25, ceiling=20.5, method="replay")
    of_recording = msgspec.structs.replace(gain, of="recording")
    measured = Verdict(summary="The GPU computes 1 % of the time.", cause=None, gain=None, confidence=1.0)
    like = SAMPLES["diagnosed"]().findings[0]
    texts = []
    for cause, one in itertools.product(causes().values(), (gain, of_recording)):
        found = msgspec.structs.replace(like, title=cause.title, gain=one)
        texts.append(finding_verdict(measured, Diagnosis(findings=[found]), 123_400_000).summary)
        texts.append(f"{perhaps_words(cause.title, '88.8 % of the recording', '55.5 % to 99.9 %')}.")
    page = opened("diagnosed", viewport={"width": width, "height": 800})
    lines = page.evaluate(
        """texts => texts.map(text => {
            const h = document.querySelector("h1");
            h.textContent = text;
            return h.getBoundingClientRect().height / parseFloat(getComputedStyle(h).lineHeight);
        })""",
        texts,
    )
    assert {text for text, count in zip(texts, lines, strict=True) if round(count) > 2} == set()


@pytest.mark.parametrize("name", ["gpu", "diagnosed", "cpu", "two-ranks"])
@pytest.mark.parametrize(
    "viewport", [DESKTOP, PHONE, {"width": 860, "height": 800}], ids=["desktop", "phone", "between"]
)
def test_no_share_in_a_bar_is_cut_off(opened: Opener, name: str, viewport: dict[str, int]) -> None:
    page = opened(name, viewport=viewport)
    page.evaluate("document.querySelectorAll('details').forEach((details) => { details.open = true; })")
    cut = page.evaluate(
        """[...document.querySelectorAll(".bar .segment text")].filter((text) => {
            const right = text.parentElement.querySelector(".fill").getBoundingClientRect().right;
            return text.getBoundingClientRect().right > right + 1;
        }).map((text) => text.textContent)"""
    )
    assert cut == []


def test_the_ledger_bar_adds_up_on_screen(opened: Opener) -> None:
    page = opened("gpu")
    bar = page.locator("#verdict .bar")
    segments = bar.locator(".segment .fill").all()
    boxes = [segment.bounding_box() for segment in segments]
    whole = bar.bounding_box()
    assert whole
    assert sum(box["width"] for box in boxes if box) == pytest.approx(whole["width"], abs=1)
    shown = page.locator("#verdict .ledger tbody td:nth-of-type(1)").all_inner_texts()
    assert len(shown) == len(segments)
    assert sum(round(float(text.removesuffix(" %")) * 10) for text in shown) == 1000


def test_tables_sort_by_click_and_by_keyboard(opened: Opener) -> None:
    page = opened("gpu")
    heading = page.locator("#r0-kernels thead th", has_text="Count")
    column = page.locator("#r0-kernels tbody tr td:nth-of-type(3)")

    def counts() -> list[int]:
        return [int(text.replace(",", "")) for text in column.all_inner_texts()]

    heading.get_by_role("button").click()
    assert heading.get_attribute("aria-sort") == "descending"
    assert counts() == sorted(counts(), reverse=True)
    heading.get_by_role("button").focus()
    page.keyboard.press("Enter")
    assert heading.get_attribute("aria-sort") == "ascending"
    assert counts() == sorted(counts())
    names = page.locator("#r0-kernels thead th", has_text="Name")
    names.get_by_role("button").focus()
    page.keyboard.press("Space")
    assert names.get_attribute("aria-sort") == "ascending"
    assert heading.get_attribute("aria-sort") is None


def test_durations_sort_by_their_value_not_their_text(opened: Opener) -> None:
    page = opened("gpu")
    page.locator("#r0-kernels thead th", has_text="Mean").get_by_role("button").click()
    values = [
        float(row.get_attribute("data-v") or "nan")
        for row in page.locator("#r0-kernels tbody tr td:nth-of-type(5)").all()
    ]
    assert values == sorted(values, reverse=True)


def test_the_filter_narrows_a_table_and_says_how_far(opened: Opener) -> None:
    page = opened("gpu")
    page.get_by_label("Filter kernels").fill("FLASH")
    rows = page.locator("#r0-kernels tbody tr:visible")
    assert rows.count() == 1
    assert "flash" in rows.first.inner_text()
    assert page.locator(".filter", has_text="Filter kernels").locator("output").inner_text() == "1 of 7"
    page.get_by_label("Filter kernels").fill("")
    assert rows.count() == 7


def test_long_tables_show_all_rows_when_asked(opened: Opener) -> None:
    page = opened("gpu")
    rows = page.locator("#r0-modules tbody tr:visible")
    assert rows.count() == 12
    page.get_by_role("button", name="Show all 40 rows").click()
    assert rows.count() == 40


def span_of(page: Page) -> tuple[int, int]:
    data = page.locator("canvas").first
    return int(data.get_attribute("data-from") or -1), int(data.get_attribute("data-to") or -1)


def width_of(page: Page) -> int:
    start, end = span_of(page)
    return end - start


def picture_of(page: Page) -> str:
    return str(page.locator("canvas").first.evaluate("(canvas) => canvas.toDataURL()"))


def test_the_timeline_zooms_by_buttons(opened: Opener) -> None:
    page = opened("gpu")
    whole, picture = span_of(page), picture_of(page)
    page.get_by_role("button", name="Zoom in").click()
    assert width_of(page) == pytest.approx((whole[1] - whole[0]) / 2, abs=2)
    assert picture_of(page) != picture
    page.get_by_role("button", name="Pan right").click()
    assert span_of(page)[0] > whole[1] // 4
    page.get_by_role("button", name="Reset").click()
    assert span_of(page) == whole
    assert picture_of(page) == picture


def test_every_finding_has_a_picture_and_leads_to_the_timeline(opened: Opener) -> None:
    page = opened("diagnosed")
    findings = page.locator("article.finding")
    assert findings.count() >= 1
    for number in range(findings.count()):
        assert findings.nth(number).locator("figure.where svg").is_visible()
        assert findings.nth(number).locator("figure.where figcaption").inner_text().strip()
    whole = span_of(page)
    page.get_by_role("link", name="Show it in the timeline").first.click()
    canvas = page.locator("figure.timeline canvas").first
    assert int(canvas.get_attribute("data-marks") or 0) >= 1
    assert span_of(page) != whole
    page.wait_for_function("document.activeElement.tagName === 'CANVAS'")


def test_the_timeline_zooms_by_wheel_only_once_it_is_entered(opened: Opener) -> None:
    page = opened("gpu")
    canvas = page.locator("canvas").first
    canvas.scroll_into_view_if_needed()
    whole = width_of(page)
    canvas.hover()
    page.mouse.down()
    page.mouse.up()
    page.mouse.wheel(0, -200)
    page.wait_for_function(
        f"() => {{ const d = document.querySelector('canvas').dataset; return d.to - d.from < {whole}; }}"
    )
    zoomed = span_of(page)
    page.mouse.down()
    box = canvas.bounding_box()
    assert box
    page.mouse.move(box["x"] + box["width"] / 2 - 100, box["y"] + box["height"] / 2, steps=4)
    page.mouse.up()
    assert span_of(page)[0] > zoomed[0]
    assert width_of(page) == pytest.approx(zoomed[1] - zoomed[0], abs=2)


def test_the_timeline_obeys_the_keyboard_and_says_what_is_selected(opened: Opener) -> None:
    page = opened("gpu")
    canvas = page.locator("canvas").first
    canvas.focus()
    whole = span_of(page)
    page.keyboard.press("+")
    page.keyboard.press("+")
    page.keyboard.press("ArrowRight")
    assert width_of(page) == pytest.approx((whole[1] - whole[0]) / 4, abs=4)
    page.keyboard.press("-")
    page.keyboard.press("Home")
    assert span_of(page) == whole
    page.keyboard.press("Enter")
    detail = page.locator(".timeline output").first
    assert "stream 7" in detail.inner_text()
    first = detail.inner_text()
    page.keyboard.press("ArrowDown")
    assert detail.inner_text() != first


def test_pointing_at_an_event_says_what_it_is(opened: Opener) -> None:
    page = opened("gpu")
    canvas = page.locator("canvas").first
    canvas.scroll_into_view_if_needed()
    canvas.hover(position={"x": 8, "y": 46})
    assert "stream 7" in page.locator(".timeline output").first.inner_text()


def test_the_module_tree_zooms_by_click_and_keyboard(opened: Opener) -> None:
    page = opened("gpu")
    figure, node = page.locator(".icicle"), page.locator(".node", has_text="layers.3 ·")
    before = node.bounding_box()
    node.click()
    after = node.bounding_box()
    assert before
    assert after
    assert after["width"] > 2 * before["width"]
    assert "layers.3" in (figure.get_attribute("data-zoom") or "")
    page.keyboard.press("Escape")
    page.locator(".node").first.focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    assert "layers · ModuleList" in figure.locator("output").inner_text()
    page.keyboard.press("Enter")
    assert "layers · ModuleList" in (figure.get_attribute("data-zoom") or "")


@pytest.mark.parametrize("viewport", [PHONE, DESKTOP], ids=["phone", "desktop"])
def test_the_roofline_fits_and_its_words_are_readable(opened: Opener, viewport: dict[str, int]) -> None:
    page = opened("gpu", viewport=viewport)
    figure = page.locator(".roofline > svg")
    frame = figure.bounding_box()
    assert frame
    assert frame["width"] <= viewport["width"]
    labels = page.locator(".roofline text").all()
    assert {"1", "bf16 989 TFLOP/s", "memory 3.35 TB/s"} <= {label.text_content() for label in labels}
    for mark in [*labels, *page.locator(".roofline .point circle").all()]:
        box = mark.bounding_box()
        assert box
        assert box["x"] >= frame["x"] - 1
        assert box["x"] + box["width"] <= frame["x"] + frame["width"] + 1
    assert page.locator(".roofline text").first.evaluate("(text) => getComputedStyle(text).fontSize") == "11px"
    page.locator(".roofline circle.compute").hover()
    assert "aten::mm" in (page.locator(".roofline .point title").first.text_content() or "")


@pytest.mark.parametrize("viewport", [PHONE, DESKTOP], ids=["phone", "desktop"])
def test_a_finding_is_read_without_scrolling_sideways(opened: Opener, viewport: dict[str, int]) -> None:
    page = opened("diagnosed", viewport=viewport)
    finding = page.locator("article.finding").first
    assert "1.22x (1.12 to 1.31)" in finding.inner_text()
    grounds = finding.locator("details")
    assert "input waits are 7 %" not in finding.inner_text()
    grounds.locator("summary").click()
    assert "input waits are 7 %" in finding.inner_text()
    shown = page.locator(
        "#findings .evidence td:visible, #findings h3, #findings .places code, #findings .calm li"
    ).all()
    assert len(shown) >= 5
    for part in shown:
        box = part.bounding_box()
        assert box
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= viewport["width"]


def test_what_gains_nothing_looks_calmer_than_a_finding(opened: Opener) -> None:
    page = opened("diagnosed")
    size = "(e) => parseFloat(getComputedStyle(e).fontSize)"
    finding = page.locator("article.finding h3").first.evaluate(size)
    note = page.locator(".calm > li .title").first
    assert note.evaluate(size) < finding
    assert page.locator(".calm .flag").count() == 0
    assert not page.locator(".calm .evidence").first.is_visible()


def test_hostile_names_run_nothing(opened: Opener) -> None:
    page = opened("hostile")
    for canvas in page.locator("canvas").all():
        canvas.focus()
        page.keyboard.press("Enter")
    assert page.evaluate("window.pwned") is None
    assert page.locator("main img, main iframe, main script:not([type='application/json'])").count() == 0
    assert "window.pwned=1" in page.locator("#r0-kernels").inner_text()


def test_without_javascript_everything_is_there_in_words(opened: Opener, samples: dict[str, Report]) -> None:
    page = opened("gpu", java_script_enabled=False)
    for heading in (
        "Steps",
        "Timeline",
        "Kernels",
        "Operators",
        "Modules",
        "Phases",
        "Communication",
        "Memory",
        "Input",
        "Host",
        "Capture quality",
    ):
        assert page.get_by_role("heading", name=heading, exact=True).is_visible()
    assert page.locator("#r0-kernels tbody tr:visible").count() == len(samples["gpu"].kernels)
    assert page.locator("#r0-modules tbody tr:visible").count() == len(samples["gpu"].modules)
    assert page.locator("#verdict .bar .segment").count() == 11
    assert page.locator(".node").first.is_visible()
    assert not page.locator("canvas").first.is_visible()
    assert page.locator("button:visible").count() == 0


def test_ranks_open_without_javascript(opened: Opener) -> None:
    page = opened("two-ranks", java_script_enabled=False)
    second = page.locator("#rank-1 table").first
    assert not second.is_visible()
    page.locator("#rank-1 summary").click()
    assert second.is_visible()


def test_a_link_to_a_closed_rank_opens_it(opened: Opener) -> None:
    page = opened("two-ranks")
    page.get_by_role("navigation").get_by_role("link", name="Rank 1").click()
    page.wait_for_selector("#rank-1[open]")


def test_dark_and_light_follow_the_system_and_the_button(opened: Opener) -> None:
    background = "getComputedStyle(document.body).backgroundColor"
    light, dark = opened("gpu", color_scheme="light"), opened("gpu", color_scheme="dark")
    bright, dim = light.evaluate(background), dark.evaluate(background)
    assert bright != dim
    light.get_by_role("button", name="Switch to the dark theme").click()
    assert light.evaluate(background) == dim
    dark.get_by_role("button", name="Switch to the light theme").click()
    assert dark.evaluate(background) == bright


CONTRAST = """() => {
  const pen = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgb = (colour) => { pen.fillStyle = colour; pen.fillRect(0, 0, 1, 1); return [...pen.getImageData(0, 0, 1,
  1).data]; }; const light = (colour) => rgb(colour).slice(0, 3).map((c) => c / 255)
    .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const ground = light(getComputedStyle(document.body).backgroundColor);
  return [...document.querySelectorAll("main *, header *, nav *, footer *")]
    .filter((e) => !e.closest("svg, canvas, .sr") && [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim()))
    .filter((e) => e.checkVisibility())
    .map((e) => [e.tagName + "." + e.className, light(getComputedStyle(e).color)])
    .map(([name, ink]) => [name, (Math.max(ink, ground) + 0.05) / (Math.min(ink, ground) + 0.05)])
    .filter(([, contrast]) => contrast < 4.5);
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_enough_contrast(opened: Opener, scheme: str) -> None:
    assert opened("diagnosed", color_scheme=scheme).evaluate(CONTRAST) == []


UNNAMED = """() => [
  ...[...document.querySelectorAll("button, a, summary")].filter((e) => !(e.textContent.trim() || e.ariaLabel)),
  ...[...document.querySelectorAll("input")].filter((e) => !e.labels.length),
  ...[...document.querySelectorAll("svg[role], canvas, [role=region]")].filter((e) => !e.ariaLabel),
  ...[...document.querySelectorAll("table")].filter((e) => !e.caption || !e.tHead.querySelector("th[scope=col]")),
  ...[...document.querySelectorAll("[tabindex]")].filter((e) => Number(e.getAttribute("tabindex")) > 0),
].map((e) => e.outerHTML.slice(0, 120))"""


@pytest.mark.parametrize("name", ["gpu", "diagnosed", "two-ranks", "empty", "cpu"])
def test_everything_has_a_name_and_a_place(opened: Opener, name: str) -> None:
    page = opened(name)
    assert page.evaluate(UNNAMED) == []
    for landmark in ("banner", "navigation", "main", "contentinfo"):
        assert page.get_by_role(landmark).count() == 1
    assert page.get_by_role("heading", level=1).count() == 1


def test_the_first_stop_of_the_keyboard_skips_to_the_report(opened: Opener) -> None:
    page = opened("gpu")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    page.keyboard.press("Enter")
    page.wait_for_function("() => location.hash === '#main'")


def test_the_largest_page_opens_too(browser: Browser, huge_report: Report, tmp_path: Path) -> None:
    path = tmp_path / "huge.html"
    path.write_text(render_html(huge_report), encoding="utf-8")
    page = browser.new_page(viewport=PHONE)  # type: ignore[arg-type]
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(path.as_uri())
    page.evaluate("document.querySelectorAll('details').forEach((details) => { details.open = true; })")
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    page.close()
    assert errors == []


# What is on paper: whether the content of each closed fold is laid out, and how far each table's room is left.
PRINTED = """() => new Promise((done) => requestAnimationFrame(() => setTimeout(done))).then(() => ({
    folded: [...document.querySelectorAll("details:not([open]) > :not(summary)")].map((part) => part.checkVisibility({contentVisibilityAuto: true})),
    beyond: [...document.querySelectorAll(".scroll, pre")].map((one) => Math.max(0, one.scrollWidth - one.clientWidth)),
    buttons: [...document.querySelectorAll("button:not(.more, th button, details *)")].filter((one) => one.checkVisibility()).length,
    headings: [...document.querySelectorAll("table.data thead th")].every((one) => one.innerText.trim() !== "" || one.textContent.trim() === ""),
    paper: getComputedStyle(document.body).backgroundColor,
}))"""
PAPER = {"width": 794, "height": 1123}  # A4 at 96 dots an inch


@pytest.mark.parametrize("name", sorted(SAMPLES))
@pytest.mark.parametrize("chosen", [None, "dark"])
def test_on_paper_all_is_light_open_and_whole(opened: Opener, name: str, chosen: str | None) -> None:
    page = opened(name, viewport=PAPER, color_scheme="dark")
    if chosen:
        page.evaluate("(theme) => { document.documentElement.dataset.theme = theme; }", chosen)
    assert page.evaluate(PRINTED)["paper"] != "rgb(255, 255, 255)"
    page.emulate_media(media="print", color_scheme="dark")
    printed = page.evaluate(PRINTED)

    assert printed["paper"] == "rgb(255, 255, 255)"
    assert all(printed["folded"])
    assert max(printed["beyond"], default=0) == 0
    assert printed["buttons"] == 0
    assert printed["headings"]


def test_printing_makes_the_page_light_and_then_what_it_was(opened: Opener) -> None:
    page = opened("diagnosed", viewport=DESKTOP, color_scheme="dark")
    page.click("#theme")
    page.click("#theme")
    page.evaluate(
        """() => addEventListener("beforeprint", () => { window.printed = document.documentElement.dataset.theme; })"""
    )
    assert len(page.pdf(format="A4")) > 10_000

    assert page.evaluate("[window.printed, document.documentElement.dataset.theme]") == ["light", "dark"]


def test_a_change_to_make_and_its_command_are_copied_by_one_click(opened: Opener) -> None:
    page = opened("diagnosed", permissions=["clipboard-read", "clipboard-write"])
    for text, kind in ((".finding pre", "pre"), (".finding code.command", "code.command")):
        page.locator(f"{text} + button.copy").first.click()
        page.get_by_role("button", name="Copied:").wait_for()

        assert page.evaluate("navigator.clipboard.readText()") == page.locator(text).first.text_content(), kind
        page.wait_for_timeout(2100)
