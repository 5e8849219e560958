"""What follows from a finding is drawn once, as a chain from its line of code to who waits."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest

from whystall.analysis.run_results import SideBySide
from whystall.diagnosis.finding import CodeLocation, Finding, Scope
from whystall.report.cause_chains import chain_of
from whystall.report.findings import findings_view
from whystall.report.html import render_html
from whystall.report.markdown import render_markdown
from whystall.report.registry import Options
from whystall.report.schema import Report
from whystall.report.terminal import render_terminal

LINE = CodeLocation(file="hooks.py", line=27, symbol="hook", share=0.9)


def finding(report: Report, cause: str, title: str, **more: Any) -> Finding:
    facts = {"code": [], "because": None, "scope": Scope(ranks=[2], steps=[]), **more}
    return msgspec.structs.replace(report.findings[0], id=cause, title=title, **facts)


@pytest.fixture
def late(samples: dict[str, Report]) -> Report:
    """Python on rank 2, for which the others wait, a finding of its own about another matter, and what follows."""
    base = samples["diagnosed"]
    root = finding(base, "host.python", "Python holds up the device: on rank 2", code=[LINE])
    other = finding(base, "host.gc", "Garbage is collected in steps", scope=Scope(ranks=[0, 1, 2], steps=[]))
    waits = finding(
        base, "communication.straggler", "One rank is late: rank 2, because of host.python", severity="info", gain=None,
        remedy=None, because="host.python",
    )  # fmt: skip
    return msgspec.structs.replace(samples["two-ranks"], findings=[root, other, waits])


def test_a_chain_leads_from_the_line_to_what_follows(late: Report) -> None:
    assert chain_of(late.findings[0], late) == ("hooks.py:27", "Python holds up the device", "One rank is late")
    assert chain_of(late.findings[1], late) == ()
    assert chain_of(late.findings[2], late) == ()


def test_what_is_drawn_in_a_chain_is_no_note_as_well(late: Report) -> None:
    view = findings_view(late, 5)
    assert [one.id for one in view.named] == ["host.python", "host.gc"]
    assert view.notes == ()
    assert view.omitted == 0


def test_a_chain_whose_root_is_not_shown_leaves_its_links_among_the_notes(late: Report) -> None:
    turned = msgspec.structs.replace(late, findings=[late.findings[1], late.findings[0], late.findings[2]])
    assert [one.id for one in findings_view(turned, 1).notes] == ["communication.straggler"]


def test_who_waits_for_the_rank_of_the_first_finding_of_one_rank_ends_its_chain(late: Report) -> None:
    two = SideBySide(late=2, waiting=1, drawn=late.timelines[0])
    seen = msgspec.structs.replace(late, side_by_side=two)
    assert chain_of(seen.findings[0], seen)[-2:] == (
        "rank 2 comes late to its collectives",
        "rank 1 waits for it longest",
    )
    assert chain_of(seen.findings[1], seen) == ()
    elsewhere = msgspec.structs.replace(late, side_by_side=msgspec.structs.replace(two, late=3))
    assert chain_of(elsewhere.findings[0], elsewhere) == chain_of(late.findings[0], late)


def test_findings_that_follow_from_each_other_end(late: Report) -> None:
    """Reports are read from files, in which anything may stand."""
    first = finding(late, "a", "A", because="b")
    second = finding(late, "b", "B", because="a")
    told = msgspec.structs.replace(late, findings=[first, second, finding(late, "c", "C", because="c")])
    assert chain_of(first, told) == ("A", "B")
    assert chain_of(told.findings[2], told) == ()


@pytest.mark.parametrize("form", ["terminal", "markdown", "html"])
def test_every_format_draws_the_chain_and_escapes_it(late: Report, form: str) -> None:
    hostile = msgspec.structs.replace(late.findings[2], title="<img src=x>\x1b[31m late: rank 2")
    told = msgspec.structs.replace(late, findings=[late.findings[0], hostile])
    if form == "terminal":
        text = " ".join(render_terminal(told, Options(width=400)).split())
        assert "hooks.py:27 -> Python holds up the device -> " in text
    elif form == "markdown":
        text = render_markdown(told)
        assert "Python holds up the device → " in text
    else:
        text = render_html(told)
        [chain] = re.findall(r'<ol class="chain".*?</ol>', text)
        assert chain.count("<li>") == 3
    assert "\x1b[31m" not in text
    assert form == "terminal" or "<img" not in text
