"""Device activity: the streams of a GPU, the operations of a TPU, and the device's steps."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

import polars as pl

from whystall.trace.metadata import DeviceProperties
from whystall.trace.readers.xspace.space import Plane

_DEVICE: Final = re.compile(r"^/device:(GPU|TPU):(\d{1,6})$")
_STREAM: Final = re.compile(r"^Stream #(\d{1,9})\b")
_OPERATIONS: Final = "XLA Ops"
_BESIDE: Final = "Async XLA Ops"
_PROGRAMS: Final = "XLA Modules"
_STEPS: Final = "Steps"
# CUPTI's copies and sets, as XLA's collectors call them (xla/backends/profiler/gpu, GetTraceEventTypeName).
_COPY: Final = re.compile(r"^Memcpy([A-Z])2([A-Z])$")
# "%fusion.3 = f32[8]{0} fusion(...)" where a profile has no shorter name.
_INSTRUCTION: Final = r"^%?(\S*)"
_SET: Final = re.compile(r"^Memset")
# amdgpu's suffix of a kernel's descriptor in a code object: the kernel's own name lacks it.
_DESCRIPTOR: Final = ".kd"
_SIZE: Final = re.compile(r"\b(?:size|num_bytes):(\d{1,18})\b")
_MEMORIES: Final = re.compile(r"\bkind_(?:src|dst):(\w+)")
_WARP: Final = 32
_CAPABILITY: Final = ("compute_cap_major", "compute_cap_minor")
_FIELDS: Final = {
    "grid": pl.String, "block": pl.String, "registers_per_thread": pl.Int64, "shared_memory_bytes": pl.Int64,
    "occupancy_percent": pl.Float64, "bytes": pl.Int64, "blocks_per_sm": pl.Float64, "warps_per_sm": pl.Float64,
}  # fmt: skip
_EVENTS: Final = {
    "ts_ns": pl.Int64, "duration_ns": pl.Int64, "name": pl.String, "kind": pl.String, "device": pl.Int64,
    "stream": pl.Int64, "correlation": pl.Int64, **_FIELDS,
}  # fmt: skip
_RANGES: Final = {"ts_ns": pl.Int64, "duration_ns": pl.Int64, "name": pl.String}


def number_of(plane: Plane) -> int | None:
    """The device number of a plane; ``None`` if its device is not read."""
    found = _DEVICE.match(plane.name)
    return int(found[2]) if found is not None else None


def properties_of(plane: Plane, number: int) -> DeviceProperties:
    """A plane's device. No profile has a GPU's model name: it has only its vendor."""
    major, minor = (plane.numbers.get(name, -1) for name in _CAPABILITY)
    name = plane.texts.get("device_type_string", "")[:1000]
    return DeviceProperties(
        id=number,
        name=name or None,
        memory_bytes=_within(plane.numbers.get("memory_size"), 1 << 60),
        compute_capability=(major, minor) if 0 < major < 1 << 16 and 0 <= minor < 1 << 16 else None,
        multiprocessors=_within(plane.numbers.get("core_count"), 1 << 20),
    )


def _within(number: int | None, most: int) -> int | None:
    return number if number is not None and 0 < number < most else None


def device_events(plane: Plane, number: int) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The device's events; and the programs, and the operations that hold others.

    The lines that XProf derives from the streams of a GPU (its "XLA Ops") would count the same time again.
    """
    streams = {place: int(found[1]) for place, line in enumerate(plane.lines) if (found := _STREAM.match(line.name))}
    ranges = [_on_lines(plane, _PROGRAMS)]
    if streams:
        place = pl.col("line").replace_strict(streams, default=None, return_dtype=pl.Int64)
        rows = plane.events.with_columns(place.alias("stream")).filter(pl.col("stream").is_not_null())
        events = [_of_streams(rows, number, plane)]
    else:
        operations, holders = _without_holders(_on_lines(plane, _OPERATIONS))
        lanes = [operations, _on_lines(plane, _BESIDE)]
        instruction, kind = pl.col("name").str.extract(_INSTRUCTION), pl.lit("accelerator").alias("kind")
        events = [
            _completed(rows.with_columns(instruction, kind, pl.lit(lane).alias("stream")), number)
            for lane, rows in enumerate(lanes)
        ]
        ranges.append(holders)
    return pl.concat(events), pl.concat([part.select(*_RANGES) for part in ranges])


def device_steps(plane: Plane) -> pl.DataFrame:
    """The steps that the device was seen to do: ts_ns, duration_ns, name."""
    return _on_lines(plane, _STEPS).select(*_RANGES)


