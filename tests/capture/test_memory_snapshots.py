"""Snapshots of a stand-in for torch's CUDA allocator: when they are made, and what is left alone."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.capture.conftest import Jobs

from whystall.capture.faults import Faults
from whystall.capture.memory_snapshots import MemorySnapshots


class Device:
    """A torch whose device the job uses from some moment on."""

    def __init__(self, *, own_history: bool = False) -> None:
        self.used = False
        self.asked: list[dict[str, Any]] = []
        self.observers: list[Any] = []
        memory = SimpleNamespace(
            _record_memory_history=lambda **asked: self.asked.append(asked),
            _dump_snapshot=lambda path: Path(path).write_bytes(b"\x80\x04N."),
        )
        self.torch = SimpleNamespace(
            cuda=SimpleNamespace(is_available=lambda: True, is_initialized=lambda: self.used, memory=memory),
            _C=SimpleNamespace(
                _cuda_isHistoryEnabled=lambda: own_history, _cuda_attachOutOfMemoryObserver=self.observers.append
            ),
        )


def snapshots(device: Device, folder: Path, *, wanted: bool = True) -> tuple[MemorySnapshots, Faults]:
    faults = Faults()
    return MemorySnapshots(device.torch, folder, lambda: 3, faults, wanted=wanted), faults


def test_a_window_and_the_moment_memory_ran_out_leave_a_snapshot_each(tmp_path: Path) -> None:
    device, folder = Device(), tmp_path / "run"
    made, faults = snapshots(device, folder)
    made.look()
    made.window_over()
    assert not device.asked  # the job does not use the device yet
    assert not folder.exists()
    device.used = True
    made.look()
    made.look()
    assert device.asked == [{"stacks": "python", "max_entries": 100_000}]
    made.window_over()
    (failed,) = device.observers
    failed(0, 1 << 30, 1 << 33, 1 << 20)
    assert {path.name for path in folder.iterdir()} == {"rank3.memory.pickle", "rank3.oom.pickle"}
    assert not faults.reasons


def test_a_job_that_tries_until_it_fits_is_not_held_up_each_time(tmp_path: Path) -> None:
    device = Device()
    device.used = True
    made, _ = snapshots(device, tmp_path)
    made.look()
    written: list[str] = []

    def dump(path: str) -> None:
        written.append(path)
        Path(path).write_bytes(b"")

    device.torch.cuda.memory._dump_snapshot = dump
    for _ in range(20):
        device.observers[0](0, 1, 1, 1)
    assert len(written) == 3


def test_a_history_of_the_users_own_goes_on(tmp_path: Path) -> None:
    device = Device(own_history=True)
    device.used = True
    made, _ = snapshots(device, tmp_path)
    made.look()
    made.window_over()
    assert not device.asked
    assert (tmp_path / "rank3.memory.pickle").exists()


def test_without_being_asked_nothing_is_done(tmp_path: Path) -> None:
    device = Device()
    device.used = True
    made, _ = snapshots(device, tmp_path, wanted=False)
    made.look()
    made.window_over()
    assert (device.asked, device.observers, list(tmp_path.iterdir())) == ([], [], [])


def test_a_full_disk_is_our_failure_alone(tmp_path: Path) -> None:
    device = Device()
    device.used = True
    made, faults = snapshots(device, tmp_path)

    def full(path: str) -> None:
        Path(path).write_bytes(b"half")
        raise OSError(28, "No space left on device")

    device.torch.cuda.memory._dump_snapshot = full
    made.look()
    made.window_over()
    device.observers[0](0, 1, 1, 1)
    assert list(tmp_path.iterdir()) == []
    assert "No space left" in faults.reasons["memory snapshots"]


@pytest.mark.parametrize("name", ["rank0.oom.pickle", "rank0.memory.pickle", "rank0.flight.pickle"])
def test_a_dump_of_before_the_first_step_takes_no_rank(tmp_path: Path, name: str) -> None:
    from whystall.capture.samples import SampleWriter

    (tmp_path / name).write_bytes(b"")
    writer = SampleWriter(tmp_path)
    writer.open(0, {})
    writer.close()
    assert writer.rank == 0


def test_a_job_that_ran_out_of_memory_is_told_where_to_look(jobs: Jobs) -> None:
    """The snapshot of a stand-in: there is no device here."""
    script = jobs.home / "full.py"
    script.write_text("import pathlib\npathlib.Path('run/rank0.oom.pickle').write_bytes(b'')\nraise SystemExit(1)\n")
    ran = jobs.whystall(str(script))
    assert ran.code == 1
    assert "a device ran out of memory: `whystall memory " in ran.stderr
