"""Results of nccl-tests: its text, and the JSON of ``-J`` (version 3, and others with the same fields).

The JSON holds the whole environment and command line. Only the kind of the test is taken from these.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any, Final

from whystall.errors import InputError
from whystall.fleet.logs.results import CommLog, CommRow
from whystall.fleet.logs.values import listed, mapping, number, whole
from whystall.trace.metadata import MOST_RANKS
from whystall.vocabulary.collectives import convention, kind_named

__all__ = ["from_json", "from_text", "is_json", "is_text"]

_HEADER: Final = re.compile(r"^#\s+size\s+count\s+type\b(.*)$", re.MULTILINE)
# Launchers' prefixes of each line: "[1,0]<stdout>:" (Open MPI), "[0] " (MPICH), "0: " (srun -l), "[host:123] ".
_PREFIXED: Final = re.compile(r"^([^#\n]{0,119}[:\]>|)])[ \t]?#\s+size\s+count\s+type\b", re.MULTILINE)
_RANK: Final = re.compile(r"^#?\s*Rank\s+(\d{1,7})\s(?:\s*Group\s+(\d{1,7})\s)?\s*Pid\s", re.MULTILINE)
_TEST: Final = re.compile(r"\b([a-z_]{4,20})_perf\b", re.IGNORECASE)
_STARTING: Final = re.compile(r"Collective test starting:\s*(\w{1,40})", re.IGNORECASE)


def is_text(text: str) -> bool:
    """Whether a text has the head of nccl-tests' table, be it behind a launcher's prefix."""
    return _HEADER.search(text) is not None or _PREFIXED.search(text) is not None


def _without_prefix(text: str) -> str:
    r"""The text without what a launcher put before each line; lines that lack it are left out.

    Prefixes differ in their numbers: ranks, processes, times.

    >>> _without_prefix("0: # nccl-tests\n0: #  size  count  type\nsrun: done\n 0:   8  2  float\n").splitlines()
    ['# nccl-tests', '#  size  count  type', '  8  2  float']
    """
    found = None if _HEADER.search(text) is not None else _PREFIXED.search(text)
    if found is None:
        return text
    parts = (r"\d+" if part.isdigit() else re.escape(part) for part in re.findall(r"\d+|\D+", found[1].strip()))
    prefix = re.compile(rf"[ \t]*{''.join(parts)}[ \t]?")
    return "\n".join(line[match.end() :] for line in text.splitlines() if (match := prefix.match(line)) is not None)


def is_json(document: dict[str, Any]) -> bool:
    """Whether a document has nccl-tests' results."""
    return isinstance(document.get("results"), list) and ("config" in document or "nccl_version" in document)


def from_text(text: str) -> CommLog:
    """The rows of the table, those of the buffers that were measured. Raises ``InputError`` where it has none."""
    text = _without_prefix(text)
    head = _HEADER.search(text)
    per_side = 8 if head is not None and "i_min" in text[: head.end()] else 4
    first = 5 if head is not None and "root" in head[1] else 4
    named = _STARTING.search(text) or _TEST.search(text)
    ranks = _group_size([(whole(found[1]), whole(found[2] or 0)) for found in _RANK.finditer(text)])
    read = [_cells(line, first, per_side) for line in text.splitlines()]
    lines = [cells for cells in read if cells is not None]
    kind = kind_named(named[1]) if named is not None else None
    kind = kind or _kind_by_ratio(lines, first, ranks)
    rows = [row for cells in lines if (row := _row_of(cells, first, kind, ranks)) is not None]
    if not rows:
        raise InputError("it holds the head of nccl-tests' table and no row: did the test end early?")
    return CommLog(format="nccl-tests", files=1, rows=tuple(rows), notes=tuple(_notes(kind, ranks, rows)))


def _cells(line: str, first: int, per_side: int) -> list[str] | None:
    cells = line.split()
    if line.lstrip().startswith("#") or len(cells) < first + 3 or whole(cells[0]) is None or whole(cells[1]) is None:
        return None
    # Either side may be left out; a time stamp may follow.
    return cells[: first + 2 * per_side]


_LEAST_US: Final = 1e-6
"""Nothing takes less: such a time is invalid."""


def _row_of(cells: Sequence[str], first: int, kind: str | None, ranks: int | None) -> CommRow | None:
    values = [number(cell) for cell in cells[first : first + 3]]
    size, time_us, algorithm, bus = whole(cells[0]), *values
    if not size or not time_us or time_us < _LEAST_US or algorithm is None:
        return None
    return _row(kind, size, ranks, time_us, bus)


