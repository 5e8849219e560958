"""Nothing of ours begins while the job imports, and a profiler that begins imports nothing."""

from __future__ import annotations

import importlib
import importlib.util
import json
import subprocess
import sys
import threading
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from unittest.mock import MagicMock

import pytest
from tests.capture.conftest import Jobs

from whystall.capture import moments
from whystall.capture.moments import imports, imports_on_main_thread

JOB = """
import sys, time
import torch
import slow_library
print(slow_library.PROFILED)
until = time.monotonic() + 5.0
while time.monotonic() < until:  # no step is seen in it
    torch.ones(64, 64) @ torch.ones(64, 64)
"""
SLOW = """
import sys, time, torch
PROFILED = 0
compiler = set(sys.modules)
until = time.monotonic() + 8.0  # a window by the clock is due after six
while time.monotonic() < until:
    PROFILED += torch.autograd.profiler._is_profiler_enabled
PROFILED += len(set(sys.modules) - compiler)
import torch._dynamo
"""


def test_no_window_opens_in_an_import_and_one_opens_after_it(jobs: Jobs) -> None:
    (jobs.home / "job.py").write_text(JOB)
    (jobs.home / "slow_library.py").write_text(SLOW)
    jobs.folder.mkdir()
    ran = jobs.watched("job.py")
    assert (ran.code, ran.stdout) == (0, "0\n"), ran.stderr
    assert (ran.folder / "rank0.trace.json.gz").exists()
    assert json.loads((ran.folder / "rank0.run.json").read_text())["not_recorded"] == {}


def test_an_import_is_known_on_the_thread_and_of_torch_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "asks_here.py").write_text("from whystall.capture.moments import imports\nFOUND = imports()\n")
    monkeypatch.syspath_prepend(tmp_path)
    import asks_here  # type: ignore[import-not-found]

    assert asks_here.FOUND
    assert not imports()
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.fx.__spec__, "_initializing", True)
    assert imports()


BESIDE = """
from concurrent.futures import ThreadPoolExecutor
from whystall.capture.moments import imports_on_main_thread
with ThreadPoolExecutor(1) as beside:
    FOUND = beside.submit(imports_on_main_thread).result()
"""
HOLDS = """
import threading
ENDS = threading.Event()
ENDS.wait()
"""


def test_an_import_of_the_main_thread_and_of_any_other_is_known_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "asked_beside.py").write_text(BESIDE)
    assert not imports_on_main_thread()
    assert importlib.import_module("asked_beside").FOUND
    (tmp_path / "held_there.py").write_text(HOLDS)
    thread = threading.Thread(target=importlib.import_module, args=("held_there",))
    thread.start()
    while not hasattr(sys.modules.get("held_there"), "ENDS"):
        thread.join(0.01)
    assert imports()
    assert imports_on_main_thread()
    sys.modules["held_there"].ENDS.set()
    thread.join()
    assert not imports()
    assert not imports_on_main_thread()


BEGINS = """
import sys, torch
from pathlib import Path
from whystall.capture.config import CaptureConfig
from whystall.capture.recorder import Recorder
recorder = Recorder(torch, CaptureConfig(folder="."), Path("."))
before = set(sys.modules)
recorder.start()
for _ in range(6):
    torch.ones(3) + 1
    recorder.mark()
recorder.stop()
compiler = ("torch._dynamo", "torch._inductor", "torch.compiler")
print(sorted(name for name in set(sys.modules) - before if name.startswith(compiler)))
print("hasattr" in vars(torch.profiler.profiler), Path("rank0.trace.json.gz").exists())
import torch._inductor
recorder.start()
recorder.stop()
"""


def test_a_profiler_that_begins_imports_no_compiler(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", BEGINS], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "[]\nFalse True\n"), done.stderr


def test_looking_for_imports_loads_no_lazy_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module that loads when it is first asked for anything, and one whose spec answers to everything."""
    (tmp_path / "lazily.py").write_text("raise RuntimeError('loaded')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    spec = importlib.util.find_spec("lazily")
    assert spec is not None
    assert spec.loader is not None
    spec.loader = importlib.util.LazyLoader(spec.loader)
    lazy = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "lazily", lazy)
    spec.loader.exec_module(lazy)
    stub = ModuleType("stub")
    stub.__spec__ = MagicMock()
    monkeypatch.setitem(sys.modules, "stub", stub)
    assert not moments.imports()
    assert not moments.imports_on_main_thread()
    with pytest.raises(RuntimeError, match="loaded"):
        _ = lazy.anything


def test_a_forked_child_waits_for_no_import_of_its_parents_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    half = ModuleType("half")
    half.__spec__ = ModuleSpec("half", None)
    half.__spec__._initializing = True  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "half", half)
    monkeypatch.setattr(moments, "_never_whole", set())
    assert moments.imports()
    moments._is_a_child()
    assert not moments.imports()


def test_a_window_ends_while_another_thread_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    half = ModuleType("half")
    half.__spec__ = ModuleSpec("half", None)
    half.__spec__._initializing = True  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "half", half)
    assert moments.imports()
    assert not moments.imports(elsewhere=False)
    monkeypatch.setitem(sys.modules, "torch.half", half)
    assert moments.imports(elsewhere=False)
