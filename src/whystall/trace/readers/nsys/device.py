"""Device activity: kernels, copies, sets and, where they were recorded as wholes, CUDA graphs."""

from __future__ import annotations

import re
from typing import Final

import polars as pl

from whystall.trace.readers.nsys.export import COPIES, GRAPHS, KERNELS, SETS, Export, known, named

_PLACE: Final = ("deviceId", "contextId", "streamId", "correlationId")
_DIMENSIONS: Final = tuple(f"{of}{axis}" for of in ("grid", "block") for axis in "XYZ")
# ENUM_CUDA_MEMCPY_OPER and ENUM_CUDA_MEM_KIND, in the words of CUPTI's own names (those of Kineto).
_DIRECTIONS: Final[dict[int | None, str]] = {
    1: "HtoD", 2: "DtoH", 3: "HtoA", 4: "AtoH", 5: "AtoA", 6: "AtoD", 7: "DtoA", 8: "DtoD", 9: "HtoH", 10: "PtoP",
    11: "unified HtoD", 12: "unified DtoH", 13: "unified DtoD",
}  # fmt: skip
_MEMORIES: Final[dict[int | None, str]] = {
    0: "Pageable",
    1: "Pinned",
    2: "Device",
    3: "Array",
    4: "Managed",
    5: "Device",
    6: "Managed",
}
_CAST: Final = re.compile(r"\((?:unsigned |signed )?(?:int|short|char|long|long long)\)(?=-?\d)")
_TRUTH: Final = re.compile(r"\(bool\)([01])(?!\d)")
_LAMBDA: Final = re.compile(r"\[lambda\(([^][]*)\) \(instance (\d+)\)\]")
_SCHEMA: Final = {
    "process": pl.Int64, "ts_ns": pl.Int64, "duration_ns": pl.Int64, "name": pl.String, "kind": pl.String,
    "device": pl.Int64, "stream": pl.Int64, "correlation": pl.Int64, "context": pl.Int64, "bytes": pl.Int64,
    "grid": pl.String, "block": pl.String, "registers_per_thread": pl.Int64, "shared_memory_bytes": pl.Int64,
    "blocks": pl.Int64, "threads": pl.Int64,
}  # fmt: skip


def read_device_events(export: Export) -> pl.DataFrame:
    """All device events of all processes: the columns of the schema, ``process``, and a kernel's blocks and threads."""
    kernels, copies, sets = _kernels(export), _copies(export), _sets(export)
    inside = pl.concat([part.select("process", "correlation") for part in (kernels, copies, sets)]).unique()
    # If a graph was recorded by its nodes, the row of the whole would count their time twice.
    graphs = _graphs(export).join(inside, on=["process", "correlation"], how="anti", maintain_order="left")
    if not graphs.is_empty():
        export.source.warnings.append(
            f"{len(graphs):,} launches of CUDA graphs were recorded as wholes: which kernels and copies ran in them is "
            "not known (nsys profile --cuda-graph-trace=node records them)"
        )
    return pl.concat([kernels, copies, sets, graphs])


def _completed(rows: pl.DataFrame, kind: str, *extra: pl.Expr | pl.Series) -> pl.DataFrame:
    placed = rows.with_columns(
        *extra,
        pl.lit(kind).alias("kind"),
        known("deviceId").alias("device"),
        known("streamId").alias("stream"),
        known("contextId").alias("context"),
        pl.col("correlationId").alias("correlation"),
    )
    missing = [pl.lit(None, dtype).alias(name) for name, dtype in _SCHEMA.items() if name not in placed.columns]
    return placed.with_columns(missing).select(pl.col(name).cast(dtype) for name, dtype in _SCHEMA.items())


