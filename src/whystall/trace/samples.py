"""Reads the samples of a watched run: one row per step, and occasional observations of the machine."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import polars as pl

from whystall.disk import reading
from whystall.json_text import NotJsonError, parse_json
from whystall.run_folder.samples import MOST_RANK, MOST_US, NEEDED_COLUMNS, PLACE, SCHEMA, TICKS, WORKER, Kinds, unix_ns
from whystall.trace.errors import InputError

_LONGEST_LINE: Final = 1 << 16
_MOST_COLUMNS: Final = 64


def _columns(kinds: Kinds) -> dict[str, Any]:
    return {name: pl.String if kind is str else pl.Int64 for name, kind in kinds.items()}


_WORKER: Final = _columns(WORKER)
_TICKS: Final = _columns(TICKS)
_PLACE: Final = _columns(PLACE)
_COUNTED: Final = {**_PLACE, **_columns({"since": int, "until": int})}
_KEPT_OF_ALLOCATORS: Final = ("allocated", "reserved", "peak_allocated", "retries")
_ALLOCATOR: Final = _columns(dict.fromkeys(("step", "device", *_KEPT_OF_ALLOCATORS), int))
_KEPT_OF_CLOCKS: Final = ("use_percent", "sm_mhz", "throttle_bits")
_CLOCKS: Final = _columns(dict.fromkeys(("step", "device", *_KEPT_OF_CLOCKS), int))


@dataclass(frozen=True, slots=True, eq=False)
class RunSamples:
    """The samples of one rank. ``steps`` has the file's own columns (``run_folder/samples.py`` names them)."""

    name: str
    rank: int
    began_unix_ns: int
    steps: pl.DataFrame
    machine: pl.DataFrame
    damaged_lines: int
    workers: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema={"at_unix_ns": pl.Int64, **_WORKER}))
    """CPU use of each child process: at_unix_ns, pid, state, ticks."""
    allocators: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=_ALLOCATOR))
    """torch's allocator of each device.

    Step, device, allocated, reserved, peak_allocated, retries (bytes).
    """
    clocks: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=_CLOCKS))
    """Clocks of each device (NVML): step, device, use_percent, sm_mhz, throttle_bits."""
    places: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=_COUNTED))
    """Where the stepping thread was found: part, file, line, function, text, leaf, count.

    Counted from the row ``since`` of ``steps`` to the one before ``until``.
    """
    threads: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema={"at_unix_ns": pl.Int64, **_WORKER}))
    """CPU use of each further Python thread: at_unix_ns, pid (its id), state, ticks."""
    beside: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=_COUNTED))
    """Where other threads were found that did not wait, as ``places``."""

    def between(self, first: int, last: int) -> RunSamples:
        """The samples taken while the rows ``first`` to ``last - 1`` of ``steps`` were written."""
        steps = self.steps[first:last]
        of_steps = pl.col("step").is_between(steps["step"][0], steps["step"][-1])
        seen = pl.lit(value=True)
        if "end_us" in steps.columns and self.began_unix_ns and not steps["end_us"].has_nulls():
            ends = self.began_unix_ns + steps["end_us"] * 1000
            seen = pl.col("at_unix_ns").is_between(ends[0] - steps["duration_us"][0] * 1000, ends[-1])
        within = pl.min_horizontal("until", pl.lit(last)) - pl.max_horizontal("since", pl.lit(first))
        mostly = within * 2 > pl.col("until") - pl.col("since")
        return replace(
            self,
            steps=steps,
            machine=self.machine.filter(seen),
            workers=self.workers.filter(seen),
            threads=self.threads.filter(seen),
            allocators=self.allocators.filter(of_steps),
            clocks=self.clocks.filter(of_steps),
            places=self.places.filter(mostly),
            beside=self.beside.filter(mostly),
        )


