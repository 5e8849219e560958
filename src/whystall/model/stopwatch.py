"""Time by module, without a synchronisation: hooks time forward passes, a sparse profile times autograd's nodes.

On a CPU it is the host's time while a module runs and, if hooks apply, the time of its thread on a processor, which
other programs do not lengthen. On an accelerator it is the time of the kernels that a module's operators launched,
found by correlation.
"""

from __future__ import annotations

import os
import threading
import time
from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import torch
from torch import nn
from torch.autograd import _disable_profiler, _enable_profiler, _prepare_profiler
from torch.optim import optimizer as optimizer_hooks

from whystall.model import hooks
from whystall.model.attribution import ThreadState
from whystall.model.frames import Frame, Tree
from whystall.model.results import Phase

KINETO_LOG_LEVEL = "KINETO_LOG_LEVEL"
BACKWARD_FUNCTION = 1  # at::RecordScope: one event for each autograd node that runs
RUNTIME = ("cuda", "cuLaunch", "hip")  # the host's calls that launch work; operators count their own correlations
# Torch's profiler is one for all threads of a process, and a second one at once ends the interpreter.
_ONE_AT_A_TIME = threading.Lock()
_LONGEST_WAIT_S = 60.0
Times = dict[tuple[str, Phase], int]
Own = dict[tuple[Frame, Phase], int]


@dataclass(slots=True)
class _Span:
    frame: Frame
    phase: Phase
    start_ns: int
    node: int | None
    end_ns: int = 0
    start_thread_ns: int = 0
    end_thread_ns: int = 0

    def close(self) -> None:
        """Ends the span now."""
        self.end_ns, self.end_thread_ns = time.time_ns(), time.thread_time_ns()


class BusyError(Exception):
    """Another thread's run is being timed, and takes too long."""