def _row(kind: str | None, size: int, ranks: int | None, time_us: float, bus: float | None) -> CommRow:
    algorithm = size / (time_us * 1e-6)
    factor = convention(kind).bus_factor(ranks) if kind is not None and ranks else None
    printed = None if bus is None else bus * 1e9
    own = None if factor is None else algorithm * factor
    return CommRow(
        collective=kind,
        bytes=size,
        ranks=ranks,
        count=1,
        time_ns=time_us * 1e3,
        algorithm_bytes_per_s=algorithm,
        bus_bytes_per_s=printed if own is None else own,
        printed_bus_bytes_per_s=printed,
    )


def _kind_by_ratio(lines: Sequence[Sequence[str]], first: int, ranks: int | None) -> str | None:
    """The kind where the ratio of the two bandwidths, the operation and the root leave one alone."""
    longest = [cells for cells in lines if (number(cells[first + 1]) or 0) >= 1]
    if not longest or not ranks or ranks < 3:
        return None
    cells = longest[-1]
    ratio = (number(cells[first + 2]) or 0) / (number(cells[first + 1]) or 1)
    reduces = cells[3].lower() not in ("none", "-1")
    if reduces:
        known = {"all_reduce": 2 * (ranks - 1) / ranks, "reduce_scatter": (ranks - 1) / ranks, "reduce": 1.0}
        return next((kind for kind, factor in known.items() if abs(ratio - factor) < 0.01), None)
    return None


def _group_size(ranks: Sequence[tuple[int | None, int | None]]) -> int | None:
    """Ranks of a group: of all ranks that the head lists, those of the first group."""
    known = {rank: group for rank, group in ranks if rank is not None}
    return sum(group == known[min(known)] for group in known.values()) if known else None


def from_json(document: dict[str, Any]) -> CommLog:
    """The rows of a result. Raises ``InputError`` where none has a time."""
    config = mapping(document.get("config"))
    devices = [mapping(one) for one in listed(config.get("devices"))]
    ranks = _group_size([(whole(one.get("rank"), MOST_RANKS), whole(one.get("group") or 0)) for one in devices])
    named = _TEST.search(" ".join(str(one)[:500] for one in listed(document.get("args"))[:3]))
    kind = kind_named(named[1]) if named is not None else None
    rows = [row for one in document["results"] for row in _rows(mapping(one), kind, ranks)]
    if not rows:
        raise InputError("it is of nccl-tests and holds no row with a time: did the test end early?")
    return CommLog(format="nccl-tests", files=1, rows=tuple(rows), notes=tuple(_notes(rows[0].collective, ranks, rows)))


def _rows(one: dict[str, Any], kind: str | None, ranks: int | None) -> Iterator[CommRow]:
    own = kind or kind_named(str(one.get("experiment_name") or "")[:100])
    for side in ("out_of_place", "in_place"):
        measured = mapping(one.get(side))
        size, time_us = whole(one.get("size")), number(measured.get("time", measured.get("cpu_time")))
        if not size or not time_us:
            continue
        row = _row(own, size, ranks, time_us, number(measured.get("bus_bw")))
        iterations = mapping(one.get(f"{side}_per_iter"))
        yield _with_processes(row, iterations)
        return


def _with_processes(row: CommRow, iterations: dict[str, Any]) -> CommRow:
    """The row with the slowest process's slowdown, from the times of every process where there are any."""
    times = listed(iterations.get("per_process_max_times_us"))
    means = [fmean(known) for own in times if (known := _numbers(own))]
    count = len(_numbers(iterations.get("times_us"))) or row.count
    slowest = max(means) / fmean(means) if means and fmean(means) > 0 else None
    return replace(row, ranks=row.ranks or len(means) or None, count=count, slowest_process=slowest)


def _numbers(values: object) -> list[float]:
    return [found for value in listed(values) if (found := number(value)) is not None]


def _notes(kind: str | None, ranks: int | None, rows: Sequence[CommRow]) -> Iterator[str]:
    if kind is None:
        yield "which collective was tested is not in it; bus bandwidths are as printed"
    elif ranks is None:
        yield "it does not list its ranks; bus bandwidths are as printed"
    off = [
        row
        for row in rows
        if row.printed_bus_bytes_per_s and row.bus_bytes_per_s and row.printed_bus_bytes_per_s > 1e9
        and abs(row.bus_bytes_per_s / row.printed_bus_bytes_per_s - 1) > 0.05
    ]  # fmt: skip
    if off:
        yield f"{len(off)} rows print another bus bandwidth than their size, time and number of ranks give"
