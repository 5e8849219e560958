"""Folds the records of a process into its compiles: attempts into one, backward graphs apart, later ones of one id too.

Ids begin again after ``torch.compiler.reset()``; a compile therefore ends with its metrics, and the same id may begin
another.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from whystall.compilation.metrics import Times, phases_of, text, times_of, whole
from whystall.compilation.results import Compile, KernelCompiler, Phases, Place
from whystall.compilation.wording import address_of, first_sentence, guard_text, guarded_line, hint_of, place_of
from whystall.json_text import NotJsonError, parse_json
from whystall.trace.readers.structured_log import LogRecord
from whystall.vocabulary.frames import owner

__all__ = ["UNREAD_KINDS", "BrokenAt", "CacheRecord", "OneCompile", "ProcessLog", "Room", "wants_payload"]

_METRICS: Final = frozenset(
    {"compilation_metrics", "bwd_compilation_metrics", "aot_autograd_backward_compilation_metrics"}
)
_RUNTIME_METRICS: Final = "compilation_metrics_runtime"
_CACHES: Final = {"fx_graph_cache_": "FX graph", "aotautograd_cache_": "AOTAutograd"}
_OUTCOMES: Final = ("hit", "miss", "bypass", "guard_miss")
_BREAK: Final = "dynamo_graph_break_reason"
_RECOMPILE: Final = "recompile_reasons"
_WANTED_PAYLOADS: Final = frozenset({_BREAK, _RECOMPILE, "dynamo_error", "torch_version"})
UNREAD_KINDS: Final = frozenset(
    {
        "aot_backward_graph", "aot_forward_graph", "aot_inference_graph", "aot_joint_graph",
        "compiled_autograd_graph", "create_symbol", "create_unbacked_symbol", "describe_source", "describe_storage",
        "describe_tensor", "dump_file", "dynamo_cpp_guards_str", "dynamo_guards", "expression_created", "graph_dump",
        "guard_added", "guard_added_fast", "inductor_input_graph", "inductor_output_code",
        "inductor_post_grad_graph", "inductor_pre_grad_graph", "link", "optimize_ddp_split_child",
        "optimize_ddp_split_graph", "propagate_real_tensors", "symbolic_shape_specialization",
    }
)  # fmt: skip
"""Kinds that hold the model's code and shapes and say nothing of time."""
_KERNELS: Final = frozenset({"compile_file", "async_compile.wait"})
_STARTS: Final = frozenset({"dynamo", "entire_frame_compile"})
_RECORDING: Final = frozenset({"CUDAGraphNode.record", "CUDAGraphTreeManager.record_function"})
_MOST_STACK: Final = 3
_MOST_INTERVALS: Final = 1_024
_MOST_NOTES: Final = 64
_LONGEST_GRAPHS: Final = 1_000
_LIMIT: Final = ("recompile limit", "recompile_limit", "cache_size_limit", "cache size limit")
_IN_CODE: Final = "Graph break in user code at "
_REASON: Final = "Graph Break Reason:"
_OLD_REASON: Final = "Reason:"
_SKIPPED: Final = "Failed to handle graph break gracefully"
_FRAME: Final = re.compile(r'^\s*File "([^"\n]{1,4096})", line (\d{1,9}), in (\S{1,200})$', re.MULTILINE)
_MOST_FRAMES: Final = 64
_STACK_END: Final = "User code traceback:"


class _Event(msgspec.Struct):
    """The fields of a chromium event that are read."""

    name: str = ""
    ph: str = ""
    ts: float = 0.0


class _CachePayload(msgspec.Struct):
    """The fields of a cache's record that are read."""

    key: str | None = None
    cache_state: str = ""
    cache_bypass_reason: str | None = None
    time_saved_ns: float | None = None
    time_saved_ms: float | None = None
    forward_time_saved_ms: float | None = None
    backward_time_saved_ms: float | None = None
    time_taken_ns: float | None = None
    triton_bundler_meta: str | None = None


@dataclass(slots=True)
class Room:
    """The room that is left for what the logs of a reading hold, so that no log takes the machine's memory."""

    compiles: int = 100_000
    notes: int = 400_000
    """Graph breaks, looks into caches, waits for compilers."""
    files: int = 200_000
    left_out: int = 0
    """Compiles and notes for which there was none."""

    def take_note(self) -> bool:
        """Whether there is room for a note, which then takes it."""
        self.notes -= 1
        self.left_out += self.notes < 0
        return self.notes >= 0


