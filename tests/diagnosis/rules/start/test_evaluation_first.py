"""start.evaluation-first: an evaluation before the first step fires it, its workers included; a later one does not."""

from __future__ import annotations

from tests.diagnosis.rules.start.jobs import S, found, line

EVALUATES = line("model", 2, "self.log(self.model(batch))", role="evaluation")
STARTS = line("workers", 2, "trainer.fit(task)", at=57, role="evaluation")


def test_the_start_of_its_workers_is_part_of_it() -> None:
    finding = found(EVALUATES, STARTS)["start.evaluation-first"]
    assert finding.evidence[0].value == 4 * S


def test_an_evaluation_between_steps_is_none() -> None:
    assert "start.evaluation-first" not in found(within=(EVALUATES, STARTS))
