from __future__ import annotations

import re

import msgspec
import pytest

from whystall.diagnosis.finding import Abstention, Gain, Plan, Scope
from whystall.report.findings import findings_view, value_words
from whystall.report.html import render_html
from whystall.report.markdown import render_markdown
from whystall.report.registry import Options
from whystall.report.schema import Report
from whystall.report.terminal import render_terminal


def words(report: Report) -> dict[str, str]:
    html = re.sub(r"<(script|style)[^>]*>.*?</\1>", "", render_html(report), flags=re.DOTALL).replace("\u00a0", " ")
    return {
        "terminal": " ".join(render_terminal(report, Options(width=400, verbose=True)).split()),
        "markdown": render_markdown(report),
        "html": html,
    }


@pytest.mark.parametrize("form", ["terminal", "markdown", "html"])
def test_every_format_says_all_of_a_finding(samples: dict[str, Report], form: str) -> None:
    text = words(samples["diagnosed"])[form]
    for said in (
        "host.sync",
        "1.22x (1.12 to 1.31)",
        "23.4 ms of 130 ms per step",  # 130 ms x (1 - 1 / 1.22)
        "blocking synchronisations per step",
        "2 calls",
        "36.8 MiB",
        "11.2 GB/s",
        "loss.item()",
        "Coarser curves.",
        "+ if step % 50 == 0: log(loss.item())",
        "input waits are 7 % of the step",
        "1.17x (1.05 to 1.24)",
        "update",
        "Update all tensors in one call.",
        "Python stacks",
        "confidence 86 %",
    ):
        assert said in text, said


@pytest.mark.parametrize("form", ["terminal", "markdown", "html"])
def test_what_gains_nothing_stands_apart_and_promises_nothing(samples: dict[str, Report], form: str) -> None:
    text = words(samples["diagnosed"])[form]
    named, notes = re.split("Worth knowing", text, maxsplit=1, flags=re.IGNORECASE)
    assert "96 % of it hidden" not in named
    assert "96 % of it hidden" in notes
    assert "1.01x" not in text


@pytest.mark.parametrize("form", ["terminal", "markdown", "html"])
def test_the_plan_is_said_once_and_what_is_undecided_with_its_need(samples: dict[str, Report], form: str) -> None:
    text = words(samples["diagnosed"])[form]
    assert text.count("together") == 1
    assert "1.31x" in text
    assert "ithout operator shapes" in text
    assert "99.7 %" in text
    assert "0.4 %" in text


def test_causes_are_grouped_by_what_they_need_the_largest_group_first(samples: dict[str, Report]) -> None:
    view = findings_view(samples["diagnosed"], 5)
    assert [(one.needs, one.causes) for one in view.undecided] == [
        ("operator shapes", ("compute.padding", "compute.low-tensor-core")),
        ("traces of several ranks", ("communication.straggler",)),
    ]
    assert view.undecided_causes == 3


def test_without_a_known_step_the_saving_is_a_share_of_it(samples: dict[str, Report]) -> None:
    verdict = msgspec.structs.replace(samples["diagnosed"].verdict, step_ns=None)
    view = findings_view(msgspec.structs.replace(samples["diagnosed"], verdict=verdict), 5)
    assert view.named[0].saves == "18.0 % of a step"


def test_a_rank_is_named_where_there_are_several(samples: dict[str, Report]) -> None:
    finding = samples["diagnosed"].findings[0]
    wide = msgspec.structs.replace(finding, scope=Scope(ranks=list(range(12)), steps=[]))
    alone = msgspec.structs.replace(samples["diagnosed"], findings=[wide])
    several = msgspec.structs.replace(samples["two-ranks"], findings=[wide])
    assert findings_view(alone, 5).named[0].scope is None
    assert findings_view(several, 5).named[0].scope == "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 4 more"


def test_an_absurd_ceiling_is_not_printed_as_a_number(samples: dict[str, Report]) -> None:
    gain = Gain(floor=1.5, expected=3.0, ceiling=10_000.0, method="")
    finding = msgspec.structs.replace(samples["diagnosed"].findings[0], gain=gain)
    view = findings_view(msgspec.structs.replace(samples["diagnosed"], findings=[finding]), 5)
    assert view.named[0].gain == "3.00x (1.50 to over 100)"


def test_what_does_not_fit_is_counted(samples: dict[str, Report]) -> None:
    view = findings_view(samples["diagnosed"], 1)
    assert (len(view.named), len(view.notes), view.omitted) == (1, 1, 2)


def test_nothing_is_said_of_a_diagnosis_that_was_not_made(samples: dict[str, Report]) -> None:
    view = findings_view(samples["gpu"], 5)
    assert (view.named, view.notes, view.plan, view.undecided, view.small_print) == ((), (), None, (), ())


@pytest.mark.parametrize(
    ("value", "unit", "said"),
    [
        (999, "ns", "999 ns"),
        (0.5, "share", "50.0 %"),
        (3 * 2**30, "bytes", "3.00 GiB"),
        (2.5e9, "bytes/s", "2.50 GB/s"),
        (1.5, "", "1.500"),
        (2, "calls", "2 calls"),
        ("a\x1b[0m", "", "a\\x1b[0m"),
        (float("nan"), "", "\N{EN DASH}"),
    ],
)
def test_values_carry_their_unit(value: float | str, unit: str, said: str) -> None:
    assert value_words(value, unit) == said


def test_an_empty_plan_and_an_abstention_without_a_reason_break_nothing(samples: dict[str, Report]) -> None:
    odd = msgspec.structs.replace(
        samples["diagnosed"],
        plan=Plan(causes=[], speedups=[]),
        abstained=[Abstention(id="host.sync", missing_signals=[])],
    )
    view = findings_view(odd, 5)
    assert view.plan is None
    assert view.undecided[0].needs == "another recording"


@pytest.mark.parametrize("form", ["terminal", "markdown", "html"])
def test_experiments_are_shown_with_what_they_tell(samples: dict[str, Report], form: str) -> None:
    text = words(samples["diagnosed"])[form].replace("&#58;", ":")
    assert "this speaks for input.synchronous-loader" in text
    assert "1.07x" in text
    assert "nothing: the command ended with exit code 1" in text
    assert "xperiments" not in words(samples["gpu"])[form]
