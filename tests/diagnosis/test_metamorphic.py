"""The same recording written, named, numbered or timed in another way: the diagnosis stays what it was.

`make metamorphic` puts every disguise on every recorded trace and on every quick simulated job. Here the small traces
wear all of them, the large ones and the simulated jobs a few each, in turn.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

import pytest
from _pytest.mark.structures import ParameterSet
from benchmarks.accuracy.simulator.registry import all_cases, by_name
from benchmarks.accuracy.simulator.simulate import simulate
from tests.conftest import TRACES, RealTraces
from tests.diagnosis import disguises as as_
from tests.diagnosis.disguises import Disguise, Recording, last_rank, read, written

import whystall
from whystall.diagnosis.finding import Finding
from whystall.report.schema import Report

EVERYTHING: Final = os.environ.get("WHYSTALL_METAMORPHIC") == "all"
SMALL_BYTES: Final = 100_000
SOME: Final = 3

SAME: Final[tuple[Disguise, ...]] = (
    as_.compact,
    as_.packed,
    as_.indented,
    as_.keys_reversed,
    as_.shuffled,
    as_.forty_days_later,
    as_.beside_a_stranger,
    as_.beside_a_monitor,
    as_.in_a_namespace,
    as_.with_a_hash,
    as_.with_lambdas,
)
"""Nothing at all may change."""

BY_PEAKS: Final = ("compute.", "inference.", "communication.low-bandwidth", "device.slow-memory")
"""Causes that are found, or priced, by what the device could do."""
BY_THE_CLOCK: Final = ("host.", "communication.low-bandwidth", "communication.small-messages", "pipeline.")
"""Causes that physics ties to a time of its own: what a call, a message or a link takes on any machine."""
SIMULATED: Final = (
    "host-sync-strong",
    "host-gc-strong",
    "compute-cast-churn-strong",
    "compute-unfused-attention-strong",
    "communication-straggler-strong",
    "decoy-hidden-gathers",
)


@dataclass(frozen=True, slots=True)
class Told:
    """What is said of a recording, as far as it may not depend on how it is written down."""

    cause: str | None
    summary: str
    findings: tuple[Finding, ...]
    abstained: tuple[str, ...]

    @property
    def ids(self) -> list[str]:
        """The findings in order."""
        return [finding.id for finding in self.findings]


def told(report: Report) -> Told:
    return Told(
        report.verdict.cause,
        report.verdict.summary,
        tuple(report.findings),
        tuple(sorted(one.id for one in report.abstained)),
    )


def diagnosed(recording: Recording, folder: Path) -> Told:
    return told(whystall.analyze(written(recording, folder), cache=False, calibrate=False))


def names() -> list[str]:
    """The recorded traces, the largest last."""
    found = [path for path in TRACES.glob("*.json*") if path.name not in {"labels.json", "expected.json"}]
    return [path.name for path in sorted(found, key=lambda path: (path.stat().st_size, path.name))] or ["(none)"]


def chosen(
    subjects: Sequence[str], worn: Sequence[Disguise], all_of: Callable[[str], bool], some: int = SOME
) -> list[ParameterSet]:
    """Which subject wears which disguise: all, or some in turn, so that each disguise is worn by some of them."""
    pairs = []
    for number, name in enumerate(subjects):
        every = EVERYTHING or all_of(name)
        own = worn if every else [worn[(number * some + turn) % len(worn)] for turn in range(some)]
        pairs += [pytest.param(name, one, id=f"{name.partition('.')[0]}-{one.__name__}") for one in own]
    return pairs


def is_small(name: str) -> bool:
    path = TRACES / name
    return path.exists() and path.stat().st_size <= SMALL_BYTES


def simulated() -> list[str]:
    return [case.name for case in all_cases() if case.quick] if EVERYTHING else list(SIMULATED)


@cache
def recorded(name: str) -> tuple[Recording, Told]:
    return read([TRACES / name]), told(whystall.analyze(TRACES / name, cache=False, calibrate=False))


@pytest.fixture(scope="session")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Recording, Told]]:
    @cache
    def job(name: str) -> tuple[Recording, Told]:
        paths = simulate(by_name(name).job).write(tmp_path_factory.mktemp(name))
        return read(paths), told(whystall.analyze(paths, cache=False, calibrate=False))

    return job


def assert_same(found: Told, before: Told) -> None:
    assert found.cause == before.cause
    assert found.summary == before.summary
    assert found.abstained == before.abstained
    assert found.ids == before.ids
    for one, other in zip(found.findings, before.findings, strict=True):
        assert (one.severity, one.scope, one.title) == (other.severity, other.scope, other.title)
        assert one.confidence == pytest.approx(other.confidence)
        assert gains(one) == pytest.approx(gains(other), rel=1e-9)


def gains(finding: Finding) -> tuple[float, ...]:
    gain = finding.gain
    return () if gain is None else (gain.floor, gain.expected, gain.ceiling)


@pytest.mark.real_traces
@pytest.mark.parametrize(("name", "disguise"), chosen(names(), SAME, is_small))
def test_a_recorded_trace_says_the_same(name: str, disguise: Disguise, real_traces: RealTraces, tmp_path: Path) -> None:
    real_traces.path(name)
    recording, before = recorded(name)
    assert_same(diagnosed(disguise(recording), tmp_path), before)


@pytest.mark.parametrize(("name", "disguise"), chosen(simulated(), SAME, lambda _: False))
def test_a_simulated_job_says_the_same(
    name: str, disguise: Disguise, jobs: Callable[[str], tuple[Recording, Told]], tmp_path: Path
) -> None:
    recording, before = jobs(name)
    assert_same(diagnosed(disguise(recording), tmp_path), before)


def of_ranks() -> list[str]:
    return [name for name in simulated() if by_name(name).job.parallel.ranks > 1]


@pytest.mark.parametrize("name", of_ranks())
def test_the_order_of_the_files_is_nothing(
    name: str, jobs: Callable[[str], tuple[Recording, Told]], tmp_path: Path
) -> None:
    recording, before = jobs(name)
    assert len(recording) > 1
    assert_same(diagnosed(as_.files_reversed(recording), tmp_path), before)


@pytest.mark.parametrize("name", of_ranks())
def test_ranks_are_names(name: str, jobs: Callable[[str], tuple[Recording, Told]], tmp_path: Path) -> None:
    recording, before = jobs(name)
    last = last_rank(recording)
    found = diagnosed(as_.renumbered(recording), tmp_path)
    assert (found.cause, found.ids, found.abstained) == (before.cause, before.ids, before.abstained)
    for one, other in zip(found.findings, before.findings, strict=True):
        assert one.severity == other.severity
        assert sorted(one.scope.ranks) == sorted(last - rank for rank in other.scope.ranks)
        assert gains(one) == pytest.approx(gains(other), rel=1e-9)


def without(findings: Sequence[Finding], families: Sequence[str]) -> dict[str, tuple[float, ...]]:
    return {one.id: gains(one) for one in findings if not one.id.startswith(tuple(families))}


@pytest.mark.real_traces
@pytest.mark.parametrize("name", names())
def test_another_device_changes_what_depends_on_its_peaks(name: str, real_traces: RealTraces, tmp_path: Path) -> None:
    real_traces.path(name)
    recording, before = recorded(name)
    found = diagnosed(as_.on_another_device(recording), tmp_path)
    kept, kept_before = without(found.findings, BY_PEAKS), without(before.findings, BY_PEAKS)
    assert kept.keys() == kept_before.keys()
    assert all(kept[cause] == pytest.approx(kept_before[cause], rel=1e-9) for cause in kept)


@pytest.mark.real_traces
@pytest.mark.parametrize(
    ("name", "disguise"),
    chosen(names(), (as_.twice_as_slow, as_.twice_as_fast), is_small, 1),
)
def test_all_times_scaled_leave_what_is_no_matter_of_time(
    name: str, disguise: Disguise, real_traces: RealTraces, tmp_path: Path
) -> None:
    """Of an unnamed device, so that no rate is held against a peak."""
    real_traces.path(name)
    unnamed = as_.on_an_unnamed_device(read([TRACES / name]))
    before = diagnosed(unnamed, tmp_path / "before")
    found = diagnosed(disguise(unnamed), tmp_path / "after")
    kept, kept_before = without(found.findings, BY_THE_CLOCK), without(before.findings, BY_THE_CLOCK)
    assert {cause for cause in kept if one_of(found, cause).severity != "info"} == {
        cause for cause in kept_before if one_of(before, cause).severity != "info"
    }
    both = kept.keys() & kept_before.keys()
    for cause in both:
        # What recording costs an event is a matter of time, and with it what is certain of a gain.
        by_recording = any("if recording" in fact.what for fact in one_of(before, cause).evidence)
        certain = slice(1, None) if by_recording else slice(None)
        assert kept[cause][certain] == pytest.approx(kept_before[cause][certain], rel=0.03)
    assert shares(found.summary) == pytest.approx(shares(before.summary), abs=0.5)


def one_of(said: Told, cause: str) -> Finding:
    return next(finding for finding in said.findings if finding.id == cause)


def shares(summary: str) -> list[float]:
    """The shares of the ledger that a summary tells after its verdict, in per cent, the largest first."""
    ledger = summary.partition(". ")[2]
    return sorted((float(share) for share in re.findall(r"(\d+\.\d) %", ledger)), reverse=True)