@dataclass(slots=True)
class BrokenAt:
    """One graph break as a compile met it."""

    place: Place | None
    reason: str
    hint: str | None
    page: str | None
    callers: tuple[Place, ...] = ()
    """The lines that called it, the innermost last: where the functions around it resume."""
    called_at: Place | None = None
    """The user's line that led there, where the break is in other code."""


@dataclass(slots=True)
class CacheRecord:
    """One look into a cache."""

    cache: str
    outcome: str
    key: str
    reason: str
    saved_ns: int
    taken_ns: int


@dataclass(slots=True)
class OneCompile:
    """A compile while its records are read."""

    autograd_id: int | None
    frame_id: int | None
    version: int | None
    backward: bool
    attempts: int = 1
    frame: Place | None = None
    of_torch: bool = False
    """Whether the function is a wrapper of torch's around the user's."""
    callers: tuple[Place, ...] = ()
    times: Times | None = None
    start_ns: int | None = None
    phases: Phases = field(default_factory=Phases)
    guard: str = ""
    guarded_at: Place | None = None
    breaks: list[BrokenAt] = field(default_factory=list)
    restarts: list[BrokenAt] = field(default_factory=list)
    """The reasons of restarts, which are graph breaks without a line where nothing else records them."""
    caches: list[CacheRecord] = field(default_factory=list)
    graph: str = ""
    """The digests of the graphs that Dynamo made."""
    fail_kind: str = ""
    fail_reason: str = ""
    at_limit: bool = False
    cpp: bool = False
    triton: bool = False
    nested: bool = False
    open_events: dict[str, float] = field(default_factory=dict)
    intervals: list[tuple[float, float]] = field(default_factory=list)

    @property
    def total_ns(self) -> int:
        """The time of the compile; 0 where the log does not hold it."""
        return self.phases.total_ns

    @property
    def id(self) -> str:
        """The id as torch writes it."""
        one = f"{_number(self.frame_id)}/{_number(self.version)}"
        return one if self.autograd_id is None else f"!{self.autograd_id}/{one}"

    @property
    def kernels_by(self) -> KernelCompiler:
        """The program that made the kernels."""
        if self.cpp and self.triton:
            return KernelCompiler.BOTH
        return KernelCompiler.CPP if self.cpp else KernelCompiler.TRITON if self.triton else KernelCompiler.UNKNOWN

    @property
    def caller(self) -> Place | None:
        """The innermost of the user's lines that is not the compiled function itself."""
        own = self.frame
        others = [one for one in self.callers if own is None or (one.file, one.function) != (own.file, own.function)]
        return others[-1] if others else None

    @property
    def line(self) -> Place | None:
        """The line that a user would look at: the function, or the call where the function is torch's."""
        return (self.caller or self.frame) if self.of_torch else self.frame

    def result(self) -> Compile:
        """The compile as a result."""
        return Compile(
            id=self.id,
            backward=self.backward,
            frame=self.frame,
            caller=self.caller,
            attempts=self.attempts,
            total_ns=self.total_ns,
            phases=self.phases,
            restarts_ns=min(self.times.restarts_ns if self.times is not None else 0, self.total_ns),
            kernels_by=self.kernels_by,
            failed=(self.fail_kind or None) if not self.at_limit else "recompile limit",
            nested=self.nested,
        )

    def hear_kernels(self, event: _Event, room: Room) -> None:
        """Takes in the begin or the end of a wait for a compiler."""
        if event.ph == "B":
            self.open_events[event.name] = event.ts
        elif event.ph == "E" and event.name in self.open_events:
            begin = self.open_events.pop(event.name)
            if len(self.intervals) < _MOST_INTERVALS and begin <= event.ts and room.take_note():
                self.intervals.append((begin, event.ts))

    def close(self, times: Times) -> None:
        """Takes in the times of the compile's metrics."""
        self.times = times
        self.start_ns = times.start_ns if times.start_ns is not None else self.start_ns
        waited_ns = round(_covered(self.intervals) * 1_000)
        total_ns = times.total_ns or 0
        self.phases = phases_of(times, total_ns, waited_ns, backward=self.backward)
        self.intervals = []
        self.open_events = {}


Key = tuple[int | None, int | None, int | None]


@dataclass(slots=True)
class _Slot:
    """The compiles of one id that may still get records."""

    forward: OneCompile | None = None
    backward: OneCompile | None = None


