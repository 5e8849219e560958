"""DeepSpeed's comms log, with its bandwidths put right.

Its logger (deepspeed/utils/comms_logging.py) has errors: it takes the whole job for every group; it printed
reduce_scatter n times too high in versions that multiplied the full input once more; its algorithm bandwidth of
all_reduce is twice S over time; and it counts in Gbit/s. The group's size is not in the log: the caller passes it.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from whystall.errors import InputError
from whystall.fleet.logs.results import CommLog, CommRow
from whystall.fleet.logs.values import number, whole
from whystall.trace.metadata import MOST_RANKS
from whystall.vocabulary.collectives import convention, kind_named

__all__ = ["from_text", "is_text"]

_NUMBER: Final = r"(\d{1,18}(?:\.\d{1,9})?)"
_SIZE: Final = _NUMBER + r" ?([KMGTPEZY]?B)"
_CALL: Final = re.compile(
    rf"comm op: (\w{{1,60}})\b[^|\n]*(?:\|[^|\n]*)?\| time \(ms\): {_NUMBER} \| msg size: {_SIZE} "
    rf"\| algbw \(Gbps\): {_NUMBER} \| busbw \(Gbps\): {_NUMBER}"
)
_SUMMARY: Final = re.compile(r"^[ \t]*Comm\. Op[ \t]+Message Size[ \t]+Count[ \t]+Total Latency", re.MULTILINE)
_BREAKDOWN: Final = re.compile(r"Breakdown with straggler effect|Total comm lat")
_OPERATION: Final = re.compile(r"^([a-z]\w{1,59})\b")
_ROW: Final = re.compile(rf"^\s+{_SIZE}\s+(\d{{1,15}})\s+{_NUMBER}\s+{_NUMBER}\s+{_NUMBER}\s+{_NUMBER}\s*$")
_UNITS: Final = {f"{unit}B": 1024**power for power, unit in enumerate(("", *"KMGTPEZY"))}
_BYTES_PER_GBIT: Final = 1e9 / 8
_NO_RANKS: Final = ("broadcast", "reduce", "send_recv", "gather", "scatter")  # in whose bandwidth it takes no ranks


@dataclass(frozen=True, slots=True)
class _Printed:
    """A row as printed: bytes, calls, the mean latency, and bandwidths in Gbit/s."""

    kind: str | None
    size: float
    count: int
    time_ms: float
    algorithm: float
    bus: float


def is_text(text: str) -> bool:
    """Whether a text holds lines or a summary of the logger."""
    return _CALL.search(text) is not None or _SUMMARY.search(text) is not None


def from_text(text: str, group_sizes: dict[str | None, int]) -> CommLog:
    """The rows of a log, corrected for groups of ``group_sizes`` ranks by kind (``None``: of every other kind).

    Raises ``InputError`` where it holds no row.
    """
    printed = list(_printed(text))
    if not printed:
        raise InputError("it is a DeepSpeed comms log without a row: did the job end before the first summary?")
    world = _world_size(printed)
    rows = [_corrected(one, world, group_sizes.get(one.kind, group_sizes.get(None))) for one in printed]
    notes = ["bandwidths are printed in Gbit/s, and are bytes per second here"]
    if world is not None:
        notes.append(f"the printed bandwidths assume {world} ranks, the whole job, for every group")
    if any(row.ranks is None or row.ranks == world for row in rows) and not group_sizes:
        notes.append(
            "the sizes of groups are not in the log: say them (--group-size), or all are taken for the whole job"
        )
    notes.append("every operation was waited for to be timed: times hold waiting for other ranks, and no overlap")
    return CommLog(format="DeepSpeed comms log", files=1, rows=tuple(rows), notes=tuple(notes))


def _printed(text: str) -> Iterator[_Printed]:
    """The last summary's rows, else the calls: a summary counts the calls once more."""
    summaries = list(_SUMMARY.finditer(text))
    rows = list(_summary(text[summaries[-1].end() :])) if summaries else []
    yield from rows or _calls(text)


def _summary(text: str) -> Iterator[_Printed]:
    kind: str | None = None
    for line in text.splitlines():
        if _BREAKDOWN.search(line):
            return
        row, operation = _ROW.match(line), _OPERATION.match(line)
        if row is not None:
            size, unit, count, _, mean, algorithm, bus = row.groups()
            one = _of(kind, size, unit, mean, algorithm, bus, whole(count))
            if one is not None:
                yield one
        elif operation is not None:
            kind = kind_named(operation[1])


def _calls(text: str) -> Iterator[_Printed]:
    """Calls of one operation and size together, with their mean time and the bandwidths of the mean."""
    together: dict[tuple[str | None, float], list[_Printed]] = {}
    for found in _CALL.finditer(text):
        operation, time_ms, size, unit, algorithm, bus = found.groups()
        one = _of(kind_named(operation), size, unit, time_ms, algorithm, bus, 1)
        if one is not None:
            together.setdefault((one.kind, one.size), []).append(one)
    for (kind, size), calls in together.items():
        time_ms = sum(one.time_ms for one in calls) / len(calls)
        # For equal sizes the mean time belongs to the harmonic mean of the bandwidths.
        algorithm, bus = (
            len(values) / sum(1 / value for value in values) if all(values) else 0.0
            for values in ([one.algorithm for one in calls], [one.bus for one in calls])
        )
        yield _Printed(kind, size, len(calls), time_ms, algorithm, bus)


