"""Samples the stepping thread's place in Python, some twenty times a second: the lines a diagnosis points to.

A thread beside the job reads the frames; the job is neither traced nor stopped. Each sample costs some tens of
microseconds of the interpreter's lock.

A sample needs that lock, and a thread that runs Python releases it only when it calls code that works without, or after
a time (`switching`). Samples would therefore find the end of short Python instead of Python. One that had to wait for
the lock counts as Python, before the line that it found at last; its part of the step is that of the moment at which it
was due. One that got the lock at once, and found a line of the user's own innermost, found a call in that line that
works without the lock: an operator of torch's, a file, a pause. Only a recording separates these.
"""

from __future__ import annotations

import functools
import linecache
import os
import random
import re
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any, Final

from whystall.capture import clock
from whystall.capture.descriptors import OwnFile
from whystall.capture.faults import suppress
from whystall.capture.job_clock import OutsideSteps, Place
from whystall.capture.own_thread import OwnThread
from whystall.capture.switching import Switching
from whystall.capture.watched import Watched
from whystall.capture.window_looks import EVERY_S as WINDOW_S
from whystall.capture.window_looks import WindowLooks
from whystall.run_folder.job_times import MODEL, JobPlace
from whystall.run_folder.samples import BEFORE, CALLED
from whystall.vocabulary.episodes import episode_of, episode_of_code
from whystall.vocabulary.job_work import IMPORTS, WAITING, WORKERS, precedence_of, work_at, work_of_text, works

_EVERY_S: Final = 0.04
_UNEVEN: Final = (0.6, 1.4)
# Waking up takes a fifth of a millisecond; a longer delay waited for the lock (waits for a core are known).
_LOCKED_NS: Final = 600_000
# Python gives the lock up after its interval: where it is found then is where it was.
_SWITCH_SHARE: Final = 0.9
# Where threads that only wait are found: they do not hold the lock.
_WAITING: Final = frozenset(
    (
        "wait",
        "get",
        "put",
        "select",
        "poll",
        "accept",
        "recv",
        "_recv",
        "acquire",
        "join",
        "_wait_for_tstate_lock",
        "_worker",
    )
)
# A long run is sampled less often, so that its total cost stays as small as at its beginning.
_SLOWER_AFTER: Final = 3_000
_SLOWEST_S: Final = 0.5
_WRITE_EVERY_S: Final = 10.0
_MOST_PLACES: Final = 500
_MOST_WRITTEN: Final = 60
_MOST_THREADS: Final = 8
_DEEPEST: Final = 200
_LONGEST_TEXT: Final = 120
# Code that its user did not write: installed packages, Python's own library, code of torch's compiler (its cache has
# that name, or lies where its user wants it: there a file's name is 52 letters and digits of a hash), and modules that
# a library writes into temporary files by their dotted names (torch_geometric/template.py).
_LIBRARY: Final = re.compile(
    r"[/\\](site-packages|dist-packages|lib[/\\]python\d[\d.]*|torchinductor_[^/\\]*)[/\\]"
    r"|[/\\]\w\w[/\\]c[a-z2-7]{51}\.py$|[/\\][a-z_]\w*(\.[a-z_]\w*){2,}_\w{8}\.py$|^<(?!ipython-input-)"
)
# IPython's names for the code of a cell: in a terminal, and in a notebook.
_CELL: Final = re.compile(r"^<ipython-input-(?P<number>\d+)-\w+>$|[/\\]ipykernel_\d+[/\\]\d+\.py$")

# The functions of torch that turn a frame, or the graph of a backward pass, into compiled code; no compiled step goes
# through them.
_COMPILES: Final = frozenset({"_compile_inner", "compile_fx_inner", "_compile_fx_inner", "fx_codegen_and_compile"})
# Those that make a program of a model, and call its functions meanwhile, with the ends of their files' names.
_TRACES: Final = {
    "_script_impl": "/torch/jit/_script.py",
    "_trace_impl": "/torch/jit/_trace.py",
    "export": "/torch/export/__init__.py",
    "freeze": "/torch/jit/_freeze.py",
    "optimize_for_inference": "/torch/jit/_freeze.py",
    "script": "/torch/jit/_script.py",  # before 2.7
    "symbolic_trace": "/torch/fx/_symbolic_trace.py",
    "trace": "/torch/jit/_trace.py",  # before 2.5
}

