"""Folds the records of a process into its compiles: attempts into one, backward graphs apart, later ones of one id too.

Ids begin again after ``torch.compiler.reset()``; a compile therefore ends with its metrics, and the same id may begin
another.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Any, Final

from whystall.compilation.metrics import text, times_of, whole
from whystall.compilation.one_compile import OneCompile, Room
from whystall.compilation.payloads import (
    BrokenAt,
    CacheRecord,
    Event,
    cache_record,
    event_of,
    graph_break,
    latest_reason,
    torch_version,
)
from whystall.compilation.results import Place
from whystall.compilation.wording import address_of, first_sentence, guard_text, guarded_line, hint_of, place_of
from whystall.trace.readers.structured_log import LogRecord
from whystall.vocabulary.frames import owner

__all__ = ["UNREAD_KINDS", "ProcessLog", "wants_payload"]

_METRICS: Final = frozenset(
    {"compilation_metrics", "bwd_compilation_metrics", "aot_autograd_backward_compilation_metrics"}
)
_RUNTIME_METRICS: Final = "compilation_metrics_runtime"
_CACHES: Final = {"fx_graph_cache_": "FX graph", "aotautograd_cache_": "AOTAutograd"}
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
_MOST_NOTES: Final = 64
_LONGEST_GRAPHS: Final = 1_000
_LIMIT: Final = ("recompile limit", "recompile_limit", "cache_size_limit", "cache size limit")

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
        event = event_of(record.payload)
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

    def _recorded(self, event: Event) -> None:
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
                found.breaks.append(graph_break(record.payload))
        elif name == _RECOMPILE:
            found = self._of(record, starts=True)
            raw = latest_reason(record.payload)
            if found is not None and raw:
                found.guard, found.guarded_at = guard_text(raw), guarded_line(raw)
        elif name == "torch_version":
            self.torch = torch_version(record.payload) or self.torch
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
        made = cache_record(record.payload, _CACHES[prefix], record.name.removeprefix(prefix))
        if made is None or not self.room.take_note():
            return
        self.has_cache_records = True
        found = self._of(record)
        if found is None:
            self.caches.append(made)
        else:
            found.triton |= made.triton
            found.caches.append(made)


def wants_payload(record: LogRecord) -> bool:
    """Whether a record's payload is read."""
    return record.kind == "chromium_event" or (
        record.kind == "artifact" and (record.name in _WANTED_PAYLOADS or record.name.startswith(tuple(_CACHES)))
    )
