"""Jobs that are watched for days: little is kept, and nothing is recorded but what is asked for."""

from __future__ import annotations

import errno
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import polars as pl
import psutil
import pytest
from tests.capture.conftest import Jobs

from whystall.capture.config import ALWAYS, MOST_SAMPLE_BYTES, CaptureConfig, Schedule
from whystall.capture.recorder import Recorder
from whystall.capture.samples import SampleWriter
from whystall.capture.windows import Action, Windows
from whystall.run_folder.layout import is_written_by_a_run
from whystall.trace.following import Followed
from whystall.trace.samples import read_samples

MS = 1_000_000
JOB = """
import sys, time, torch
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
mine = open(sys.argv[1], "ab", buffering=0)
for step in range(int(sys.argv[2])):
    model(torch.randn(4, 8)).sum().backward()
    time.sleep(0.004)
    optimizer.step()
    mine.write(b"%d %d\\n" % (step, time.time_ns()))
"""


def row(number: int) -> tuple[int, ...]:
    return (number, number * 1000, 1000, *[0] * 18)


@pytest.fixture
def writer(tmp_path: Path) -> Any:
    out = SampleWriter(tmp_path, most_bytes=20_000)
    out.open(0, {"began_unix_ns": 1})
    yield out
    out.close()


def test_the_latest_samples_are_kept(writer: SampleWriter, tmp_path: Path) -> None:
    for number in range(5_000):
        writer.write(row(number))
        if number % 100 == 0:
            assert (tmp_path / "rank0.samples.jsonl").stat().st_size <= 20_100
    steps = read_samples(tmp_path / "rank0.samples.jsonl").steps["step"].to_list()
    assert steps == list(range(steps[0], 5_000))
    assert 150 <= len(steps) < 500
    assert read_samples(tmp_path / "rank0.samples.jsonl").damaged_lines == 0
    assert [path.name for path in tmp_path.iterdir()] == ["rank0.samples.jsonl"]


def test_short_steps_are_written_together_and_long_ones_at_once(writer: SampleWriter, tmp_path: Path) -> None:
    def written() -> list[int]:
        return read_samples(tmp_path / "rank0.samples.jsonl").steps["step"].to_list()

    writer.add(row(0), 1_000 * MS)
    for number in range(1, 30):
        writer.add(row(number), (1_000 + number) * MS)
    assert written() == [0]
    writer.add(row(30), 1_500 * MS)
    assert written() == list(range(31))
    writer.add(row(31), 1_501 * MS)
    writer.write({"at_unix_ns": 1, "cpu_ticks": [1, 1]})
    assert written() == list(range(32))
    writer.add(row(32), 1_502 * MS)
    writer.flush()
    assert written() == list(range(33))
    writer.add(row(33), 1_503 * MS)
    writer.close()
    assert written() == list(range(34))


def test_a_signal_amid_a_line_writes_what_is_there(writer: SampleWriter, tmp_path: Path) -> None:
    """The handler of a signal that ends the job runs on the thread that writes."""
    write = os.write
    rows = iter([row(1)])

    def interrupted(descriptor: int, data: bytes) -> int:
        for one in rows:
            writer.add(one, 10_000 * MS)
        return write(descriptor, data)

    with mock.patch.object(os, "write", interrupted):
        writer.add(row(0), 1_000 * MS)
    assert sorted(read_samples(tmp_path / "rank0.samples.jsonl").steps["step"].to_list()) == [0, 1]


def test_lines_of_two_threads_are_whole(writer: SampleWriter, tmp_path: Path) -> None:
    def machine() -> None:
        for number in range(2_000):
            writer.write({"at_unix_ns": number, "cpu_ticks": [1, 1], "children": [[1, "S", number]] * 5})

    beside = threading.Thread(target=machine)
    beside.start()
    for number in range(3_000):
        writer.write(row(number))
    beside.join()
    found = read_samples(tmp_path / "rank0.samples.jsonl")
    assert found.damaged_lines == 0
    assert not found.machine.is_empty() or not found.steps.is_empty()


