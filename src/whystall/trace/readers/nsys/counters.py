"""GPU metrics: samples of device counters over time, for each process those of the devices that it used.

The low byte of ``typeId`` is the number of the GPU in ``TARGET_INFO_GPU``. Metric numbers restart for each type (Nsight
Systems' own recipe ``nvlink_sum`` joins so). ``TARGET_INFO_CUDA_DEVICE`` maps the GPU to the number that a process
uses.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import polars as pl

from whystall.trace.counters import with_units
from whystall.trace.readers.nsys.export import COUNTER_NAMES, COUNTERS, DEVICES, GPUS, Export, process_number

MOST_SAMPLES: Final = 1 << 24
"""Nearly a minute of one device with thirty metrics at 10 kHz; each sample takes some 80 bytes while it is read."""
_GPU_BITS: Final = 0xFF
_MOST_DEVICES: Final = 1 << 15
_DAY_NS: Final = 86_400 * 1_000_000_000
_ANY_PROCESS: Final = 0
_FEW: Final = 3
_LONGEST_NAME: Final = 60
_KEY: Final = ("typeId", "metricId")


@dataclass(frozen=True, slots=True)
class Counters:
    """The samples of all GPUs: ``gpu``, and ``ts_ns``, ``name``, ``value`` and ``unit`` as in a trace."""

    samples: pl.DataFrame
    numbers: dict[int, dict[int, int]]
    """By process (0: any) the numbers that it knows GPUs by."""
    unknown: list[int]
    """GPUs that no process claims as one of its devices."""

    def of(self, process: int, *, first: bool) -> pl.DataFrame:
        """The samples of a process's devices; those of unknown GPUs come without a device, with the ``first`` one."""
        known = self.numbers.get(process_number(process)) or self.numbers.get(_ANY_PROCESS, {})
        gpu = pl.col("gpu")
        device = gpu.replace_strict(known, default=None, return_dtype=pl.Int32) if known else pl.lit(None, pl.Int32)
        own = self.samples.filter(gpu.is_in([*known, *(self.unknown if first else [])]))
        return own.with_columns(device=device).drop("gpu")


def read_counters(export: Export, first_ns: int) -> Counters | None:
    """The samples, with a sentence on those of devices that no process used; ``None`` without any.

    ``first_ns`` is the first time of any event: sampling begins before it.
    """
    if not export.source.has(COUNTERS):
        return None
    samples, keys = _samples(export, first_ns)
    numbers, used = _numbers(export)
    sampled = sorted({kind & _GPU_BITS for kind, _ in keys})
    placed = {gpu for of_process in numbers.values() for gpu in of_process}
    unused = [gpu for gpu in sampled if used and gpu not in used]
    unknown = [gpu for gpu in sampled if gpu not in placed and gpu not in unused]
    told = _told(export, keys, unknown)
    code = samples["code"]
    found = samples.drop("code").with_columns(told[column].gather(code) for column in ("gpu", "name", "unit"))
    if unused:
        export.source.warnings.append(
            f"GPU metrics of {len(unused):,} GPUs that no process of the job used are left out"
            if len(unused) > 1
            else "GPU metrics of a GPU that no process of the job used are left out"
        )
    if unknown:
        which = _few(told.filter(pl.col("gpu").is_in(unknown))["name"])
        export.source.warnings.append(
            f"the export does not say which device of the job GPU {', '.join(map(str, unknown))} is: the GPU metrics "
            f"sampled there ({which}) belong to no device in the report"
        )
    return Counters(found, numbers, unknown)


