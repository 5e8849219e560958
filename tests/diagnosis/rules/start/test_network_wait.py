"""start.network-wait: such lines fire it before the first step, between steps and after the last one, together."""

from __future__ import annotations

from tests.diagnosis.rules.start.jobs import S, found, line


def test_it_adds_up_over_the_whole_job() -> None:
    finding = found(line("network", 2), within=(line("network", 1),), after=(line("network", 1),))["start.network-wait"]
    assert finding.evidence[0].value == 4 * S
    assert finding.saves is not None
    assert 4 * S <= finding.saves.ceiling_ns < 5 * S
    assert finding.saves.first_step_ns <= 2 * S


def test_other_work_is_none() -> None:
    assert "start.network-wait" not in found(line("weights", 4), after=(line("", 4),))


def test_a_moment_is_none() -> None:
    assert found(line("network", 0.2)) == {}
