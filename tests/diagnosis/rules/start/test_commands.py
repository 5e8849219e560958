"""start.commands: such lines fire it before the first step, between steps and after the last one, together."""

from __future__ import annotations

from tests.diagnosis.rules.start.jobs import S, found, line


def test_it_adds_up_over_the_whole_job() -> None:
    finding = found(line("commands", 2), within=(line("commands", 1),), after=(line("commands", 1),))["start.commands"]
    assert finding.evidence[0].value == 4 * S
    assert finding.saves is not None
    assert 4 * S <= finding.saves.ceiling_ns < 5 * S
    assert finding.saves.first_step_ns <= 2 * S


def test_other_work_is_none() -> None:
    assert "start.commands" not in found(line("weights", 4), after=(line("", 4),))


def test_a_moment_is_none() -> None:
    assert found(line("commands", 0.2)) == {}
