"""The windows of a session: carries out the schedule, and yields where the job profiles itself."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from whystall.capture import clock
from whystall.capture.config import CaptureConfig
from whystall.capture.descriptors import deadly_size
from whystall.capture.moments import imports
from whystall.capture.open_scopes import jobs_scope_is_left_open
from whystall.capture.python_tools import is_profiled
from whystall.capture.recorder import Recorder
from whystall.capture.together import Together
from whystall.capture.windows import Action, Windows

_PUT_OFF: Final = (
    "steps ran while modules were being imported: no window opens during an import, so these steps are in no trace"
)
# Looking for an import takes as long as a short step. While one lasts, the next look comes this much later.
_LOOKS_AGAIN_S: Final = 0.25


class Recording:
    """The schedule and the profiler under it; ``note`` takes a sentence for the run's description."""

    def __init__(self, torch: Any, config: CaptureConfig, folder: Path, note: Callable[[str], None]) -> None:
        self._schedule = config.schedule
        self.windows = self._new_windows()
        self._looks_again_s = 0.0
        self._sees_python = config.stacks or config.modules
        self.recorder = Recorder(torch, config, folder)
        self._most_bytes = config.schedule.most_bytes
        self._note = note
        self._folder = folder

    def _new_windows(self) -> Windows:
        windows = Windows(self._schedule)
        windows.may_begin = self._may_begin
        return windows

    def begin_again(self) -> None:
        """Forgets all windows and their traces: the steps in them were none."""
        self.recorder.forget()
        self.windows = self._new_windows()

    @property
    def running(self) -> bool:
        """Whether a window is open."""
        return self.recorder.running

    def _may_begin(self) -> bool:
        """Whether nothing is being imported, so that a profiler can safely begin."""
        now_s = clock.monotonic()
        if now_s < self._looks_again_s:
            return False
        if not imports():
            return True
        self._looks_again_s = now_s + _LOOKS_AGAIN_S
        self._note(_PUT_OFF)
        return False

    def of_ranks(self, count: int) -> None:
        """Receives the number of ranks."""
        self.windows.alone = count == 1
        if count > 1:
            together = Together(self._folder)
            self.windows.agreed = lambda window, step, ready: together.begins(window, step, ready=ready)

    def act(self, action: Action) -> None:
        """Opens, marks or closes a window."""
        if action is Action.START:
            self._start()
        elif action is Action.MARK and self.recorder.running:
            self.recorder.mark()
        elif action is Action.STOP and self.recorder.running:
            self.recorder.stop(whole=True)  # not marked before: a mark would begin another step
            if self.recorder.bytes_written > self._most_bytes:
                self.windows.no_more()
                self._note(f"no further windows: the traces have reached {self.recorder.bytes_written:,} bytes")

    def _start(self) -> None:
        if self.recorder.is_busy():
            self.windows.abandon()
            self._note("a window was not opened: the job is profiling itself")
            return
        if deadly_size() < math.inf:
            self.windows.no_more()
            self._note("no window was recorded: the job limits the size of files, and dies of a larger one (SIGXFSZ)")
            return
        if jobs_scope_is_left_open():
            self.windows.no_more()
            self._note("no further windows: a scope of the job's own (record_function) was open as one ended")
            return
        if self._sees_python and is_profiled():
            self._note("Python stacks and modules were not recorded: a profiler of Python's is at work in the job")
        try:
            self.recorder.start()
        except Exception:
            self.windows.abandon()
            raise

    def make_room(self) -> None:
        """The job starts a profiler of its own: ours ends."""
        if not self.recorder.running or self.recorder.starting:
            return
        self.windows.abandon()
        self.recorder.stop()
        self._note("the job started a profiler of its own while a window was open; the window was cut short")

    def stop(self) -> None:
        """Closes an open window and writes its recording."""
        if self.recorder.running:
            self.recorder.stop()