def test_a_full_disk_costs_no_samples(writer: SampleWriter, tmp_path: Path) -> None:
    write = os.write
    full = True

    def on_a_full_disk(descriptor: int, data: bytes) -> int:
        if full and len(data) > 5_000:  # the shorter copy
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(descriptor, data)

    with mock.patch.object(os, "write", on_a_full_disk):
        for number in range(600):
            writer.write(row(number))
        assert read_samples(tmp_path / "rank0.samples.jsonl").steps["step"].to_list() == list(range(600))
        assert len(list(tmp_path.iterdir())) == 1
        full = False
        writer.write(row(600))
    assert (tmp_path / "rank0.samples.jsonl").stat().st_size < 20_000
    assert read_samples(tmp_path / "rank0.samples.jsonl").steps["step"].to_list()[-1] == 600


def test_who_follows_the_samples_counts_each_step_once(writer: SampleWriter, tmp_path: Path) -> None:
    followed = Followed(tmp_path / "rank0.samples.jsonl")
    for number in range(3_000):
        writer.write(row(number))
        if number % 50 == 0:
            followed.look()
    followed.look()
    assert followed.steps == 3_000
    assert followed.total_s == pytest.approx(3.0)


def test_what_a_cut_stages_is_the_runs_own() -> None:
    assert is_written_by_a_run(".rank3.samples.jsonl.42")
    assert not is_written_by_a_run(".rank3.samples.jsonl.mine")


def begun(windows: Windows, durations_ms: list[float]) -> list[int]:
    """After which steps windows began, each of them ended at once."""
    now, out = 0, []
    for number, duration in enumerate(durations_ms):
        now += int(duration * MS)
        if windows.step_ended(int(duration * MS), now) is Action.START:
            out.append(number)
            windows.abandon()
    return out


def test_a_slowdown_is_recorded_and_a_slow_step_is_not() -> None:
    usual, slower = [100.0] * 200, [130.0] * 200
    (at,) = begun(Windows(ALWAYS), usual + slower)
    assert 200 < at <= 232
    (at,) = begun(Windows(ALWAYS), usual + [100.0, 300.0] * 100)  # every second step
    assert 200 < at <= 232
    assert begun(Windows(ALWAYS), [*usual[:50], 4_000.0] * 10) == []
    assert begun(Windows(ALWAYS), [90.0, 100.0, 120.0, 95.0] * 100) == []
    assert begun(Windows(ALWAYS), usual + [115.0] * 200) == []


def test_a_window_that_is_asked_for_begins_with_the_next_step_and_knows_the_steps_before() -> None:
    windows = Windows(ALWAYS)
    for number in range(40):
        assert windows.step_ended(10 * MS, number * 10 * MS) is Action.NOTHING
    for number in range(5):  # fewer than are heard of together
        windows.step_ended((10 + number) * MS, (40 + number) * 10 * MS)
    windows.request()
    assert windows.step_ended(10 * MS, 450 * MS) is Action.START
    assert windows.recording
    assert windows.steady.usual_ns() == pytest.approx(10 * MS, rel=0.05)
    assert not windows.steady.is_slow(19 * MS, 2.0)
    assert windows.steady.is_slow(23 * MS, 2.0)


def test_slowdowns_are_not_recorded_one_after_another() -> None:
    waves = ([100.0] * 80 + [200.0] * 80) * 20
    rest = Schedule(repeat=0, on_slowdown=1.25, rest_s=60.0)
    found = begun(Windows(rest), waves)
    times = [sum(waves[: at + 1]) / 1e3 for at in found]
    assert len(found) >= 4
    assert all(later - earlier >= 60.0 for earlier, later in itertools.pairwise(times))
    assert len(begun(Windows(Schedule(repeat=0, on_slowdown=1.25)), waves)) >= 20


def test_the_oldest_windows_are_deleted(tmp_path: Path) -> None:
    config = CaptureConfig(folder=str(tmp_path), schedule=Schedule(most_windows=2))
    recorder = Recorder(SimpleNamespace(), config, tmp_path)
    exported = SimpleNamespace(export_chrome_trace=lambda path: Path(path).write_text("{}"))
    for _ in range(4):
        recorder._write(exported)
    assert sorted(path.name for path in tmp_path.iterdir()) == recorder.files
    assert recorder.files == ["rank0.window2.trace.json.gz", "rank0.window3.trace.json.gz"]


