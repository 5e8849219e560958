"""Counter events of devices: values of hardware counters over time, among a file's other events.

PyTorch writes them in a process of their own that names the device (``GPU 0 Counters``: torch/profiler/_cuspy/trace.py)
or in the device's (libkineto/src/output_json.cpp, handleCounterEvent), with the beginning of a value's span as its
time. Other counter events stay where all unknown events are.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from whystall.trace.counters import with_units
from whystall.trace.readers.kineto import categories
from whystall.trace.readers.kineto.raw import RawTable, used_codes
from whystall.trace.readers.kineto.tables import Build, sound_rows

_COUNTER: Final = ord("C")
_OWN_PROCESS: Final = re.compile(r"^GPU (\d{1,4}) Counters$")
# How the only series of a counter is called.
_NO_NAME: Final = frozenset({"", "value"})
_UNKNOWN: Final = -1
_LARGEST_DEVICE: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class _Series:
    """The values of one argument: ``pair`` is the place in ``pairs`` (name of the event, of the argument) of each."""

    start: NDArray[np.int64]
    device: NDArray[np.int32]
    value: NDArray[np.float64]
    pair: NDArray[np.uint32]
    pairs: list[tuple[str, str]]


def take_counters(
    tables: Sequence[RawTable], threads: pl.DataFrame, build: Build
) -> tuple[list[RawTable], pl.DataFrame | None]:
    """The scanned tables without the counter events of devices, and these: ts_ns, device, name, value, unit."""
    if not any((table.phase == _COUNTER).any() for table in tables):
        return list(tables), None
    device_of = _device_of_thread(tables, threads)
    left: list[RawTable] = []
    series: list[_Series] = []
    others = 0
    for table in tables:
        counters = (table.phase == _COUNTER) & (not table.metadata)
        # An id distinguishes counters of one name, such as those of streams.
        placed = counters & (device_of[table.thread] != _UNKNOWN) & ~table.having(".id")
        taken = np.zeros(table.rows, np.bool_)
        for _, rows, _ in _numbers(table, placed):
            taken[rows] = True
        others += int(np.count_nonzero(counters & ~taken))
        series += _series(table, taken, device_of, build) if taken.any() else []
        left.append(table.without(taken) if taken.any() else table)
    if others:
        build.warnings.append(
            f"{others:,} counter events name no device of the job, or hold no number: they belong to no device in the "
            f"report"
        )
    return left, _joined(series) if series else None


def _device_of_thread(tables: Sequence[RawTable], threads: pl.DataFrame) -> NDArray[np.int32]:
    """The device that each thread's process stands for: by its name, or since device events are shown there."""
    pids = threads["pid"].to_list()
    shown: dict[str | None, set[int]] = {}
    for table in tables:
        if table.metadata or categories.table_of(table.category) != categories.DEVICE:
            continue
        for thread in np.unique(table.thread).tolist():
            shown.setdefault(pids[thread], set())
        for key, rows, values in table.numbers():
            if key in {"device", "Device"} and values.dtype.kind == "i":
                known = (values >= 0) & (values < _LARGEST_DEVICE)
                pairs = np.unique(table.thread[rows[known]].astype(np.int64) * _LARGEST_DEVICE + values[known])
                for thread in np.unique(table.thread[rows[~known]]).tolist():
                    shown[pids[thread]].add(_UNKNOWN)
                for pair in pairs.tolist():
                    shown[pids[pair // _LARGEST_DEVICE]].add(pair % _LARGEST_DEVICE)
    return np.array([_device(pid, shown) for pid in pids], np.int32)


def _device(pid: str | None, shown: dict[str | None, set[int]]) -> int:
    if pid is None:
        return _UNKNOWN
    if named := _OWN_PROCESS.match(pid):
        return int(named[1])
    told = shown.get(pid, {_UNKNOWN}) or {int(pid) if pid.isascii() and pid.isdecimal() and len(pid) < 8 else _UNKNOWN}
    device = next(iter(told))
    return device if len(told) == 1 and 0 <= device < _LARGEST_DEVICE else _UNKNOWN


def _numbers(
    table: RawTable, wanted: NDArray[np.bool_]
) -> Iterator[tuple[str, NDArray[np.int64], NDArray[np.float64]]]:
    """By argument the rows among those wanted that have a number, and the numbers."""
    for key, rows, values in table.numbers():
        kept = wanted[rows]
        if kept.any() and not key.startswith("."):
            yield key, rows[kept].astype(np.int64), values[kept].astype(np.float64)


def _series(table: RawTable, taken: NDArray[np.bool_], device_of: NDArray[np.int32], build: Build) -> Iterator[_Series]:
    events = np.flatnonzero(taken)
    start = build.clock.starts(table.start)
    duration = build.clock.durations(table.duration)
    sound = np.zeros(table.rows, np.bool_)
    sound[events[sound_rows(start[events], duration[events], table.phase[events], categories.OTHER, build)]] = True
    for key, rows, values in _numbers(table, sound):
        used, pair = used_codes(table.name[rows], len(build.names))
        pairs = [(build.names[name], key) for name in used.tolist()]
        yield _Series(start[rows], device_of[table.thread[rows]], values, pair, pairs)


def _joined(series: Sequence[_Series]) -> pl.DataFrame:
    pairs = [pair for one in series for pair in one.pairs]
    names = _labels(pairs)
    texts = list(dict.fromkeys(names))
    place = {text: number for number, text in enumerate(texts)}
    first = np.cumsum([0, *(len(one.pairs) for one in series)])[:-1]
    code = np.array([place[name] for name in names], np.uint32)
    codes = np.concatenate([code[one.pair + begin] for one, begin in zip(series, first.tolist(), strict=True)])
    samples = pl.DataFrame(
        {
            "ts_ns": np.concatenate([one.start for one in series]),
            "name": pl.Series(codes).cat.to(pl.Enum(texts)),
            "value": np.concatenate([one.value for one in series]),
            "device": np.concatenate([one.device for one in series]),
        }
    )
    return with_units(samples)


def _labels(pairs: Sequence[tuple[str, str]]) -> list[str]:
    """The label of each series: its argument's name if that is unique, else the names of its event and argument.

    >>> _labels([("PM Sampling", "sm__cycles_active"), ("SM Active (%)", ""), ("read", "GB/s"), ("write", "GB/s")])
    ['sm__cycles_active', 'SM Active (%)', 'read: GB/s', 'write: GB/s']
    """
    short = {(event, key): event if key in _NO_NAME else key for event, key in set(pairs)}
    often = Counter(short.values())
    return [short[pair] if often[short[pair]] == 1 or not pair[1] else ": ".join(pair) for pair in pairs]
