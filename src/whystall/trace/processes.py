"""Several ranks in one file: people merge the traces of a job to see them side by side, and each is a recording.

A process of a merged file has operators and calls of the runtime of its own, and a device of its own, which runs the
events of these calls: after each call, and soon after some. Numbers of launches repeat between processes, equal or
shifted by a few. SGLang's merger writes the rank in front of each process and device ("[TP01] 4711").
"""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np
import polars as pl
from numpy.typing import NDArray

from whystall.trace.link import HOST_TABLES
from whystall.trace.metadata import MOST_RANKS
from whystall.trace.readers.reader import RawTrace

# With fewer correlated calls the owner of a device is unknown.
_FEWEST_CALLS: Final = 20
# A device belongs to the process whose calls launched nearly all of its events, and before they began.
_NEARLY_ALL: Final = 0.98
_RANK: Final = "rank"
_LABEL: Final = re.compile(r"^(\[[^\]]{1,64}\]) ")


@dataclass(frozen=True, slots=True)
class _Owned:
    """The processes that ran ranks, and per thread of the file the process whose it is (-1: of none)."""

    processes: list[str]
    process_of: NDArray[np.int64]


def recordings_of(raw: RawTrace) -> list[RawTrace]:
    """The recordings in a reader's single one, a process each; the same one where it has one process."""
    if raw.process is not None or raw.steps is not None:
        return [raw]
    owned = _owned(raw)
    if owned is None:
        return [raw]
    ordered = {name: table.sort("ts_ns", maintain_order=True) for name, table in raw.tables.items()}
    return [_part(raw, ordered, owned, number) for number in range(len(owned.processes))]


def _owned(raw: RawTrace) -> _Owned | None:
    """The process that owns each thread of the file; ``None`` unless at least two processes ran a rank each."""
    calls, events = raw.tables.get("runtime_calls"), raw.tables.get("device_events")
    if calls is None or events is None or not {"correlation", "device"} <= {*calls.columns, *events.columns}:
        return None
    pid = raw.threads["pid"].cast(pl.String).to_numpy()
    count: dict[str | None, int] = {}
    for thread, number in calls["thread"].value_counts().iter_rows():
        count[pid[thread]] = count.get(pid[thread], 0) + number
    works = {pid[one] for one in raw.tables["operators"]["thread"].unique()} if "operators" in raw.tables else set()
    busy = (one for one, number in count.items() if one is not None and number >= _FEWEST_CALLS and one in works)
    processes = sorted(busy, key=lambda one: (len(one), one))
    if len(processes) < 2:
        return None
    owners = _stated(raw, processes, pid) or _labelled(processes, pid, events) or _owners(processes, pid, calls, events)
    if owners is None or set(owners.values()) != set(range(len(processes))):
        return None
    lanes = events.select("thread", owner=pl.col("device").replace_strict(owners, return_dtype=pl.Int64))
    of_lane = {pid[thread]: owner for thread, owner in lanes.unique("thread").iter_rows() if thread >= 0}
    numbers = {**of_lane, **{name: number for number, name in enumerate(processes)}}
    return _Owned(processes, np.array([numbers.get(one, -1) for one in pid], np.int64))


def _stated(raw: RawTrace, processes: list[str], pid: NDArray[np.object_]) -> dict[int, int] | None:
    """The process of each device by the rank that both state; ``None`` where they state none."""
    if raw.extra_arguments is None:
        return None
    stated = raw.extra_arguments.filter(pl.col("key").cast(pl.String) == _RANK).select(
        pl.col("table").cast(pl.String), "row", rank=pl.col("value").cast(pl.String)
    )
    found: dict[str, dict[object, str]] = {}
    for name, column in (("operators", "thread"), ("device_events", "device")):
        table = raw.tables[name].sort("ts_ns", maintain_order=True)
        own = stated.filter((pl.col("table") == name) & (pl.col("row") < len(table)))
        place = table[column].gather(own["row"])
        known = pl.DataFrame({"place": pid[place.to_numpy()] if name == "operators" else place, "rank": own["rank"]})
        unique = known.unique()
        if unique.is_empty() or unique["place"].is_duplicated().any():
            return None
        found[name] = dict(unique.iter_rows())
    rank_of = found["operators"]
    numbers = {rank_of[name]: number for number, name in enumerate(processes) if name in rank_of}
    if len(numbers) < len(processes) or not numbers.keys() >= set(found["device_events"].values()):
        return None
    return {int(str(device)): numbers[rank] for device, rank in found["device_events"].items()}


def _labelled(processes: list[str], pid: NDArray[np.object_], events: pl.DataFrame) -> dict[int, int] | None:
    """The process of each device by the label that both bear; ``None`` where they bear none."""
    label_of = {name: match[1] for name in processes if (match := _LABEL.match(name))}
    if len(set(label_of.values())) < len(processes):
        return None
    numbers = {label_of[name]: number for number, name in enumerate(processes)}
    owners: dict[int, int] = {}
    for thread, device in events.select("thread", "device").drop_nulls().unique().iter_rows():
        match = _LABEL.match(pid[thread] or "") if thread >= 0 else None
        number = numbers.get(match[1]) if match else None
        if number is None or owners.setdefault(device, number) != number:
            return None
    return owners


