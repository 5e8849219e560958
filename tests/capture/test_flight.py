"""What a flight recorder held when a rank stood still is in the run folder, and only then."""

from __future__ import annotations

import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.capture.conftest import TIMEOUT_S, Jobs

from whystall._inputs import stood_still
from whystall.capture.flight import FlightRecorder
from whystall.fleet import Kind, find_hangs, read_dumps
from whystall.run_folder.layout import flight_name, rank_files
from whystall.run_folder.told import told

SECOND = 1_000_000_000


def torch_of(*, ranks: int = 2, joined: bool = True, recorder: str | None = "_dump_fr_trace") -> Any:
    """As much of torch as is asked."""
    held = iter(range(100))
    distributed = SimpleNamespace(
        is_available=lambda: True,
        is_initialized=lambda: joined,
        get_world_size=lambda: ranks,
        get_rank=lambda: 1,
    )

    def dump() -> bytes:
        return f"dump {next(held)}".encode()

    dumps = {recorder: dump} if recorder else {}
    return SimpleNamespace(distributed=distributed, _C=SimpleNamespace(_distributed_c10d=SimpleNamespace(**dumps)))


def held(folder: Path) -> list[str]:
    return [path.read_text() for path in rank_files(folder, "flight")]


@pytest.mark.parametrize(
    ("steps", "still_s", "usual_s", "dumps"),
    [
        (30, 9, 0.1, False),
        (30, 11, 0.1, True),
        (30, 11, 1.0, False),  # steps of a second: twenty of them
        (30, 21, 1.0, True),
        (0, 30, 0.0, False),  # loading the model
        (0, 61, 0.0, True),
    ],
)
def test_a_standstill_is_long_for_the_steps_of_the_job(
    tmp_path: Path, steps: int, still_s: float, usual_s: float, *, dumps: bool
) -> None:
    FlightRecorder(torch_of(), tmp_path).look(steps, round(still_s * SECOND), usual_s * SECOND)
    assert bool(held(tmp_path)) == dumps


@pytest.mark.parametrize("torch", [torch_of(ranks=1), torch_of(joined=False), torch_of(recorder=None)])
def test_one_rank_alone_and_a_torch_without_a_recorder_dump_nothing(tmp_path: Path, torch: Any) -> None:
    FlightRecorder(torch, tmp_path).look(30, 100 * SECOND, 0)
    assert held(tmp_path) == []


@pytest.mark.parametrize("fuller", ["_dump_nccl_trace", "_dump_fr_trace"])
def test_of_two_recorders_the_fuller_one_is_kept(tmp_path: Path, fuller: str) -> None:
    """A build for CUDA has one for NCCL's operations and one for all others; a job uses one of them, mostly."""
    torch = torch_of(recorder=None)
    c10d = torch._C._distributed_c10d
    c10d._dump_nccl_trace = c10d._dump_fr_trace = lambda: b"blank"
    setattr(c10d, fuller, lambda: b"with operations")
    FlightRecorder(torch, tmp_path).look(30, 100 * SECOND, 0)
    assert held(tmp_path) == ["with operations"]


def test_it_is_made_anew_as_it_lasts_and_goes_when_the_job_goes_on(tmp_path: Path) -> None:
    recorder = FlightRecorder(torch_of(), tmp_path)
    for still_s in (11, 12, 21, 23):
        recorder.look(30, still_s * SECOND, 0)
    assert held(tmp_path) == ["dump 1"]
    recorder.look(31, 0, 0)
    assert held(tmp_path) == []


@pytest.mark.parametrize(
    ("stood_still", "failed", "left"),
    [
        (True, True, ["dump 0"]),  # as it was while it waited
        (True, False, []),  # it was done, and took its time to end
        (False, True, ["dump 0"]),  # what it called last tells the others apart
        (False, False, []),
    ],
)
def test_at_the_end(tmp_path: Path, *, stood_still: bool, failed: bool, left: list[str]) -> None:
    recorder = FlightRecorder(torch_of(), tmp_path)
    if stood_still:
        recorder.look(30, 11 * SECOND, 0)
    recorder.close(30, failed=failed)
    assert held(tmp_path) == left


BLANK = {"version": "2.10", "pg_config": {}, "comm_lib_version": "", "pg_status": {}, "entries": []}
JOINED = BLANK | {"pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}}}


@pytest.mark.parametrize(("ranks", "tells"), [([], False), ([BLANK, BLANK], True), ([BLANK, JOINED], False)])
def test_of_a_run_whose_recorders_were_off_the_report_says_so(
    tmp_path: Path, ranks: list[dict[str, Any]], *, tells: bool
) -> None:
    for rank, body in enumerate(ranks):
        (tmp_path / flight_name(rank)).write_bytes(pickle.dumps(body, protocol=2))
    sentences = stood_still(tmp_path, [])
    assert len(sentences) == tells
    assert all("TORCH_FR_BUFFER_SIZE=2000" in sentence for sentence in sentences)


HANGS = """
import time, torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(100_000):
    if step == 40 and dist.get_rank() == 1:
        time.sleep(1_000)
    model(torch.randn(4, 8)).sum().backward()
    optimizer.step()
"""


def test_a_job_that_hangs_and_is_ended_is_told_who_never_came(jobs: Jobs) -> None:
    """Two real ranks of gloo; rank 1 sleeps in Python, rank 0 waits in C++."""
    pytest.importorskip("torch")
    (jobs.home / "hangs.py").write_text(HANGS)
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "hangs.py"]
    with subprocess.Popen(
        [sys.executable, "-m", "whystall", "run", "-o", "run", "--", sys.executable, *launcher],
        cwd=jobs.home,
        env=jobs.environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as running:
        until = time.monotonic() + TIMEOUT_S
        while len(rank_files(jobs.folder, "flight")) < 2 and time.monotonic() < until:
            time.sleep(0.2)
        running.send_signal(signal.SIGTERM)
        _, said = running.communicate(timeout=TIMEOUT_S)
    assert "Rank 1 never came to all_reduce" in " ".join(said.split())
    (hang,) = find_hangs(*read_dumps([jobs.folder])).hangs
    assert (hang.kind, hang.ranks, hang.waiting) == (Kind.MISSING_ENTER, (1,), (0,))
    assert hang.call is not None
    assert hang.call.place is not None
    assert hang.call.place.file.endswith("hangs.py")
    assert "exit code" in told(jobs.folder)[0]