@dataclass(slots=True)
class ProcessLog:
    """The compiles of one process, and what the log says beside them."""

    room: Room = field(default_factory=Room)
    rank: int | None = None
    pid: int | None = None
    torch: str | None = None
    compiles: list[OneCompile] = field(default_factory=list)
    caches: list[CacheRecord] = field(default_factory=list)
    """Looks into caches that belong to no compile."""
    has_break_records: bool = False
    has_cache_records: bool = False
    autotune_ns: int = 0
    recordings: int = 0
    recording_ns: int = 0
    graph_skips: Counter[str] = field(default_factory=Counter)
    _slots: dict[Key, _Slot] = field(default_factory=dict)
    _files: dict[int, str] = field(default_factory=dict)
    _recording_since: dict[str, float] = field(default_factory=dict)
    _current: deque[OneCompile] = field(default_factory=lambda: deque(maxlen=1))

    def hear(self, record: LogRecord) -> None:
        """Takes in a record."""
        if record.rank is not None:
            self.rank = record.rank
        if record.kind == "str":
            self._intern(record.value)
        elif record.kind in _METRICS and isinstance(record.value, dict):
            self._metrics(record, record.value)
        elif record.kind == _RUNTIME_METRICS and isinstance(record.value, dict):
            self.autotune_ns += times_of(record.value).autotune_ns
            self._skip(record.value)
        elif record.kind == "chromium_event":
            self._event(record)
        elif record.kind == "artifact":
            self._artifact(record)
        elif record.kind == "dynamo_start":
            self._started(record)
        elif record.kind == "dynamo_output_graph" and (found := self._of(record)) is not None:
            found.graph = f"{found.graph} {record.digest[:64]}"[:_LONGEST_GRAPHS].strip()
            found.attempts = max(found.attempts, record.attempt + 1)

    def end(self) -> None:
        """Ends the reading: compiles within others are marked, and those without a name get that of their function."""
        self._slots.clear()
        self._files.clear()
        frames: dict[tuple[int | None, int | None], Place | None] = {}
        for one in self.compiles:
            one.frame = one.frame or frames.get((one.autograd_id, one.frame_id))
            frames[one.autograd_id, one.frame_id] = one.frame
        ranges = sorted(
            (one.start_ns, -one.total_ns, place)
            for place, one in enumerate(self.compiles)
            if one.start_ns is not None and one.total_ns
        )
        until = 0
        for start, negative, place in ranges:
            end = start - negative
            if end <= until:
                self.compiles[place].nested = True
            until = max(until, end)

    def _intern(self, value: Any) -> None:
        match value:
            case [str(name), int(number)] if self.room.files > 0:
                self.room.files -= number not in self._files
                self._files[number] = name[-400:]

    def _of(self, record: LogRecord, *, starts: bool = False) -> OneCompile | None:
        """The compile that a record belongs to: the open one of its id, or one that begins; ``None`` without an id."""
        if record.frame_id is None and record.compiled_autograd_id is None:
            return None
        key = (record.compiled_autograd_id, record.frame_id, record.frame_compile_id)
        slot = self._slots.get(key)
        if slot is not None and slot.forward is not None and (slot.forward.times is None or not starts):
            return slot.forward if slot.forward.times is None else self._backward(slot, key)
        made = self._new(key, backward=False)
        if made is not None:
            self._slots[key] = _Slot(forward=made)
        return made

    def _backward(self, slot: _Slot, key: Key) -> OneCompile | None:
        if slot.backward is None or slot.backward.times is not None:
            slot.backward = self._new(key, backward=True)
        return slot.backward

    def _new(self, key: Key, *, backward: bool) -> OneCompile | None:
        """A compile that begins; ``None`` where there is no room for it."""
        if self.room.compiles <= 0:
            self.room.left_out += 1
            return None
        self.room.compiles -= 1
        made = OneCompile(*key, backward=backward)
        self.compiles.append(made)
        self._current.append(made)
        return made

    def _started(self, record: LogRecord) -> None:
        found = self._of(record, starts=True)
        if found is None or found.backward:
            return
        found.attempts = max(found.attempts, record.attempt + 1)
        stack = record.value.get("stack") if isinstance(record.value, dict) else None
        frames = [self._frame(one) for one in stack] if isinstance(stack, list) else []
        found.callers = tuple(one for one in frames if one is not None)[-_MOST_STACK:] or found.callers

    def _frame(self, raw: Any) -> Place | None:
        """A frame of a stack, where it is the user's own."""
        path = self._files.get(number) if isinstance(raw, dict) and type(number := raw.get("filename")) is int else None
        if path is None or owner(path) != "user":
            return None
        return place_of(path, raw.get("line"), raw.get("name"))

    def _metrics(self, record: LogRecord, raw: dict[str, Any]) -> None:
        backward = record.kind != "compilation_metrics" or raw.get("is_forward") is False
        found = self._ended_backward(record) if backward else self._of(record, starts=True)
        if found is None and record.frame_id is None:
            found = self._new((None, None, None), backward=backward)
        if found is None:
            return
        times = times_of(raw)
        self.autotune_ns += times.autotune_ns
        self.torch = self.torch or text(raw.get("pytorch_version"))[:40] or None
        found.attempts = max(found.attempts, record.attempt + 1) if not backward else 1
        frame = place_of(raw.get("co_filename"), raw.get("co_firstlineno"), raw.get("co_name"))
        if frame is not None:
            found.frame, found.of_torch = frame, owner(text(raw["co_filename"])) == "nobody"
        found.triton |= bool(whole(raw.get("num_triton_bundles"))) or bool(text(raw.get("cuda_version")))
        found.close(times)
        reasons = raw.get("restart_reasons")
        found.restarts = [
            BrokenAt(None, first_sentence(one), hint_of(one), address_of(one))
            for one in (reasons if isinstance(reasons, list) else [])[:_MOST_NOTES]
            if self.room.take_note()
        ]
        if not found.guard and text(raw.get("recompile_reason")):
            found.guard, found.guarded_at = guard_text(raw["recompile_reason"]), guarded_line(raw["recompile_reason"])
        reason = text(raw.get("fail_reason"))
        found.fail_kind = text(raw.get("fail_type"))[:80] or found.fail_kind
        found.at_limit = any(word in reason[:400] for word in _LIMIT)
        found.fail_reason = first_sentence(reason) if reason else found.fail_reason
        self._skip(raw)

    def _ended_backward(self, record: LogRecord) -> OneCompile | None:
        if record.frame_id is None and record.compiled_autograd_id is None:
            return None
        key = (record.compiled_autograd_id, record.frame_id, record.frame_compile_id)
        slot = self._slots.get(key) or _Slot()
        found = self._backward(slot, key)
        if found is not None:
            self._slots[key] = slot
        if found is not None and slot.forward is not None:
            found.frame, found.of_torch = slot.forward.frame, slot.forward.of_torch
            found.callers = slot.forward.callers
        return found

    def _skip(self, raw: dict[str, Any]) -> None:
        reason = text(raw.get("cudagraph_skip_reason"))
        if reason and len(self.graph_skips) < _MOST_NOTES:
            self.graph_skips[first_sentence(reason)] += 1

    def _event(self, record: LogRecord) -> None:
        try:
            event = parse_json(record.payload, _Event)
        except NotJsonError:
            return
        if event.name in _STARTS and event.ph == "B":
            found = self._of(record, starts=True)
            if found is not None and found.start_ns is None and 0 <= event.ts < 1 << 52:
                found.start_ns = round(event.ts * 1_000)
        elif event.name in _KERNELS:
            found = self._of(record)
            if found is not None:
                found.hear_kernels(event, self.room)
            if event.name == "compile_file":
                for one in (found,) if found is not None else self._current:
                    one.cpp = True
        elif event.name in _RECORDING:
            self._recorded(event)

    def _recorded(self, event: _Event) -> None:
        if event.ph == "B":
            self._recording_since[event.name] = event.ts
        elif event.ph == "E" and event.name in self._recording_since:
            lasted = event.ts - self._recording_since.pop(event.name)
            self.recordings += 1
            self.recording_ns += round(lasted * 1_000) if 0 <= lasted < 1e12 else 0

    def _artifact(self, record: LogRecord) -> None:
        name = record.name
        if name == _BREAK:
            self.has_break_records = True
            found = self._of(record)
            if found is not None and len(found.breaks) < _MOST_NOTES and self.room.take_note():
                found.breaks.append(_broken(record.payload))
        elif name == _RECOMPILE:
            found = self._of(record, starts=True)
            raw = _latest_reason(record.payload)
            if found is not None and raw:
                found.guard, found.guarded_at = guard_text(raw), guarded_line(raw)
        elif name == "torch_version":
            self.torch = _version(record.payload) or self.torch
        elif name == "dynamo_error":
            found = self._of(record)
            if found is not None:
                last = record.payload.decode("utf-8", "replace").strip().split("\n")
                raised = [line for line in last if line[:1].isalpha() and ":" in line]
                found.fail_kind = (raised[-1].split(":")[0].split(".")[-1] if raised else "error")[:80]
        elif name == "triton_kernel_info":
            for one in self._current:
                one.triton = True
        else:
            self._cache(record)

    def _cache(self, record: LogRecord) -> None:
        prefix = next((one for one in _CACHES if record.name.startswith(one)), None)
        if prefix is None:
            return
        try:
            told = parse_json(record.payload, _CachePayload)
        except NotJsonError:
            told = _CachePayload()
        outcome = record.name.removeprefix(prefix)
        outcome = outcome if outcome in _OUTCOMES else told.cache_state
        if outcome not in _OUTCOMES or not self.room.take_note():
            return
        self.has_cache_records = True
        made = CacheRecord(
            _CACHES[prefix],
            "miss" if outcome == "guard_miss" else outcome,
            (told.key or "")[:100],
            first_sentence(told.cache_bypass_reason),
            _ns(told.time_saved_ns, 1)
            or _ns(told.time_saved_ms, 10**6)
            or _ns(told.forward_time_saved_ms, 10**6) + _ns(told.backward_time_saved_ms, 10**6),
            _ns(told.time_taken_ns, 1),
        )
        found = self._of(record)
        if found is not None:
            found.triton |= "triton_" in (told.triton_bundler_meta or "").partition("cached_kernel_names=")[2]
        (self.caches if found is None else found.caches).append(made)


