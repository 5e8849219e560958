"""The profiler of one window, with the torch that is here and with one that knows less."""

from __future__ import annotations

import gc
import gzip
import json
import subprocess
import sys
import threading
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from whystall.capture.config import CaptureConfig, Schedule
from whystall.capture.recorder import Recorder
from whystall.run_folder.layout import is_written_by_a_run, rank_file, trace_name

torch = pytest.importorskip("torch")


def profile_of_torch_2_4(
    *,
    activities: Any = None,
    schedule: Any = None,
    on_trace_ready: Any = None,
    record_shapes: bool = False,
    profile_memory: bool = False,
    with_stack: bool = False,
    with_flops: bool = False,
    with_modules: bool = False,
    experimental_config: Any = None,
    execution_trace_observer: Any = None,
    use_cuda: bool | None = None,
) -> Any:
    """``torch.profiler.profile`` with the options that torch 2.4 has."""
    del with_flops, execution_trace_observer, use_cuda
    return torch.profiler.profile(
        activities=activities,
        schedule=schedule,
        on_trace_ready=on_trace_ready,
        record_shapes=record_shapes,
        profile_memory=profile_memory,
        with_stack=with_stack,
        with_modules=with_modules,
        experimental_config=experimental_config,
    )


@pytest.mark.parametrize("profile", [torch.profiler.profile, profile_of_torch_2_4])
def test_a_window_is_recorded_whole(tmp_path: Path, profile: Any) -> None:
    profiler = SimpleNamespace(
        profile=profile, schedule=torch.profiler.schedule, ProfilerActivity=torch.profiler.ProfilerActivity
    )
    part = SimpleNamespace(profiler=profiler, autograd=torch.autograd, cuda=torch.cuda, _C=torch._C)
    recorder = Recorder(part, CaptureConfig(folder=str(tmp_path), schedule=Schedule(warmup=1, active=2)), tmp_path)
    recorder.start()
    inner = recorder._profiler.profiler
    for _ in range(3):
        torch.ones(3).neg()
        recorder.mark()
    recorder.stop()
    (name,) = recorder.files
    events = json.loads(gzip.decompress((tmp_path / name).read_bytes()))["traceEvents"]
    assert sum(event.get("name") == "aten::neg" for event in events) == 2
    # No objects of Python were made of the events while the job stood still: nobody of ours reads them.
    assert inner._function_events is None


@pytest.mark.parametrize(("marks", "whole", "told"), [(3, False, 2), (3, True, None), (1, False, 0)])
def test_a_window_that_ends_within_a_step_says_how_many_are_whole(
    tmp_path: Path, marks: int, whole: bool, told: int | None
) -> None:
    recorder = Recorder(torch, CaptureConfig(folder=str(tmp_path)), tmp_path)
    recorder.start()
    for _ in range(marks):
        torch.ones(3).neg()
        recorder.mark()
    torch.ones(3).neg()
    recorder.stop(whole=whole)
    (name,) = recorder.files
    trace = json.loads(gzip.decompress((tmp_path / name).read_bytes()))
    assert trace.get("whystall_whole_steps") == told
    assert sum(each["name"].startswith("ProfilerStep") for each in trace["traceEvents"]) >= marks


def test_a_job_that_limits_its_files_while_a_window_is_open_is_not_ended_by_the_trace(tmp_path: Path) -> None:
    program = """
import resource, signal, sys, torch
from pathlib import Path
from whystall.capture.config import CaptureConfig
from whystall.capture.recorder import Recorder
recorder = Recorder(torch, CaptureConfig(folder=sys.argv[1]), Path(sys.argv[1]))
recorder.start()
for _ in range(3):
    torch.ones(3).neg()
    recorder.mark()
signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, 1_000))
try:
    recorder.stop(whole=True)
except OSError as error:
    print(error.strerror)
"""
    ran = subprocess.run([sys.executable, "-c", program, tmp_path], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout) == (0, "File too large\n"), ran.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_begin_that_is_interrupted_leaves_no_profiler_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_profiler: object) -> None:
        raise TimeoutError

    recorder = Recorder(torch, CaptureConfig(folder=str(tmp_path)), tmp_path)
    for begin in (recorder.start, recorder.start_at_once):
        with monkeypatch.context() as patched:
            patched.setattr("whystall.capture.recorder._leave_events_alone", interrupted)
            with pytest.raises(TimeoutError):
                begin()
        assert not recorder.running
        assert not torch.autograd._profiler_enabled()
        assert not torch.autograd.profiler._is_profiler_enabled
    with torch.profiler.profile() as jobs:
        torch.ones(3).neg()
    assert "aten::neg" in {event.key for event in jobs.key_averages()}
    assert list(tmp_path.iterdir()) == []


