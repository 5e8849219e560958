from __future__ import annotations

from html.parser import HTMLParser

from whystall.report.notebook import render_fragment
from whystall.report.schema import Report

ALLOWED = {"div", "p", "strong", "svg", "rect", "title", "span", "table", "thead", "tbody", "tr", "th", "td"}


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}


def test_the_fragment_holds_only_our_tags(sample: Report) -> None:
    parser = Tags()
    parser.feed(render_fragment(sample))
    assert parser.tags <= ALLOWED
    assert parser.attributes <= {"style", "role", "aria-label", "width", "height", "x", "fill", "scope"}


def test_the_fragment_says_the_verdict(samples: dict[str, Report]) -> None:
    assert samples["gpu"].verdict.summary in render_fragment(samples["gpu"])
    assert "46.2 %" in render_fragment(samples["gpu"])


def test_the_largest_report_stays_small(huge_report: Report) -> None:
    assert len(render_fragment(huge_report)) < 60_000
