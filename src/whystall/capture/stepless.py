"""A window by the clock for jobs without visible steps: loops of tensors without optimizer, module or loader.

The main thread is recorded for a while some seconds after torch was imported. If steps come after all (the job was
preparing itself), the recording is deleted. The same holds where a few steps were seen, too few to be recorded, and
then none: a CUDA graph captured in one of them may be replayed ever after.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from whystall._native import call_on_main_thread
from whystall.capture import clock
from whystall.capture.config import CaptureConfig
from whystall.capture.descriptors import deadly_size
from whystall.capture.moments import imports, imports_on_main_thread, is_unfit
from whystall.capture.open_scopes import one_is_left_open, within_an_operator
from whystall.capture.recorder import Recorder
from whystall.capture.torch_hooks import compiles_now
from whystall.run_folder.layout import rank_files, staged_description

NO_STEPS: Final = (
    "no step was seen (no optimizer step, no forward pass of a module, no data loader): a moment of the job was "
    "recorded by the clock, and the report is about that moment"
)
NO_MORE_STEPS: Final = (
    "after the first {steps} no further step was seen (steps were recognised by {source}; evaluations and replayed "
    "CUDA graphs show none): a moment of the job was recorded by the clock, and the report is about that moment"
)
_AFTER_S: Final = 6.0
_USUAL_STEPS: Final = 20
_FEWEST_STEPS: Final = 3
"""With fewer steps the length of a step is unknown."""
_FIRST_LASTS_S: Final = 0.3
_LASTS_S: Final = 1.5
_MOST_HELD_S: Final = 6.0
"""Ending a window takes torch some 20 us of each event, with the job standing still: 38 s of a loop over elements that
was recorded for 1.5 s. So the first window is short; it stays where a longer one would hold the job up for more."""
_WORTH_LONGER: Final = 2.0
_MOST_WINDOWS: Final = 2
"""A second one, later: the first may show a preparation."""
_AGAIN_S: Final = 20.0


def _nothing() -> None:
    pass


class SteplessWindow:
    """Opens and closes the window on the main thread, as ``look`` finds that it is time.

    ``pausing`` runs its argument, guarded, and counts the job's pause. ``missing`` returns whether steps are still
    missing: the main thread may get to its calls long after. ``ended`` is called when a window has ended, and is held.
    """

    def __init__(
        self,
        torch: Any,
        config: CaptureConfig,
        folder: Path,
        pausing: Callable[[Callable[[], None]], None],
        missing: Callable[[], bool],
        ended: Callable[[], None] = _nothing,
    ) -> None:
        self._torch = torch
        self._config = config
        self._folder = folder
        self._pausing, self._missing, self._ended = pausing, missing, ended
        self._recorder: Recorder | None = None
        self._due_s = clock.monotonic() + _AFTER_S
        self.rank = 0
        self._windows = 0
        self._lasts_s = _FIRST_LASTS_S

    @property
    def running(self) -> bool:
        """Whether the window is open."""
        return self._recorder is not None and self._recorder.running

    @property
    def starting(self) -> bool:
        """Whether its own profiler is about to run."""
        return self._recorder is not None and self._recorder.starting

    def look(self) -> None:
        """Called now and then, while no step has been seen, from a thread beside the job."""
        if clock.monotonic() < self._due_s or imports_on_main_thread(elsewhere=not self.running):
            return
        self._due_s = float("inf")  # until the call on the main thread is done, which may be late
        if self.running:
            call_on_main_thread(lambda: self._pausing(self._end))
        elif self._windows < _MOST_WINDOWS:
            call_on_main_thread(lambda: self._pausing(self._begin))

    def _begin(self) -> None:
        if one_is_left_open() or deadly_size() < math.inf:
            return  # and the due instant stays infinite
        if self._is_not_now(elsewhere=True) or (compiles_now() and self._put_off()):
            return
        if not self._missing():
            self._due_s = clock.monotonic() + _AFTER_S
            return
        if self._torch.utils.data.get_worker_info() is not None:
            return  # a loader's worker: the steps are in the process that it loads for
        self._windows += 1
        self.discard()  # the later one shows more of the job
        recorder = Recorder(self._torch, self._config, self._folder, held=True)
        recorder.rank = self.rank
        if not recorder.is_busy():
            self._recorder = recorder
            recorder.start_at_once()
        self._due_s = clock.monotonic() + self._lasts_s

    def _is_not_now(self, *, elsewhere: bool) -> bool:
        """Whether starting or stopping a profiler would do harm right now; the next look comes soon.

        Stopping does not wait for imports on other threads (``elsewhere``): they may take long.
        """
        unfit = imports(elsewhere=elsewhere) or is_unfit(self._torch)
        return (unfit or within_an_operator(self._torch, sys._getframe(1))) and self._put_off()  # noqa: SLF001 - the documented way to the calling frame

    def _put_off(self) -> bool:
        self._due_s = clock.monotonic()
        return True

    def _end(self) -> None:
        if self._is_not_now(elsewhere=False):
            return
        began = clock.monotonic()
        if self._recorder is not None:
            self._recorder.stop()
            self._ended()
        ended = clock.monotonic()
        bearable_s = self._lasts_s * _MOST_HELD_S / max(ended - began, 1e-3)
        if self._lasts_s == _FIRST_LASTS_S and bearable_s >= _WORTH_LONGER * _FIRST_LASTS_S:
            self._lasts_s, self._windows, self._due_s = min(bearable_s, _LASTS_S), 0, ended
        else:
            self._due_s = ended + _AGAIN_S

    @staticmethod
    def is_silent(steps: int, first_ns: int, last_ns: int) -> bool:
        """Whether ``steps`` seem to have ended; the first one ended at ``first_ns`` and the last at ``last_ns``.

        Instants are those of ``time.perf_counter_ns``.
        """
        usual_ns = (last_ns - first_ns) / max(steps - 1, 1)
        still_ns = clock.perf_counter_ns() - last_ns
        return steps >= _FEWEST_STEPS and still_ns > max(_AFTER_S * 1e9, _USUAL_STEPS * usual_ns)

    @property
    def begun(self) -> bool:
        """Whether there is, or has been, a window that was not dropped."""
        return self._recorder is not None

    def discard(self) -> None:
        """Ends an open window, and deletes its recording."""
        recorder, self._recorder = self._recorder, None
        if recorder is not None:
            recorder.drop()
            (self._folder / staged_description(recorder.rank, os.getpid())).unlink(missing_ok=True)

    def no_more(self) -> None:
        """Steps come after all: deletes the recording, and records no more."""
        self._windows = _MOST_WINDOWS
        self.discard()

    def make_room(self) -> None:
        """The job starts a profiler of its own: ours ends, and no other follows."""
        if self._recorder is not None and not self._recorder.starting and self._recorder.running:
            self._windows = _MOST_WINDOWS
            self.discard()

    def close(self, *, stepped: bool = False) -> list[str]:
        """Names the window's file in the run's folder, if there is one and no other process has written any.

        A process that starts others, or is a worker of one that steps, sees no step itself; one that has ``stepped`` is
        none of these.
        """
        recorder, self._recorder = self._recorder, None
        if recorder is None:
            return []
        if not stepped and (rank_files(self._folder, "samples") or rank_files(self._folder, "trace")):
            recorder.drop()
            (self._folder / staged_description(recorder.rank, os.getpid())).unlink(missing_ok=True)
        else:
            recorder.stop()
            recorder.publish()
        return recorder.files
