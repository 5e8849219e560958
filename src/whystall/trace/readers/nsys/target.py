"""An export's machine and clock: the devices of each process, and the origin of its times."""

from __future__ import annotations

from typing import Final

from whystall.trace.metadata import DeviceProperties
from whystall.trace.readers.nsys.export import DEVICES, GPUS, SPAN, START, Export, process_number

_LATEST_NS: Final = 1 << 61
_GPU: Final[dict[str, type[int | str]]] = {
    "id": int, "name": str, "totalMemory": int, "computeMajor": int, "computeMinor": int, "smCount": int,
}  # fmt: skip
_LONGEST_NAME: Final = 1000


def base_of(export: Export, first_ns: int) -> int:
    """The offset that makes the export's times count from 1970, in nanoseconds; 0 where it is unknown.

    Times count from the session's start: the span of the analysis states the clock at that moment (0 in many exports).
    Those of ``nsys export --ts-normalize`` count from 1970 already. ``first_ns`` is the first time of any event.
    """
    began = _first(export, START, "utcEpochNs")
    if began is None or not 0 < began < _LATEST_NS or first_ns > began // 2:
        return 0
    start, stop = _first(export, SPAN, "startTime"), _first(export, SPAN, "stopTime")
    counted_from = start if start is not None and stop is not None and 0 <= start <= first_ns <= stop else 0
    return began - counted_from


def _first(export: Export, table: str, column: str) -> int | None:
    found = export.source.read(table, {column: int})[column].drop_nulls()
    return None if found.is_empty() else int(found[0])


def devices_of(export: Export) -> dict[int, list[DeviceProperties]]:
    """The devices that each process saw, by process number and under its own device numbers; key 0 is any process.

    A process with restricted visibility numbers its devices from 0: without the table that maps them, only the
    properties that all devices share are known.
    """
    gpus = {row[0]: row[1:] for row in export.source.read(GPUS, _GPU).rows() if row[0] is not None}
    seen = export.source.read(DEVICES, dict.fromkeys(("gpuId", "cudaId", "pid"), int)).drop_nulls()
    found: dict[int, list[DeviceProperties]] = {}
    for gpu, number, pid in seen.unique().sort("pid", "cudaId", "gpuId").rows():
        if gpu in gpus:
            found.setdefault(pid, []).append(_properties(number, *gpus[gpu]))
    if len(set(gpus.values())) == 1:
        found[0] = [_properties(number, *gpu) for number, gpu in sorted(gpus.items())]
    return found


def _properties(
    number: int, name: str | None, memory: int | None, major: int | None, minor: int | None, processors: int | None
) -> DeviceProperties:
    return DeviceProperties(
        id=number,
        name=name[:_LONGEST_NAME] if name else None,
        memory_bytes=memory if memory is not None and memory > 0 else None,
        compute_capability=None if major is None or minor is None else (major, minor),
        multiprocessors=processors if processors is not None and processors > 0 else None,
    )


def own_devices(found: dict[int, list[DeviceProperties]], process: int) -> tuple[DeviceProperties, ...]:
    """The devices of one process, by its identifier."""
    return tuple(found.get(process_number(process)) or found.get(0) or ())
