"""end.tail: lines that take long after the last step fire it; those before the first, and wanted work, do not."""

from __future__ import annotations

import pytest
from tests.diagnosis.rules.start.jobs import PREPARES, S, found, line, preparing


def test_lines_after_the_last_step_are_the_tail() -> None:
    (finding,) = found(after=(PREPARES,)).values()
    assert (finding.id, finding.severity, finding.gain) == ("end.tail", "info", None)
    assert finding.evidence[0].value == 4 * S
    assert finding.saves is not None
    assert finding.saves.first_step_ns == 0


def test_a_short_tail_is_none() -> None:
    assert found(after=(preparing(S // 2),)) == {}


def test_lines_before_the_first_step_are_no_tail() -> None:
    assert "end.tail" not in found(PREPARES)


@pytest.mark.parametrize("role", ["evaluation", "checkpoint"])
def test_a_last_evaluation_and_a_last_save_are_what_the_job_is_run_for(role: str) -> None:
    assert found(after=(line("model", 4, role=role),)) == {}
