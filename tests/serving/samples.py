"""The recorded servers beside the repository, read once for all tests of a process."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import pytest

from whystall.serving.folder import read_run
from whystall.serving.run_analysis import Analysis, analyze_run

SAMPLES = Path(__file__).resolve().parents[3] / "shared" / "samples" / "serving"
NAMES = (
    "bursty",
    "client-gate",
    "healthy",
    "healthy-again",
    "healthy-otel",
    "kv-enough",
    "kv-preemption",
    "max-num-seqs-1",
    "mixed-budget-256",
    "mixed-budget-default",
    "prefix-shared",
    "prefix-stamped",
    "slow-logits-processor",
)


def folder(name: str) -> Path:
    """The folder of a sample; the test is skipped where it is not there."""
    found = SAMPLES / name
    if not found.is_dir():
        reason = f"the recorded server {name} is not beside the repository (../shared/samples/serving)"
        if os.environ.get("WHYSTALL_REQUIRE_TRACES") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    return found


@cache
def analysis(name: str) -> Analysis:
    """The ledgers of a sample."""
    return analyze_run(read_run([folder(name)]))
