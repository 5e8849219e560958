"""One watched process: brings its parts together, and sees to its beginning, its steps and its end."""

from __future__ import annotations

import atexit
import functools
import os
import platform
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from whystall._native import hear_exit
from whystall.capture import clock
from whystall.capture.compile_limits import CompileLimits
from whystall.capture.config import CaptureConfig
from whystall.capture.descriptors import write_whole
from whystall.capture.ending import last_exception
from whystall.capture.faults import Faults, suppress
from whystall.capture.flight import FlightRecorder
from whystall.capture.forward_search import ForwardSearch
from whystall.capture.job_clock import JobClock, Stamps
from whystall.capture.job_journal import JobJournal
from whystall.capture.listener import Heard, guarded
from whystall.capture.loaders import LoadersSeen
from whystall.capture.machine import MachineSampler, facts
from whystall.capture.memory_snapshots import MemorySnapshots
from whystall.capture.moments import is_unfit
from whystall.capture.overhead import Costs, Within
from whystall.capture.padding import LOADER, PaddingSeen
from whystall.capture.python_tools import PythonTools
from whystall.capture.ranks import rank_of, ranks_of
from whystall.capture.recording import Recording
from whystall.capture.repeats import RepeatsSeen
from whystall.capture.sampling import COUNT_EVERY_NS, StepSampler
from whystall.capture.stacks import StackSampler, job_place
from whystall.capture.stepless import NO_MORE_STEPS, NO_STEPS, SteplessWindow
from whystall.capture.steps import StepFinder
from whystall.capture.sums import unseen
from whystall.capture.torch_hooks import TorchHooks
from whystall.capture.tuned import Change, change_for
from whystall.capture.values import ValuesWindow
from whystall.capture.windows import Action
from whystall.run_folder.alive import this_process
from whystall.run_folder.description import RANKS_IN_WINDOWS, RankDescription, encode
from whystall.run_folder.job_times import JobPlace
from whystall.run_folder.layout import CAPTURE_NOW, description_name, staged_description, trace_name
from whystall.run_folder.samples import LOOKED_AT, PROFILED

# Timing the forward pass costs some 10 us a step, the rest some 20 (benchmarks/bench_capture.py): of steps shorter than
# this it would be more than the one per cent that we allow ourselves.
_SHORTEST_STEP_WITH_MODULES_NS: Final = 3_000_000
# In production three in a thousand are allowed.
_SHORTEST_IN_PRODUCTION_NS: Final = 12_000_000
_STEPS_BEFORE_JUDGING: Final = 32
# The kernel's counters are read this seldom there: a reading costs a step the same as all our other work.
_COUNT_IN_PRODUCTION_NS: Final = 250_000_000
# The first steps load, compile and allocate: their places are not typical.
_UNSTEADY_STEPS: Final = 2


def _is_a_worker() -> bool:
    """Whether multiprocessing started this process: a loader's worker, or a rank that its parent spawned."""
    known = sys.modules.get("multiprocessing.process")
    return getattr(known, "_parent_process", None) is not None


def _row(place: JobPlace) -> list[str | int]:
    return [place.file, place.line, place.function, place.text, place.leaf, place.work, place.role, place.ns]