def _samples(export: Export, first_ns: int) -> tuple[pl.DataFrame, list[tuple[int, int]]]:
    """The sound samples (``ts_ns``, ``value``, ``code``), and by code the type and metric."""
    wanted = dict.fromkeys(("timestamp", *_KEY, "value"), int)
    sound = pl.col("timestamp").is_between(first_ns - _DAY_NS, first_ns + _DAY_NS)
    keys: dict[tuple[int, int], int] = {}
    parts = [pl.DataFrame(schema={"ts_ns": pl.Int64, "value": pl.Float64, "code": pl.UInt32})]
    rows = 0
    for part in export.source.parts(COUNTERS, wanted, tuple(wanted), most=MOST_SAMPLES + 1):
        read = part.head(MOST_SAMPLES - rows)
        kept = read.drop_nulls().filter(sound)
        pairs = kept.select(_KEY).unique().sort(_KEY).rows()
        codes = [keys.setdefault(pair, len(keys)) for pair in pairs]
        known = pl.DataFrame(pairs, schema=dict.fromkeys(_KEY, pl.Int64), orient="row")
        coded = kept.join(
            known.with_columns(code=pl.Series(codes, dtype=pl.UInt32)), on=_KEY, how="left", maintain_order="left"
        )
        parts.append(coded.select(pl.col("value").cast(pl.Float64), "code", ts_ns="timestamp").select(parts[0].columns))
        export.set_aside("samples of GPU metrics whose time or value cannot be true", len(read) - len(kept))
        rows += len(part)
    if rows > MOST_SAMPLES:
        export.source.warnings.append(
            f"of the GPU metrics the first {MOST_SAMPLES:,} samples were read and the others left out: record fewer "
            "metrics, or less often (--gpu-metrics-frequency)"
        )
    return pl.concat(parts), list(keys)


def _numbers(export: Export) -> tuple[dict[int, dict[int, int]], set[int]]:
    """By process the numbers that it knows GPUs by, and the GPUs that any process used.

    A GPU that is several devices (MIG) has none.
    """
    used = export.source.read(DEVICES, dict.fromkeys(("gpuId", "cudaId", "pid"), int)).drop_nulls().unique()
    used = used.filter(pl.col("gpuId").is_between(0, _GPU_BITS) & pl.col("cudaId").is_between(0, _MOST_DEVICES))
    found: dict[int, dict[int, int]] = {}
    for pid, gpu, devices in used.group_by("pid", "gpuId").agg("cudaId").sort("pid", "gpuId").rows():
        if len(devices) == 1:
            found.setdefault(pid, {})[gpu] = devices[0]
    gpus = [
        one for one in export.source.read(GPUS, {"id": int})["id"].unique().to_list() if one in range(_GPU_BITS + 1)
    ]
    if used.is_empty() and len(gpus) == 1:
        # A process that sees a device of a machine with one GPU knows it as the first.
        found[_ANY_PROCESS] = {gpus[0]: 0}
    return found, set(used["gpuId"].to_list())


def _told(export: Export, keys: list[tuple[int, int]], unknown: list[int]) -> pl.DataFrame:
    """The GPU, a name and the unit, by type and metric.

    A name that occurs twice on one device gets its numbers as a suffix; one on an unknown device gets its GPU's number.
    """
    names = export.source.read(COUNTER_NAMES, dict.fromkeys(_KEY, int) | {"metricName": str}).drop_nulls()
    names = names.unique(_KEY, keep="first", maintain_order=True)
    told = pl.DataFrame(keys, schema=dict.fromkeys(_KEY, pl.Int64), orient="row")
    gpu, name = pl.col("gpu"), pl.col("name")
    told = told.join(names.rename({"metricName": "name"}), on=_KEY, how="left", maintain_order="left").with_columns(
        name.fill_null(pl.format("unnamed metric {}", "metricId")),
        gpu=(pl.col("typeId") & _GPU_BITS).cast(pl.Int16),
    )
    alone = pl.len().over("gpu", "name") == 1
    told = with_units(told).with_columns(pl.when(alone).then(name).otherwise(pl.format("{} ({}:{})", name, *_KEY)))
    told = told.with_columns(pl.when(gpu.is_in(unknown)).then(pl.format("{} (GPU {})", name, gpu)).otherwise(name))
    return told.with_columns(name.cast(pl.Enum(told["name"].unique(maintain_order=True))))


def _few(names: pl.Series) -> str:
    texts = names.cast(pl.String).unique().sort().to_list()
    more = f" and {len(texts) - _FEW:,} more" if len(texts) > _FEW else ""
    return ", ".join(text[:_LONGEST_NAME] for text in texts[:_FEW]) + more