# Where a model is called, learns and is updated.
_OF_MODELS: Final = {
    "torch.nn.modules.module": frozenset({"_call_impl", "_wrapped_call_impl"}),
    "torch._tensor": frozenset({"backward"}),
    "torch.autograd": frozenset({"backward", "grad"}),
}
_MODULE: Final = "<module>"
_OF_OPTIMIZERS: Final = frozenset({"step", "profile_hook_step"})

LineKey = tuple[str, str, int, str, str]
"""Part of the step, file, line, function, and the innermost function as ``module:name``."""


def shown_file(file: str) -> str:
    """A file as the report names it: below the working folder or Python's path, else its name alone.

    The folders of a machine are private (docs, "Privacy and security").
    """
    cell = _cell(file)
    if cell is not None:
        return f"cell {cell}"
    path = Path(file)
    here = []
    with suppress(OSError):  # a working folder may be deleted under a job
        here.append(Path.cwd())
    for base in (*here, *(Path(entry) for entry in tuple(sys.path) if entry and isinstance(entry, str))):
        with suppress(ValueError):
            return str(path.relative_to(base))
    return path.name


def _cell(file: str) -> int | None:
    """The number of a notebook's cell whose code has this file's name; ``None`` for other files.

    IPython names a cell's code by its hash, and keeps its number beside it.
    """
    named = _CELL.search(file)
    if named is None:
        return None
    shell = getattr(sys.modules.get("IPython.core.interactiveshell"), "InteractiveShell", None)
    compiler = getattr(getattr(shell, "_instance", None), "compile", None)
    number = getattr(compiler, "_filename_map", {}).get(file, named["number"])
    return int(number) if number is not None else None


def is_library(filename: str) -> bool:
    """Whether code in a file is not the user's: of an installed package, of Python's own library, or generated."""
    return bool(_LIBRARY.search(filename))


class Loop:
    """The functions that steps end in: with any name, they are no episode within a step.

    A function with an episode's name is checked when the next step ends.
    """

    def __init__(self) -> None:
        self.asks = False
        self._functions: set[tuple[str, int]] = set()

    def begin_again(self) -> None:
        """The steps so far were none: the loop's functions are unknown."""
        self._functions.clear()

    def step_ends(self, frame: FrameType | None) -> None:
        """A step ends in this frame, on the thread that steps."""
        self.asks = False
        for _ in range(_DEEPEST):
            if frame is None:
                break
            if episode_of_code(frame.f_code):
                self._functions.add((frame.f_code.co_filename, frame.f_code.co_firstlineno))
            frame = frame.f_back

    def episode(self, frame: FrameType | None) -> str | None:
        """The step's part by the name of the outermost such function on the stack."""
        found = None
        for _ in range(_DEEPEST):
            if frame is None:
                break
            # torch's own functions belong to a step: its checkpoint() recomputes and saves nothing.
            if not str(frame.f_globals.get("__name__", "")).startswith("torch."):
                named = episode_of_code(frame.f_code)
                loops = named and (frame.f_code.co_filename, frame.f_code.co_firstlineno) in self._functions
                found = found if loops else named or found
            frame = frame.f_back
        self.asks |= found is not None
        return found


def _episode_below(leaf: FrameType | None, own: FrameType | None) -> str | None:
    """The part of a library's function that the user's line called, by its name or its module; the outermost counts."""
    found = None
    for _ in range(_DEEPEST):
        if leaf is None or leaf is own:
            break
        module = str(leaf.f_globals.get("__name__", ""))
        found = episode_of(leaf.f_code.co_name, "library") or episode_of(module, "module") or found
        leaf = leaf.f_back
    return found


def _traced_in(frame: FrameType | None) -> FrameType | None:
    """The outermost function around a frame that traces a model into a program."""
    found = None
    for _ in range(_DEEPEST):
        if frame is None:
            break
        end = _TRACES.get(frame.f_code.co_name)
        if end is not None and frame.f_code.co_filename.replace("\\", "/").endswith(end):
            found = frame
        frame = frame.f_back
    return found


def _is_import(frame: FrameType) -> bool:
    return frame.f_code.co_name == "_find_and_load" and frame.f_code.co_filename == "<frozen importlib._bootstrap>"


def _work_below(leaf: FrameType | None, own: FrameType | None) -> str:
    """The kind of work of the functions that the user's line called; empty where none is known for one."""
    first: int | None = None
    for _ in range(_DEEPEST):
        if leaf is None or leaf is own:
            break
        if _is_import(leaf):
            return IMPORTS
        at = precedence_of(str(leaf.f_globals.get("__name__", "")), leaf.f_code.co_name)
        first = at if first is None or (at is not None and at < first) else first
        leaf = leaf.f_back
    return work_at(first)


