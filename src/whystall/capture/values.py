"""A window of its own in which torch's observer writes down which tensors each operator is given and returns.

It comes once the windows are over, on one rank, for three whole steps. The observer (`ExecutionTraceObserver`, C++)
replaces no function and keeps no tensor. It has faults that would reach the job, and which decide when no window opens:

- It crashes on compressed sparse tensors, and calls Python for subclasses with sizes of their own while it holds a lock
  (both seen with torch 2.13): no window where the recorded steps show such tensors.
- It logs as warnings that it begins, that it ends, and each tensor that it cannot describe: torch's log of C++ is
  limited to errors meanwhile.
- A thread that runs an operator while the observer is removed could use freed memory: it is disabled first, and removed
  a step later.
"""

from __future__ import annotations

import ctypes
import gzip
import math
import os
import re
import shutil
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from whystall.capture import clock
from whystall.capture.descriptors import deadly_size
from whystall.capture.faults import suppress
from whystall.capture.heard_functions import hear
from whystall.capture.moments import imports
from whystall.capture.open_scopes import jobs_scope_is_left_open
from whystall.capture.plain_traces import counted, stretches
from whystall.capture.sums import unseen
from whystall.capture.the_jobs import attributes_of, items_in
from whystall.capture.torch_hooks import has_compiled
from whystall.run_folder.layout import HELD_SCOPE, READ_SCOPE, STEP_SCOPE, staged_trace, values_name

_STEPS: Final = 3
"""The recorded steps: memory that a step frees is used again in the next one, or in the one after it."""
_WAITS: Final = 2
"""Steps that pass after windows and looks are over: in the first the job allocates again what was freed for them."""
_MOST_OPERATORS: Final = 30_000
"""Largest number of operators in a step: the observer writes about a kilobyte for each, in some ten microseconds."""
_MOST_BYTES: Final = 128 << 20
_LONGEST_NS: Final = 60_000_000_000
_LONGEST_STEP_NS: Final = 20_000_000_000
_MOST_WAITS: Final = 200
_MOST_HELD: Final = 4_096
"""Tensors whose memory is marked as held through the window."""
_COPY_BYTES: Final = 1 << 20
# Operators on tensors that the observer cannot describe: compressed sparse, nested, of a compiler.
_UNFIT: Final = re.compile(
    rb'"name": ?"(?:aten|torch_sparse|nested)::[^"]*(?:sparse|nested|crow_|ccol_|jagged|padded_dense)'
)
_OPERATOR: Final = b'"cat": "cpu_op"'
_STEP: Final = b'"name": "ProfilerStep#'
_READS: Final = ("__reduce_ex__", "__dlpack__", "storage", "_typed_storage")
"""Functions of torch's, written in Python, that hand out a tensor's memory without an operator."""
_ERRORS_ALONE: Final = 2
_LOG_LEVEL: Final = "FLAGS_caffe2_log_level"


def unfit_in(plain: Path) -> str | None:
    """The reason for which the job of a recorded trace (Kineto's plain JSON) is not observed; ``None``: it can be."""
    operators, steps = counted(plain, [_OPERATOR, _STEP])
    if not operators or not steps:
        return "the recording has no operators"
    if operators > _MOST_OPERATORS * steps:
        return f"its steps have more than {_MOST_OPERATORS:,} operators"
    if any(_UNFIT.search(text) for text, _ in stretches(plain)):
        return "torch's observer cannot describe its sparse or nested tensors"
    return None


