"""Twenty-four ranks in files, of several parallel dimensions: summarised one by one, and found right in depth."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.diagnosis.hybrid import LAYER_NS, pipelines, slices
from tests.diagnosis.jobs import Job, is_worth
from tests.diagnosis.test_many_ranks import LATE, data_parallel, uneven_experts

import whystall
from whystall.report.schema import Report


def analyzed(jobs: list[Job], folder: Path) -> Report:
    for rank, job in enumerate(jobs):
        job.built.write(folder / f"rank{rank}.json")
    report = whystall.analyze(folder, cache=False, workers=1)
    assert "of 24 ranks, each summarised by itself" in " ".join(report.source.warnings)
    return report


def test_a_whole_pipeline_is_looked_at(tmp_path: Path) -> None:
    report = analyzed(pipelines(4, 6, 4), tmp_path)
    gain = report.findings[0].gain
    assert report.verdict.cause == "pipeline.bubble"
    assert gain is not None
    assert gain.ceiling == pytest.approx(1 + 3 / 4, rel=0.05)
    assert gain.expected == pytest.approx((1 + 3 / 4) / (1 + 3 / 16), rel=0.05)


def test_a_slow_rank_of_a_pipeline_is_held_against_its_replicas(tmp_path: Path) -> None:
    report = analyzed(pipelines(4, 6, 24, {(2, 2): 1_600_000}), tmp_path)
    assert report.verdict.cause == "communication.straggler"
    assert report.findings[0].scope.ranks == [14]
    is_worth(report.findings[0], (24 * 1.6 + 3) / 27)


def test_the_ranks_that_share_a_late_ones_layers_are_looked_at_with_it(tmp_path: Path) -> None:
    jobs = slices(4, 6, slower=1.4)
    whole = sum(job.step_ns for job in jobs) / len(jobs)
    report = analyzed(jobs, tmp_path)
    assert report.verdict.cause == "communication.straggler"
    assert report.findings[0].scope.ranks == [5]
    is_worth(report.findings[0], whole / (whole - 4 * 0.4 * LAYER_NS))


def test_a_slow_link_is_told_apart_from_late_ranks_by_the_summaries_of_all(tmp_path: Path) -> None:
    """At 2 GB/s on the wire; at the least 70 % of a network card of 400 Gb/s."""
    size, factor = 256_000_000, 2 * 23 / 24
    slow, least = (round(size * factor / rate * 1e9) for rate in (2e9, 0.7 * 8e9))
    jobs = data_parallel(24, reduce_ns=slow, size=size)
    whole = sum(job.step_ns for job in jobs) / len(jobs)
    report = analyzed(jobs, tmp_path)
    assert report.verdict.cause == "communication.low-bandwidth"
    is_worth(report.findings[0], whole / (whole - slow + least))


def test_that_a_rank_nobody_looked_at_came_late_is_no_slow_link(tmp_path: Path) -> None:
    """The same delays, of a rank that was not recorded: of 24 there are 23, and it may be either."""
    jobs = data_parallel(24, python=100_000_000)
    for rank, job in enumerate(jobs):
        if rank != 5:
            job.built.write(tmp_path / f"rank{rank}.json")
    report = whystall.analyze(tmp_path, cache=False, workers=1)
    assert report.verdict.cause != "communication.low-bandwidth"


@pytest.mark.parametrize("always", [True, False], ids=["one rank", "each time another"])
def test_experts_of_ranks_that_nobody_looked_at_are_waited_for_as_well(tmp_path: Path, *, always: bool) -> None:
    jobs, above = uneven_experts(24, always=always)
    whole = sum(job.step_ns for job in jobs) / len(jobs)
    report = analyzed(jobs, tmp_path)
    assert report.verdict.cause == "communication.expert-imbalance"
    assert not always or report.findings[0].scope.ranks == [LATE]
    is_worth(report.findings[0], whole / (whole - above))