def _module_body(frame: FrameType | None) -> FrameType | None:
    """The innermost module that is being imported in a frame or its callers."""
    for _ in range(_DEEPEST):
        if frame is None or frame.f_code.co_name == _MODULE:
            break
        frame = frame.f_back
    return frame


def _runs_the_model(frame: FrameType | None) -> FrameType | None:
    """The outermost frame, of these and its callers, in which a model is called, learns or is updated."""
    found = None
    for _ in range(_DEEPEST):
        if frame is None:
            break
        module = str(frame.f_globals.get("__name__", ""))
        if module.startswith("torch.") and frame.f_code.co_name in _OF_MODELS.get(module, _OF_OPTIMIZERS):
            found = frame
        frame = frame.f_back
    return found


def _packages(frame: FrameType | None) -> set[str]:
    """The packages of a frame and its callers."""
    found = set()
    for _ in range(_DEEPEST):
        if frame is None:
            break
        found.add(str(frame.f_globals.get("__name__", "")).partition(".")[0])
        frame = frame.f_back
    return found


def _seen(place: LineKey, late_ns: int, *, held: bool, in_library: bool) -> LineKey:
    """A place as the sample saw it: one that waited for the lock found the line after Python, others a call."""
    if held:
        return (*place[:4], BEFORE)
    return (*place[:4], CALLED) if late_ns <= _LOCKED_NS and not in_library else place


class OfSteps:
    """Counts of places within steps that have ended: later ones belong to no step."""

    def __init__(self) -> None:
        self.ended: dict[LineKey, int] = {}
        self.left_out = 0
        self._open: dict[LineKey, int] = {}
        self._step: int | None = None

    def count(self, place: LineKey, step: int) -> None:
        """Counts a place at which a thread was found while a step ran."""
        self.close(step)
        self._open[place] = self._open.get(place, 0) + 1

    def close(self, step: int) -> None:
        """Adds the counts in steps before this one."""
        if step != self._step:
            for place, count in self._open.items():
                if place in self.ended or len(self.ended) < _MOST_PLACES:
                    self.ended[place] = self.ended.get(place, 0) + count
                else:
                    self.left_out += count
            self._open = {}
            self._step = step

    def take(self) -> tuple[dict[LineKey, int], int]:
        """The samples in ended steps since the last call, and how many found no room."""
        taken = self.ended, self.left_out
        self.ended, self.left_out = {}, 0
        return taken