def _kernels(export: Export) -> pl.DataFrame:
    more = ("registersPerThread", "staticSharedMemory", "dynamicSharedMemory", "demangledName", "shortName")
    rows = export.events_of(KERNELS, "globalPid", *_PLACE, *_DIMENSIONS, *more)
    named_by = rows.select(pl.coalesce("demangledName", "shortName")).to_series()
    names = {number: as_cupti(text) for number, text in export.names(named_by).items()}
    sizes = {of: [pl.col(f"{of}{axis}") for axis in "XYZ"] for of in ("grid", "block")}
    return _completed(
        rows,
        "kernel",
        named(named_by, names).alias("name"),
        *(pl.format("[{}, {}, {}]", *axes).alias(of) for of, axes in sizes.items()),
        pl.col("registersPerThread").alias("registers_per_thread"),
        _product(pl.col("staticSharedMemory") + pl.col("dynamicSharedMemory")).alias("shared_memory_bytes"),
        _product(*sizes["grid"]).alias("blocks"),
        _product(*sizes["block"]).alias("threads"),
    )


def _product(first: pl.Expr, *others: pl.Expr) -> pl.Expr:
    """The product, or null where it cannot be a size: a damaged file holds any number."""
    product = first.cast(pl.Float64)
    for other in others:
        product *= other.cast(pl.Float64)
    return pl.when(product.is_between(0, 2.0**53)).then(product).cast(pl.Int64)


def _copies(export: Export) -> pl.DataFrame:
    rows = export.events_of(COPIES, "globalPid", *_PLACE, "bytes", "copyKind", "srcKind", "dstKind")
    kinds = rows.select("copyKind", "srcKind", "dstKind").unique()
    names = [copy_name(*kind) for kind in kinds.rows()]
    keys = ["copyKind", "srcKind", "dstKind"]
    found = rows.join(
        kinds.with_columns(pl.Series("name", names, pl.String)),
        on=keys, how="left", nulls_equal=True, maintain_order="left",
    )  # fmt: skip
    return _completed(found, "memcpy", _size())


def _sets(export: Export) -> pl.DataFrame:
    rows = export.events_of(SETS, "globalPid", *_PLACE, "bytes", "memKind")
    kinds = rows["memKind"].to_list()
    return _completed(rows, "memset", pl.Series("name", list(map(set_name, kinds)), pl.String), _size())


def _size() -> pl.Expr:
    return pl.when(pl.col("bytes") >= 0).then("bytes").alias("bytes")


def _graphs(export: Export) -> pl.DataFrame:
    rows = export.events_of(GRAPHS, "globalPid", *_PLACE, "graphId")
    label = (
        pl.when(pl.col("graphId").is_null()).then(pl.lit("CUDA graph")).otherwise(pl.format("CUDA graph {}", "graphId"))
    )
    return _completed(rows, "kernel", label.alias("name"))


def copy_name(direction: int | None, source: int | None, target: int | None) -> str:
    """CUPTI's name for a copy.

    >>> copy_name(1, 0, 2)
    'Memcpy HtoD (Pageable -> Device)'
    """
    memories = f" ({_MEMORIES.get(source, 'Unknown')} -> {_MEMORIES.get(target, 'Unknown')})"
    return f"Memcpy {_DIRECTIONS.get(direction, 'Unknown')}{'' if source is target is None else memories}"


def set_name(memory: int | None) -> str:
    """CUPTI's name for a set.

    >>> set_name(2)
    'Memset (Device)'
    """
    return f"Memset ({_MEMORIES.get(memory, 'Unknown')})"


def as_cupti(name: str) -> str:
    """A kernel's name as CUPTI demangles it, so that it is the same kernel in an export and in a Kineto trace.

    >>> as_cupti("void f<(int)4, (bool)0, [lambda(int) (instance 1)]>(<unnamed>::T)")
    'void f<4, false, {lambda(int)#1}>((anonymous namespace)::T)'
    """
    if len(name) > 1 << 16:
        return name
    text = name.replace("<unnamed>", "(anonymous namespace)")
    text = _CAST.sub("", text)
    text = _TRUTH.sub(lambda match: "true" if match[1] == "1" else "false", text)
    return _LAMBDA.sub(r"{lambda(\1)#\2}", text)