def _on_lines(plane: Plane, name: str) -> pl.DataFrame:
    places = [place for place, line in enumerate(plane.lines) if line.name == name]
    return plane.events.filter(pl.col("line").is_in(places))


def _of_streams(rows: pl.DataFrame, number: int, plane: Plane) -> pl.DataFrame:
    kind = (
        pl.when(pl.col("name").str.contains(_COPY.pattern))
        .then(pl.lit("memcpy"))
        .when(pl.col("name").str.contains(_SET.pattern))
        .then(pl.lit("memset"))
        .otherwise(pl.lit("kernel"))
    )
    told = rows["details"].drop_nulls().unique().to_list()
    nvidia = plane.texts.get("device_vendor", "").lower() == "nvidia"
    processors = _within(plane.numbers.get("core_count"), 1 << 20) if nvidia else None
    table = pl.DataFrame(
        [{"details": one, **_kernel(one, processors), **_copied(one)} for one in told],
        schema={"details": pl.String, **_FIELDS, "memories": pl.String},
    )
    found = rows.join(table, on="details", how="left", maintain_order="left")
    directions = (pl.col("name").str.extract(_COPY.pattern, group) for group in (1, 2))
    copy = pl.format("Memcpy {}to{}{}", *directions, pl.col("memories").fill_null(""))
    name = pl.when(kind == "memcpy").then(copy).otherwise(pl.col("name").str.strip_suffix(_DESCRIPTOR))
    return _completed(found.with_columns(name.alias("name"), kind.alias("kind")), number)


def _completed(rows: pl.DataFrame, number: int) -> pl.DataFrame:
    placed = rows.with_columns(pl.lit(number).alias("device"))
    missing = [pl.lit(None, dtype).alias(name) for name, dtype in _EVENTS.items() if name not in placed.columns]
    return placed.with_columns(missing).select(pl.col(name).cast(dtype) for name, dtype in _EVENTS.items())


def _without_holders(operations: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Operations without nested ones, and those with (loops, branches), whose time is that of the nested ones."""
    in_order = operations.sort("ts_ns", "duration_ns", descending=[False, True], maintain_order=True)
    end = pl.col("ts_ns") + pl.col("duration_ns")
    holds = (pl.col("ts_ns").shift(-1) < end) & (end.shift(-1) <= end)
    marked = in_order.with_columns(holds.fill_null(value=False).alias("holds"))
    return marked.filter(~pl.col("holds")), marked.filter("holds")


def _kernel(details: str, processors: int | None) -> dict[str, object]:
    """The fields of a kernel: ``regs:32 static_shared:0 dynamic_shared:512 grid:8,1,1 block:256,1,1 occ_pct:50``.

    On AMD they are ``private_mem`` and ``group_mem``, and an occupancy of 0 means that none was computed.
    """
    said: Mapping[str, str] = dict(part.split(":", 1) for part in details.split() if ":" in part)
    grid, block = _three(said.get("grid")), _three(said.get("block"))
    shared = [_number(said.get(key)) for key in ("static_shared", "dynamic_shared", "group_mem")]
    occupancy = _number((said.get("occ_pct") or "").split(".")[0])
    known = [size for size in shared if size is not None]
    blocks = _product(grid) / processors if grid and processors else None
    return {
        "grid": str(grid) if grid else None,
        "block": str(block) if block else None,
        "registers_per_thread": _number(said.get("regs")),
        "shared_memory_bytes": sum(known) if known else None,
        "occupancy_percent": float(occupancy) if occupancy and occupancy <= 100 else None,
        "blocks_per_sm": blocks,
        "warps_per_sm": blocks * -(-_product(block) // _WARP) if blocks and block else None,
    }


def _copied(details: str) -> dict[str, object]:
    """The fields of a copy: ``kind_src:pageable kind_dst:device size:4096 dest:0 async:1``; 0 bytes: not known."""
    size = _SIZE.search(details)
    memories = [memory.capitalize() for memory in _MEMORIES.findall(details)[:2]]
    return {
        "bytes": int(size[1]) or None if size else None,
        "memories": f" ({memories[0]} -> {memories[1]})" if len(memories) > 1 else "",
    }


def _three(text: str | None) -> list[int] | None:
    parts = [_number(part) for part in (text or "").split(",")]
    known = [part for part in parts if part]
    return known if len(known) == len(parts) == len("xyz") else None


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdecimal() and len(text) < 10 else None


def _product(sizes: Sequence[int]) -> int:
    product = 1
    for size in sizes:
        product *= size
    return product
