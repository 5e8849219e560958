"""The recording of a rank is found again by its name, wherever the report was stored."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.diagnosis.jobs import Job
from tests.view.conftest import Fetching, fetching

import whystall
from whystall.errors import InputError
from whystall.report.schema import Report, encode
from whystall.view.recorded import Recorded


@pytest.fixture
def ranks(tmp_path: Path) -> tuple[Path, Report]:
    for rank in (0, 3):
        job = Job()
        job.built.metadata["distributedInfo"] = {"backend": "nccl", "rank": rank, "world_size": 4}
        for _ in job.steps(4):
            job.operator("aten::mm", f"gemm_of_{rank}", 1_000_000)
            job.wait()
        job.built.write(tmp_path / f"rank{rank}.trace.json")
    report = whystall.analyze(tmp_path, cache=False)
    (tmp_path / "report.json").write_bytes(encode(report))
    return tmp_path, report


@pytest.mark.parametrize("given", [".", "report.json", "rank3.trace.json", "*.trace.json"])
def test_each_rank_has_its_own(ranks: tuple[Path, Report], given: str) -> None:
    folder, report = ranks
    recorded = Recorded([str(folder / given)], report, cache=False)
    for rank in (3,) if given.startswith("rank3") else (3, 0, 3):
        assert set(recorded.trace_of(rank).device_events["name"].to_list()) == {f"gemm_of_{rank}"}


def test_a_recording_that_is_gone_is_told(tmp_path: Path) -> None:
    job: Fetching = fetching(tmp_path)
    job.path.unlink()
    with pytest.raises(InputError, match="no recording of rank 0 is there"):
        Recorded([str(job.path)], job.report).trace_of(0)