class ValuesWindow:
    """Records the values of three steps. ``looking`` is true meanwhile, ``over`` once it is done.

    Args:
        torch: The job's torch.
        folder: The run's folder.
        held: The job's modules and optimizers, whose tensors keep their memory through the window.
        note: Takes a sentence for the run's description.
    """

    def __init__(
        self, torch: Any, folder: Path, held: Callable[[], Iterable[object]], note: Callable[[str], None]
    ) -> None:
        self.looking = self.over = False
        self.file: str | None = None
        self._torch = torch
        self._folder = folder
        self._held = held
        self._note = note
        self._observer: Any = None
        self._log: _Log | None = None
        self._marked: list[tuple[Any, int]] | None = None
        self._plain: Path | None = None
        self._rank = self._passed = self._steps = 0
        self._began_ns = 0
        self._lock = threading.Lock()
        self._cut = self._disabled = self._read = False
        self._deaf: list[Callable[[], None]] = []
        self._pid = os.getpid()

    def step_ended(self, duration_ns: int, rank: int, unfit: str | None) -> None:
        """Begins after some steps, goes on with each, and ends.

        Args:
            duration_ns: The length of the step that has ended.
            rank: This rank's number.
            unfit: The reason against a window that the recorded steps show.
        """
        try:
            self._advance(duration_ns, rank, unfit)
        except BaseException:
            self._cut = True
            self.close()
            raise

    def _advance(self, duration_ns: int, rank: int, unfit: str | None) -> None:
        if self._plain is None:
            self._passed += 1
            if self._passed > _WAITS:
                self._begin(duration_ns, rank, unfit)
        elif self._disabled:
            self._remove()
        else:
            self._steps += 1
            if self._steps < _STEPS:
                self._scope(STEP_SCOPE, [])
            else:
                self._mark_held()
                if self._read:
                    self._scope(READ_SCOPE, [])
                self._disable()

    def watch(self) -> None:
        """Ends a window that lasts too long or whose file grows too large; may be called on any thread."""
        if not self.looking or self._disabled or self._plain is None:
            return
        size = 0
        with suppress(OSError):
            size = self._plain.stat().st_size
        if size > _MOST_BYTES or clock.perf_counter_ns() - self._began_ns > _LONGEST_NS:
            self.cut()

    def cut(self) -> None:
        """Ends the observation at once: what was recorded is incomplete, and is not kept."""
        if self.looking and not self._disabled and os.getpid() == self._pid:
            self._cut = True
            self._disable()

    def give_up(self) -> None:
        """The job traces a program, or profiles itself: no window opens any more, and an open one is cut."""
        if self._plain is None:
            self.over = True
        else:
            self.cut()

    def close(self) -> None:
        """Ends the window, at the end of the job, or before the process is another one."""
        if self._plain is not None and not self.over and os.getpid() == self._pid:
            self._cut |= not self._disabled
            if not self._disabled:
                self._disable()
            self._remove()
        self.over = True

    def forget(self) -> None:
        """In a forked child: the observer was disabled before, and its file is the parent's."""
        self.over, self.looking = True, False

    def _begin(self, duration_ns: int, rank: int, unfit: str | None) -> None:
        reason = unfit or self._hindrance(duration_ns)
        if reason is not None or self._passed > _MOST_WAITS:
            self._note(f"the values of operators were not recorded: {reason or 'modules were being imported'}")
            self.over = True
            return
        if imports():
            return
        self._log = _Log.found()
        if self._log is None:
            self._note("the values of operators were not recorded: this torch would write about it on standard error")
            self.over = True
            return
        self._rank = rank
        packed = self._folder / staged_trace(values_name(rank), os.getpid())
        plain = packed.with_name(f"{packed.name}.json")
        self._observer = self._torch._C._profiler  # noqa: SLF001 - the public class leaves a scope of its own open
        _before_forks(self)
        self._log.quiet()
        try:
            self._observer._add_execution_trace_observer(str(plain))  # noqa: SLF001
        except BaseException:
            self._log.restore()
            raise
        if not plain.is_file():  # another observer is there, the job's own
            self._log.restore()
            self._note("the values of operators were not recorded: the job observes itself")
            self.over = True
            return
        self._plain = plain
        self._began_ns = clock.perf_counter_ns()
        self.looking = True
        self._observer._enable_execution_trace_observer()  # noqa: SLF001
        self._mark_held()
        self._hear_reads()  # `is_shared` is one of them

    def _hear_reads(self) -> None:
        """Hears whether a tensor is pickled or handed to another library, which no operator shows."""
        for name in _READS:
            try:
                self._deaf.append(hear(getattr(self._torch.Tensor, name), self._is_read, lambda _: None))
            except (AttributeError, OSError, TypeError):
                self._read = True

    def _is_read(self, _: object) -> None:
        self._read = True

    def _hindrance(self, duration_ns: int) -> str | None:
        """The reason why no window may open now."""
        torch = self._torch
        core = torch._C  # noqa: SLF001 - none of this has a public name
        profiles = torch.autograd.profiler._is_profiler_enabled or _is_asked_by_the_job()  # noqa: SLF001
        reasons = (
            (not hasattr(core._profiler, "_add_execution_trace_observer"), "this torch has no observer for them"),  # noqa: SLF001
            (has_compiled(), "compiled code does not show them"),
            (profiles, "the job is profiling itself"),
            (core._len_torch_dispatch_stack() + core._len_torch_function_stack() > 0, "a mode of the job's is active"),  # noqa: SLF001
            (deadly_size() < math.inf, "the job limits the size of files"),
            (jobs_scope_is_left_open(), "a scope of the job's own (record_function) was open as a window ended"),
            (duration_ns > _LONGEST_STEP_NS, "its steps are too long"),
        )
        return next((reason for is_so, reason in reasons if is_so), None)

    def _mark_held(self) -> None:
        """Shows the observer the memory of tensors that the job keeps: those of its modules and optimizers.

        The second time only tensors that were there the first time, in the same memory. Tensors whose
        memory numpy or another process may write are left out: no operator shows such a change.
        """
        if self._marked is None:
            self._marked = [(weakref.ref(one), one.data_ptr()) for one in self._kept()]
        self._scope(HELD_SCOPE, self._present())

    def _present(self) -> list[Any]:
        """The marked tensors that are where they were."""
        here = [(reference(), address) for reference, address in self._marked or ()]
        return [one for one, address in here if one is not None and one.data_ptr() == address]

    def _kept(self) -> list[Any]:
        torch = self._torch
        kinds = (torch.Tensor, torch.nn.Parameter)
        found: dict[int, Any] = {}
        with suppress(RuntimeError, AttributeError, TypeError):
            for one in _of_kind(kinds, self._held()):
                if one.device.type != "cpu" or one.layout is not torch.strided:
                    continue
                storage = one.untyped_storage()
                if one.is_nested or not one.numel() or one.is_shared() or not storage.resizable():
                    continue
                found[storage.data_ptr()] = one
                if len(found) >= _MOST_HELD:
                    break
        return list(found.values())

    def _scope(self, name: str, tensors: list[Any]) -> None:
        """A scope in the recording, with a call (that reads nothing) on each of some tensors."""
        torch = self._torch
        with unseen(torch), torch.no_grad():
            scope = torch.autograd._record_function_with_args_enter(name)  # noqa: SLF001 - the public one is an operator
            try:
                for one in tensors:
                    one.detach()
            finally:
                torch.autograd._record_function_with_args_exit(scope)  # noqa: SLF001

    def _disable(self) -> None:
        with self._lock:  # the job's thread and one of ours may come at once
            done, self._disabled = self._disabled, True
        if done:
            return
        for end in self._deaf:
            end()
        self._deaf.clear()
        try:
            self._observer._disable_execution_trace_observer()  # noqa: SLF001
        finally:
            if self._log is not None:
                self._log.restore()

    def _remove(self) -> None:
        """Removes the observer, which ends its file, and packs that."""
        self.over, self.looking = True, False
        self._marked = None
        plain = self._plain
        if plain is None or self._log is None:
            return
        self._log.quiet()
        try:
            self._observer._remove_execution_trace_observer()  # noqa: SLF001
        finally:
            self._log.restore()
        try:
            if self._cut:
                self._note("the values of operators were not recorded: the steps took too long, or were too many")
            elif plain.stat().st_size <= _MOST_BYTES:
                self._pack(plain)
        finally:
            plain.unlink(missing_ok=True)

    def _pack(self, plain: Path) -> None:
        packed = plain.with_name(plain.name.removesuffix(".json"))
        try:
            with plain.open("rb") as source, gzip.GzipFile(packed, "wb", 1, mtime=0) as target:
                shutil.copyfileobj(source, target, _COPY_BYTES)
            packed.replace(self._folder / values_name(self._rank))
            self.file = values_name(self._rank)
        finally:
            packed.unlink(missing_ok=True)


