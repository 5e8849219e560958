"""Files of ours beside a job that closes what it did not open, and opens files under the same numbers."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from whystall.capture.descriptors import OwnFile
from whystall.capture.stacks import StackSampler


def test_a_number_that_the_job_took_meanwhile_is_left_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The job closes our first number and opens a file of its own under it, before the file is out of the way."""
    opened = os.open
    jobs: list[int] = []

    def taken(path: str, *given: Any, **more: Any) -> int:
        number = opened(path, *given, **more)
        if not jobs:
            os.close(number)
            jobs.append(opened(str(tmp_path / "the job's"), os.O_WRONLY | os.O_CREAT))
            assert jobs == [number]
        return number

    monkeypatch.setattr("whystall.capture.descriptors.os.open", taken)
    file = OwnFile(str(tmp_path / "ours"), os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    os.write(file.number, b"ours")
    os.write(jobs[0], b"the job's")
    file.close()
    os.close(jobs[0])
    assert (tmp_path / "ours").read_text() == "ours"
    assert (tmp_path / "the job's").read_text() == "the job's"


def test_what_each_look_reads_stays_open_out_of_the_jobs_way(monkeypatch: pytest.MonkeyPatch) -> None:
    session: Any = SimpleNamespace()
    sampler = StackSampler(session)
    first = sampler._queued_ns()
    file = sampler._schedstat
    if file is None:
        pytest.skip("this kernel reports no waits of threads")
    monkeypatch.setattr("whystall.capture.descriptors.os.open", None)
    assert sampler._queued_ns() >= first
    assert file.number > 500
    sampler._close()
    assert not file.is_ours
