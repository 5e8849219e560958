"""A job whose truth is known by construction, its report and its trace, for all tests of the view."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest
from tests.diagnosis.jobs import Job

import whystall
from whystall.report.schema import Report
from whystall.testing.builder import EPOCH_NS
from whystall.trace.model import Trace

FETCH: Final = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
COMPUTE_NS: Final = 1_000_000


@dataclass(frozen=True)
class Fetching:
    """Steps that make a batch on the training thread and then compute; ``fetches`` are begin and end of the making."""

    path: Path
    report: Report
    trace: Trace
    fetches: list[tuple[int, int]]


def fetching(folder: Path, *, name: str = "trace.json") -> Fetching:
    """Eight steps, no two of the same length."""
    job, fetches = Job(), []
    for number in job.steps(8):
        begin = job.at
        with job.marked(FETCH):
            job.python(400_000 + 50_000 * (3 * number % 8))
        fetches.append((EPOCH_NS + begin, EPOCH_NS + job.at))
        job.operator("aten::mm", "gemm", COMPUTE_NS)
        job.wait()
    path = job.built.write(folder / name)
    return Fetching(path, whystall.analyze(path, cache=False), whystall.load(path, cache=False), fetches)


@pytest.fixture(scope="session")
def job(tmp_path_factory: pytest.TempPathFactory) -> Fetching:
    return fetching(tmp_path_factory.mktemp("view"))
