"""start.set-up: lines that prepare for long fire it; short ones and those of long jobs do not."""

from __future__ import annotations

from tests.diagnosis.cases import case_of, run
from tests.diagnosis.rules.host.test_few_threads import steps
from tests.diagnosis.rules.start.jobs import HIDDEN, PREPARES, S, found, preparing

from whystall.diagnosis.diagnose import diagnose
from whystall.diagnosis.rules import RULES
from whystall.diagnosis.run_facts import RunFacts


def test_a_line_that_takes_a_fifth_of_the_job_is_worth_knowing() -> None:
    (finding,) = found(PREPARES, HIDDEN).values()
    assert (finding.id, finding.severity, finding.gain) == ("start.set-up", "info", None)
    assert (finding.evidence[0].value, finding.evidence[1].value) == (4 * S, 0.2)


def test_lines_add_up() -> None:
    (finding,) = found(PREPARES, preparing(2 * S)).values()
    assert finding.evidence[0].value == 6 * S
    assert [(one.line, one.share) for one in finding.code] == [(20, 0.667), (30, 0.333)]


def test_the_start_of_a_long_job_counts_from_five_seconds_on() -> None:
    assert found(preparing(4 * S), wall_s=4_000) == {}
    assert list(found(preparing(6 * S), wall_s=4_000)) == ["start.set-up"]


def test_less_than_a_second_is_short_at_any_share() -> None:
    assert found(preparing(S // 2), wall_s=2) == {}


def test_a_job_that_was_not_watched_from_its_start_has_none() -> None:
    told = diagnose(case_of(steps(), facts=RunFacts(), runs=[run(rank=0)]), RULES)
    assert not [one for one in told.findings if one.id.startswith("start.")]