class StackSampler:
    """A daemon thread that counts where the stepping thread is found."""

    def __init__(self, session: Watched) -> None:
        self._session = session
        self._thread = OwnThread(self._run)
        self._counts, self._threads = OfSteps(), OfSteps()
        self._looks = self.cpu_ns = 0
        self._loop = Loop()
        self.outside = OutsideSteps()
        """Where the main thread was outside of steps."""
        self.in_windows = WindowLooks(shown_file, text_of)
        """The samples while windows were recorded."""
        self._whystall = str(Path(__file__).parent.parent)
        self._capture = str(Path(__file__).parent)
        self._switching = Switching()
        self._schedstat: OwnFile | None = None

    def step_ends(self) -> None:
        """A step ends, on the calling thread."""
        if self._loop.asks:
            self._session.faults.guard("stacks", self._loop.step_ends)(sys._getframe(1))  # noqa: SLF001 - what called

    def begin_again(self) -> None:
        """The steps so far were none."""
        self._loop.begin_again()
        self.outside.begin_again()
        self._counts, self._threads = OfSteps(), OfSteps()
        self.in_windows = WindowLooks(shown_file, text_of)

    @property
    def pause_s(self) -> float:
        """How long it waits between two looks."""
        return float(min(_EVERY_S * 2 ** (self._looks // _SLOWER_AFTER), _SLOWEST_S))

    def look_often(self) -> None:
        """Looks as often as at first: a window was recorded, perhaps since the job became slow."""
        self._looks = 0

    def start(self) -> None:
        """Begins."""
        works()  # reads its table: later nothing of it may wait for a file
        self._thread.start()

    def stop(self) -> None:
        """Ends, and writes the last counts."""
        self._thread.stop(2.0)
        self._switching.give_back()
        self._close()
        self._write()

    def forget(self) -> None:
        """Called in a forked child, which is not sampled."""
        self._switching.give_back()
        self._close()

    def _close(self) -> None:
        schedstat, self._schedstat = self._schedstat, None
        if schedstat is not None:
            schedstat.close()

    def _queued_ns(self) -> int:
        """The calling thread's total wait for a core; 0 where the kernel does not report it.

        The file stays open: if each look opened it, the job could close it and take its number meanwhile.
        """
        try:
            if self._schedstat is None:
                self._schedstat = OwnFile("/proc/thread-self/schedstat", os.O_RDONLY)
            return int(os.pread(self._schedstat.number, 96, 0).split()[1])
        except (OSError, IndexError, ValueError):
            return 0

    def _run(self) -> None:
        look = self._session.faults.guard("stacks", self._look)
        write = self._session.faults.guard("stacks", self._write)
        self._close()  # of the thread before a fork
        unwritten, began_ns = 0.0, clock.thread_time_ns() - self.cpu_ns
        between = random.Random(os.getpid()).uniform  # noqa: S311 - no secret; and the user's own numbers stay as they are
        while True:
            # With steps of equal length an equal pause would always find the same part.
            pause = WINDOW_S if self._session.recording else self.pause_s * between(*_UNEVEN)
            queued, wanted = self._queued_ns(), clock.perf_counter_ns() + int(pause * 1e9)
            if self._thread.rests(pause):
                return
            look(wanted, clock.perf_counter_ns() - wanted, queued)
            self._session.keep_journal()
            self.cpu_ns = clock.thread_time_ns() - began_ns
            unwritten += pause
            if unwritten >= _WRITE_EVERY_S:
                write()
                unwritten = 0.0

    def _look(self, wanted_ns: int, late_ns: int, queued_ns: int) -> None:
        """Counts where the stepping thread is; while a window is recorded, notes it with the time.

        The sample was due at ``wanted_ns``, and is ``late_ns`` late. ``queued_ns`` is this thread's earlier wait for a
        core. Until the places are known and the frames are released nothing may release the lock: a function that
        returned meanwhile would leave its variables to us, to be destroyed on this thread.
        """
        recording, step = self._session.recording, self._session.steps
        if not step and not recording:
            self._look_before_steps()
            return
        part = "" if recording else self._session.part_of_step(wanted_ns)
        thread = self._session.stepping_thread
        if thread is None and recording:  # a window by the clock shows the main thread
            thread = threading.main_thread().ident
        if thread is None:
            return
        frames = sys._current_frames()  # noqa: SLF001 - the documented way to another thread's frames
        frame = frames.pop(thread, None)
        if frame is None:
            return
        frames.pop(threading.get_ident(), None)
        self.outside.uses(functools.partial(_packages, frame))
        outside = self._outside(frame, step)
        if part is None or (not recording and self._is_at_ours(frame)):
            del frame, frames
            self.outside.add(outside, step)
            return
        all_wait = all(other.f_code.co_name in _WAITING for other in frames.values())
        taken_after_s = self._switching.in_force_s()
        (self._switching.shorten if all_wait else self._switching.give_back)()
        if recording:
            at, place = clock.time_ns(), self._place(part, frame)
            del frame, frames
            self.in_windows.add(at, place)
            self.outside.add(outside, step)
            return
        place, in_library = self._place(part, frame), self._is_library(self._leaf(frame).f_code.co_filename)
        others = list(map(self._beside, list(frames.values())[:_MOST_THREADS]))
        del frame, frames
        if late_ns > _LOCKED_NS:
            late_ns -= self._queued_ns() - queued_ns
        self.outside.add(outside, step)
        step = self._session.steps
        for beside in filter(None, others):
            self._threads.count(beside, step)
        held = _LOCKED_NS < late_ns < taken_after_s * 1e9 * _SWITCH_SHARE
        self._looks += 1
        self._counts.count(_seen(place, late_ns, held=held and all_wait, in_library=in_library), step)

    def _look_before_steps(self) -> None:
        """Counts where the main thread is while no step has ended, perhaps in an import: nothing is imported for it."""
        frame = sys._current_frames().get(threading.main_thread().ident or 0)  # noqa: SLF001 - as below
        if frame is None:
            return
        place = self._outside(frame, 0)
        del frame
        self.outside.add(place, 0)

    def _outside(self, frame: FrameType, step: int) -> Place:
        """The innermost line of the user's own code, without its part of a step, and the kind of work that it does.

        Where a model runs it is the line that calls the model.
        """
        leaf = self._leaf(frame)
        own = self._users(leaf)
        model = _runs_the_model(leaf)
        found = (self._users(model) if model is not None else own) or own or leaf
        role = self._loop.episode(own) or _episode_below(leaf, own) or ""
        work = _work_below(leaf, own)
        if work == WAITING:
            work = WORKERS if not step or self._session.loader_is_new else ""
        if not work and not step and model is not None:
            work = MODEL
        inner = _module_body(leaf) or leaf if work == IMPORTS else leaf
        name = f"{inner.f_globals.get('__name__', '?')}:{inner.f_code.co_name}"
        line = found.f_lineno or found.f_code.co_firstlineno
        return found.f_code.co_filename, line, found.f_code.co_name, name, work, role

    def _users(self, frame: FrameType) -> FrameType | None:
        """The innermost frame, of these and its callers, of code that is the user's."""
        own: FrameType | None = frame
        for _ in range(_DEEPEST):
            if own is None or not self._is_library(own.f_code.co_filename):
                break
            own = own.f_back
        return own

    def _beside(self, frame: FrameType) -> LineKey | None:
        """Where a thread beside the job's is, unless it waits or is ours."""
        code = frame.f_code
        if code.co_name in _WAITING or code.co_filename.startswith(self._whystall):
            return None
        return self._place("thread", frame)

    def _place(self, part: str, frame: FrameType) -> LineKey:
        """The innermost line of the user's own code, and the innermost function of all."""
        leaf = self._leaf(frame)
        traced = _traced_in(leaf)
        own: FrameType | None = traced or leaf
        compiles = traced is not None
        for _ in range(_DEEPEST):
            if own is None or not self._is_library(own.f_code.co_filename):
                break
            compiles |= own.f_code.co_name in _COMPILES
            own = own.f_back
        found = leaf if own is None or self._is_library(own.f_code.co_filename) else own
        part = "compile" if compiles else self._loop.episode(own) or _episode_below(leaf, own) or part
        code = found.f_code
        name = f"{leaf.f_globals.get('__name__', '?')}:{leaf.f_code.co_name}"
        return part, code.co_filename, found.f_lineno or code.co_firstlineno, code.co_name, name

    def _is_at_ours(self, frame: FrameType) -> bool:
        """Whether a thread of the job's is in work of the capture's, in a library that this calls for example."""
        at: FrameType | None = frame
        for _ in range(_DEEPEST):
            if at is None:
                return False
            if at.f_code.co_filename.startswith(self._capture):
                return True
            at = at.f_back
        return False

    def _leaf(self, frame: FrameType) -> FrameType:
        """The innermost frame that is not whystall's."""
        inner: FrameType | None = frame
        while inner is not None and inner.f_code.co_filename.startswith(self._whystall):
            inner = inner.f_back
        return inner or frame

    def _is_library(self, filename: str) -> bool:
        return filename.startswith(self._whystall) or is_library(filename)

    def _write(self) -> None:
        """Writes the counts since the last time; lines are read from their files only now."""
        for places in (self._counts, self._threads):
            places.close(self._session.steps)
        (counts, left_out), (threads, _) = self._counts.take(), self._threads.take()
        if not counts:
            return
        rows, left = _rows(counts)
        line: dict[str, Any] = {"stacks": rows, "elsewhere": left + left_out}
        if threads:
            line["beside"] = _rows(threads)[0]
        self._session.write_line(line)


def job_place(place: Place, ns: int) -> JobPlace:
    """A place as it is written; its line is read from the file only now."""
    file, line, function, leaf, work, role = place
    text = text_of(file, line)
    return JobPlace(shown_file(file), line, function, text, leaf, ns, work or work_of_text(text), role)


def text_of(file: str, line: int) -> str:
    """A line of code, cut where it is long; read from its file only now."""
    return linecache.getline(file, line).strip()[:_LONGEST_TEXT]


def _rows(counts: dict[LineKey, int]) -> tuple[list[list[Any]], int]:
    """The most frequent places as they are written, and how many looks found another."""
    ordered = sorted(counts.items(), key=lambda item: -item[1])
    rows = [
        [part, shown_file(file), line, function, text_of(file, line), leaf, count]
        for (part, file, line, function, leaf), count in ordered[:_MOST_WRITTEN]
    ]
    return rows, sum(count for _, count in ordered[_MOST_WRITTEN:])