@dataclass(frozen=True, slots=True, order=True)
class _Fit:
    """How well a process' calls explain a device's events; the least fits best."""

    pairs: int
    """Kinds of calls per name of an event, in all: a kernel is launched by one kind of call alone."""
    early: float
    """The share of events that begin before their calls."""
    late_ns: float
    """How long after its call an event begins at the soonest."""
    process: int


def _owners(
    processes: list[str], pid: NDArray[np.object_], calls: pl.DataFrame, events: pl.DataFrame
) -> dict[int, int] | None:
    """The process of each device: the one that launched its events, and soonest before them; ``None`` if one has none.

    If that gives a process two devices, since all fit equally, devices and processes are matched in their order.
    """
    launched = events.select("device", "correlation", event="name", at="ts_ns").drop_nulls()
    mine = calls.select("correlation", call="name", called="ts_ns").with_columns(
        pid=pl.Series(pid[calls["thread"].to_numpy()])
    )
    by_process = [mine.filter(pl.col("pid") == one).unique("correlation", keep="none") for one in processes]
    fits: dict[int, list[_Fit]] = {}
    for [device], own in launched.group_by("device"):
        fits[int(str(device))] = found = sorted(_fits(own, by_process))
        if not found:
            return None
    owners = {device: found[0].process for device, found in fits.items()}
    if len(fits) != len(processes) or len(set(owners.values())) == len(processes):
        return owners
    for number, device in enumerate(sorted(fits)):
        best = fits[device][0]
        alike = [one.process for one in fits[device] if (one.pairs, one.early) == (best.pairs, best.early)]
        if number not in alike:
            return None
        owners[device] = number
    return owners


def _fits(events: pl.DataFrame, by_process: list[pl.DataFrame]) -> list[_Fit]:
    """How the calls of each process that may have launched a device's events explain these."""
    found = []
    for number, called in enumerate(by_process):
        both = events.join(called, on="correlation")
        late = (both["at"] - both["called"]).to_numpy()
        if len(late) < _NEARLY_ALL * len(events) or np.mean(late >= 0) < _NEARLY_ALL:
            continue
        pairs = both.select("event", "call").unique().height
        found.append(_Fit(pairs, round(float(np.mean(late < 0)), 2), float(np.quantile(late, 0.05)), number))
    return found


def _part(raw: RawTrace, tables: dict[str, pl.DataFrame], owned: _Owned, number: int) -> RawTrace:
    """One process's share of a file: the rows of its threads and of its device; unowned rows go to the first."""
    rows = {}
    for name, table in tables.items():
        nobodys = np.full(len(table), 0 if number == 0 else -2, np.int64)
        owner = owned.process_of[table["thread"].to_numpy()] if "thread" in table.columns else nobodys
        rows[name] = (owner == number) | ((owner == -1) & (number == 0) & (name not in HOST_TABLES))
    extra = _extra(raw.extra_arguments, rows)
    parts = {name: table.filter(rows[name]) for name, table in tables.items()}
    return dataclasses.replace(
        raw,
        tables=parts,
        process=f"process {owned.processes[number]}",
        events=sum(len(table) for table in parts.values()),
        metadata=msgspec.structs.replace(raw.metadata, rank=_rank(extra)),
        extra_arguments=extra,
        warnings=raw.warnings if number == 0 else (),
        quarantined=raw.quarantined if number == 0 else (),
    )


def _extra(arguments: pl.DataFrame | None, rows: dict[str, NDArray[np.bool_]]) -> pl.DataFrame | None:
    """The arguments of the rows that are kept, by their new numbers."""
    if arguments is None:
        return None
    parts = []
    for name, kept in rows.items():
        own = arguments.filter(pl.col("table").cast(pl.String) == name)
        row = own["row"].to_numpy()
        inside = (row >= 0) & (row < len(kept))
        chosen = inside & kept[np.where(inside, row, 0)] if len(kept) else np.zeros(len(own), np.bool_)
        number = (np.cumsum(kept) - 1)[row[chosen]] if len(kept) else np.zeros(0, np.int64)
        parts.append(own.filter(chosen).with_columns(row=pl.Series(number, dtype=own["row"].dtype)))
    return pl.concat(parts) if parts else arguments.clear()


def _rank(arguments: pl.DataFrame | None) -> int | None:
    """The rank that the program that merged the files wrote to each of the process's events."""
    if arguments is None:
        return None
    stated = arguments.filter(pl.col("key").cast(pl.String) == _RANK)["value"].cast(pl.String).unique().to_list()
    if len(stated) != 1 or not stated[0].isdecimal() or not stated[0].isascii():
        return None
    return int(stated[0]) if int(stated[0][:18]) < MOST_RANKS and len(stated[0]) <= len(str(MOST_RANKS)) else None
