"""The trace windows: one ``torch.profiler`` at a time, its file written gzipped and whole."""

from __future__ import annotations

import contextlib
import errno
import gzip
import inspect
import math
import os
import shutil
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from whystall.capture import clock
from whystall.capture.config import CaptureConfig
from whystall.capture.descriptors import deadly_size
from whystall.capture.faults import suppress
from whystall.capture.heap import give_back_free_memory
from whystall.capture.moments import is_half_there
from whystall.capture.open_scopes import keep_in_mind, unfinished_in, unfinished_of
from whystall.capture.python_tools import is_profiled
from whystall.capture.sums import unseen
from whystall.capture.values import unfit_in
from whystall.run_folder.description import MOST_OF_ROUNDS
from whystall.run_folder.layout import WHOLE_STEPS, staged_trace, trace_name

_COPY_BYTES = 1 << 20


class Recorder:
    """Runs the profiler over one window and writes the trace of it.

    A trace that is ``held`` has no name of its own, and is not among the run's ``files``, until it is published.
    """

    def __init__(self, torch: Any, config: CaptureConfig, folder: Path, *, held: bool = False) -> None:
        self._torch = torch
        self._config = config
        self._folder = folder
        self._profiler: Any = None
        self.rank = 0
        self.files: list[str] = []
        self.bytes_written = 0
        self.export_ns = 0
        self.starting = False
        self.unfit: str | None = "no steps were recorded"
        """The reason, found in the latest trace, why no window of values may open."""
        self._marks = 0
        self._held = held
        self._written: Path | None = None
        self._published = 0
        self._unwanted = False
        self._thread = self._stopped_ns = 0

    @property
    def running(self) -> bool:
        """Whether a window is open."""
        return self._profiler is not None

    def is_busy(self) -> bool:
        """Whether another profiler runs; two cannot run at once."""
        return bool(self._torch.autograd.profiler._is_profiler_enabled) and not self.running  # noqa: SLF001

    def start_at_once(self) -> None:
        """Opens a window without steps: it records from now on until it is stopped.

        Without Python stacks and modules: called on the main thread from outside, CPython 3.11 did not return from the
        call in which a profiler sets its trace function.
        """
        self._begin(None, stacks=False, modules=False)

    def start(self) -> None:
        """Opens a window."""
        schedule = self._config.schedule
        steps = self._torch.profiler.schedule(
            wait=0, warmup=schedule.warmup, active=schedule.active or MOST_OF_ROUNDS, repeat=1, skip_first=0
        )
        # torch's profiler replaces a Python profiler in order to see Python.
        modules = self._config.modules and not is_profiled()
        stacks = self._config.stacks and not is_profiled()
        self._begin(steps, stacks=stacks or modules, modules=modules)

    def _begin(self, schedule: Any, *, stacks: bool, modules: bool) -> None:
        torch, config = self._torch, self._config
        activities = [torch.profiler.ProfilerActivity.CPU]
        if torch.cuda.is_initialized() and torch.cuda.is_available():
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        self._marks = 0
        self._thread = threading.get_ident()
        self.starting = True
        try:
            self._profiler = torch.profiler.profile(
                activities=activities,
                schedule=schedule,
                on_trace_ready=self._write,
                record_shapes=config.shapes,
                profile_memory=config.memory,
                with_stack=stacks,
                with_modules=modules,
                experimental_config=_experimental_config(torch),
                **_keeping_events(torch),
            )
            with unseen(torch), _no_compiler_is_imported(torch):
                self._profiler.start()
            _leave_events_alone(self._profiler)
        except Exception:
            self._give_up()
            raise
        finally:
            self.starting = False

    def _give_up(self) -> None:
        """Ends a profiler whose begin was interrupted: left on, it would end in the job's own, or in freed memory."""
        profiler, self._profiler = self._profiler, None
        if profiler is None:
            return
        self._unwanted = True
        try:
            with unseen(self._torch), suppress(Exception):
                profiler.stop()
        finally:
            self._unwanted = False

    def mark(self) -> None:
        """Passes the end of a step to the profiler."""
        if self._is_elsewhere():
            self._profiler = None
            return
        self._marks += 1
        self.starting = True
        try:
            with unseen(self._torch), _no_compiler_is_imported(self._torch):
                self._profiler.step()
        finally:
            self.starting = False

    def stop(self, *, whole: bool = False) -> None:
        """Closes the window and writes its recording. ``whole``: a step has just ended.

        torch's profiler belongs to the thread that started it, and an export from another thread crashes. So another
        thread (one that ends the job, for example) leaves the window alone, and nothing is written.
        """
        elsewhere = self._is_elsewhere()
        profiler, self._profiler = self._profiler, None
        if profiler is None or elsewhere:
            return
        ended = self._marks - self._config.schedule.warmup
        if not whole and ended >= 0:
            profiler.add_metadata_json(WHOLE_STEPS, str(ended))
        self._stopped_ns = clock.time_ns()
        try:
            with unseen(self._torch):
                profiler.stop()
        finally:
            # It holds itself, and with it all events until the next great garbage collection.
            profiler.profiler, profiler.action_map = None, {}
            give_back_free_memory()

    def _is_elsewhere(self) -> bool:
        """Whether a window is open that another thread opened."""
        return self.running and threading.get_ident() != self._thread

    def drop(self) -> None:
        """Closes the window; nothing is written, and a trace that was held is deleted."""
        self._unwanted = True
        self.stop()
        self._unwanted = False
        if self._written is not None:
            self._written.unlink(missing_ok=True)
            self._written = None

    def forget(self) -> None:
        """Closes the window, and removes all traces so far."""
        self.drop()
        for name in self.files:
            (self._folder / name).unlink(missing_ok=True)
        self.files, self._published = [], 0

    def publish(self) -> None:
        """Gives the trace its name in the run's folder, if one was written that has none."""
        written, self._written = self._written, None
        if written is None:
            return
        name = trace_name(self.rank, self._published)
        written.replace(self._folder / name)
        self._published += 1
        self.files.append(name)
        self.bytes_written += (self._folder / name).stat().st_size
        while len(self.files) > (self._config.schedule.most_windows or len(self.files)):
            (self._folder / self.files.pop(0)).unlink(missing_ok=True)

    def _write(self, profiler: Any) -> None:
        too_large = deadly_size() < math.inf  # the job limited its files while the window was open
        if self._unwanted or too_large:
            keep_in_mind(unfinished_of(profiler, self._stopped_ns))
            if too_large and not self._unwanted:
                raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(self._folder))
            return
        if not self._folder.is_dir():  # Kineto would report it on the job's standard error
            raise FileNotFoundError(str(self._folder))
        began = clock.perf_counter_ns()
        packed = self._folder / staged_trace(trace_name(self.rank, self._published), os.getpid())
        plain = packed.with_name(f"{packed.name}.json")
        try:
            profiler.export_chrome_trace(str(plain))
            keep_in_mind(unfinished_in(plain))
            if self._config.values:
                self.unfit = unfit_in(plain)
            with plain.open("rb") as source, gzip.GzipFile(packed, "wb", 2, mtime=0) as target:
                shutil.copyfileobj(source, target, _COPY_BYTES)
            self._written = packed
            if not self._held:
                self.publish()
        except BaseException:
            packed.unlink(missing_ok=True)
            raise
        finally:
            plain.unlink(missing_ok=True)
        self.export_ns += clock.perf_counter_ns() - began