class Stopwatch:
    """Times the code in its ``with`` block. ``times`` holds nanoseconds by path and phase, children included.

    ``thread_times`` holds those that the running thread spent on a processor: forward, recomputation and optimizer, on
    a CPU alone. The backward pass is timed by the profiler, which knows no such clock.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self.times: Times = {}
        self.thread_times: Times = {}

    def __enter__(self) -> Self:
        """Waits while another thread is timed. Raises `BusyError` where that does not end."""
        if not _ONE_AT_A_TIME.acquire(timeout=_LONGEST_WAIT_S):
            raise BusyError("another thread is being timed")
        try:
            self._open_all()
        except BaseException:
            _ONE_AT_A_TIME.release()
            raise
        return self

    def _open_all(self) -> None:
        self._tree = Tree(self._model)
        self._state = ThreadState(self._tree)
        self._open: list[_Span] = []
        self._spans: list[_Span] = []
        self._begin_profile()
        self._hooks = [
            *hooks.watch(self._model, self._before, self._after),
            optimizer_hooks.register_optimizer_step_pre_hook(self._before_step),
            optimizer_hooks.register_optimizer_step_post_hook(self._after_step),
        ]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._end(kind)
        finally:
            _ONE_AT_A_TIME.release()

    def _end(self, kind: type[BaseException] | None) -> None:
        for hook in self._hooks:
            hook.remove()
        if torch.cuda.is_available():
            torch.cuda.synchronize()  # kernels that still run would be missing
        events = _disable_profiler().events()
        if kind is None:
            self.times = self._gather(events)

    @staticmethod
    def _begin_profile() -> None:
        from torch._C._profiler import (  # noqa: PLC0415 - what torch.profiler is made of
            ProfilerActivity,
            ProfilerConfig,
            ProfilerState,
            RecordScope,
            _ExperimentalConfig,
        )

        activities = {ProfilerActivity.CPU}
        if torch.cuda.is_available():
            activities.add(ProfilerActivity.CUDA)
        config = ProfilerConfig(ProfilerState.KINETO, False, False, False, False, False, _ExperimentalConfig())
        said = os.environ.get(KINETO_LOG_LEVEL)
        os.environ[KINETO_LOG_LEVEL] = said or "99"  # its notes on every profile are no news to the user
        try:
            _prepare_profiler(config, activities)
            _enable_profiler(config, activities, {RecordScope.BACKWARD_FUNCTION})
        finally:
            if said is None:
                del os.environ[KINETO_LOG_LEVEL]

    # --- hooks --------------------------------------------------------------------------------------------------------

    def _before(self, module: nn.Module, _inputs: Any) -> None:
        if torch.compiler.is_compiling():
            return
        self._state.enter(module)
        phase: Phase = "recompute" if self._state.part == "recompute" else "forward"
        node = torch._C._current_autograd_node() if phase == "recompute" else None  # noqa: SLF001 - as in attribution
        number = node._sequence_nr() if node is not None else None  # noqa: SLF001 - as in attribution
        self._begin(self._state.frame, phase, number)

    def _begin(self, frame: Frame, phase: Phase, node: int | None = None) -> None:
        self._open.append(_Span(frame, phase, time.time_ns(), node, start_thread_ns=time.thread_time_ns()))

    def _after(self, module: nn.Module, _inputs: Any, _outputs: Any) -> None:
        if torch.compiler.is_compiling():
            return
        while self._open:
            span = self._open.pop()
            span.close()
            self._spans.append(span)
            if span.frame.module is module:
                break
        self._state.leave(module)

    def _before_step(self, _optimizer: Any, _args: Any, _kwargs: Any) -> None:
        self._begin(self._tree.root, "optimizer")

    def _after_step(self, _optimizer: Any, _args: Any, _kwargs: Any) -> None:
        while self._open:
            span = self._open.pop()
            span.close()
            self._spans.append(span)
            if span.phase == "optimizer":
                break

    # --- from spans and events to times -------------------------------------------------------------------------------

    def _gather(self, events: list[Any]) -> Times:
        device = torch.device("cpu").type
        on_device = [event for event in events if str(event.device_type()).rpartition(".")[2].lower() != device]
        nodes = [event for event in events if event.scope() == BACKWARD_FUNCTION]
        if on_device:
            return _with_children(self._by_kernels(events, on_device, nodes))
        self.thread_times = _with_children(self._by_thread())
        return _with_children(self._by_host(nodes))

    def _by_thread(self) -> Own:
        """Own processor time of the running thread by frame and phase."""
        own: defaultdict[tuple[Frame, Phase], int] = defaultdict(int)
        for span, inner in _own_thread_times(self._spans):
            own[span.frame, span.phase] += inner
        return own

    def _by_host(self, nodes: list[Any]) -> Own:
        """Own time by frame and phase: spans without the spans inside, nodes without nodes and spans inside."""
        own: defaultdict[tuple[Frame, Phase], int] = defaultdict(int)
        recomputed: defaultdict[int | None, int] = defaultdict(int)
        for span, inner in _own_times(self._spans):
            own[span.frame, span.phase] += inner
            if span.phase == "recompute":
                recomputed[span.node] += inner
        for frame, number, duration in self._node_times(nodes):
            own[frame, "backward"] += max(duration - recomputed.pop(number, 0), 0)
        return own

    def _node_times(self, nodes: list[Any]) -> list[tuple[Frame, int, int]]:
        """The frame, number and own time of every node that ran; one without a number follows the one before."""
        rows, frame = [], self._tree.root
        for node, duration in _own_durations(nodes):
            number = node.sequence_nr()
            if number >= 0:
                place = bisect_right(self._state._starts, number) - 1  # noqa: SLF001 - read after the run
                frame = self._state._frames[place]  # noqa: SLF001 - likewise
            rows.append((frame, number, duration))
        return rows

    def _by_kernels(self, events: list[Any], kernels: list[Any], nodes: list[Any]) -> Own:
        """Time of kernels by the innermost span or node that was open when their launch was called."""
        launched = {event.correlation_id(): event.start_ns() for event in events if event.name().startswith(RUNTIME)}
        open_at: list[tuple[int, int, Frame, Phase]] = [
            (span.start_ns, span.end_ns, span.frame, span.phase) for span in self._spans
        ]
        frames = self._node_times(nodes)
        ordered = [node for node, _ in _own_durations(nodes)]
        open_at += [
            (node.start_ns(), node.start_ns() + node.duration_ns(), frame, "backward")
            for node, (frame, _, _) in zip(ordered, frames, strict=True)
        ]
        open_at.sort(key=lambda row: (row[0], -row[1]))
        starts = [row[0] for row in open_at]
        own: defaultdict[tuple[Frame, Phase], int] = defaultdict(int)
        for kernel in kernels:
            at = launched.get(kernel.correlation_id())
            if at is None:
                continue
            place = bisect_right(starts, at) - 1
            while place >= 0 and open_at[place][1] < at:
                place -= 1
            if place >= 0:
                own[open_at[place][2], open_at[place][3]] += kernel.duration_ns()
        return own


def _with_children(own: Own) -> Times:
    """By path: the time of each frame and of all below it."""
    times: defaultdict[tuple[str, Phase], int] = defaultdict(int)
    for (frame, phase), duration in own.items():
        above: Frame | None = frame
        while above is not None:
            times[above.path, phase] += duration
            above = above.parent
    return dict(times)


def _own_thread_times(spans: list[_Span]) -> list[tuple[_Span, int]]:
    """Each span with its thread's processor time less that of the spans directly inside it."""
    ordered = sorted(spans, key=lambda span: (span.start_ns, -span.end_ns))
    own = [span.end_thread_ns - span.start_thread_ns for span in ordered]
    for place, above in enumerate(_enclosing([(span.start_ns, span.end_ns) for span in ordered])):
        if above is not None:
            own[above] -= ordered[place].end_thread_ns - ordered[place].start_thread_ns
    return [(span, max(time_ns, 0)) for span, time_ns in zip(ordered, own, strict=True)]