def _of(
    kind: str | None, size: str, unit: str, time_ms: str, algorithm: str, bus: str, count: int | None
) -> _Printed | None:
    values = [number(value) for value in (size, time_ms, algorithm, bus)]
    if None in values or not count:
        return None
    own, time, rate, bus_rate = (value or 0.0 for value in values)
    n_bytes = own * _UNITS[unit]
    return (
        _Printed(kind, n_bytes, count, time, rate, bus_rate) if 0 < n_bytes < 1 << 60 else None
    )  # barriers have no size


def _world_size(rows: Sequence[_Printed]) -> int | None:
    """The number of ranks that the logger assumed: an all_gather's rate shows it, else the ratio of the rates."""
    votes: Counter[int] = Counter()
    for row in rows:
        if row.kind == "all_gather" and row.time_ms >= 0.1:
            votes[round(row.algorithm * _BYTES_PER_GBIT * row.time_ms / 1e3 / row.size)] += 1
        if row.kind in ("all_gather", "all_reduce", "all_to_all", "reduce_scatter") and row.bus >= 10:
            left_out = 1 - row.bus / row.algorithm if row.algorithm > row.bus else 0.0
            votes[round(1 / left_out) if left_out > 1e-6 else 0] += 2
    likely = [ranks for ranks, _ in votes.most_common() if 2 <= ranks <= MOST_RANKS]
    return likely[0] if likely else None


def _corrected(row: _Printed, world: int | None, group: int | None) -> CommRow:
    """The row by the conventions of the table, with a note on the error of the printed one."""
    ranks, time_ns = group or world, row.time_ms * 1e6
    total, algorithm, bus, note = round(row.size), None, None, None
    if row.kind is not None and ranks is not None:
        known = convention(row.kind)
        # The logger's size of a reduce_scatter and of an all_to_all is that of the whole input already.
        per_rank = row.kind in ("all_gather", "gather", "scatter")
        total = known.total_bytes(total, ranks) if per_rank else total
        per_s = _size_per_s(row, world)
        factor = known.bus_factor(ranks)
        if per_s is not None:
            algorithm = per_s * (ranks if per_rank else 1)
            bus = None if factor is None else algorithm * factor
            note = _why(row, world, ranks, bus)
    return CommRow(
        collective=row.kind, bytes=total, ranks=ranks if row.kind is not None else None, count=row.count,
        time_ns=time_ns, algorithm_bytes_per_s=algorithm, bus_bytes_per_s=bus,
        printed_bus_bytes_per_s=row.bus * _BYTES_PER_GBIT, note=note,
    )  # fmt: skip


def _size_per_s(row: _Printed, world: int | None) -> float | None:
    """The logged size over its time: from the printed rate where it is known, which has more digits than the time."""
    factor = _printed_factor(row, world)
    if factor and row.bus >= 1:
        return row.bus * _BYTES_PER_GBIT / factor
    return row.size / (row.time_ms / 1e3) if row.time_ms > 0 else None


def _printed_factor(row: _Printed, world: int | None) -> float | None:
    """Printed bus bandwidth over logged size per time, by the logger's own formulas."""
    if row.kind in _NO_RANKS:
        return 1.0
    if world is None or row.kind is None:
        return None
    factor = {"all_gather": world - 1.0, "all_reduce": 2 * (world - 1) / world}.get(row.kind, (world - 1) / world)
    return factor * world if _multiplied(row, world) else factor


def _multiplied(row: _Printed, world: int | None) -> bool:
    """Whether a reduce_scatter was multiplied by the number of ranks once more, which its rate shows."""
    if row.kind != "reduce_scatter" or world is None or row.time_ms <= 0:
        return False
    times = row.algorithm * _BYTES_PER_GBIT * row.time_ms / 1e3 / row.size
    return bool(times > math.sqrt(world))


def _why(row: _Printed, world: int | None, ranks: int, bus: float | None) -> str | None:
    printed = row.bus * _BYTES_PER_GBIT
    wrong = []
    if world is not None and world != ranks and row.kind not in _NO_RANKS:
        wrong.append(f"DeepSpeed counted with the job's {world} ranks, the group has {ranks}")
    if _multiplied(row, world):
        wrong.append(f"DeepSpeed multiplied the full input of a reduce_scatter by {world} once more")
    if row.kind == "all_reduce":
        wrong.append("its algorithm bandwidth is printed twice as high as size over time")
    if row.kind in ("gather", "scatter"):
        wrong.append("DeepSpeed counts the bytes of one rank")
    share = f"; {bus / printed:.4g} times the printed bus bandwidth" if bus and printed else ""
    return "; ".join(wrong) + share if wrong else None
