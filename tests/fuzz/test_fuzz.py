"""Thousands of damaged traces end in a report that adds up, or in one plain sentence.

A failure names its seed: ``python -m tests.fuzz.worker SEED 1 [FOLDER]``, with ``--nsys``, ``--rocpd`` or another
format, runs that case alone.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.conftest import TRACES
from tests.fuzz.mutations import bases, built, damaged
from tests.fuzz.seeds import CASES, FIRST

ROOT = Path(__file__).resolve().parents[2]
_HEALTHY_S = 3600  # the worker ends a case that hangs; this ends a worker that does


def run_cases(first: int, count: int, traces: Path | None, *options: str) -> str:
    command = [sys.executable, "-m", "tests.fuzz.worker", *options, str(FIRST + first), str(count)]
    worker = subprocess.run(
        command + ([str(traces)] if traces is not None else []),
        cwd=ROOT,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=_HEALTHY_S,
        check=False,
    )
    lines = worker.stdout.splitlines()
    if worker.returncode:
        pytest.fail(f"exit {worker.returncode} in {lines[-1] if lines else 'its start'}\n{worker.stderr[-5000:]}")
    return lines[-1]


def assert_both_outcomes(summary: str, count: int, *, least: float = 1 / 3) -> None:
    found = re.fullmatch(r"done: (\d+) reports, (\d+) refused", summary)
    assert found is not None
    assert int(found[1]) + int(found[2]) == count
    assert int(found[1]) > count * least, "much damage leaves something to report"


def test_built_traces() -> None:
    assert_both_outcomes(run_cases(0, CASES // 4, None), CASES // 4)


@pytest.mark.real_traces
def test_recorded_traces() -> None:
    if not TRACES.exists():
        pytest.skip("the recorded traces are not beside the repository (../shared/traces)")
    assert_both_outcomes(run_cases(1_000_000, CASES - CASES // 4, TRACES), CASES - CASES // 4)


def test_built_exports() -> None:
    assert_both_outcomes(run_cases(0, CASES // 4, None, "--nsys"), CASES // 4)


def test_built_rocpd() -> None:
    assert_both_outcomes(run_cases(0, CASES // 8, None, "--rocpd"), CASES // 8)


@pytest.mark.real_traces
def test_the_recorded_export() -> None:
    samples = TRACES.parent / "samples"
    if not (samples / "nsys").exists():
        pytest.skip("the samples are not beside the repository (../shared/samples)")
    assert_both_outcomes(run_cases(2_000_000, CASES // 8, samples, "--nsys"), CASES // 8)


def test_built_profiles_of_xla() -> None:
    assert_both_outcomes(run_cases(0, CASES // 4, None, "--xspace"), CASES // 4)


@pytest.mark.real_traces
def test_the_recorded_profile_of_xla() -> None:
    samples = TRACES.parent / "samples"
    if not (samples / "xplane").exists():
        pytest.skip("the samples are not beside the repository (../shared/samples)")
    assert_both_outcomes(run_cases(3_000_000, CASES // 8, samples, "--xspace"), CASES // 8)


def test_built_perfetto_traces() -> None:
    """All names are in one packet: without it nobody knows what is what."""
    assert_both_outcomes(run_cases(0, CASES // 4, None, "--pftrace"), CASES // 4, least=0.25)


def test_json_of_rocprof() -> None:
    """It is read whole or not at all: text with a hole is no JSON."""
    assert_both_outcomes(run_cases(0, CASES // 4, None, "--rocprof"), CASES // 4, least=0.05)


def test_built_folders_of_parquet() -> None:
    assert_both_outcomes(run_cases(0, CASES // 4, None, "--nsys-parquet"), CASES // 4)


def test_csv_of_rocprof() -> None:
    assert_both_outcomes(run_cases(0, CASES // 4, None, "--rocprof-csv"), CASES // 4)


def test_a_seed_always_makes_the_same_bytes() -> None:
    originals = built()
    assert [damaged(seed, originals) for seed in range(20)] == [damaged(seed, bases(None)) for seed in range(20)]


def test_the_mutations_make_different_bytes() -> None:
    originals = built()
    assert len({damaged(seed, originals) for seed in range(100)}) > 90