class _Log:
    """The level of torch's log of C++, which limits it to errors for as long as the observer is there."""

    def __init__(self, level: ctypes.c_int) -> None:
        self._level = level
        self._before: int | None = None

    @classmethod
    def found(cls) -> _Log | None:
        """``None`` where this torch has another log."""
        with suppress(OSError, ValueError):
            library = ctypes.CDLL("libc10.so", mode=os.RTLD_NOLOAD | os.RTLD_NOW)
            return cls(ctypes.c_int.in_dll(library, _LOG_LEVEL))
        return None

    def quiet(self) -> None:
        """Warnings are not written until `restore`."""
        if self._before is None:
            self._before = self._level.value
            self._level.value = max(self._before, _ERRORS_ALONE)

    def restore(self) -> None:
        """The level is as it was, unless it was changed meanwhile."""
        before, self._before = self._before, None
        if before is not None and self._level.value == max(before, _ERRORS_ALONE):
            self._level.value = before


def _is_asked_by_the_job() -> bool:
    """Whether torch's environment variable asks for an observer in each profiler."""
    return os.environ.get("ENABLE_PYTORCH_EXECUTION_TRACE", "0") == "1"


def _of_kind(kinds: tuple[type, ...], owners: Iterable[object]) -> Iterator[Any]:
    """The plain tensors in modules (parameters, buffers, attributes) and in optimizers (their parameters)."""
    for owner in owners:
        kept = attributes_of(owner)
        groups = items_in(kept.get("param_groups")) or []
        for named in (kept.get("_parameters"), kept.get("_buffers"), kept, *groups):
            for one in items_in(named) or ():
                each = items_in(one) if type(one) is list else [one]
                yield from (tensor for tensor in each or () if type(tensor) in kinds)


_watched_forks: Final[list[weakref.ref[ValuesWindow]]] = []


def _before_forks(window: ValuesWindow) -> None:
    """A child would write into the same file, and wait for a lock that no thread of its own holds."""
    _watched_forks.append(weakref.ref(window))
    if len(_watched_forks) == 1:
        os.register_at_fork(before=_about_to_fork)


def _about_to_fork() -> None:
    for reference in _watched_forks:
        window = reference()
        if window is not None:
            window.cut()
