"""start.tail: lines that take long after the last step fire it; those before the first do not."""

from __future__ import annotations

from tests.diagnosis.rules.start.jobs import PREPARES, S, found, preparing


def test_lines_after_the_last_step_are_the_tail() -> None:
    (finding,) = found(after=(PREPARES,)).values()
    assert (finding.id, finding.severity, finding.gain) == ("start.tail", "info", None)
    assert finding.evidence[0].value == 4 * S


def test_a_short_tail_is_none() -> None:
    assert found(after=(preparing(S // 2),)) == {}


def test_lines_before_the_first_step_are_no_tail() -> None:
    assert "start.tail" not in found(PREPARES)