def wants_payload(record: LogRecord) -> bool:
    """Whether a record's payload is read."""
    return record.kind == "chromium_event" or (
        record.kind == "artifact" and (record.name in _WANTED_PAYLOADS or record.name.startswith(tuple(_CACHES)))
    )


def _broken(payload: bytes) -> BrokenAt:
    """The graph break that a payload describes."""
    said = payload.decode("utf-8", "replace")
    first, _, rest = said.partition("\n")
    text, _, stack = rest.partition(_STACK_END)
    frames = [(path, place_of(path, int(line), name)) for path, line, name in _FRAME.findall(stack)[-_MOST_FRAMES:]]
    callers = tuple(one for _, one in frames if one is not None)
    own = next((one for path, one in reversed(frames) if owner(path) == "user"), None)
    place = None
    if first.startswith(_IN_CODE):
        path, _, line = first.removeprefix(_IN_CODE).strip().rpartition(":")
        at = place_of(path, int(line) if line.isdecimal() and len(line) < 10 else 0, "")
        place = next((one for one in reversed(callers) if at is not None and str(one) == str(at)), at)
        own = None if owner(path) == "user" else own
    reason = text.removeprefix(_OLD_REASON)
    reason = reason.partition(_REASON)[2] or reason
    skipped = reason.lstrip().startswith(_SKIPPED)
    sentence = first_sentence(reason.partition(_SKIPPED)[2].partition("\n")[2] if skipped else reason)
    return BrokenAt(
        place,
        f"{sentence}{'; the function runs without a graph' * skipped}",
        hint_of(reason),
        address_of(reason),
        callers,
        own,
    )


def _latest_reason(payload: bytes) -> str:
    """The guard of the latest version that failed: the first of a list, or a text alone."""
    try:
        found = parse_json(payload)
    except NotJsonError:
        return payload.decode("utf-8", "replace")
    reasons = [one for one in found if isinstance(one, str)] if isinstance(found, list) else [found]
    return reasons[0] if reasons and isinstance(reasons[0], str) else ""


def _version(payload: bytes) -> str:
    """The version of torch in a payload."""
    try:
        found = parse_json(payload)
    except NotJsonError:
        return ""
    return text(found.get("pytorch_version"))[:40] if isinstance(found, dict) else ""


def _covered(intervals: list[tuple[float, float]]) -> float:
    """The length that intervals cover together."""
    covered, until = 0.0, float("-inf")
    for begin, end in sorted(intervals):
        covered += max(end - max(begin, until), 0.0)
        until = max(until, end)
    return covered


def _ns(value: float | None, unit: int) -> int:
    return round(value * unit) if value is not None and 0 <= value * unit < 1 << 53 else 0


def _number(value: int | None) -> str:
    return "?" if value is None else str(value)
