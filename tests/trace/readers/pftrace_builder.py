"""Writes a trace of PyTorch's profiler as Perfetto packets, by the rules of torch's own encoder.

torch/csrc/profiler/cuspy/cuspy_pftrace.cpp says which packets there are and in which order, and
torch/profiler/_cuspy/trace.py what becomes of which event of the JSON: the host's are slices in groups, all beginnings
and then all ends; the device's are render stages. Numbers of fields: google/perfetto, protos/perfetto/trace.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any

from tests.trace.readers.wire import Value, message

TOKEN = "hf_PLANTEDdeadbeef"  # noqa: S105 - the one that must not be found
STAGES = {"kernel": 1, "gpu_memcpy": 2, "gpu_memset": 3, "gpu_user_annotation": 4}
STAGE_NAMES = {1: "Kernel", 2: "Memcpy", 3: "Memset", 4: "Annotation"}
GROUPS = ("host", "cuda_runtime", "cuda_driver", "overhead", "cuda_sync")
LANES = 100
ARGUMENT_NAMES = {1: "registers_per_thread", 2: "shared_mem_dynamic", 3: "thread_count"}
EXTRA = {"device": "device id", "context": "context id", "stream": "stream id"}
IN_LAUNCH = ("grid", "block", "registers per thread")
Event = Mapping[str, Any]


def nanoseconds(microseconds: Decimal | int) -> int:
    return int(Decimal(microseconds) * 1000)


class Names(dict[str, int]):
    """Numbers from 1 on in the order in which names come."""

    def of(self, name: str) -> int:
        return self.setdefault(name, len(self) + 1)


class Encoder:
    def __init__(self, document: Mapping[str, Any]) -> None:
        self.base = int(document.get("baseTimeNanoseconds", 0))
        self.events = [event for event in document["traceEvents"] if event.get("ph") == "X"]
        self.arrows: dict[str, dict[int, tuple[int, int, int]]] = {
            phase: {
                event["id"]: (event["pid"], event["tid"], self.base + nanoseconds(event["ts"]))
                for event in document["traceEvents"]
                if event.get("ph") == phase
            }
            for phase in "sf"
        }
        self.samples = [event for event in document["traceEvents"] if event.get("ph") == "C"]
        self.counters = Names()
        self.threads = {
            (event["pid"], event["tid"]): event["args"]["name"]
            for event in document["traceEvents"]
            if event.get("ph") == "M" and event["name"] == "thread_name"
        }
        self.names, self.categories, self.kernels = Names(), Names(), Names()
        self.tracks: dict[tuple[Any, ...], int] = {}
        self.described: list[bytes] = []
        self.lanes: dict[tuple[int, int], int] = {}

    def encoded(self) -> bytes:
        slices = [packet for group in GROUPS for packet in self._group(group)]
        own = [event for event in self.events if event["cat"] in STAGES]
        stages = [self._stage(event, number, self._awaited(event, own)) for number, event in enumerate(own, 1)]
        first = min((self._times(event)[0] for event in self.events), default=1)
        clocks = [message((1, number), (2, first)) for number in (6, 1)]
        snapshot = message((8, first), (10, 1), (6, message(*((1, clock) for clock in clocks))))
        samples = [self._sample(event) for event in self.samples]
        return packets([snapshot, *self.described, self._interned(), *slices, *stages, *samples])

    def _times(self, event: Event) -> tuple[int, int]:
        begin = self.base + nanoseconds(event["ts"])
        return begin, begin + nanoseconds(event["dur"])

    def _group(self, group: str) -> list[bytes]:
        """All beginnings, then all ends in the same order."""
        own = [event for event in self.events if event["cat"] not in STAGES and self._group_of(event) == group]
        tracks = [self._track(event, group) for event in own]
        begins = [self._begin(event, track, group) for event, track in zip(own, tracks, strict=True)]
        ends = [
            message((8, self._times(event)[1]), (10, 1), (11, message((9, 2), (11, track))))
            for event, track in zip(own, tracks, strict=True)
        ]
        return begins + ends

    def _group_of(self, event: Event) -> str:
        return event["cat"] if event["cat"] in GROUPS else "host"

    def _track(self, event: Event, group: str) -> int:
        pid, tid = (-1, 0) if group == "overhead" else (event["pid"], event["tid"])
        process, thread = (pid,), (pid, tid)
        if process not in self.tracks:
            self.tracks[process] = len(self.tracks) + 1
            told = message((1, pid), (2, f"python --token={TOKEN}"), (6, str(pid)))
            self.described.append(message((60, message((1, self.tracks[process]), (3, told)))))
        if thread not in self.tracks:
            self.tracks[thread] = len(self.tracks) + 1
            name = "Overhead" if group == "overhead" else self.threads.get(thread, f"thread {tid}")
            told = message((1, pid), (2, tid), (5, name))
            track = message((1, self.tracks[thread]), (5, self.tracks[process]), (4, told))
            self.described.append(message((60, track)))
        return self.tracks[thread]

    def _begin(self, event: Event, track: int, group: str) -> bytes:
        kind = group not in {"overhead", "cuda_sync"}
        told = dict(event["args"])
        if group == "cuda_sync":
            told["cuda_sync_kind"] = event["name"]
        parts = [(9, 1), (11, track), (10, self.names.of(event["name"]))]
        slice_ = message(
            *parts,
            (3, self.categories.of(event["cat"]) if kind else None),
            *((4, annotation(key, value)) for key, value in told.items()),
        )
        return message((8, self._times(event)[0]), (10, 1), (13, 2), (11, slice_))

    def _awaited(self, event: Event, stages: Sequence[Event]) -> list[int]:
        """The numbers of the stages from whose ends an arrow leads to the beginning of this one."""
        begin = (event["pid"], event["tid"], self._times(event)[0])
        into = {number for number, place in self.arrows["f"].items() if place == begin}
        wanted = [place for number, place in self.arrows["s"].items() if number in into]
        ends = [(one["pid"], one["tid"], self._times(one)[1]) for one in stages]
        return [ends.index(place) + 1 for place in wanted]

    def _stage(self, event: Event, number: int, awaited: Sequence[int]) -> bytes:
        begin, end = self._times(event)
        told = dict(event["args"])
        kernel = event["cat"] == "kernel"
        lane = self.lanes.setdefault((event["pid"], event["tid"]), LANES + len(self.lanes))
        extra = [(EXTRA.get(key, key), value) for key, value in told.items() if key not in IN_LAUNCH]
        extra += [("process_name", TOKEN), ("arch", "sm_90")]
        named = kernel or event["cat"] == "gpu_user_annotation"
        launched = message(
            (1, dimensions(told["grid"])), (2, dimensions(told["block"])),
            (3, message((1, 1), (4, told["registers per thread"]))), (3, message((1, 3), (4, 256))),
        ) if "grid" in told else None  # fmt: skip
        stage = message(
            (1, number), (2, end - begin), (11, event["pid"]), (13, lane), (14, STAGES[event["cat"]]), (5, 1),
            *((18, one) for one in awaited),
            (20, self.names.of(event["name"]) if named else None),
            (19, self.kernels.of(event["name"]) if kernel and launched else None),
            (21, launched),
            *((6, message((1, key), (2, as_text(value)))) for key, value in extra),
        )  # fmt: skip
        return message((8, begin), (10, 1), (13, 2), (53, stage))

    def _sample(self, event: Event) -> bytes:
        """A value of a counter: of whole ones torch writes some as such."""
        (value,) = event["args"].values()
        told = message((1, self.counters.of(event["name"])), (2 if isinstance(value, int) else 3, value))
        sample = message((4, gpu_of(event) + 1), (2, told))
        return message((8, self.base + nanoseconds(event["ts"])), (10, 1), (13, 2), (52, sample))

    def _counters(self) -> list[tuple[int, bytes]]:
        """What the numbers of counters stand for, for each device anew."""
        specs = [(1, message((1, self.counters.of(event["name"])), (2, event["name"]))) for event in self.samples]
        devices = sorted({gpu_of(event) for event in self.samples})
        group = (6, message((1, 6), (4, 1)))
        return [(47, message((1, gpu + 1), (3, gpu), (2, message(*specs, group)))) for gpu in devices]

    def _interned(self) -> bytes:
        lanes = {number: f"[{tid}] stream {tid}" for (_, tid), number in self.lanes.items()}
        tables: list[tuple[int, Iterable[tuple[int, str]]]] = [
            (2, ((number, name) for name, number in self.names.items())),
            (1, ((number, name) for name, number in self.categories.items())),
            (24, (STAGE_NAMES | lanes).items()),
            (1001, ARGUMENT_NAMES.items()),
        ]
        entries = [(table, message((1, number), (2, name))) for table, names in tables for number, name in names]
        entries += [(1000, message((1, number), (3, name))) for name, number in self.kernels.items()]
        return message((10, 1), (13, 1), (12, message(*entries, *self._counters())))


def gpu_of(event: Event) -> int:
    return int(event["pid"].removeprefix("GPU ").removesuffix(" Counters"))


def annotation(key: str, value: Any) -> bytes:
    return message((10, key), *values(value))


def values(value: Any) -> list[tuple[int, Value]]:
    if isinstance(value, bool):
        return [(2, int(value))]
    if isinstance(value, list):
        return [(12, message(*values(one))) for one in value]
    kinds: dict[type, int] = {int: 4, float: 5, str: 6}
    return [(kinds[type(value)], value)]


def as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def dimensions(sizes: list[int]) -> bytes:
    return message(*enumerate(sizes, 1))


def packets(content: Iterable[bytes]) -> bytes:
    return message(*((1, packet) for packet in content))


def encoded(text: str) -> bytes:
    """The packets that torch writes for what its JSON would say."""

    def number(text: str) -> Any:
        return Decimal(text)

    document = json.loads(text, parse_float=number)
    for event in document["traceEvents"]:
        told = event.get("args", {})
        event["args"] = {key: float(one) if isinstance(one, Decimal) else one for key, one in told.items()}
    return Encoder(document).encoded()