def started(jobs: Jobs, *options: str, steps: int) -> tuple[subprocess.Popen[bytes], Path]:
    script, mine = jobs.home / "job.py", jobs.home / "mine"
    script.write_text(JOB)
    command = [sys.executable, "-m", "whystall", "run", "-o", str(jobs.folder), *options, str(script), str(mine)]
    with (jobs.home / "out").open("wb") as out:
        return subprocess.Popen([*command, str(steps)], stdout=out, stderr=out, env=jobs.environment()), mine


def lines(path: Path) -> list[list[int]]:
    """What is in the job's own file, and whole."""
    text = path.read_text() if path.exists() else ""
    return [[int(word) for word in line.split()] for line in text.splitlines(keepends=True) if line.endswith("\n")]


def until_stepped(process: subprocess.Popen[bytes], mine: Path, count: int) -> None:
    deadline = time.monotonic() + 120
    while len(lines(mine)) < count:
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_window_is_recorded_when_asked_for_and_not_before(jobs: Jobs) -> None:
    process, mine = started(jobs, "--always", steps=1_000_000)
    try:
        until_stepped(process, mine, 40)  # on a busy machine later ones may be slower, which is recorded
        assert list(jobs.folder.glob("*.trace.json.gz")) == []
        asked = subprocess.run(
            [sys.executable, "-m", "whystall", "capture", str(jobs.folder)],
            capture_output=True,
            text=True,
            timeout=150,
            check=False,
        )
        assert asked.returncode == 0, asked.stderr
        assert "Mean of" in asked.stdout
        assert (jobs.folder / "rank0.trace.json.gz").exists()
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)
    ended = subprocess.run(
        [sys.executable, "-m", "whystall", "capture", str(jobs.folder)], capture_output=True, text=True, check=False
    )
    assert (ended.returncode, "the job has ended" in ended.stderr) == (3, True)


def test_a_killed_job_leaves_all_samples_up_to_its_last_second(jobs: Jobs) -> None:
    process, mine = started(jobs, "--always", steps=1_000_000)
    until_stepped(process, mine, 300)
    watched = [child for child in psutil.Process(process.pid).children() if str(mine) in child.cmdline()]
    watched[0].kill()
    process.wait(60)
    steps = read_samples(jobs.folder / "rank0.samples.jsonl").steps
    seen = steps["step"].to_list()
    own = {step: at for step, at in lines(mine)}  # noqa: C416 - pairs as lists
    last = max(own)
    assert seen[-1] <= last + 1
    assert own[last] - own.get(seen[-1], own[last]) <= 1e9
    assert seen == list(range(seen[0], seen[-1] + 1))
    # of steps of 4 ms timing the forward pass would be more than three in a thousand
    assert steps.filter(pl.col("step") > 40)["forward_us"].sum() == 0
    assert steps.filter(pl.col("step") < 30)["forward_us"].sum() > 0


def test_choices_that_exclude_each_other_are_refused(tmp_path: Path) -> None:
    (tmp_path / "x.py").touch()
    ran = subprocess.run(
        [sys.executable, "-m", "whystall", "run", "--always", "--until-verdict", "x.py"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert (ran.returncode, "choose one" in ran.stderr) == (2, True)


def test_a_folder_that_is_no_run_and_a_job_that_never_steps(tmp_path: Path) -> None:
    def capture(folder: Path) -> tuple[int, str]:
        command = [sys.executable, "-m", "whystall", "capture", str(folder), "--within", "0.5"]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        return ran.returncode, ran.stderr

    code, said = capture(tmp_path)
    assert (code, "no folder of a run" in said) == (3, True)
    (tmp_path / "run.json").write_text(json.dumps({"schema": "whystall.run/1", "kind": "python", "command": "x"}))
    code, said = capture(tmp_path)
    assert (code, "no step has ended yet" in said) == (3, True)
    assert MOST_SAMPLE_BYTES == 1 << 20
