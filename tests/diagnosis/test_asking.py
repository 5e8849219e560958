"""What is asked of a case: rules whose signals are there, those that fail, and those of other packages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.diagnosis.cases import case_of, diagnosed, fixed, loop, of_framework

import whystall
import whystall.plugins
from whystall.diagnosis.candidate import Candidate
from whystall.diagnosis.case import Case
from whystall.diagnosis.catalogue import causes
from whystall.diagnosis.diagnose import diagnose
from whystall.diagnosis.rule import Finder, Rule
from whystall.diagnosis.rules import RULES
from whystall.testing import trace

SHARED = Path(__file__).parents[3] / "shared" / "traces"


def test_a_rule_without_its_signals_abstains_and_names_them() -> None:
    found = diagnosed(loop())
    missing = [(entry.id, entry.missing_signals) for entry in found.abstained]
    assert ("communication.straggler", ["traces of several ranks"]) in missing
    assert any("operator shapes" in signals for cause, signals in missing if cause == "compute.dense-embedding")


def test_on_another_framework_causes_of_pytorchs_host_are_not_looked_for() -> None:
    case = of_framework("xla", case_of(loop(python_ns=400_000)))
    found = diagnose(case, [fixed("host.python", 0.5), fixed("communication.small-messages", 0.3)])
    assert [finding.id for finding in found.findings] == ["communication.small-messages"]
    assert [(entry.id, entry.missing_signals) for entry in found.abstained] == [("host.python", ["operators"])]
    unknown = of_framework(None, case_of(loop(python_ns=400_000)))
    assert diagnose(unknown, [fixed("host.python", 0.5)]).findings


def test_a_rule_that_fails_is_named_and_the_others_are_asked() -> None:
    def broken(_case: Case) -> Iterator[Candidate]:
        raise ZeroDivisionError("on purpose")

    found = diagnose(
        case_of(loop()), [Rule(causes()["host.gil"], (Finder(broken, ("trace",)),)), fixed("host.gc", 0.5)]
    )
    assert [finding.id for finding in found.findings] == ["host.gc"]
    assert found.failures == ["the rule for host.gil failed (ZeroDivisionError: on purpose)"]


def test_a_rule_that_proposes_another_cause_is_named_and_not_believed() -> None:
    foreign = Rule(causes()["host.gil"], fixed("host.gc", 0.5).finders)
    found = diagnose(case_of(loop()), [foreign])
    assert found.findings == []
    assert "it proposed host.gc" in found.failures[0]


@pytest.mark.parametrize(
    ("needs", "missing"),
    [
        ((("samples",), ("trace",)), None),  # one way to see it is enough
        ((("samples", "peak"), ("shapes",)), ["operator shapes"]),  # the way that lacks least is asked for
        ((("samples", "no_device"),), None),  # it speaks of jobs without an accelerator alone
    ],
)
def test_a_cause_is_abstained_from_only_if_nothing_that_could_see_it_ran(
    needs: tuple[tuple[Any, ...], ...], missing: list[str] | None
) -> None:
    finders = tuple(Finder(lambda _case: [], signals) for signals in needs)
    found = diagnose(case_of(loop()), [Rule(causes()["host.gil"], finders)])
    assert [one.missing_signals for one in found.abstained] == ([] if missing is None else [missing])


def test_a_trace_of_which_nothing_can_be_replayed_is_not_asked_for_causes() -> None:
    case = replace(case_of(loop()), graph=None)
    diagnosis = diagnose(case, RULES)
    assert not diagnosis.findings
    assert not diagnosis.failures
    assert diagnosis.abstained


def test_calls_that_take_no_time_leave_no_host_to_replay_and_are_no_failure() -> None:
    built = trace()
    for _ in range(5):
        built.operator("aten::mm", at=0, lasts=0)
        built.launch("gemm", at=0, call_lasts=0, runs_at=0, lasts=1_500)
    assert not diagnosed(built).failures


def test_rules_of_other_packages_are_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Case] = []

    def find(case: Case) -> Iterable[Any]:
        asked.append(case)
        return []

    class Entry:
        name = "theirs"

        def load(self) -> Rule:
            return Rule(causes()["host.gil"], (Finder(find, ("trace",)),))

    class Broken(Entry):
        name = "broken"

        def load(self) -> Rule:
            raise ImportError("no such thing")

    def entries(*, group: str) -> list[Any]:
        return [Entry(), Broken()] if group == "whystall.rules" else []

    monkeypatch.setattr(whystall.plugins, "entry_points", entries)
    report = whystall.analyze(whystall.demo_recording(), cache=False)
    assert len(asked) == 1
    assert any("broken could not be loaded: no such thing" in warning for warning in report.source.warnings)