def read_samples(path: Path) -> RunSamples:
    """The samples in a file; lines that cannot be read are counted and left out.

    Raises `InputError` when the file cannot be opened or is none of samples.
    """
    rows: list[list[int]] = []
    machine: list[dict[str, Any]] = []
    workers: list[tuple[Any, ...]] = []
    places: list[tuple[Any, ...]] = []
    allocators: list[tuple[Any, ...]] = []
    clocks: list[tuple[Any, ...]] = []
    threads: list[tuple[Any, ...]] = []
    beside: list[tuple[Any, ...]] = []
    head: dict[str, Any] | None = None
    damaged = counted = 0
    try:
        with reading.opened(path) as file:
            for line in reading.lines(file, _LONGEST_LINE):
                value = _value(line)
                if head is None:
                    head = _head(value, path)
                elif isinstance(value, list) and _is_row(value, head["columns"]):
                    rows.append(value)
                elif isinstance(value, dict) and "stacks" in value:
                    places += [(*row, counted, len(rows)) for row in _rows(value["stacks"], _PLACE)]
                    beside += [(*row, counted, len(rows)) for row in _rows(value.get("beside"), _PLACE)]
                    counted = len(rows)
                elif isinstance(value, dict):
                    at = unix_ns(value.get("at_unix_ns")) or None
                    busy, own = (_rows([value.get("cpu_ticks")], _TICKS) or [(None, None)])[0]
                    machine.append({"at_unix_ns": at, "busy_ticks": busy, "own_ticks": own})
                    allocators += _of_devices(value, "allocator", _KEPT_OF_ALLOCATORS, _ALLOCATOR)
                    clocks += _of_devices(value, "devices", _KEPT_OF_CLOCKS, _CLOCKS)
                    workers += [(at, *row) for row in _rows(value.get("children"), _WORKER)]
                    threads += [(at, *row) for row in _rows(value.get("threads"), _WORKER)]
                else:
                    damaged += 1
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error})") from None
    if head is None:
        raise InputError(f"{path.name} is empty")
    steps = pl.DataFrame(rows, schema=dict.fromkeys(head["columns"], pl.Int64), orient="row", strict=False)
    frame = pl.DataFrame(machine, schema={"at_unix_ns": pl.Int64, **_TICKS}, strict=False)
    return RunSamples(
        path.name,
        head["rank"],
        unix_ns(head.get("began_unix_ns")),
        steps,
        frame,
        damaged,
        pl.DataFrame(workers, schema={"at_unix_ns": pl.Int64, **_WORKER}, orient="row", strict=False),
        pl.DataFrame(allocators, schema=_ALLOCATOR, orient="row"),
        pl.DataFrame(clocks, schema=_CLOCKS, orient="row"),
        pl.DataFrame(places, schema=_COUNTED, orient="row", strict=False),
        pl.DataFrame(threads, schema={"at_unix_ns": pl.Int64, **_WORKER}, orient="row", strict=False),
        pl.DataFrame(beside, schema=_COUNTED, orient="row", strict=False),
    )


def _of_devices(
    line: dict[str, Any], what: str, kept: tuple[str, ...], schema: dict[str, Any]
) -> list[tuple[Any, ...]]:
    """A line's values of each device."""
    said = line.get(what)
    return _rows(
        [
            [line.get("step"), device, *(each.get(name) for name in kept)]
            for device, each in enumerate(said if isinstance(said, list) else [])
            if isinstance(each, dict)
        ],
        schema,
    )


def _rows(value: Any, schema: dict[str, Any]) -> list[tuple[Any, ...]]:
    """The rows of a list whose cells are of the kinds that a schema names; others are left out."""
    kinds = [str if dtype == pl.String else int for dtype in schema.values()]
    return [
        tuple(row)
        for row in (value if isinstance(value, list) else [])
        if isinstance(row, list)
        and len(row) == len(kinds)
        and all(type(cell) is kind for cell, kind in zip(row, kinds, strict=True))
        and all(_is_sound(cell) for cell in row if isinstance(cell, int))
    ]


def _is_row(cells: list[Any], columns: list[str]) -> bool:
    """Whether the cells are those of a step; some of them must be known."""
    return len(cells) == len(columns) and all(
        _is_sound(cell) and (cell is not None or name not in NEEDED_COLUMNS)
        for name, cell in zip(columns, cells, strict=True)
    )


def _is_sound(cell: Any) -> bool:
    """Whether a cell of a step is a number that can be reckoned with in nanoseconds, or none."""
    return cell is None or (type(cell) is int and abs(cell) < MOST_US)


def _value(line: bytes) -> Any:
    if len(line) > _LONGEST_LINE:
        return None
    try:
        return parse_json(line)
    except NotJsonError:
        return None


def _head(value: Any, path: Path) -> dict[str, Any]:
    columns = value.get("columns") if isinstance(value, dict) else None
    known = (
        isinstance(value, dict)
        and value.get("schema") == SCHEMA
        and type(value.get("rank")) is int
        and 0 <= value["rank"] < MOST_RANK
    )
    if not known or not isinstance(columns, list) or not all(isinstance(column, str) for column in columns):
        raise InputError(f"{path.name} holds no samples of whystall")
    if not set(columns) >= NEEDED_COLUMNS or len(set(columns)) != len(columns) or len(columns) > _MOST_COLUMNS:
        raise InputError(f"{path.name} holds samples with columns that are not known")
    return dict(value)
