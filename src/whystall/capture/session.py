"""One watched process: finds its steps, samples each, records the windows, and writes the run folder.

A step ends where the first optimizer's step ends (also when a gradient scaler skips it); on a job
without an optimizer where the outermost module's forward pass ends; failing that where a data loader
hands out a batch.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import platform
import signal
import threading
import time
from pathlib import Path
from typing import Any, Final

from whystall._native import TimedCall, call_on_main_thread
from whystall.capture.config import CaptureConfig
from whystall.capture.device_times import DeviceTimes
from whystall.capture.experiments import Injected
from whystall.capture.faults import Faults
from whystall.capture.machine import MachineSampler, facts, loader_facts
from whystall.capture.recorder import Recorder
from whystall.capture.samples import (
    NOT_COUNTED,
    GarbageCollections,
    SampleWriter,
    Stopwatch,
    ThreadCounters,
)
from whystall.capture.stacks import StackSampler
from whystall.capture.torch_hooks import TorchHooks
from whystall.capture.windows import Action, Windows
from whystall.run_folder.description import Overhead, RankDescription, encode
from whystall.run_folder.layout import CAPTURE_NOW, description_name, staged_description
from whystall.run_folder.samples import PROFILED, SKIPPED

# Without an optimizer's step after so many forward passes or batches, those are the steps.
_FORWARDS_BEFORE_STEPS: Final = 8
_BATCHES_BEFORE_STEPS: Final = 64
_MOST_LOADERS: Final = 32
# Timing the forward pass costs some 10 us a step, the rest some 20 (benchmarks/bench_capture.py): of steps shorter than this
# it would be more than the one per cent that we allow ourselves.
_SHORTEST_STEP_WITH_MODULES_NS: Final = 3_000_000
_STEPS_BEFORE_JUDGING: Final = 32
_COUNT_EVERY_NS: Final = 10_000_000
# The first steps load, compile and allocate: where they are says little of the others.
_UNSTEADY_STEPS: Final = 2


class Session:
    """Watches the process it lives in. Every method that torch calls is guarded: none of them raises."""

    def __init__(self, torch: Any, config: CaptureConfig) -> None:
        self.config = config
        self.faults = Faults()
        self.folder = Path(config.folder)
        self.windows = Windows(config.schedule)
        self._torch = torch
        self._writer = SampleWriter(self.folder)
        self._recorder = Recorder(torch, config, self.folder)
        self._device = DeviceTimes(torch)
        self._collections = GarbageCollections()
        self._input, self._forward, self._backward = Stopwatch(), Stopwatch(), Stopwatch()
        self._optimizer, self._save = Stopwatch(), Stopwatch()
        self._counters: ThreadCounters | None = None
        self._counted_ns = 0
        self._machine = MachineSampler(self, torch)
        self._stacks = StackSampler(self)
        self._hooks = TorchHooks(torch, _Guarded(self))
        # Once: making a guard costs more than the sample.
        self._guarded_sample = self.faults.guard("samples", self._sample)
        self._experiment = Injected(torch, config.experiment) if config.experiment is not None else None
        self._source: str | None = None
        self._anchor: int | None = None
        self._forwards = self._batches = 0
        self._optimizer_steps_in_scaler = 0
        self._steps = 0
        self._step_began_ns = 0
        self._thread: int | None = None
        self._hook_ns = self._outside_ns = self._profiled_ns = self._profiled_steps = 0
        self._notes: list[str] = []
        self._loaders: dict[int, dict[str, Any]] = {}
        self._modules_looked_at = -1
        self._closed = False
        self._pid = os.getpid()
        self._began_ns = time.perf_counter_ns()
        self._asked_unix_ns = time.time_ns()

    # --- life ---------------------------------------------------------------------------------------

    def open(self, *, whole_process: bool = True) -> None:
        """Begins to watch; ``whole_process`` says whether to the end of the process, however it comes."""
        if self._experiment is not None:
            self.faults.guard("experiment", self._experiment.install)()
        self.faults.guard("hooks", self._hooks.install)(modules_made_before=not whole_process)
        self.faults.guard("garbage collections", self._collections.install)()
        self.faults.guard("sampler", self._machine.start)()
        self.faults.guard("stacks", self._stacks.start)()
        if whole_process:
            self.faults.guard("signals", self._listen_to_signals)()
        os.register_at_fork(after_in_child=self._forget)
        atexit.register(self.close)

    def _listen_to_signals(self) -> None:
        """Takes the signals that would end the process unheard, if nobody else has; and the quick exit."""
        os._exit = TimedCall(os._exit, self.close, lambda: None)
        if threading.current_thread() is not threading.main_thread():
            return
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._on_termination)
        if signal.getsignal(signal.SIGUSR2) is signal.SIG_DFL:
            signal.signal(signal.SIGUSR2, lambda *_: self.windows.request())

    def _on_termination(self, number: int, _frame: object) -> None:
        self.close()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    def _forget(self) -> None:
        """In a forked child: this process is not the one that trains."""
        self._closed = True
        self._hooks.remove()
        self._collections.remove()

    def close(self) -> None:
        """Writes what there is and says once what failed."""
        if self._closed or os.getpid() != self._pid:
            return
        self.faults.guard("stacks", self._stacks.stop)()
        self._closed = True
        self.faults.guard("sampler", self._machine.stop)()
        self._hooks.remove()
        self._collections.remove()
        if self._recorder.running:
            self.faults.guard("trace", self._recorder.stop)()
        self.faults.guard("run.json", self._describe)()
        self.faults.guard("samples", self._writer.close)()
        if self._counters is not None:
            self._counters.close()
        self.faults.report()

    def watch(self, module: object) -> None:
        """Times the forward pass of ``module``."""
        self.faults.guard("module times", self._hooks.watch)(module)

    def step_by_hand(self) -> None:
        """A step has ended because the program says so; what else could end one is not asked any more."""
        if self._source != "calls of step()":
            self._source = "calls of step()"
            self._steps = 0  # the optimizer's first step came before the first call: the steps begin here
        self.faults.guard("steps", self.step_ended)()

    # --- steps --------------------------------------------------------------------------------------

    def optimizer_begins(self) -> None:
        self._optimizer.begin()

    def optimizer_ends(self, optimizer: object) -> None:
        self._optimizer.end()
        self._optimizer_steps_in_scaler += 1
        if self._source == "calls of step()":
            return
        if self._anchor is None:
            self._anchor = id(optimizer)
            self._source = "optimizer"
            self.faults.guard("module times", self._hooks.watch_outermost_module)(optimizer)
        if id(optimizer) == self._anchor:
            self.step_ended()

    def scaler_begins(self) -> None:
        self._optimizer_steps_in_scaler = 0

    def scaler_ends(self) -> None:
        """A scaler that found infinities did not step, but the iteration is over all the same."""
        if self._anchor is not None and self._optimizer_steps_in_scaler == 0:
            self.step_ended(flags=SKIPPED)

    def input_begins(self) -> None:
        if self._on_stepping_thread():
            self._input.begin()

    def input_ends(self) -> None:
        if not self._on_stepping_thread():
            return
        self._input.end()
        self._batches += 1
        if self._source is None and self._batches > _BATCHES_BEFORE_STEPS:
            self._source = "batches"
        if self._source == "batches":
            self.step_ended()

    def loader_begins(self, loader: object) -> None:
        if len(self._loaders) < _MOST_LOADERS:
            self._loaders[id(loader)] = self.faults.guard("data loaders", loader_facts)(loader) or {}
        if self._on_stepping_thread():
            self._input.begin()

    def loader_ends(self) -> None:
        if self._on_stepping_thread():
            self._input.end()

    def forward_begins(self) -> None:
        if self._on_stepping_thread():
            self._forward.begin()

    def forward_ends(self) -> None:
        if not self._on_stepping_thread():
            return
        self._forward.end()
        self._forwards += 1
        if self._source in (None, "batches") and self._forwards > _FORWARDS_BEFORE_STEPS:
            self._source = "forward passes"
        if self._source == "forward passes":
            self.step_ended()

    def backward_begins(self) -> None:
        if self._on_stepping_thread():
            self._backward.begin()

    def backward_ends(self) -> None:
        if self._on_stepping_thread():
            self._backward.end()

    def save_begins(self) -> None:
        self._save.begin()

    def save_ends(self) -> None:
        self._save.end()

    def user_profiler_begins(self) -> None:
        """The user starts a profiler of their own: ours makes room."""
        if not self._recorder.running or self._recorder.starting:
            return
        self.windows.abandon()
        self._recorder.stop()
        self._note("the job started a profiler of its own while a window was open; the window was cut short")

    def _on_stepping_thread(self) -> bool:
        return self._thread in (None, threading.get_ident())

    # --- a step has ended ---------------------------------------------------------------------------

    def step_ended(self, flags: int = 0) -> None:
        """Takes note of a step and opens, marks or closes a window."""
        now = time.perf_counter_ns()
        if self._closed:
            return
        if self._steps == 0:
            self._first_step(now)
            return
        if not self._on_stepping_thread():
            return
        duration = now - self._step_began_ns
        recording = self._recorder.running
        self._guarded_sample(now, duration, flags | (PROFILED if recording else 0))
        self._steps += 1
        if recording:
            self._profiled_ns += duration
            self._profiled_steps += 1
        else:
            self._outside_ns += duration
        if self._steps == _STEPS_BEFORE_JUDGING:
            self.faults.guard("module times", self._judge_cost)(now)
        action = self.windows.step_ended(duration, now)
        if action is not Action.NOTHING:
            self.faults.guard("trace", self._act)(action)
            self._disregard_ourselves()
        self._step_began_ns = time.perf_counter_ns()
        if not recording and not self._recorder.running:
            self._hook_ns += self._step_began_ns - now
        if self._experiment is not None:
            self.faults.guard("experiment", self._experiment.step_ended)(self._steps)

    def _first_step(self, now: int) -> None:
        self._thread = threading.get_ident()
        self._steps = 1
        self._counters = ThreadCounters()
        rank = self.faults.guard("rank", self._rank)() or 0
        if self._writer.path is None:
            self.faults.guard("samples", self._writer.open)(
                rank, {"began_unix_ns": time.time_ns(), "world_size": self._world_size()}
            )
        self._recorder.rank = self._writer.rank
        self.faults.guard("device times", self._device.mark)()
        for watch in (self._input, self._forward, self._backward, self._optimizer, self._save, self._collections):
            watch.take_us()
        if self._experiment is not None:
            self.faults.guard("experiment", self._experiment.first_step)()
        self._began_ns = now
        self._step_began_ns = time.perf_counter_ns()

    def _sample(self, now: int, duration: int, flags: int) -> None:
        if self._counters is None:
            return
        self._device.mark()
        # Asking the kernel costs as much as all else: steps that are shorter share an answer.
        counted, rss_kib = NOT_COUNTED, None
        if now - self._counted_ns >= _COUNT_EVERY_NS:
            counted, rss_kib = self._counters.since_last(), self._counters.rss_kib()
            self._counted_ns = now
        self._writer.write(
            (
                self._steps,
                (now - self._began_ns) // 1000,
                duration // 1000,
                self._input.take_us(),
                self._forward.take_us(),
                self._backward.take_us(),
                self._optimizer.take_us(),
                self._save.take_us(),
                self._collections.take_us(),
                *counted,
                self._device.latest_us(),
                rss_kib,
                flags,
            )
        )

    def _judge_cost(self, now: int) -> None:
        """Stops timing the module when the job's steps are too short for it."""
        if (now - self._began_ns) / self._steps < _SHORTEST_STEP_WITH_MODULES_NS and self._source == "optimizer":
            self._hooks.unwatch()
            self._note("steps are so short that timing the forward pass would disturb them; it was not timed")

    def _disregard_ourselves(self) -> None:
        """Begins to count anew: what the profiler cost just now is no part of the next step."""
        self._collections.take_us()
        if self._counters is not None:
            self._counters.since_last()

    def _act(self, action: Action) -> None:
        if action is Action.START:
            self._start_window()
        elif action is Action.MARK and self._recorder.running:
            self._recorder.mark()
        elif action is Action.STOP and self._recorder.running:
            self._recorder.mark()
            self._recorder.stop()
            if self._recorder.bytes_written > self.config.schedule.most_bytes:
                self.windows.no_more()
                self._note(f"no further windows: the traces have reached {self._recorder.bytes_written:,} bytes")

    def _start_window(self) -> None:
        if self._recorder.is_busy():
            self.windows.abandon()
            self._note("a window was not opened: the job is profiling itself")
            return
        try:
            self._recorder.start()
        except Exception:
            self.windows.abandon()
            raise

    def look_around(self) -> None:
        """Called now and then by the sampler: requests from outside, and modules of a job without an optimizer.

        This thread touches nothing of the user's: modules are looked at on the main one, and again if others were made since.
        """
        with contextlib.suppress(OSError):
            asked = (self.folder / CAPTURE_NOW).stat().st_mtime_ns
            if asked > self._asked_unix_ns:  # the file stays: other ranks look at it too
                self._asked_unix_ns = asked
                self.windows.request()
        old_enough = time.perf_counter_ns() - self._began_ns > self.config.optimizer_within_s * 1e9
        made = self._hooks.modules_made
        if self._needs_forward() and old_enough and made != self._modules_looked_at:
            self._modules_looked_at = made
            call_on_main_thread(self.faults.guard("module times", self._watch_any_module))

    def _needs_forward(self) -> bool:
        return not self._closed and self._source in (None, "batches") and self._forwards == 0

    def _watch_any_module(self) -> None:
        if self._needs_forward():
            self._hooks.watch_any_module()

    # --- what is written at the end -----------------------------------------------------------------

    def _rank(self) -> int:
        distributed = getattr(self._torch, "distributed", None)
        if distributed is not None and distributed.is_available() and distributed.is_initialized():
            return int(distributed.get_rank())
        return int(os.environ.get("RANK", "0"))

    def _world_size(self) -> int:
        return int(os.environ.get("WORLD_SIZE", "1") or 1)

    def _note(self, text: str) -> None:
        if text not in self._notes:
            self._notes.append(text)

    def write_line(self, line: dict[str, Any]) -> None:
        """A line of the sampler's, once there are steps."""
        if self._steps > 0 and not self._closed:
            self._writer.write(line)

    @property
    def stepping_thread(self) -> int | None:
        """The thread that steps, once it has."""
        return self._thread

    def part_of_step(self, at_ns: int) -> str | None:
        """What the stepping thread was at a moment ago; ``None`` in the first steps and while the profiler runs."""
        if self._closed or self._steps <= _UNSTEADY_STEPS or self._recorder.running:
            return None
        parts = (
            ("save", self._save),
            ("input", self._input),
            ("backward", self._backward),
            ("forward", self._forward),
            ("optimizer", self._optimizer),
        )
        return next((name for name, watch in parts if watch.ran_at(at_ns)), "other")

    @property
    def steps(self) -> int:
        """How many steps have ended, the first included."""
        return self._steps

    def _describe(self) -> None:
        """Writes ``rank<R>.run.json``; the launcher joins them into ``run.json``."""
        if self._steps == 0:
            return
        outside = max(self._outside_ns, 1)
        unprofiled_steps = max(self._steps - 1 - self._profiled_steps, 0)
        description = RankDescription(
            rank=self._writer.rank,
            pid=self._pid,
            python=platform.python_version(),
            torch=str(self._torch.__version__),
            steps=self._steps,
            steps_from=self._source,
            traces=self._recorder.files,
            samples=self._writer.path.name if self._writer.path else None,
            overhead=Overhead(
                hooks_share=self._hook_ns / outside,
                profiled_over_unprofiled=self._ratio(unprofiled_steps),
                export_ns=self._recorder.export_ns,
            ),
            notes=self._notes,
            experiment=self._experiment.note if self._experiment is not None else None,
            not_recorded=self.faults.reasons,
            facts=facts(self._torch),
            loaders=list(filter(None, self._loaders.values())),
        )
        staging = self.folder / staged_description(self._writer.rank, self._pid)
        staging.write_bytes(encode(description))
        staging.replace(self.folder / description_name(self._writer.rank))

    def _ratio(self, unprofiled_steps: int) -> float | None:
        if not self._profiled_steps or not unprofiled_steps or not self._outside_ns:
            return None
        return (self._profiled_ns / self._profiled_steps) / (self._outside_ns / unprofiled_steps)


class _Guarded:
    """The session as torch's hooks see it: every method guarded under its own name."""

    def __init__(self, session: Session) -> None:
        guard = session.faults.guard
        self.optimizer_begins = guard("optimizer times", session.optimizer_begins)
        self.optimizer_ends = guard("steps", session.optimizer_ends)
        self.scaler_begins = guard("scaler", session.scaler_begins)
        self.scaler_ends = guard("scaler", session.scaler_ends)
        self.input_begins = guard("input times", session.input_begins)
        self.input_ends = guard("input times", session.input_ends)
        self.loader_begins = guard("input times", session.loader_begins)
        self.loader_ends = guard("input times", session.loader_ends)
        self.forward_begins = guard("forward times", session.forward_begins)
        self.forward_ends = guard("forward times", session.forward_ends)
        self.backward_begins = guard("backward times", session.backward_begins)
        self.backward_ends = guard("backward times", session.backward_ends)
        self.save_begins = guard("save times", session.save_begins)
        self.save_ends = guard("save times", session.save_ends)
        self.user_profiler_begins = guard("the job's own profiler", session.user_profiler_begins)