@contextlib.contextmanager
def _no_compiler_is_imported(torch: Any) -> Iterator[None]:
    """Keeps a starting profiler from importing torch's compiler only to check for CUDA graphs.

    It checks by ``hasattr(torch, "_inductor")``, which imports 800 modules: a second or more of the job's time, and in
    the middle of the job's own imports it breaks them. A compiler that the job has not imported uses no graphs; for one
    that another thread is importing the check would wait.
    """
    module = sys.modules.get("torch.profiler.profiler")
    if module is None or _compiler_is_there() or "hasattr" in vars(module):
        yield
        return

    def has(owner: Any, attribute: str) -> bool:
        if owner is torch and attribute == "_inductor" and not _compiler_is_there():
            return False
        return hasattr(owner, attribute)

    vars(module)["hasattr"] = has
    try:
        yield
    finally:
        vars(module).pop("hasattr", None)


def _compiler_is_there() -> bool:
    """Whether the compiler's settings, which the profiler reads, have been imported completely."""
    names = ("torch._inductor", "torch._inductor.config")
    return all(name in sys.modules and not is_half_there(name) for name in names)


def _keeping_events(torch: Any) -> dict[str, bool]:
    """The option without which torch warns that events are lost; torch 2.4 has none and loses none."""
    known = inspect.signature(torch.profiler.profile).parameters
    return {"acc_events": True} if "acc_events" in known else {}


def _leave_events_alone(profiler: Any) -> None:
    """Keeps torch from making Python objects of all events when the window closes, which only its own tables read.

    That is the effect of keeping events since torch 2.5, while the job is paused: 840,000 events took 96 s, and writing
    them 4.
    """
    inner: Any = getattr(profiler, "profiler", None)
    if inner is not None and hasattr(inner, "acc_events"):
        inner.acc_events = False


def _experimental_config(torch: Any) -> Any:
    """Synchronisation events and garbage collections, where this torch knows them."""
    wanted = {"enable_cuda_sync_events": True, "record_python_gc_info": True}
    config = torch._C._profiler._ExperimentalConfig  # noqa: SLF001 - torch.profiler has no public name for it
    for chosen in (wanted, {"enable_cuda_sync_events": True}, {}):
        try:
            return config(**chosen)
        except TypeError:
            continue
    return None
