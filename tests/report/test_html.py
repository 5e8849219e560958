from __future__ import annotations

import base64
import hashlib
import itertools
import json
import re
from html.parser import HTMLParser

import msgspec
import pytest
from tests.diagnosis.cases import run as a_run

from whystall.report.html import render_html
from whystall.report.registry import Options, TimelineLinks
from whystall.report.schema import Report
from whystall.report.shell import MAX_BYTES, as_json

VOID = {"meta", "link", "input", "br"}


class Outline(HTMLParser):
    """The page's structure, as a strict reader sees it."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.headings: list[int] = []
        self.errors: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if re.fullmatch(r"h[1-6]", tag):
            self.headings.append(int(tag[1]))
        if tag not in VOID and not (self.get_starttag_text() or "").endswith("/>"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.errors.append(tag)


def outline(page: str) -> Outline:
    parser = Outline()
    parser.feed(page)
    return parser


def test_every_tag_is_closed_in_order(sample: Report) -> None:
    parsed = outline(render_html(sample))
    assert parsed.errors == []
    assert parsed.open == []


def test_each_named_finding_has_a_picture_and_a_link(sample: Report) -> None:
    """A gain that is told has its place: in the timeline, or in the steps of a run that was watched."""
    seen = bool(sample.timelines or sample.run)
    for finding in re.findall(r'<article class="finding.*?</article>', render_html(sample), re.DOTALL):
        assert 'class="where"' in finding
        assert not seen or "Show it in the timeline" in finding or "Show the steps of the run" in finding


@pytest.mark.parametrize(
    ("id_", "name", "watched", "leads_to"),
    [
        ("memory.growth", "gpu", False, "#r0-sec-memory"),
        ("memory.growth", "two-ranks", False, None),
        ("memory.growth", "two-ranks", True, "#run"),
        ("communication.wrong-backend", "gpu", False, None),
        ("communication.wrong-backend", "gpu", True, "#run"),
    ],
)
def test_what_no_step_shows_leads_to_the_memory_or_to_the_run(
    samples: dict[str, Report], id_: str, name: str, *, watched: bool, leads_to: str | None
) -> None:
    found = samples["diagnosed"].findings[0]
    without = msgspec.structs.replace(found, id=id_, severity="minor", gain=None, in_step=None)
    run = [a_run()] if watched else []
    page = render_html(msgspec.structs.replace(samples[name], findings=[without], run=run))
    [article] = re.findall(r'<article class="finding.*?</article>', page, re.DOTALL)
    assert re.findall(r'<a href="(#[\w-]+)">Show', article) == ([leads_to] if leads_to else [])
    links_lead_somewhere(outline(page))


def test_ids_are_unique_and_links_lead_somewhere(sample: Report) -> None:
    links_lead_somewhere(outline(render_html(sample)))


def links_lead_somewhere(parsed: Outline) -> None:
    ids = [attrs["id"] for _, attrs in parsed.tags if "id" in attrs]
    assert len(ids) == len(set(ids))
    for tag, attrs in parsed.tags:
        if tag == "a":
            assert (attrs["href"] or "").removeprefix("#") in ids


def test_headings_start_at_one_and_skip_no_level(sample: Report) -> None:
    headings = outline(render_html(sample)).headings
    assert headings.count(1) == 1
    assert headings[0] == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(headings))


def test_nothing_remote_is_named_in_an_attribute(sample: Report) -> None:
    for _, attrs in outline(render_html(sample)).tags:
        for name, value in attrs.items():
            if name in {"src", "href", "action", "data", "poster", "srcset", "xlink:href"}:
                assert (value or "").startswith(("#", "data:,"))
            assert not name.startswith("on")
            assert name != "style"


def test_hostile_names_open_no_tag(samples: dict[str, Report]) -> None:
    tags = {tag for tag, _ in outline(render_html(samples["hostile"])).tags}
    assert not tags & {"img", "iframe", "object", "embed", "base", "b"}
    assert "window.pwned=1</script>" not in render_html(samples["hostile"])


def test_the_policy_allows_this_page_s_own_code_only(sample: Report) -> None:
    policy_allows_own_code_only(render_html(sample))


def policy_allows_own_code_only(page: str) -> None:
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', page)
    assert policy
    assert "unsafe" not in policy[1]
    wanted = re.findall(r"<style>(.*?)</style>", page, re.DOTALL) + re.findall(
        r'<script type="module">(.*?)</script>', page, re.DOTALL
    )
    for text in wanted:
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"sha256-{digest}" in policy[1].replace("&#39;", "'")


def test_data_for_scripts_cannot_end_the_script() -> None:
    text = as_json({"name": "</script><!--&\u2028\u2029"})
    assert not re.search("[<>&\u2028\u2029]", text)
    assert json.loads(text) == {"name": "</script><!--&\u2028\u2029"}


def test_the_verdict_is_the_first_heading(samples: dict[str, Report]) -> None:
    page = render_html(samples["gpu"])
    heading = re.search("<h1>(.*?)</h1>", page)
    assert heading
    assert heading[1].replace("\u00a0", " ") == samples["gpu"].verdict.summary


def test_findings_have_their_place(samples: dict[str, Report]) -> None:
    page = render_html(samples["diagnosed"])
    for text in (
        "loss.item() drains the queue",
        "1.22x (1.12 to 1.31)",
        "train.py:88",
        "Log the loss every 50 steps.",
        "whystall verify",
    ):
        assert text in page
    assert "No named causes" in render_html(samples["gpu"])


def test_an_empty_report_says_why(samples: dict[str, Report]) -> None:
    page = render_html(samples["empty"])
    assert "empty.json holds no events." in page
    assert "There is no device time to account for" in page


def test_a_cpu_report_does_not_speak_of_gpus(samples: dict[str, Report]) -> None:
    text = re.sub(r"<(script|style).*?</\1>", "", render_html(samples["cpu"]), flags=re.DOTALL)
    assert "GPU" not in text
    assert "inside an operator" in text


def test_what_is_missing_is_named_with_the_way_to_get_it(samples: dict[str, Report]) -> None:
    bare = msgspec.structs.replace(samples["gpu"], modules=[], memory=[])
    page = render_html(bare)
    assert "with_modules=True" in page
    assert "profile_memory=True" in page


def test_the_largest_report_is_below_a_megabyte_and_says_what_it_leaves_out(huge_report: Report) -> None:
    page = render_html(huge_report)
    assert len(page.encode()) <= MAX_BYTES
    links_lead_somewhere(outline(page))
    assert "more ranks are in the overview" in page
    assert "more not shown" in page
    assert "short events are joined or left out" in page


@pytest.mark.parametrize("character", ["\U0001f600", '"', "<", "\x00", "\u202e"])
def test_no_character_makes_the_page_too_large(huge_report: Report, character: str) -> None:
    name = character * 5000
    lanes = [msgspec.structs.replace(lane, events=lane.events[:3000]) for lane in huge_report.timelines[0].lanes]
    swollen = msgspec.structs.replace(
        huge_report,
        kernels=[msgspec.structs.replace(k, name=name + str(i), family=name) for i, k in enumerate(huge_report.kernels[:640])],
        modules=[msgspec.structs.replace(m, path=f"{name}{i}", class_=name) for i, m in enumerate(huge_report.modules[:2000])],
        operators=[msgspec.structs.replace(o, name=name + str(i)) for i, o in enumerate(huge_report.operators)],
        devices=[msgspec.structs.replace(d, name=name, steps=[msgspec.structs.replace(s, name=name) for s in d.steps[:200]]) for d in huge_report.devices],
        timelines=[msgspec.structs.replace(t, names=[name + str(i) for i in range(5000)], lanes=lanes) for t in huge_report.timelines[:2]],
    )  # fmt: skip
    assert len(render_html(swollen).encode()) <= MAX_BYTES


def test_links_to_timelines_are_on_a_page_that_is_served_and_on_no_other(samples: dict[str, Report]) -> None:
    links = TimelineLinks("timeline/", "Open it in <Perfetto>", "Open a step")
    served = render_html(samples["diagnosed"], Options(timelines=links))
    shown = [number for number, finding in enumerate(samples["diagnosed"].findings) if finding.shown]
    assert shown
    assert re.findall(r'href="timeline/(\w+)" target="_blank" rel="noopener"', served) == [
        "step",
        *(str(number) for number in shown),
    ]
    assert "Open it in &lt;Perfetto&gt;" in served
    assert "timeline/" not in render_html(samples["diagnosed"])
