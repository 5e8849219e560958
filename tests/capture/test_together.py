"""Ranks of a job record the same steps, whichever of them is steady first."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tests.capture.conftest import Jobs

from whystall.capture.config import Schedule
from whystall.capture.together import Together
from whystall.capture.windows import Action, Windows
from whystall.run_folder.layout import is_written_by_a_run, window_name
from whystall.run_folder.samples import PROFILED

MS: Final = 1_000_000
# Each rank steps by itself; the second one's first steps are long, so that it is steady two steps later.
TRAIN: Final = """
import os, time
import torch

torch.distributed.init_process_group("gloo")
late = torch.distributed.get_rank() == 1
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for step in range(40):
    model(torch.randn(8, 64)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.3 if late and step < 3 else 0.05)
torch.distributed.barrier()
"""


def started(durations_ms: list[list[float]], folder: Path, *, ahead: int = 0) -> list[int]:
    """After which step each of some ranks begins its window; the first is ``ahead`` of the others by so many steps."""
    ranks = [Windows(Schedule(wait=0)) for _ in durations_ms]
    for windows in ranks:
        together = Together(folder)
        windows.agreed = lambda window, step, ready, own=together: own.begins(window, step, ready=ready)
    began = [-1] * len(ranks)
    for turn in range(60):
        for rank, windows in enumerate(ranks):
            step = turn + (ahead if rank == 0 else 0)
            if rank == 0 and turn == 0:
                for early in range(ahead):
                    windows.step_ended(int(durations_ms[0][early] * MS), 0)
            if step < len(durations_ms[rank]) and not windows.recording and began[rank] < 0:
                action = windows.step_ended(int(durations_ms[rank][step] * MS), 0)
                began[rank] = step if action is Action.START else -1
    return began


def test_the_first_that_is_steady_says_when(tmp_path: Path) -> None:
    even = [100.0] * 40
    late = [900.0, 700.0, 500.0, *even]
    first, second = started([even, late], tmp_path)
    assert first == second
    alone, later = started([even, late], tmp_path / "missing")  # nobody can say anything there
    assert (first, later) == (alone + 2, alone + 2)


def test_a_rank_that_warms_up_still_records_none_of_that(tmp_path: Path) -> None:
    warm_up = [100.0 * 3 ** (step % 3) for step in range(9)]
    first, second = started([[100.0] * 40, [*warm_up, *[100.0] * 40]], tmp_path)
    assert second > len(warm_up) > first


def test_a_rank_that_is_a_step_ahead_begins_after_the_same_step(tmp_path: Path) -> None:
    first, second = started([[100.0] * 40, [100.0] * 40], tmp_path, ahead=1)
    assert first == second


def test_what_an_earlier_attempt_said_holds_nobody_up(tmp_path: Path) -> None:
    (tmp_path / window_name(0)).write_text("2000")
    found = started([[100.0] * 40], tmp_path)
    (tmp_path / window_name(0)).write_text("no number")
    assert started([[100.0] * 40], tmp_path) == found
    assert is_written_by_a_run(window_name(0))


def test_two_ranks_of_a_job_record_the_same_steps(jobs: Jobs) -> None:
    (jobs.home / "job.py").write_text(TRAIN)
    ran = jobs.whystall("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "job.py")
    assert ran.code == 0, ran.stderr
    recorded = [[row["step"] for row in ran.steps(rank) if row["flags"] & PROFILED] for rank in (0, 1)]
    assert recorded[0] == recorded[1] != []