def test_nothing_of_the_profilers_stays_in_the_job(tmp_path: Path) -> None:
    recorder = Recorder(torch, CaptureConfig(folder=str(tmp_path), schedule=Schedule(warmup=1, active=2)), tmp_path)
    gc.disable()  # what is in a circle would go when it happens to run
    try:
        recorder.start()
        gone = [weakref.ref(recorder._profiler), weakref.ref(recorder._profiler.profiler)]
        for _ in range(3):
            torch.ones(3).neg()
            recorder.mark()
        recorder.stop()
        assert [each() for each in gone] == [None, None]
    finally:
        gc.enable()


def test_a_trace_that_is_held_has_no_name_until_it_is_published(tmp_path: Path) -> None:
    recorder = Recorder(torch, CaptureConfig(folder=str(tmp_path)), tmp_path, held=True)
    recorder.start_at_once()
    torch.ones(3).neg()
    recorder.stop()
    (path,) = tmp_path.iterdir()
    assert recorder.files == []
    assert rank_file(path.name) is None
    assert is_written_by_a_run(path.name)
    recorder.publish()
    assert recorder.files == [path.name for path in tmp_path.iterdir()] == [trace_name(0)]


def test_a_moment_by_the_clock_has_no_python_stacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []
    profile = torch.profiler.profile

    def asks(**given: Any) -> Any:
        asked.append(given)
        return profile(**given)

    monkeypatch.setattr(torch.profiler, "profile", asks)
    recorder = Recorder(torch, CaptureConfig(folder=str(tmp_path), modules=True, stacks=True), tmp_path)
    recorder.start_at_once()
    recorder.drop()
    assert [(each["with_stack"], each["with_modules"]) for each in asked] == [(False, False)]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("end", ["stop", "drop", "mark"])
def test_a_window_is_left_alone_by_another_thread(end: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The profiler is the opening thread's: to end it on another one ended the process (``os._exit`` on a thread)."""
    recorder = Recorder(torch, CaptureConfig(folder=str(tmp_path)), tmp_path)
    recorder.start_at_once()
    torch.ones(4, 4) @ torch.ones(4, 4)
    profiler = recorder._profiler
    try:
        thread = threading.Thread(target=getattr(recorder, end))
        thread.start()
        thread.join()
        assert not recorder.running
        assert recorder.files == []
        assert list(tmp_path.iterdir()) == []
    finally:
        profiler.on_trace_ready = None
        profiler.stop()
    assert "disableProfiler" not in capfd.readouterr().err


def test_a_folder_that_the_job_removed_is_no_message_of_the_profilers(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    recorder = Recorder(torch, CaptureConfig(folder=str(folder)), folder)
    recorder.start_at_once()
    torch.ones(2).add(1)
    capfd.readouterr()
    folder.rmdir()
    with pytest.raises(FileNotFoundError):
        recorder.stop()
    assert "Failed" not in capfd.readouterr().err


def test_a_profiler_of_pythons_keeps_its_place(tmp_path: Path) -> None:
    wanted = CaptureConfig(folder=str(tmp_path), stacks=True, modules=True, schedule=Schedule(active=1))
    recorder = Recorder(torch, wanted, tmp_path)
    seen: list[str] = []
    before = sys.getprofile()
    sys.setprofile(lambda frame, event, _: seen.append(frame.f_code.co_name) if event == "call" else None)
    try:
        recorder.start()
        profiled(2)
        recorder.stop()
        profiled(3)
    finally:
        sys.setprofile(before)
    assert seen.count("profiled") == 2


def profiled(number: int) -> int:
    return number
