"""Results as text and as pages: laid out by hand-made expectations, safe with a stranger's names, and never too large."""

from __future__ import annotations

import itertools
import re

import pytest
from tests.diagnosis.test_comparison import compared, loop
from tests.report.document_samples import DOCUMENTS, PAGES, page
from tests.report.test_html import links_lead_somewhere, outline, policy_allows_own_code_only

from whystall.report.comparison_page import comparison_document
from whystall.report.document import Code, Document, Drawing, Grid, Heading, Lines, Points, as_text, grid
from whystall.report.document_page import as_page
from whystall.report.format import UNKNOWN
from whystall.report.shell import MAX_BYTES, unbroken
from whystall.report.tables import Cell, duration


def test_a_terminal_shows_each_part_in_its_way() -> None:
    table = grid(
        "For a page", ("setting", "time", "never known", "verdict"),
        [("a", duration(1_500), UNKNOWN, "good"), ("long", duration(None), UNKNOWN, "")], notes=["so it is"],
    )  # fmt: skip
    parts = (
        "One sentence.", Heading("For a page", text="of this"), Lines(("first", "second")), Points(("one two three",)),
        Points(("one two three",), wrapped=False), Code("keep:", ("a = 1",)), table, Drawing("curves", (), "▁█"),
        Heading("For a page"),
    )  # fmt: skip
    assert as_text(Document("verb", "Headline", parts), 10) == (
        "One sentence.\n\nof this\n\nfirst\nsecond\n\n- one two\n  three\n\n- one two three\n\nkeep:\n  a = 1\n\n"
        f"setting     time  verdict\na        1.50 µs     good\nlong     {UNKNOWN:>7}\nso it is\n\n▁█\n"
    )


def test_a_terminal_counts_the_rows_for_which_it_has_no_room() -> None:
    found = grid("", ("n",), [(str(number),) for number in range(5)])
    shown = Grid(found.table, text_rows=2, text_more=" (--json has 5)")
    assert as_text(Document("verb", "", (shown,)), 80) == "n\n0\n1\nand 3 more lines (--json has 5)\n"


@pytest.mark.parametrize("name", PAGES)
def test_pages_are_whole_and_ask_for_nothing(name: str) -> None:
    html = page(name)
    parsed = outline(html)
    assert (parsed.errors, parsed.open) == ([], [])
    links_lead_somewhere(parsed)
    policy_allows_own_code_only(html)
    assert parsed.headings.count(1) == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(parsed.headings))
    for _, attrs in parsed.tags:
        assert not any(key.startswith("on") or key in {"style", "src", "action"} for key in attrs)
        assert (attrs.get("href") or "#").startswith(("#", "data:,"))


@pytest.mark.parametrize("name", PAGES)
def test_names_of_a_stranger_open_no_tag(name: str) -> None:
    html = page(name)
    assert not {tag for tag, _ in outline(html).tags} & {"img", "b"}
    assert "\u202e" not in html
    assert name == "comm" or "&lt;img src=x" in html


def test_numbers_sort_by_their_value_and_words_as_they_are() -> None:
    found = grid("", ("name", "time", "note"), [("a", duration(2_000_000), "x"), ("b", duration(900), "y")])
    assert [column.kind for column in found.table.columns] == ["text", "number", "text"]
    html = as_page(Document("verb", "", (found,)))
    assert re.findall(r'data-v="(\d+)"', html) == ["2000000", "900"]


def test_a_page_does_not_repeat_its_headline() -> None:
    html = as_page(Document("verb", "It is slow.", ("It is slow.", Heading("part", "It is slow."), "It is big.")))
    assert html.count("It is slow.") == 2  # the title of the window and the heading
    assert "It is big." in html


def test_a_page_is_below_a_megabyte_and_says_what_it_leaves_out() -> None:
    rows = [(Cell("n" * 400), "x" * 300) for _ in range(600)]
    few = as_page(Document("verb", "", (grid("", ("a", "b"), rows),) * 5))
    many = as_page(Document("verb", "", (grid("", ("a", "b"), rows),) * 1000))
    for html in (few, many):
        assert len(html.encode()) <= MAX_BYTES
        assert "more not shown" in html
    assert len(many.encode()) > MAX_BYTES // 2, "no more is left out than must be"
    assert "more parts have no room" in many
    assert "more parts have no room" not in few


def test_both_ledgers_of_a_comparison_are_on_one_scale() -> None:
    """Steps of 815 and 515 us and 1 % of 500 us more in every other one, of which the fetch takes 300 us."""
    html = as_page(comparison_document(compared(loop(500_000, fetch_ns=300_000), loop(500_000))))
    bars = re.findall(r'<svg class="bar".*?\n</svg>\n', html, re.DOTALL)
    assert len(bars) == 2
    widths = [sum(float(width) for width in re.findall(r'class="segment".*?width="([\d.]+)%', bar)) for bar in bars]
    assert widths[0] == pytest.approx(100, abs=0.01)
    assert widths[1] == pytest.approx(100 * 515 / 815, abs=1)
    assert 'data-part="idle_input"' in bars[0]
    assert 'data-part="idle_input"' not in bars[1]


def test_every_verb_s_result_is_text_too() -> None:
    for name, make in DOCUMENTS.items():
        if name != "compare":  # which has a text of its own
            assert len(as_text(make(), 100).splitlines()) > 3


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("46.0 MiB of 2 steps", "46.0\u00a0MiB of 2 steps"),
        ("5 s, 12 µs, 3 %, 1 B", "5\u00a0s, 12\u00a0µs, 3\u00a0%, 1\u00a0B"),
        ("989 TFLOP/s and 3.35 TB/s, 4 samples", "989\u00a0TFLOP/s and 3.35\u00a0TB/s, 4 samples"),
    ],
)
def test_a_number_stays_on_a_line_with_its_unit(text: str, kept: str) -> None:
    assert unbroken(text) == kept
