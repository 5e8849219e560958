"""start.workers: starts fire it in each phase; of workers that start once only another way to start saves something."""

from __future__ import annotations

from tests.diagnosis.rules.start.jobs import S, found, line

from whystall.diagnosis.finding import Finding

STARTS = line("workers", 2, "for batch in loader:")
EACH_EPOCH: dict[str, int | bool | None] = {"workers": 2, "epochs": 4, "persistent_workers": False}
KEPT: dict[str, int | bool | None] = {"workers": 2, "epochs": 4, "persistent_workers": True}


def named(*loaders: dict[str, int | bool | None]) -> Finding:
    return found(STARTS, within=(STARTS,), loaders=loaders)["start.workers"]


def test_it_adds_up_over_the_whole_job() -> None:
    finding = found(STARTS, within=(line("workers", 1),), after=(line("workers", 1),))["start.workers"]
    assert finding.evidence[0].value == 4 * S


def test_of_four_starts_three_are_saved() -> None:
    finding = named(EACH_EPOCH)
    assert finding.saves is not None
    assert finding.saves.floor_ns > 0
    assert 0.6 * 4 * S < finding.saves.expected_ns <= 0.75 * 4 * S <= finding.saves.ceiling_ns
    assert finding.remedy is not None
    assert "persistent_workers=True" in finding.remedy.text


def test_workers_that_are_kept_already_are_not_told_to_be_kept() -> None:
    finding = named(KEPT, {"workers": 0, "epochs": 9, "persistent_workers": False})
    assert finding.saves is not None
    assert finding.saves.floor_ns == 0
    assert finding.severity == "info"
    assert finding.remedy is not None
    assert "persistent" not in f"{finding.remedy.text}{finding.remedy.patch}"


def test_other_work_is_none() -> None:
    assert "start.workers" not in found(line("weights", 4), after=(line("", 4),))


def test_a_moment_is_none() -> None:
    assert found(line("workers", 0.2)) == {}