def _own_times(spans: list[_Span]) -> list[tuple[_Span, int]]:
    """Each span with its duration less that of the spans directly inside it."""
    ordered = sorted(spans, key=lambda span: (span.start_ns, -span.end_ns))
    return [
        (ordered[place], own)
        for place, own in enumerate(_less_inner([(span.start_ns, span.end_ns) for span in ordered]))
    ]


def _own_durations(nodes: list[Any]) -> list[tuple[Any, int]]:
    """Each node with its duration less that of the nodes directly inside it, in the order in which they began."""
    ordered = sorted(nodes, key=lambda node: (node.start_thread_id(), node.start_ns(), -node.duration_ns()))
    result: list[tuple[Any, int]] = []
    for thread in dict.fromkeys(node.start_thread_id() for node in ordered):
        mine = [node for node in ordered if node.start_thread_id() == thread]
        intervals = [(node.start_ns(), node.start_ns() + node.duration_ns()) for node in mine]
        result += zip(mine, _less_inner(intervals), strict=True)
    return result


def _less_inner(intervals: list[tuple[int, int]]) -> list[int]:
    """The length of each interval less its direct children's, for intervals sorted by start, that nest."""
    own = [end - start for start, end in intervals]
    for (start, end), above in zip(intervals, _enclosing(intervals), strict=True):
        if above is not None:
            own[above] -= end - start
    return [max(one, 0) for one in own]


def _enclosing(intervals: list[tuple[int, int]]) -> list[int | None]:
    """The place of the interval that each lies directly in, for intervals sorted by start, that nest."""
    found: list[int | None] = []
    stack: list[int] = []
    for place, (start, _) in enumerate(intervals):
        while stack and intervals[stack[-1]][1] <= start:
            stack.pop()
        found.append(stack[-1] if stack else None)
        stack.append(place)
    return found