class Session:
    """Watches the process it lives in. Every method that torch calls is guarded: none of them raises."""

    def __init__(self, torch: Any, config: CaptureConfig, stamps: Stamps | None = None) -> None:
        self.config = config
        self.faults = Faults()
        self.folder = Path(config.folder)
        self.steps = 0
        self.stepping_thread: int | None = None
        self._torch = torch
        self._finder = StepFinder()
        self._in_production = config.schedule.on_slowdown is not None
        count_every_ns = _COUNT_IN_PRODUCTION_NS if self._in_production else COUNT_EVERY_NS
        self._sampler = StepSampler(torch, self.folder, config.most_sample_bytes, count_every_ns)
        self._recording = Recording(torch, config, self.folder, self._note)
        self._costs = Costs()
        self._machine = MachineSampler(self, torch)
        self._stacks = StackSampler(self)
        self._job = JobClock(stamps)
        self._journal = JobJournal(self.folder) if stamps is not None and not _is_a_worker() else None
        self._told_instants: dict[str, int] = {}
        self._told_step = 0
        self._write_journal = self.faults.guard("journal", self._write_news)
        self._flight = FlightRecorder(torch, self.folder)
        rank = self.faults.guard("rank", lambda: rank_of(torch))
        self._snapshots = MemorySnapshots(torch, self.folder, lambda: rank() or 0, self.faults, wanted=config.memory)
        self._padding = PaddingSeen(wanted=config.looks != "none")
        self._look_at_padding = self.faults.guard("padding of batches", self._padding.look)
        self._repeats = RepeatsSeen(torch, self.on_stepping_thread, config.looks)
        self._values = ValuesWindow(torch, self.folder, lambda: self._hooks.alive, self._note)
        self._values.over = not config.values
        self._compiler = CompileLimits()
        self._stepless = SteplessWindow(
            torch, config, self.folder, self._paused, self._steps_are_missing, self._describe_what_is_held
        )
        self._within = Within()
        heard = Heard(self, self._finder, self._sampler.parts, torch)
        self._hooks = TorchHooks(torch, guarded(heard, self.faults, self._within.timed))
        self._finder.is_alive = lambda known: any(id(one) == known for one in self._hooks.optimizers_alive)
        self._finder.several_optimizers = lambda: len(self._hooks.optimizers_alive) > 1
        self._finder.any_optimizer = lambda: self._hooks.optimizers_made > 0
        # Once: making a guard costs more than the sample.
        self._guarded_sample = self.faults.guard("samples", self._sampler.sample)
        self._experiment: Change | None = change_for(torch, config)
        self._notes: list[str] = []
        self._loaders = LoadersSeen()
        self._forwards = ForwardSearch(
            self._hooks,
            self._finder,
            functools.partial(self.faults.guard, "module times"),
            within_s=config.optimizer_within_s,
            is_over=lambda: self._closed,
        )
        self._tools = PythonTools()
        self._closed = self._whole_process = False
        self._pid = os.getpid()
        self._process = this_process()
        self._began_ns, self._step_began_ns = clock.perf_counter_ns(), 0
        self._asked_unix_ns = clock.time_ns()

    # --- life ---------------------------------------------------------------------------------------

    def open(self, *, whole_process: bool = True) -> None:
        """Begins to watch; ``whole_process``: to the end of the process, however it comes."""
        guard = self.faults.guard
        self._whole_process = whole_process
        self._finder.optimizers_unsure = not whole_process
        if self._experiment is not None:
            guard("experiment", self._experiment.install)()
        guard("hooks", self._hooks.install)(modules_made_before=not whole_process)
        guard("garbage collections", self._sampler.parts.collections.install)()
        guard("compiler", self._compiler.install)()
        guard("sampler", self._machine.start)()
        guard("stacks", self._stacks.start)()
        if whole_process:
            guard("end by os._exit", hear_exit)(os._exit, self.close)
        os.register_at_fork(after_in_child=self._forget)
        atexit.register(self.close)

    def _forget(self) -> None:
        """In a forked child: this process is not the one that trains."""
        self._closed = True
        self._values.forget()
        self._stacks.forget()
        self._stop_listening()

    def _stop_listening(self) -> None:
        self._hooks.remove()
        self._sampler.parts.collections.remove()
        self._compiler.remove()

    def close(self) -> None:
        """Writes all data and reports failures once."""
        if self._closed or os.getpid() != self._pid:
            return
        guard = self.faults.guard
        guard("stacks", self._stacks.stop)()
        if self._journal is not None:
            self._write_journal(self._journal, ended_unix_ns=clock.time_ns())
            self._journal.close()
        self._closed = True
        guard("sampler", self._machine.stop)()
        self._stop_listening()
        guard("repeated work", self._repeats.close)()
        guard("values", self._values.close)()
        if self.steps and not self._steps_are_missing():
            guard("trace", self._stepless.discard)()
        by_the_clock = guard("trace", self._stepless.close)(stepped=self.steps > 0)
        if by_the_clock:
            self._recording.recorder.files += by_the_clock
            told = NO_MORE_STEPS.format(steps=self.steps, source=self._finder.source)
            self._note(told if self.steps else NO_STEPS)
        if self._recording.running:
            self._paused(self._recording.stop)
        guard("flight recorder", self._flight.close)(self.steps, failed=self._ended_by is not None)
        guard("run.json", self._describe)()
        guard("samples", self._sampler.writer.close)()
        self._sampler.close_counters()
        self.faults.report()

    def watch(self, module: object) -> None:
        """Times the forward pass of ``module``."""
        self.faults.guard("module times", self._hooks.watch)(module)

    def step_by_hand(self) -> None:
        """Ends a step on the program's own call; other events do not end one any more."""
        if self._finder.program_steps():
            self.steps = 0  # the optimizer's first step came before the first call: the steps begin here
        self._within.timed(self.faults.guard("steps", self.step_ended))()

    # --- events of the listener ---------------------------------------------------------------------

    def on_stepping_thread(self) -> bool:
        """Whether the calling thread is the one that steps, or may become it."""
        return self.stepping_thread in (None, threading.get_ident())

    def optimizer_found(self, optimizer: object) -> None:
        """The optimizer that ends the steps has stepped for the first time."""
        self.faults.guard("module times", self._hooks.watch_outermost_module)(optimizer)
        if self.steps:
            self.faults.guard("steps", self._begin_again)()

    def _begin_again(self) -> None:
        """The steps so far were no training: an evaluation before it was taken for them.

        Several ranks keep their numbers of steps, by which they agree on windows.
        """
        self._stacks.begin_again()
        if (ranks_of(self._torch) or 1) > 1:
            self._job.first_step()
            return
        self._paused(self._recording.begin_again)
        self._sampler.writer.begin_again()
        self.steps = 0

    def loader_found(self, loader: object) -> None:
        """An iterator of a data loader is requested."""
        self.faults.guard("data loaders", self._loaders.asked)(loader)

    def given(self, batch: object, source: str) -> None:
        """Looks at a batch now and then, and not while the profiler runs."""
        self._job.batch()
        if source == LOADER:
            self._loaders.handed_out()
        if self._padding.asks and not self._recording.recorder.running and self._padding.comes(source):
            with unseen(self._torch):
                self._look_at_padding(batch, source, self._loaders.maker)

    def make_room(self) -> None:
        """The job starts a profiler of its own."""
        self._recording.make_room()
        self._stepless.make_room()
        self.faults.guard("values", self._values.cut)()
        recorder, stepless = self._recording.recorder, self._stepless
        if not (recorder.running or recorder.starting or stepless.begun or stepless.starting):
            self.look_no_more()

    def look_no_more(self) -> None:
        """The job traces a program, or observes operators itself: looks at operators and modules end for good."""
        if not self._repeats.over:
            self._repeats.close()
        self.faults.guard("values", self._values.give_up)()

    @property
    def loader_is_new(self) -> bool:
        """Whether a loader began and has not handed out a batch yet."""
        return self._loaders.is_new

    def before_backward(self) -> None:
        """Ends a look that would change the bits of gradients, before the backward pass begins."""
        if self._repeats.looking:
            self.faults.guard("repeated work", self._repeats.before_backward)()

    # --- a step has ended ---------------------------------------------------------------------------

    def step_ended(self, flags: int = 0, *, in_call: bool = False) -> None:
        """Takes note of a step and opens, marks or closes a window; one that a graph records is not run."""
        now = clock.perf_counter_ns()
        if self._closed or is_unfit(self._torch):
            return
        if self.steps == 0:
            self._first_step(now)
            return
        if not self.on_stepping_thread():
            return
        by_the_clock = self._stepless.begun
        if by_the_clock:
            self._paused(self._stepless.no_more)
        self._stacks.step_ends()
        duration = now - self._step_began_ns
        recording = self._recording.recorder.running or by_the_clock
        look = self._look
        disturbed = (PROFILED if recording else 0) | (LOOKED_AT if look else 0)
        self._guarded_sample(self.steps, now, duration, flags | disturbed)
        self.steps += 1
        if self.steps == _STEPS_BEFORE_JUDGING:
            self.faults.guard("module times", self._judge_cost)(now)
        self._windows(duration, now, in_call=in_call)
        self._step_began_ns = clock.perf_counter_ns()
        within = self._within.take()
        if recording:
            self._costs.profiled(duration)
        elif look:
            self._costs.looked(duration, look)
        else:  # the steps of a window show the cost of opening it
            after = 0 if self._recording.recorder.running else self._step_began_ns - now
            self._costs.outside(duration, within + after)
        self._within.without(clock.perf_counter_ns() - now)
        if self._experiment is not None:
            self.faults.guard("experiment", self._experiment.step_ended)(self.steps)

    def _windows(self, duration: int, now: int, *, in_call: bool) -> None:
        """Opens, marks or closes a window; after the last one, examines repeated work."""
        action = self._recording.windows.step_ended(duration, now)
        if action is not Action.NOTHING:
            if action is not Action.MARK:
                self.faults.guard("samples", self._sampler.writer.flush)()
            self._paused(lambda: self._recording.act(action))
            if action is Action.STOP:
                self._paused(self._snapshots.window_over)
                self._stacks.look_often()
                self.faults.guard("run.json", self._describe)(ended=False)
            self._sampler.disregard_ourselves()
        if not self._repeats.over and self._recording.windows.over:
            self.faults.guard("repeated work", self._repeats.step_ended)(duration, in_call=in_call)
            if self._repeats.found is not None:
                self.faults.guard("run.json", self._describe)(ended=False)
        elif not self._values.over and self._recording.windows.over:
            self._record_values(duration)

    def _record_values(self, duration: int) -> None:
        """Values are recorded by the first rank, where the looks do not follow its operators."""
        rank = self._sampler.writer.rank
        looked = self.config.looks == "all" and (ranks_of(self._torch) or 1) == 1
        if rank or (looked and not self._torch.cuda.is_initialized()):
            self._values.over = True
            return
        step_ended = self.faults.guard("values", self._values.step_ended)
        self._paused(lambda: step_ended(duration, rank, self._recording.recorder.unfit))
        if self._values.over:
            self.faults.guard("run.json", self._describe)(ended=False)

    @property
    def _look(self) -> str | None:
        """The look that is under way, which makes steps longer."""
        if self._repeats.looking:
            return self._repeats.name
        return "values" if self._values.looking else None

    def _paused(self, recording: Callable[[], None]) -> None:
        """Carries out an action on a window, and counts the job's pause."""
        began = clock.perf_counter_ns()
        self.faults.guard("trace", recording)()
        self._costs.paused(clock.perf_counter_ns() - began)

    def _first_step(self, now: int) -> None:
        guard, sampler = self.faults.guard, self._sampler
        self.stepping_thread = threading.get_ident()
        self.steps = 1
        self._job.first_step()
        guard("trace", self._stepless.discard)()
        self._costs = Costs()  # of the steps
        sampler.count()
        rank = guard("rank", rank_of)(self._torch) or 0
        ranks = guard("rank", ranks_of)(self._torch) or 1
        self._recording.of_ranks(ranks)
        guard("samples", sampler.open)(rank, ranks)
        self._recording.recorder.rank = self._stepless.rank = sampler.writer.rank
        guard("device times", sampler.device.mark)()
        sampler.begin(now)
        if self._experiment is not None:
            guard("experiment", self._experiment.first_step)()
        guard("run.json", self._describe)(ended=False)
        self._within.take()
        self._within.without(clock.perf_counter_ns() - now)
        self._began_ns = now
        self._step_began_ns = clock.perf_counter_ns()

    def _judge_cost(self, now: int) -> None:
        """Stops timing the module when the job's steps are too short for it."""
        shortest = _SHORTEST_IN_PRODUCTION_NS if self._in_production else _SHORTEST_STEP_WITH_MODULES_NS
        if (now - self._began_ns) / self.steps < shortest and self._finder.source == "optimizer":
            self._hooks.unwatch()
            self._note("steps are so short that timing the forward pass would disturb them; it was not timed")

    @property
    def _ended_by(self) -> str | None:
        return last_exception() if self._whole_process else None

    def _note(self, text: str) -> None:
        if text not in self._notes:
            self._notes.append(text)

    # --- queries of the threads beside the job ------------------------------------------------------

    def look_around(self) -> None:
        """Called now and then by the sampler: requests from outside, and modules of a job without an optimizer.

        This thread touches nothing of the user's: modules are looked at on the main one, and again if others were made
        since.
        """
        with suppress(OSError):
            asked = (self.folder / CAPTURE_NOW).stat().st_mtime_ns
            if asked > self._asked_unix_ns:  # the file stays: other ranks look at it too
                self._asked_unix_ns = asked
                self._recording.windows.request()
        now = clock.perf_counter_ns()
        self.faults.guard("samples", self._sampler.writer.flush)()
        self.faults.guard("memory snapshots", self._snapshots.look)()
        self.faults.guard("values", self._values.watch)()
        self._look_for_standstill(now)
        if not self._closed and self._steps_are_missing():
            self._stepless.look()
        if not self._closed:
            self._forwards.look(now, self._began_ns)

    def _steps_are_missing(self) -> bool:
        """Whether no step was seen, or too few to be recorded and then none for long."""
        recorded = self._in_production or self._recording.running or bool(self._recording.recorder.files)
        silent = SteplessWindow.is_silent(self.steps, self._began_ns, self._step_began_ns)
        return self.steps == 0 or (silent and not recorded)

    def _look_for_standstill(self, now: int) -> None:
        began = self._step_began_ns or self._began_ns
        usual = (began - self._began_ns) / max(self.steps, 1)
        self.faults.guard("flight recorder", self._flight.look)(self.steps, now - began, usual)

    def keep_journal(self) -> None:
        """Writes what is new of the job's parts, now and then; called by the sampler of stacks."""
        if self._journal is not None and self._journal.is_due and not self._closed:
            self._write_journal(self._journal)

    def _write_news(self, journal: JobJournal, **more: int) -> None:
        outside = self._stacks.outside
        if outside.began_again:
            outside.began_again = False
            journal.write({"again": True})
        instants = self._job.instants() | more
        news = {name: at for name, at in instants.items() if self._told_instants.get(name) != at}
        if news:
            self._told_instants |= news
            journal.write(news)
        since_ns = clock.perf_counter_ns() - self._step_began_ns
        if 0 < self._told_step < outside.step:  # the lines of that step are no end of the job
            self._told_step = 0
            journal.write({"step": outside.step, "looks": []})
        for step, places in outside.unwritten(since_ns).items():
            self._told_step = step
            ended = {"last_step_unix_ns": clock.time_ns() - since_ns} if step == outside.step and step else {}
            looks = [_row(job_place(place, ns)) for place, ns in places.items()]
            journal.write({"step": step, **ended, "looks": looks})

    def write_line(self, line: dict[str, Any]) -> None:
        """A line of a sampler's, once there are steps."""
        if self.steps > 0 and not self._closed:
            self._sampler.writer.write(line)

    @property
    def recording(self) -> bool:
        """Whether a window is recorded at the moment."""
        return not self._closed and (self._recording.running or self._stepless.running)

    def part_of_step(self, at_ns: int) -> str | None:
        """The stepping thread's part of the step a moment ago; ``None`` in the first steps, in windows and in looks."""
        if (
            self._closed
            or self.steps <= _UNSTEADY_STEPS
            or self._recording.running
            or self._repeats.looking
            or self._values.looking
        ):
            return None
        return self._sampler.parts.at(at_ns)

    # --- files written at the end -------------------------------------------------------------------

    def _describe(self, *, ended: bool = True) -> None:
        """Writes this rank's description; the launcher joins the ranks into ``run.json``.

        Also at the first step and once a window is recorded: a job that is killed later writes nothing any more.
        """
        if self.steps == 0 and not self._recording.recorder.files:
            return
        rank = self._sampler.writer.rank
        self._write_description(self._recording.recorder.files, ended=ended).replace(
            self.folder / description_name(rank)
        )

    def _describe_what_is_held(self) -> None:
        """Writes it beside its place for a window by the clock: if the job is killed, the launcher publishes both."""
        self._write_description([trace_name(self._sampler.writer.rank)], ended=False, note=NO_STEPS)

    def _write_description(self, traces: list[str], *, ended: bool, note: str | None = None) -> Path:
        """Where the description was written, beside its place."""
        writer, recorder = self._sampler.writer, self._recording.recorder
        description = RankDescription(
            rank=writer.rank,
            pid=self._pid,
            process=self._process,
            python=platform.python_version(),
            torch=str(self._torch.__version__),
            steps=self.steps,
            steps_from=self._finder.source,
            traces=traces,
            samples=writer.path.name if writer.path else None,
            overhead=self._costs.told(
                recorder.export_ns, clock.perf_counter_ns() - self._began_ns, self._stacks.cpu_ns + self._machine.cpu_ns
            ),
            notes=[*self._notes, *([note] if note is not None and not self.steps else [])],
            experiment=self._experiment.note if self._experiment is not None else None,
            trial=self._experiment.seen if self._experiment is not None else None,
            not_recorded=self.faults.reasons,
            facts={**facts(self._torch), "python_tools": self._tools.told(), "rhythm": self._finder.rhythm},
            loaders=self._loaders.told(),
            ended=ended,
            ended_by=self._ended_by if ended else None,
            ended_unix_ns=clock.time_ns() if ended else None,
            job=self._job.told(
                self._stacks.outside,
                self.steps,
                self._step_began_ns,
                job_place,
                self._hooks.packages | self._loaders.packages,
                ended=ended,
            ),
            padding=self._padding.told(),
            tables=tuple(self._hooks.tables.told()),
            **self._repeats.told(),
            given_up=tuple(self._compiler.found),
            in_windows=tuple(self._stacks.in_windows.told()) if writer.rank < RANKS_IN_WINDOWS else (),
        )
        staging = self.folder / staged_description(writer.rank, self._pid)
        write_whole(staging, encode(description))
        return staging
